#!/usr/bin/env python3
"""Measures two ranks with a core each, of which the second shares its core with a process that spins and is thus about half as fast.

The speed of a step is given as a share of the sum of both ranks' speeds alone, with equal shares of the work and with those that
tessera plan picks for a machine with the two measured speeds. For every method, a round runs one rank on the free core, one on the other,
and both ways of sharing, so that what is compared is seconds apart on a host that changes its speed; the median of the rounds counts.
Without guidance, so that a step is one pass.
"""
import argparse
import json
import os
import pathlib
import signal
import statistics
import subprocess
import tempfile

import models

ROOT = pathlib.Path(__file__).resolve().parent.parent
TESSERA = ROOT / "build" / "tessera"
METHODS = {"Ulysses": ["--ulysses-degree", "2"], "Ring": ["--ring-degree", "2"], "gathered keys": ["--kv-gather-degree", "2"],
           "PipeFusion": ["--pipefusion-parallel-degree", "2", "--num-pipeline-patch", "4", "--warmup-steps", "1"]}


def spin_on(core):
    """The number of a process that never rests."""
    child = os.fork()
    if child == 0:
        os.sched_setaffinity(0, {core})
        while True:
            pass
    return child


def step_seconds(args, request, flags, folder, core=None):
    """The median of the steady steps of a run, that of one rank on `core`."""
    report = folder / "report.json"
    command = [str(TESSERA), "generate", "a red circle", *request, *flags, "--threads", "1", "--seed", "1", "-q", "--report", str(report),
               "--output-type", "latent", "-o", str(folder / "latents.safetensors")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=dict(os.environ, OMP_NUM_THREADS="1"),
                   preexec_fn=None if core is None else (lambda: os.sched_setaffinity(0, {core})))
    (folder / "latents.safetensors").unlink()
    steps = json.loads(report.read_text())["step_seconds"]
    return statistics.median(steps[2:-1] if "--pipefusion-parallel-degree" in flags else steps[1:])


def picked_shares(args, request, speeds, folder):
    """Those that a plan gives two devices of these speeds, the same in all layouts."""
    machine = json.loads(args.machine.read_text()) | {"speeds": speeds}
    path = folder / "machine.json"
    path.write_text(json.dumps(machine))
    done = subprocess.run([str(TESSERA), "plan", "a red circle", *request, "--devices", "2", "--machine", str(path), "--json"],
                          stdout=subprocess.PIPE, text=True, check=True)
    return next(each["options"]["rank_shares"] for each in json.loads(done.stdout)["layouts"] if "rank_shares" in each["options"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", type=pathlib.Path, required=True, help="calibrated machine file")
    parser.add_argument("--size", type=int, default=512, help="pixels of a side")
    parser.add_argument("--layers", type=int, default=models.LAYERS["pixart"], help="blocks of PixArt-Sigma-XL's shape")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--methods", nargs="*", choices=METHODS, default=list(METHODS))
    args = parser.parse_args()
    model = models.folder_with("pixart", args.layers, 1, models.MODELS)
    request = ["--model", str(model), "--height", str(args.size), "--width", str(args.size), "--no-resolution-binning", "--dtype", args.dtype,
               "--guidance-scale", "1", "--num-inference-steps", str(args.steps)]
    found = {name: ([], []) for name in args.methods}
    free, busy = sorted(os.sched_getaffinity(0))[:2]
    spinning = spin_on(busy)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            folder = pathlib.Path(scratch)
            for _ in range(args.rounds):
                for name in args.methods:
                    alone = [step_seconds(args, request, [], folder, core) for core in (free, busy)]
                    speeds = [1, alone[0] / alone[1]]
                    shares = picked_shares(args, request, speeds, folder)
                    steps = [step_seconds(args, request, [*METHODS[name], *flags], folder) for flags in ([], ["--rank-shares", shares])]
                    for reached, step in zip(found[name], steps):
                        reached.append(alone[0] / step / sum(speeds))
                    print(f"{name}: alone {alone[0]:.3f} s and {alone[1]:.3f} s; equal {found[name][0][-1]:.3f}, {shares} "
                          f"{found[name][1][-1]:.3f}", flush=True)
    finally:
        os.kill(spinning, signal.SIGKILL)
        os.waitpid(spinning, 0)
    for name, (equal, unequal) in found.items():
        print(f"{name}: equal shares reach {statistics.median(equal):.2f} of both ranks' speeds, those of the plan {statistics.median(unequal):.2f}")


if __name__ == "__main__":
    main()
