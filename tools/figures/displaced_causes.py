"""Measures which stale values of displaced patches make pictures differ from those of one rank.

It generates held-out captions with models/shapes-xl on diffusers' pipeline, whose U-Net runs as N ranks would
(displaced_oracle.py). From the step before come the border rows alone, the keys and values alone, the moments of norms alone, or
everything that a mode takes from there. It prints the PSNR to one rank, median (least), and the error of all pictures together
where only moments are stale."""
import argparse
import pathlib

import numpy as np
import torch
from diffusers import StableDiffusionXLPipeline

from tools.figures.stale_table import psnr
from tools.reference.displaced_oracle import Oracle
from tools.score import check_demo

ROOT = pathlib.Path(__file__).resolve().parents[2]
MOMENTS = ["corrected_async_gn", "stale_gn", "separate_gn"]


class Partly(Oracle):
    """Takes only the kinds in `old` (borders, keys, moments) from the step before."""

    def __init__(self, *arguments, old):
        super().__init__(*arguments)
        self.old = old

    def exchange(self, module, value, fresh):
        kind = ("borders" if isinstance(module, torch.nn.Conv2d) else "moments" if isinstance(module, torch.nn.GroupNorm)
                else "keys")
        return super().exchange(module, value, fresh or kind not in self.old)

    def normalise(self, module, x):
        if "moments" in self.old or self.fresh:
            return super().normalise(module, x)
        mode, self.mode = self.mode, "sync_gn"  # the same for all ranks
        try:
            return super().normalise(module, x)
        finally:
            self.mode = mode


def generate(pipeline, captions, steps, size, oracle=None):
    forward = pipeline.unet.forward

    def displaced(sample, timestep, **options):
        return (oracle.step(sample, lambda rows: forward(rows, timestep, **{**options, "return_dict": False})[0]),)

    if oracle is not None:
        pipeline.unet.forward = displaced
    try:
        pictures = pipeline(captions, num_inference_steps=steps, guidance_scale=5.0, height=size, width=size, output_type="pil",
                            generator=torch.Generator().manual_seed(1)).images
    finally:
        pipeline.unet.forward = forward
    return [np.asarray(picture) for picture in pictures]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(ROOT / "models" / "shapes-xl"))
    parser.add_argument("--each", type=int, default=3, help="held-out captions of one object, and of two [3]")
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 8])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--warmup", type=int, default=4)
    parser.add_argument("--size", type=int, default=128, help="height and width in pixels [128]")
    args = parser.parse_args()
    torch.set_num_threads(1)
    pipeline = StableDiffusionXLPipeline.from_pretrained(args.model, torch_dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    captions = check_demo.held_out_captions(1000, args.each)
    truth = generate(pipeline, captions, args.steps, args.size)
    kinds = [("borders", {"borders"}, "sync_gn"), ("keys and values", {"keys"}, "sync_gn"),
             *[(f"moments, {mode}", {"moments"}, mode) for mode in MOMENTS],
             *[(f"all of {mode}", {"borders", "keys", "moments"}, mode) for mode in ["sync_gn", *MOMENTS]]]
    print("| old | " + " | ".join(f"{ranks} ranks" for ranks in args.ranks) + " |")
    print("|---|" + "---|" * len(args.ranks))
    for name, old, mode in kinds:
        cells = []
        for ranks in args.ranks:
            oracle = Partly(pipeline.unet, args.size // 8, args.size // 8, ranks, mode, args.warmup, old=old)
            near = [psnr(a, b) for a, b in zip(generate(pipeline, captions, args.steps, args.size, oracle), truth)]
            cells.append(f"{np.median(near):.1f} ({min(near):.1f})")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
