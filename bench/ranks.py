#!/usr/bin/env python3
"""Compares one rank with several on this machine, one thread per rank: time of a denoising step, bytes sent, time waited, memory;
with --pictures also the time of decoding, of denoising and decoding together ("whole"), and of the command from its start until its
files are written.

The models have random weights and the real shapes of PixArt-Sigma-XL or SDXL and of the SDXL VAE, of Z-Image, of FLUX.2 klein, which
runs without guidance unless --guidance-scale is above 1, or of Open-Sora 1.2, whose pictures are MP4 files of 51 frames. Every round
runs the command with one rank and with each method, so that ratios are of runs of the same round. The bytes of the report are
printed next to the closed forms of docs/parallel.md. "apart" shows what the machine allows: as many simultaneous runs of one rank as
there are ranks, which share no work. A single rank is pinned to its share of the cores, like each of several. TESSERA_MAX_ISA
(core/host.h) limits the instruction set of all runs.
"""
import argparse
import dataclasses
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
PATCH, ROW_PIXELS = 2, 8
LATENT_CHANNELS = {"z-image": 16, "flux2-klein": 32}  # of each 8 x 8 pixels; 4 in other families
FRAMES, LATENT_FRAMES = 51, 15  # of a video
FILLED_TO, KLEIN_TEXT = 32, 512  # tokens: Z-Image's sequences are filled up to a multiple, FLUX.2 klein's texts to a length


def methods(ranks, patches, family="pixart", prompts=1, samples=2):
    """Name -> flags."""
    table = {"data": ["--data-parallel-degree", str(ranks)]} if prompts >= ranks else {}
    if ranks == 2 and samples == 2:
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


def samples_of(args, folder):
    """Samples of a picture: two with guidance."""
    scale = request_of(args, folder).get("guidance_scale")
    return 1 if scale is not None and scale <= (0 if args.family == "z-image" else 1) else 2


def request_of(args, folder):
    return models.request_of(folder) | ({} if args.guidance_scale is None else {"guidance_scale": args.guidance_scale})


@dataclasses.dataclass
class Blocks:
    """What closed forms need of a transformer."""
    width: int
    picture: int  # tokens
    tokens: list  # of each block's attention
    sums: list  # of each block's activations with tensor parallelism
    carried: int = 0  # tokens beside those of the picture that go to the second half of the blocks
    once: int = 0  # tokens that are summed once a run, in all


def blocks_of(args, size, folder):
    config = json.loads((folder / "transformer" / "config.json").read_text())
    tokens = (size // ROW_PIXELS // PATCH) ** 2
    if args.family == "pixart":
        layers = config["num_layers"]
        return Blocks(config["num_attention_heads"] * config["attention_head_dim"], tokens, [tokens] * layers, [3] * layers)
    if args.family == "open-sora":
        # Of a pair of blocks that with attention along frames finds all of them on its rank.
        tokens *= LATENT_FRAMES
        return Blocks(config["hidden_size"], tokens, [tokens] * config["depth"], [6] * config["depth"])
    if args.family == "flux2-klein":
        double, single = config["num_layers"], config["num_single_layers"]
        return Blocks(config["num_attention_heads"] * config["attention_head_dim"], tokens, [tokens + KLEIN_TEXT] * (double + single),
                      [2] * double + [1] * single, carried=KLEIN_TEXT)
    refiners, layers = config["n_refiner_layers"], config["n_layers"]
    filling, text = -tokens % FILLED_TO, FILLED_TO  # the prompts are shorter
    return Blocks(config["dim"], tokens, [tokens + filling] * refiners + [tokens + filling + text] * layers, [2] * (refiners + layers),
                  carried=filling + (text if layers > refiners else 0), once=2 * refiners * text)


def closed_form(method, ranks, args, size, folder):
    """Bytes that the busiest rank sends in a step, without the latents; None for a U-Net, whose bytes the tests check."""
    if args.family == "sdxl":
        return None
    blocks = blocks_of(args, size, folder)
    token = samples_of(args, folder) * blocks.width * (2 if args.dtype == "bf16" else 4)  # of one picture and layer
    activations = args.prompts * token * sum(blocks.tokens)
    share = (ranks - 1) / ranks
    keys_values = 2 * activations * share
    summed = args.prompts * sum(count * sums for count, sums in zip(blocks.tokens, blocks.sums)) + blocks.once / args.steps
    return {"cfg": 0, "data": 0,
            "dsp": 2 * activations / ranks * share,  # to whole frames and back
            "ulysses": 4 * activations / ranks * share,  # queries, keys, values and the result
            "ring": keys_values,
            "gather": keys_values,
            "displaced": keys_values,
            "tensor": 2 * token * summed * share,  # each sum is scattered and gathered
            "pipefusion": args.prompts * token * (blocks.picture + blocks.carried)}[method]  # once to the next stage


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
    more += [f"--{name.replace('_', '-')}={value}" for name, value in request_of(args, folder).items()]
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
    """Returns seconds by part. The first two steps do not count, nor does the last if a pipeline may drain in it, unless there are no
    others."""
    last = None if args.family == "sdxl" else -1
    seconds = {"step": statistics.median(report["step_seconds"][2:last] or report["step_seconds"])}
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


def gib(count):
    return f"{count / 2**30:.2f} GiB"


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
    parser.add_argument("--guidance-scale", type=float, help="default: the model's, but 1 for FLUX.2 klein; 0 is Z-Image-Turbo's")
    parser.add_argument("--no-apart", action="store_true", help="leave out the runs at once, for which memory may not suffice")
    parser.add_argument("--no-shared-memory", action="store_true", help="send messages through the loopback device")
    models.add_options(parser)
    args = parser.parse_args()
    folder = models.folder_of(args)
    table = methods(args.ranks, args.patches, args.family, args.prompts, samples_of(args, folder))
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
        order = ["alone", *([] if args.no_apart else ["apart"]), *table]
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
    alone = last["alone"]["ranks"][0]
    seconds = {what: statistics.median(each["alone"][what] for each in rounds) for what in timed}
    print(f"{head} {'alone':10}: {'  '.join(f'{what} {taken:.2f} s' for what, taken in seconds.items())}  "
          f"memory {gib(alone['peak_rss_bytes'])}, weights {gib(alone['weights_memory_bytes'])}", flush=True)
    if not args.no_apart:
        print(f"{head} {'apart':10}: {args.ranks} runs at once do the work of "
              f"{'  '.join(ratio('apart', what, args.ranks) for what in timed)}  ({args.rounds} rounds)", flush=True)
    for name in table:
        ranks = last[name]["ranks"]
        total = sum(last[name]["step_seconds"])
        waited = [sum(c["waited_seconds"] for c in rank["communication"]) / total for rank in ranks]
        once = {"replica", "world", "dp"} | ({"sp"} if args.family != "sdxl" and name != "displaced" else set())
        # A transformer displaces only keys and values, and its last step has none to send.
        steps = args.steps - (name == "displaced" and args.family != "sdxl")
        sent = max(sent_bytes(rank, once) for rank in ranks) / steps
        frames = LATENT_FRAMES if args.family == "open-sora" else 1
        latents = args.prompts * LATENT_CHANNELS.get(args.family, 4) * (size // ROW_PIXELS) ** 2 * 4 * frames
        expected = closed_form(name, args.ranks, args, size, folder)
        form = f", closed form {expected / 2**20:.2f} MiB (+ latents {latents / 2**20:.2f})" if expected is not None else ""
        weights = max(r["weights_memory_bytes"] for r in ranks) / alone["weights_memory_bytes"]
        memory = max(r["peak_rss_bytes"] for r in ranks)
        print(f"{head} {name:10} on {args.ranks} ranks: times as fast: {'  '.join(ratio(name, what) for what in timed)}  "
              f"waiting {' '.join(f'{w:.1%}' for w in waited)}  sends {sent / 2**20:.2f} MiB a step{form}  "
              f"memory {memory / alone['peak_rss_bytes']:.3f} ({gib(memory)}), weights {weights:.3f}  ({args.rounds} rounds)", flush=True)


if __name__ == "__main__":
    main()
