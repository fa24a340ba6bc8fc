#!/usr/bin/env python3
"""One rank against several on this machine, one thread a rank: time of a denoising step, bytes sent, time waited, memory.

Random weights of PixArt-Sigma-XL's real shape. Every round runs the command with one rank and then with each method, so
that a ratio is of two runs of the same round. Bytes are those of the report against the closed forms of docs/parallel.md.
"apart" is what the machine allows: as many runs of one rank at once as there are ranks, which share no work. A rank alone is
pinned to its share of the cores as each of several is. TESSERA_MAX_ISA (core/cpu.h) caps the instruction set of all runs.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
STEADY = slice(2, -1)  # steps that count: a pipeline fills in the first ones and empties in the last
SAMPLES, PATCH, ROW_PIXELS, LATENT_CHANNELS = 2, 2, 8, 4  # guidance: two samples of one picture


def methods(ranks, patches):
    """Name -> flags."""
    table = {"cfg": ["--use-cfg-parallel"]} if ranks == 2 else {}
    table["ulysses"] = ["--ulysses-degree", str(ranks)]
    table["ring"] = ["--ring-degree", str(ranks)]
    table["tensor"] = ["--tensor-parallel-degree", str(ranks)]
    table["pipefusion"] = ["--pipefusion-parallel-degree", str(ranks), "--num-pipeline-patch", str(patches),
                           "--warmup-steps", "1"]
    return table


def closed_form(method, ranks, size, config, bytes_per_element):
    """Bytes that the busiest rank sends in a step, without the latents."""
    width = config["num_attention_heads"] * config["attention_head_dim"]
    layers = config["num_layers"]
    tokens = (size // ROW_PIXELS // PATCH) ** 2
    activation = SAMPLES * tokens * width * bytes_per_element  # of one layer, all tokens
    share = (ranks - 1) / ranks
    return {"cfg": 0,
            "ulysses": 4 * activation / ranks * share * layers,  # queries, keys, values and the result
            "ring": 2 * activation / ranks * (ranks - 1) * layers,  # keys and values
            "tensor": 3 * 2 * activation * share * layers,  # three sums a layer, each scattered and gathered
            "pipefusion": activation}[method]  # once to the next stage


def pin(rank, ranks):
    """This process to the cores that rank `rank` of `ranks` with one thread each has in a run: see launch/cores.cc."""
    cores = sorted(os.sched_getaffinity(0))
    each = len(cores) // ranks
    if each >= 1:
        os.sched_setaffinity(0, cores[rank * each:(rank + 1) * each])


def start(model, size, dtype, steps, flags, report, pinned=None):
    command = [str(ROOT / "build" / "tessera"), "generate", "a red circle", "--model", str(model), "--dtype", dtype,
               "--threads", "1", "--num-inference-steps", str(steps), "--height", str(size), "--width", str(size),
               "--seed", "1", "--no-resolution-binning", "--output-type", "latent", "-o", str(report.with_suffix(".safetensors")),
               "--report", str(report), "-q", *flags]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, env=dict(os.environ, OMP_NUM_THREADS="1"),
                            preexec_fn=(lambda: pin(*pinned)) if pinned else None)


def run(model, size, dtype, steps, flags, report, pinned=None):
    if start(model, size, dtype, steps, flags, report, pinned).wait() != 0:
        sys.exit(f"bench: the run with {' '.join(flags) or 'one rank'} failed")
    return json.loads(report.read_text())


def run_apart(model, size, dtype, steps, ranks, report):
    """Median seconds of a step while other ranks' whole work goes on beside it."""
    reports = [report.with_name(f"apart-{rank}.json") for rank in range(ranks)]
    if any([process.wait() for process in [start(model, size, dtype, steps, [], each, (rank, ranks))
                                           for rank, each in enumerate(reports)]]):
        sys.exit("bench: a run failed")
    return statistics.mean(statistics.median(json.loads(each.read_text())["step_seconds"][STEADY]) for each in reports)


def sent_bytes(rank, ignored):
    """Of the rank's denoising steps: all that is counted by axis, without what is sent once a run."""
    return sum(entry["bytes"] for entry in rank["communication"] if entry["axis"] not in ignored)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", type=int, nargs="*", default=[512, 1024], help="pixels of a side")
    parser.add_argument("--layers", type=int, default=28, help="transformer blocks (28 is the real model)")
    parser.add_argument("--text-layers", type=int, default=4, help="of the text encoder (24 is T5-XXL: 9.5 GB)")
    parser.add_argument("--steps", type=int, default=6, help="denoising steps; the first two and the last are not counted")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--patches", type=int, default=4, help="of PipeFusion")
    parser.add_argument("--methods", nargs="*", help="cfg, ulysses, ring, tensor, pipefusion (default: all)")
    parser.add_argument("--no-shared-memory", action="store_true", help="messages through the loopback device")
    parser.add_argument("--models", type=pathlib.Path, default=ROOT / "build" / "bench-models")
    args = parser.parse_args()
    model = args.models / f"sigma-{args.layers}-{args.text_layers}"
    subprocess.run([sys.executable, str(ROOT / "bench" / "compare.py"), "--make-model", str(model), str(args.layers),
                    str(args.text_layers)], check=True)
    config = json.loads((model / "transformer" / "config.json").read_text())
    table = methods(args.ranks, args.patches)
    more = ["--no-shared-memory"] if args.no_shared_memory else []
    chosen = args.methods or list(table)
    with tempfile.TemporaryDirectory() as scratch:
        report = pathlib.Path(scratch) / "report.json"
        for size in args.sizes:
            speedups, last, apart = {name: [] for name in chosen}, {}, []
            for number in range(args.rounds):
                together = {}
                order = ["alone", "apart", *chosen]
                for name in order if number % 2 == 0 else reversed(order):
                    if name == "apart":
                        together[name] = run_apart(model, size, args.dtype, args.steps, args.ranks, report)
                        continue
                    flags, pinned = ([], (0, args.ranks)) if name == "alone" else (table[name] + more, None)
                    last[name] = run(model, size, args.dtype, args.steps, flags, report, pinned)
                    together[name] = statistics.median(last[name]["step_seconds"][STEADY])
                apart.append(args.ranks * together["alone"] / together["apart"])
                for name in chosen:
                    speedups[name].append(together["alone"] / together[name])
            alone = last["alone"]
            print(f"{size} px {args.dtype} {args.layers} layers {'apart':10}: {args.ranks} runs at once do the work of "
                  f"{statistics.median(apart):.3f} [{min(apart):.3f} .. {max(apart):.3f}]  ({args.rounds} rounds)", flush=True)
            for name in chosen:
                ranks = last[name]["ranks"]
                total = sum(last[name]["step_seconds"])
                waited = [sum(c["waited_seconds"] for c in rank["communication"]) / total for rank in ranks]
                sent = max(sent_bytes(rank, {"replica", "world", "dp", "sp"}) for rank in ranks) / args.steps
                latents = SAMPLES / 2 * LATENT_CHANNELS * (size // ROW_PIXELS) ** 2 * 4
                expected = closed_form(name, args.ranks, size, config, 2 if args.dtype == "bf16" else 4)
                weights = max(r["weights_bytes"] for r in ranks) / alone["ranks"][0]["weights_bytes"]
                memory = max(r["peak_rss_bytes"] for r in ranks) / alone["ranks"][0]["peak_rss_bytes"]
                print(f"{size} px {args.dtype} {args.layers} layers {name:10} on {args.ranks} ranks: "
                      f"{statistics.median(speedups[name]):.3f} times as fast [{min(speedups[name]):.3f} .. "
                      f"{max(speedups[name]):.3f}]  waiting {' '.join(f'{w:.1%}' for w in waited)}  sends "
                      f"{sent / 2**20:.2f} MiB a step, closed form {expected / 2**20:.2f} MiB (+ latents "
                      f"{latents / 2**20:.2f})  memory {memory:.3f}, weights {weights:.3f}  ({args.rounds} rounds)",
                      flush=True)


if __name__ == "__main__":
    main()
