#!/usr/bin/env python3
"""Times Open-Sora 1.2's networks in one run on one machine, for 51 frames of 240 x 426: ratios, medians over rounds.

Without --ranks: a guided evaluation of the transformer against plain PyTorch (tools/reference/stdit3.py); below 1 means that Tessera needs
less; and the share that it reaches of the roof, the FLOP/s of a core whose operands stay in registers. With --ranks: how many
times as fast several ranks are as one, with a thread each, for every method and for the decoders; "apart" shows what the machine
allows: as many runs of one rank at once as there are ranks, which share no work.

The weights are random, with the width of STDiT3-XL and four of its 28 pairs of blocks. The VAE has its full size.
"""
import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys

import models
from compare import CAPS, ROOT, WORKER, Peer, cap_instruction_sets

HEIGHT, WIDTH, FRAMES = 240, 426, 15
CONFIG = {**models.STDIT3, "depth": 4}


def plain_worker(folder, dtype, threads, mode):
    sys.path.insert(0, str(ROOT))
    import torch
    from safetensors.torch import load_file
    from tools.reference.stdit3 import STDiT3
    torch.set_num_threads(int(threads))
    dtype = torch.bfloat16 if dtype == "bf16" else torch.float32
    weights = load_file(pathlib.Path(folder) / "transformer" / "model.safetensors")
    model = STDiT3({name: value.to(dtype) for name, value in weights.items()}, CONFIG)
    z, t, fps = torch.randn(2, 4, FRAMES, HEIGHT // 8, WIDTH // 8), torch.full((2,), 500.0), torch.full((2,), 24.0)
    with torch.inference_mode():
        # As in the engine, prompts are projected once for all steps.
        texts = [model.text(torch.randn(CONFIG["model_max_length"], CONFIG["caption_channels"], dtype=dtype)) for _ in range(2)]
        call = torch.compile(model.__call__) if mode == "compile" else model
        serve(lambda: call(z, t, texts, fps, HEIGHT, WIDTH))


def serve(work):
    import time
    print("ready", flush=True)
    for _ in sys.stdin:
        start = time.monotonic()
        work()
        print(time.monotonic() - start, 0, flush=True)


METHODS = {"cfg": {"use_cfg_parallel": True}, "dsp": {"ulysses_degree": 2}, "ulysses": {"ulysses_degree": 2,
           "dynamic_sequence_parallel": False}, "ring": {"ring_degree": 2}, "gather": {"kv_gather_degree": 2},
           "tensor": {"tensor_parallel_degree": 2},
           "pipefusion-rows": {"pipefusion_parallel_degree": 2, "num_pipeline_patch": 5, "warmup_steps": 1, "pipeline_patch_axis": "h"},
           "pipefusion-frames": {"pipefusion_parallel_degree": 2, "num_pipeline_patch": 5, "warmup_steps": 1, "pipeline_patch_axis": "t"}}
DECODER_METHODS = {"rows": {}, "clips": {"deals_clips": True}}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Ranks:
    """Tessera on some ranks, or `apart`: one rank on each share of the cores."""

    def __init__(self, part, folder, dtype, size, steps, method, ranks, apart=False):
        port = free_port()
        cores = sorted(os.sched_getaffinity(0))
        self.processes = []
        for rank in range(ranks):
            env = {}
            if ranks > 1 and not apart:
                env.update(RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(ranks),
                           MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
            command = [str(WORKER), "video", part, str(folder), dtype, *map(str, size), str(steps), json.dumps(method)]
            if ranks == 1 or apart:
                command = ["taskset", "-c", str(cores[rank % len(cores)]), *command]
            self.processes.append(Peer(command, 1, **env))

    def __call__(self):
        """Returns seconds, and the largest peak memory."""
        for process in self.processes:
            process.ask()
        answers = [process.answer() for process in self.processes]
        return max(seconds for seconds, _ in answers), max(peak for _, peak in answers)

    def close(self):
        for process in self.processes:
            process.close()


def compare_ranks(args, part, dtype, folder, table):
    size, steps = (args.height, args.width), args.steps
    alone = Ranks(part, folder, dtype, size, steps, {}, 1)
    alone()
    for name, method in table.items():
        together = Ranks(part, folder, dtype, size, steps, method, args.ranks, apart=name == "apart")
        together()
        rounds = []
        for number in range(args.rounds):
            pair = [(alone(), together()), (together(), alone())][number % 2]
            rounds.append(pair if number % 2 == 0 else pair[::-1])
        together.close()
        ratios = [(args.ranks if name == "apart" else 1) * one[0] / many[0] for one, many in rounds]
        (seconds, peak), (_, peak_of_each) = rounds[-1]
        print(f"{part} {dtype} {name} on {args.ranks} ranks: times as fast {statistics.median(ratios):.3f} [{min(ratios):.3f} .. "
              f"{max(ratios):.3f}]  peak memory {peak_of_each / peak:.3f}  (one rank {seconds:.2f} s, {peak / 2**30:.2f} GiB; "
              f"{args.rounds} rounds)", flush=True)
    alone.close()


def main():
    if sys.argv[1:2] == ["worker"]:
        return plain_worker(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="against PyTorch")
    parser.add_argument("--dtypes", nargs="*", default=["bf16", "fp32"])
    parser.add_argument("--modes", nargs="*", default=["eager", "compile"], choices=["eager", "compile"])
    parser.add_argument("--ranks", type=int, default=1, help="several: compare with one rank")
    parser.add_argument("--methods", nargs="*", choices=["apart", *METHODS], default=["apart", *METHODS], help="for two ranks")
    parser.add_argument("--parts", nargs="*", choices=["denoiser", "decoder", "temporal-decoder"], default=["denoiser", "temporal-decoder"])
    parser.add_argument("--steps", type=int, default=6, help="of a run on ranks, of which the first two and the last do not count")
    parser.add_argument("--height", type=int, default=HEIGHT)
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--max-isa", choices=CAPS, help="limit the instruction set of both sides")
    args = parser.parse_args()
    if args.max_isa:
        cap_instruction_sets(args.max_isa)
    folder = models.folder_with("open-sora", CONFIG["depth"], text_layers=1)
    for dtype in args.dtypes:
        if args.ranks == 1:
            compare_with_pytorch(args, dtype, folder)
            continue
        for part in args.parts:
            methods = {"apart": {}, **(METHODS if part == "denoiser" else DECODER_METHODS)}
            chosen = {name: methods[name] for name in methods if part != "denoiser" or name in args.methods}
            compare_ranks(args, part, dtype, folder, chosen)


def compare_with_pytorch(args, dtype, folder):
    """One step of Tessera and one of each mode of PyTorch a round."""
    case = [str(folder), dtype, str(HEIGHT), str(WIDTH), "1", "{}"]
    peers = {"tessera": Peer([str(WORKER), "video", "denoiser", *case], args.threads)}
    for mode in args.modes:
        peers[mode] = Peer([sys.executable, os.path.abspath(__file__), "worker", str(folder), dtype, str(args.threads), mode],
                           args.threads)
    for peer in peers.values():
        peer()  # warm up, compile
    times = [{name: peer()[0] for name, peer in peers.items()} for _ in range(args.rounds)]
    for mode in args.modes:
        ratios = [one["tessera"] / one[mode] for one in times]
        print(f"{dtype} {args.threads} thread(s), Tessera / {mode}: {statistics.median(ratios):.3f} [{min(ratios):.3f} .. "
              f"{max(ratios):.3f}]  ({args.rounds} rounds; Tessera {statistics.median(one['tessera'] for one in times):.2f} s)", flush=True)
    for peer in peers.values():
        peer.close()
    flops, roof = (float(subprocess.check_output([str(WORKER), *command])) for command in (["video", "flops", *case], ["roof", dtype]))
    if roof:
        reached = flops / statistics.median(one["tessera"] for one in times) / args.threads
        print(f"{dtype} {args.threads} thread(s): {reached / 1e9:.1f} GFLOP/s a core, {reached / roof:.3f} of the roof of "
              f"{roof / 1e9:.1f}", flush=True)


if __name__ == "__main__":
    main()
