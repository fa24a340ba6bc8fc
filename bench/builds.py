#!/usr/bin/env python3
"""Alternates two builds of Tessera on one machine in one run: what a change costs or gains, part by part.

    bench/builds.py --before ../before/build [--after build]

Every ratio is the time of the later build divided by that of the earlier one: the median over rounds, the minimum and the
maximum. The models have random weights and the real shapes of PixArt-Sigma-XL and the SDXL VAE, as in bench/compare.py. Parts:
a step of the denoiser (with prompts of 25 and of 300 tokens), the decoder, whole commands, and steps of two ranks with each
method, one thread per rank. TESSERA_MAX_ISA (core/host.h) limits the instruction set of both builds.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import models
from compare import ROOT, Peer
from ranks import methods


def in_turns(sides, rounds):
    """The ratios after / before of each round; the side that begins alternates."""
    ratios = []
    for number in range(rounds):
        order = ("before", "after") if number % 2 == 0 else ("after", "before")
        seconds = {name: sides[name]() for name in order}
        ratios.append({key: seconds["after"][key] / seconds["before"][key] for key in seconds["after"]})
    return ratios


def show(name, ratios):
    for key in ratios[0]:
        values = [ratio[key] for ratio in ratios]
        print(f"{name + (' ' + key if key else ''):44} {statistics.median(values):.3f} "
              f"[{min(values):.3f} .. {max(values):.3f}]  ({len(values)} rounds)", flush=True)


def compare_part(builds, model, part, dtype, threads, size, rounds):
    shape = [part, str(model), dtype, str(threads), str(size), str(size)]
    peers = {name: Peer([str(build / "bench" / "tessera_bench"), "worker", *shape], threads)
             for name, build in builds.items()}
    sides = {name: (lambda peer=peer: {"": peer()[0]}) for name, peer in peers.items()}
    in_turns(sides, 1)  # warm up
    show(f"{part} {dtype} {threads} thread{'s' if threads > 1 else ''}", in_turns(sides, rounds))
    for peer in peers.values():
        peer.close()


def run_command(build, model, dtype, size, steps, threads, flags):
    """Seconds of each part, from the command's report. Builds may read weights in different parts, so reading and the text
    encoder count as one."""
    with tempfile.TemporaryDirectory() as scratch:
        report = pathlib.Path(scratch) / "report.json"
        command = [str(build / "tessera"), "generate", "a red circle", "--model", str(model), "--dtype", dtype, "--threads",
                   str(threads), "--num-inference-steps", str(steps), "--height", str(size), "--width", str(size), "--seed",
                   "1", "--no-resolution-binning", "-o", str(report.with_suffix(".png")), "--report", str(report), "-q", *flags]
        if subprocess.run(command, stdout=subprocess.DEVNULL, env=dict(os.environ, OMP_NUM_THREADS=str(threads))).returncode:
            sys.exit(f"builds: {' '.join(command)} failed")
        values = json.loads(report.read_text())
        seconds = values["seconds"]
        if flags:
            return {"step": statistics.median(values["step_seconds"][2:-1])}
        return {"load and encode": seconds["load"] + seconds["encode"], "denoise": seconds["denoise"],
                "decode": seconds["decode"], "total": seconds["total"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=pathlib.Path, required=True, help="the build folder of an earlier version")
    parser.add_argument("--after", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--size", type=int, default=512, help="pixels of a side")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--dtypes", nargs="*", default=["bf16", "fp32"])
    parser.add_argument("--parts", nargs="*", default=["denoiser", "denoiser-300", "decoder", "command", "ranks"])
    parser.add_argument("--steps", type=int, default=7, help="denoising steps of two ranks")
    models.add_options(parser)
    parser.set_defaults(layers=4)
    args = parser.parse_args()
    builds = {"before": args.before, "after": args.after}
    model = models.folder_of(args)
    for part in args.parts:
        for dtype in args.dtypes:
            if part == "ranks":
                for method, flags in methods(2, 4).items():
                    sides = {name: (lambda build=build: run_command(build, model, dtype, args.size, args.steps, 1, flags))
                             for name, build in builds.items()}
                    show(f"two ranks {dtype} {method}", in_turns(sides, args.rounds))
                continue
            for threads in args.threads:
                if part != "command":
                    compare_part(builds, model, part, dtype, threads, args.size, args.rounds)
                    continue
                sides = {name: (lambda build=build: run_command(build, model, dtype, args.size, 2, threads, []))
                         for name, build in builds.items()}
                show(f"command {dtype} {threads} thread{'s' if threads > 1 else ''}:", in_turns(sides, args.rounds))


if __name__ == "__main__":
    main()
