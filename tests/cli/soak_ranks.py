#!/usr/bin/env python3
"""Kills or stops a random rank at a random time, many times: every run must end soon, with exit code 4, one line that
names the rank, and nothing left behind. Not part of `make test`: soak_ranks.py PROGRAM [--runs 200]
"""
import argparse
import contextlib
import os
import pathlib
import random
import signal
import subprocess
import tempfile
import time

XL = pathlib.Path(__file__).resolve().parent.parent.parent / "models" / "shapes-xl"
LONG = ["--num-images-per-prompt", "2", "--num-inference-steps", "900"]
CONFIGURATIONS = [[*LONG, "--use-cfg-parallel"], [*LONG, "--ulysses-degree", "3"],
                  [*LONG, "--ring-degree", "2", "--use-cfg-parallel"], [*LONG, "--tensor-parallel-degree", "2"],
                  [*LONG, "--pipefusion-parallel-degree", "2", "--num-pipeline-patch", "4", "--data-parallel-degree", "2"],
                  [*LONG, "--model", str(XL), "--displaced-patch-degree", "2"],
                  # Much to decode, by all ranks together.
                  ["--num-images-per-prompt", "600", "--num-inference-steps", "1", "--ring-degree", "2"]]
TIMEOUT = 8  # seconds, for ranks that are stopped
BOUND = 10


def alive(process):
    with contextlib.suppress(OSError):
        return "\nState:\tZ" not in pathlib.Path(f"/proc/{process}/status").read_text()
    return False


def hurt(program, words, number, delay, choose, folder):
    """Returns what is wrong, or None."""
    process = subprocess.Popen([program, "generate", "a red circle on a white background", "--timeout", str(TIMEOUT), *words],
                               cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while not (ranks := [int(word) for word in children.read_text().split()]):
        time.sleep(0.001)
    time.sleep(delay)
    ranks = [int(word) for word in children.read_text().split()]
    victim = choose(len(ranks))
    start = time.monotonic()
    os.kill(ranks[victim], number)
    try:
        out, err = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        return "hangs"
    seconds = time.monotonic() - start
    lines = [line for line in err.splitlines() if line.startswith("tessera:")]
    if process.returncode != 4 or out:
        return f"exit code {process.returncode}, {out!r}, {lines}"
    if len(lines) != 1 or f"[rank {victim}]" not in lines[0]:
        return f"says {lines}, the victim was {victim}"
    if seconds > BOUND:
        return f"took {seconds:.1f} s"
    if any(alive(rank) for rank in ranks):
        return "a rank lives on"
    return f"left {os.listdir(folder)}" if os.listdir(folder) else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    draw = random.Random(args.seed)
    failed = 0
    for run in range(args.runs):
        words = CONFIGURATIONS[run % len(CONFIGURATIONS)]
        number = draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP])
        delay = draw.uniform(0, 5)
        with tempfile.TemporaryDirectory() as folder:
            wrong = hurt(os.path.abspath(args.program), words, number, delay, draw.randrange, folder)
        if wrong:
            failed += 1
            print(f"run {run}: {' '.join(words)}, {number.name} after {delay:.2f} s: {wrong}", flush=True)
    print(f"{args.runs - failed} of {args.runs} runs ended as they should")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
