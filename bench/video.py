#!/usr/bin/env python3
"""Alternates Tessera and plain PyTorch (tools/stdit3.py) on one machine in one run: an evaluation of Open-Sora 1.2's transformer
with guidance, 51 frames of 240 x 426. Prints the ratio of their times, the median over rounds; below 1 means that Tessera needs less.

The weights are random, with the width of STDiT3-XL and four of its 28 pairs of blocks.
"""
import argparse
import json
import os
import pathlib
import statistics
import sys

from compare import CAPS, ROOT, WORKER, Peer, cap_instruction_sets

HEIGHT, WIDTH, FRAMES, TEXT = 240, 426, 15, 300
CONFIG = {"depth": 4, "hidden_size": 1152, "num_heads": 16, "caption_channels": 4096, "model_max_length": TEXT, "in_channels": 4,
          "input_sq_size": 512, "qk_norm": True, "pred_sigma": True}


def shapes(config):
    width, depth = config["hidden_size"], config["depth"]

    def linear(name, into, out):
        yield f"{name}.weight", (out, into)
        yield f"{name}.bias", (out,)

    yield "x_embedder.proj.weight", (width, 4, 1, 2, 2)
    yield "x_embedder.proj.bias", (width,)
    for name in ("t_embedder", "fps_embedder"):
        yield from linear(f"{name}.mlp.0", 256, width)
        yield from linear(f"{name}.mlp.2", width, width)
    yield from linear("t_block.1", width, 6 * width)
    yield "y_embedder.y_embedding", (TEXT, config["caption_channels"])
    yield from linear("y_embedder.y_proj.fc1", config["caption_channels"], width)
    yield from linear("y_embedder.y_proj.fc2", width, width)
    for block in (f"{kind}_blocks.{i}" for kind in ("spatial", "temporal") for i in range(depth)):
        yield f"{block}.scale_shift_table", (6, width)
        for norm in ("q_norm", "k_norm"):
            yield f"{block}.attn.{norm}.weight", (width // config["num_heads"],)
        for name, into, out in (("attn.qkv", 1, 3), ("attn.proj", 1, 1), ("cross_attn.q_linear", 1, 1), ("cross_attn.kv_linear", 1, 2),
                                ("cross_attn.proj", 1, 1), ("mlp.fc1", 1, 4), ("mlp.fc2", 4, 1)):
            yield from linear(f"{block}.{name}", into * width, out * width)
    yield "final_layer.scale_shift_table", (2, width)
    yield from linear("final_layer.linear", width, 32)


def folder_of_weights():
    import torch
    from safetensors.torch import save_file
    folder = ROOT / "build" / "bench-models" / f"stdit3-{CONFIG['depth']}" / "transformer"
    if not (folder / "model.safetensors").exists():
        folder.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(0)
        weights = {name: (torch.randn(shape) * (shape[-1] ** -0.5 if len(shape) > 1 else 0.1)).to(torch.bfloat16)
                   for name, shape in shapes(CONFIG)}
        (folder / "config.json").write_text(json.dumps(CONFIG))
        save_file(weights, folder / "model.safetensors")
    return folder.parent


def plain_worker(folder, dtype, threads, mode):
    sys.path.insert(0, str(ROOT / "tools"))
    import torch
    from safetensors.torch import load_file
    from stdit3 import STDiT3
    torch.set_num_threads(int(threads))
    dtype = torch.bfloat16 if dtype == "bf16" else torch.float32
    weights = load_file(pathlib.Path(folder) / "transformer" / "model.safetensors")
    model = STDiT3({name: value.to(dtype) for name, value in weights.items()}, CONFIG)
    z, t, fps = torch.randn(2, 4, FRAMES, HEIGHT // 8, WIDTH // 8), torch.full((2,), 500.0), torch.full((2,), 24.0)
    with torch.inference_mode():
        # As in the engine, prompts are projected once for all steps.
        texts = [model.text(torch.randn(TEXT, CONFIG["caption_channels"], dtype=dtype)) for _ in range(2)]
        call = torch.compile(model.__call__) if mode == "compile" else model
        serve(lambda: call(z, t, texts, fps, HEIGHT, WIDTH))


def serve(work):
    import time
    print("ready", flush=True)
    for _ in sys.stdin:
        start = time.monotonic()
        work()
        print(time.monotonic() - start, 0, flush=True)


def main():
    if sys.argv[1:2] == ["worker"]:
        return plain_worker(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtypes", nargs="*", default=["bf16", "fp32"])
    parser.add_argument("--modes", nargs="*", default=["eager", "compile"], choices=["eager", "compile"])
    parser.add_argument("--isa", choices=CAPS, help="limit the instruction set of both sides")
    args = parser.parse_args()
    if args.isa:
        cap_instruction_sets(args.isa)
    folder = folder_of_weights()
    for dtype in args.dtypes:
        peers = {"tessera": Peer([str(WORKER), "worker", "video", str(folder), dtype, str(args.threads), str(HEIGHT), str(WIDTH)],
                                 args.threads)}
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


if __name__ == "__main__":
    main()
