#!/usr/bin/env python3
"""Measures the few ratios that a front page needs, in about half an hour, and prints them as a table of Markdown, with the commit and
the processor: compare.py for one process against diffusers, ranks.py for two ranks against one. Run it on an idle machine, from a built
tree without changes.
"""
import argparse
import os
import pathlib
import platform
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# The titles of a row, and how its line of compare.py begins.
AGAINST_DIFFUSERS = (
    ("a denoising step", "denoiser-300", "eager"),
    ("decoding an image", "decoder", "default"),
)
METHODS = {"cfg": "CFG", "ulysses": "Ulysses", "ring": "Ring", "gather": "gathered keys and values", "tensor": "tensor", "displaced": "displaced patches",
           "pipefusion": "PipeFusion"}
RATIO = r"([\d.]+) \[([\d.]+) \.\. ([\d.]+)\]"


def lines_of(script, *arguments):
    command = [sys.executable, str(ROOT / "bench" / script), *arguments]
    print("summary:", *command[1:], file=sys.stderr, flush=True)
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()


def one(lines, pattern):
    found = [match for line in lines if (match := re.match(pattern, line))]
    if len(found) != 1:
        sys.exit(f"summary: {len(found)} lines match {pattern}")
    return found[0].groups()


def dtypes():
    """bf16 first where the processor multiplies it."""
    return ["bf16", "fp32"] if "avx512_bf16" in pathlib.Path("/proc/cpuinfo").read_text() else ["fp32"]


def processor():
    text = pathlib.Path("/proc/cpuinfo").read_text()
    name = re.search(r"model name\s*: (.*)", text)
    has = [title for flag, title in (("amx_bf16", "AMX"), ("avx512_bf16", "AVX-512 bf16"), ("avx512f", "AVX-512"), ("avx2", "AVX2"))
           if re.search(rf"\b{flag}\b", text)]
    return f"{name.group(1).strip() if name else platform.machine()} ({has[0] if has else 'no AVX2'})"


def table(rounds):
    threads = len(os.sched_getaffinity(0))
    rows = []
    for dtype in dtypes():
        lines = lines_of("compare.py", "--rounds", str(rounds), "--threads", str(threads), "--dtypes", dtype, "--peers",
                         "--parts", *(part for _, part, _ in AGAINST_DIFFUSERS))
        for title, part, peer in AGAINST_DIFFUSERS:
            middle, least, most = one(lines, rf"{part} +{dtype} .* against {peer} +time {RATIO}")
            rows.append((f"{title}, {dtype}, {threads} threads", "diffusers", f"{1 / float(middle):.2f}",
                         f"{1 / float(most):.2f} to {1 / float(least):.2f}"))
    lines = lines_of("ranks.py", "--rounds", str(rounds), "--sizes", "512", "--dtype", dtypes()[0])
    for name, title in METHODS.items():
        middle, least, most = one(lines, rf"pixart .* {name} +on 2 ranks: times as fast: step {RATIO}")
        rows.append((f"a denoising step, {dtypes()[0]}, 2 ranks: {title}", "one rank", f"{float(middle):.2f}",
                     f"{float(least):.2f} to {float(most):.2f}"))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    git = ["git", "-C", str(ROOT)]
    commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    changed = subprocess.run([*git, "status", "--porcelain", "--", "src", "cmake", "CMakeLists.txt"], check=True, stdout=subprocess.PIPE,
                             text=True).stdout
    if changed:
        sys.exit("summary: src/ has changes that are not committed, so no commit names what would be measured")
    rows = table(args.rounds)
    print("\n".join(["| what | against | times as fast | least to most |", "|---|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows), "",
                     "The model has the shape of PixArt-Sigma-XL and the SDXL VAE, with random weights; images have 512 x 512 pixels. The "
                     f"figures are the medians of {args.rounds} rounds in which both sides took turns, at commit {commit} on "
                     f"{len(os.sched_getaffinity(0))} cores of {processor()}; a rank has one thread."]))


if __name__ == "__main__":
    main()
