#!/usr/bin/env python3
"""Compares one rank with several on this machine, one thread per rank: time of a denoising step, bytes sent, time waited, memory;
with --pictures also the time of decoding, of denoising and decoding together ("whole"), and of the command from its start until its
files are written.

The models have random weights and the real shapes of PixArt-Sigma-XL or SDXL and of the SDXL VAE, or of Open-Sora 1.2, whose
pictures are MP4 files of 51 frames. Every round runs the command with one rank and with each method, so that ratios are of runs of
the same round. The bytes of the report are printed next to the closed forms of docs/parallel.md. "apart" shows what the machine
allows: as many simultaneous runs of one rank as there are ranks, which share no work. A single rank is pinned to its share of the
cores, like each of several. TESSERA_MAX_ISA (core/cpu.h) limits the instruction set of all runs.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import models

ROOT = pathlib.Path(__file__).resolve().parent.parent
SAMPLES, PATCH, ROW_PIXELS, LATENT_CHANNELS = 2, 2, 8, 4  # guidance: two samples per image
FRAMES, LATENT_FRAMES = 51, 15  # of a video


def methods(ranks, patches, family="pixart", prompts=1):
    """Name -> flags."""
    table = {"data": ["--data-parallel-degree", str(ranks)]} if prompts >= ranks else {}
    if ranks == 2:
        table["cfg"] = ["--use-cfg-parallel"]
    table["ulysses"] = ["--ulysses-degree", str(ranks)]
    if family == "open-sora":
        table["dsp"] = table["ulysses"]
        table["ulysses"] = [*table["dsp"], "--no-dynamic-sequence-parallel"]
    table["ring"] = ["--ring-degree", str(ranks)]
    table["gather"] = ["--kv-gather-degree", str(ranks)]
    table["tensor"] = ["--tensor-parallel-degree", str(ranks)]
    if family != "open-sora":
        table["displaced"] = ["--displaced-patch-degree", str(ranks), "--warmup-steps", "1"]
    if family != "sdxl":
        table["pipefusion"] = ["--pipefusion-parallel-degree", str(ranks), "--num-pipeline-patch", str(patches),
                               "--warmup-steps", "1"]
    else:
        table["full_sync"] = ["--displaced-patch-degree", str(ranks), "--displaced-mode", "full_sync"]
    return table


def closed_form(method, ranks, args, size, folder):
    """Bytes that the busiest rank sends in a step, without the latents; None for a U-Net, whose bytes the tests check."""
    if args.family == "sdxl":
        return None
    config = json.loads((folder / "transformer" / "config.json").read_text())
    tokens = (size // ROW_PIXELS // PATCH) ** 2
    if args.family == "pixart":
        width, layers, sums = config["num_attention_heads"] * config["attention_head_dim"], config["num_layers"], 3
    else:
        # Of a pair of blocks that with attention along frames finds all of them on its rank.
        width, layers, sums, tokens = config["hidden_size"], config["depth"], 6, LATENT_FRAMES * tokens
    activation = args.prompts * SAMPLES * tokens * width * (2 if args.dtype == "bf16" else 4)  # of one layer and all tokens
    share = (ranks - 1) / ranks
    keys_values = 2 * activation / ranks * (ranks - 1) * layers
    return {"cfg": 0, "data": 0,
            "dsp": 2 * activation / ranks * share * layers,  # to whole frames and back
            "ulysses": 4 * activation / ranks * share * layers,  # queries, keys, values and the result
            "ring": keys_values,
            "gather": keys_values,
            "displaced": keys_values,
            "tensor": sums * 2 * activation * share * layers,  # each sum is scattered and gathered
            "pipefusion": activation}[method]  # once to the next stage


def pin(rank, ranks):
    """Pins this process to the cores of rank `rank` of `ranks` with one thread each, as launch/cores.cc does."""
    cores = sorted(os.sched_getaffinity(0))
    each = len(cores) // ranks
    if each >= 1:
        os.sched_setaffinity(0, cores[rank * each:(rank + 1) * each])


def start(args, folder, size, flags, report, pinned=None):
    suffix = ".mp4" if args.family == "open-sora" else ".png"
    out = [str(report.with_suffix(suffix))] if args.pictures else [str(report.with_suffix(".safetensors")), "--output-type", "latent"]
    more = {"pixart": ["--no-resolution-binning"], "open-sora": ["--num-frames", str(FRAMES)]}.get(args.family, [])
    command = [str(ROOT / "build" / "tessera"), "generate", *["a red circle"] * args.prompts, "--model", str(folder), "--dtype", args.dtype,
               "--threads", "1", "--num-inference-steps", str(args.steps), "--height", str(size), "--width", str(size),
               "--seed", "1", *more, "--report", str(report), "-q", *flags, "-o", *out]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, env=dict(os.environ, OMP_NUM_THREADS="1"),
                            preexec_fn=(lambda: pin(*pinned)) if pinned else None)


def run(args, folder, size, flags, report, pinned=None):
    begin = time.monotonic()
    if start(args, folder, size, flags, report, pinned).wait() != 0:
        sys.exit(f"bench: the run with {' '.join(flags) or 'one rank'} failed")
    return json.loads(report.read_text()) | {"command": time.monotonic() - begin}


def seconds_of(args, report, command):
    """Returns seconds by part. The first two steps do not count, nor does the last if a pipeline may drain in it."""
    last = None if args.family == "sdxl" else -1
    seconds = {"step": statistics.median(report["step_seconds"][2:last])}
    if args.pictures:
        seconds["decode"] = report["seconds"]["decode"]
        seconds["whole"] = report["seconds"]["denoise"] + report["seconds"]["decode"]
        seconds["command"] = command
    return seconds


def run_apart(args, folder, size, report):
    """Returns seconds by part of a run while the other ranks' runs go on beside it."""
    reports = [report.with_name(f"apart-{rank}.json") for rank in range(args.ranks)]
    begin = time.monotonic()
    if any([process.wait() for process in [start(args, folder, size, [], each, (rank, args.ranks))
                                           for rank, each in enumerate(reports)]]):
        sys.exit("bench: a run failed")
    command = time.monotonic() - begin  # until the last one has ended
    taken = [seconds_of(args, json.loads(each.read_text()), command) for each in reports]
    return {what: statistics.mean(each[what] for each in taken) for what in taken[0]}


def sent_bytes(rank, ignored):
    """The bytes of the rank's denoising steps: the sum over axes, without those used once per run."""
    return sum(entry["bytes"] for entry in rank["communication"] if entry["axis"] not in ignored)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", type=int, nargs="*", default=[512, 1024], help="pixels of a side")
    parser.add_argument("--steps", type=int, default=6, help="denoising steps; the first two, and a transformer's last, are not counted")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--patches", type=int, default=4, help="number of patches of PipeFusion")
    parser.add_argument("--methods", nargs="*", help="data, cfg, ulysses, ring, gather, tensor, displaced, pipefusion, for SDXL full_sync, "
                        "for Open-Sora dsp (default: all that the model and the number of prompts allow)")
    parser.add_argument("--prompts", type=int, default=1, help="pictures of a run; with one for each rank also data parallelism")
    parser.add_argument("--pictures", action="store_true", help="also decode, and time that")
    parser.add_argument("--no-shared-memory", action="store_true", help="send messages through the loopback device")
    models.add_options(parser)
    args = parser.parse_args()
    folder = models.folder_of(args)
    table = methods(args.ranks, args.patches, args.family, args.prompts)
    more = ["--no-shared-memory"] if args.no_shared_memory else []
    chosen = args.methods or list(table)
    with tempfile.TemporaryDirectory() as scratch:
        report = pathlib.Path(scratch) / "report.json"
        for size in args.sizes:
            compare_methods(args, folder, size, {name: table[name] + more for name in chosen}, report)


def compare_methods(args, folder, size, table, report):
    rounds, last = [], {}
    for number in range(args.rounds):
        together = {}
        order = ["alone", "apart", *table]
        for name in order if number % 2 == 0 else reversed(order):
            if name == "apart":
                together[name] = run_apart(args, folder, size, report)
                continue
            flags, pinned = ([], (0, args.ranks)) if name == "alone" else (table[name], None)
            last[name] = run(args, folder, size, flags, report, pinned)
            together[name] = seconds_of(args, last[name], last[name]["command"])
        rounds.append(together)

    def ratio(name, what, factor=1):
        values = [factor * each["alone"][what] / each[name][what] for each in rounds]
        return f"{what} {statistics.median(values):.3f} [{min(values):.3f} .. {max(values):.3f}]"

    head = f"{args.family} {size} px {args.dtype} {folder.name}"
    timed = list(rounds[0]["alone"])
    print(f"{head} {'apart':10}: {args.ranks} runs at once do the work of "
          f"{'  '.join(ratio('apart', what, args.ranks) for what in timed)}  ({args.rounds} rounds)", flush=True)
    for name in table:
        ranks, alone = last[name]["ranks"], last["alone"]["ranks"][0]
        total = sum(last[name]["step_seconds"])
        waited = [sum(c["waited_seconds"] for c in rank["communication"]) / total for rank in ranks]
        once = {"replica", "world", "dp"} | ({"sp"} if args.family != "sdxl" and name != "displaced" else set())
        # A transformer displaces only keys and values, and its last step has none to send.
        steps = args.steps - (name == "displaced" and args.family == "pixart")
        sent = max(sent_bytes(rank, once) for rank in ranks) / steps
        latents = args.prompts * LATENT_CHANNELS * (size // ROW_PIXELS) ** 2 * 4 * (LATENT_FRAMES if args.family == "open-sora" else 1)
        expected = closed_form(name, args.ranks, args, size, folder)
        form = f", closed form {expected / 2**20:.2f} MiB (+ latents {latents / 2**20:.2f})" if expected is not None else ""
        weights = max(r["weights_memory_bytes"] for r in ranks) / alone["weights_memory_bytes"]
        memory = max(r["peak_rss_bytes"] for r in ranks) / alone["peak_rss_bytes"]
        print(f"{head} {name:10} on {args.ranks} ranks: times as fast: {'  '.join(ratio(name, what) for what in timed)}  "
              f"waiting {' '.join(f'{w:.1%}' for w in waited)}  sends {sent / 2**20:.2f} MiB a step{form}  memory {memory:.3f}, "
              f"weights {weights:.3f}  ({args.rounds} rounds)", flush=True)


if __name__ == "__main__":
    main()
