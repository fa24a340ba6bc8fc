"""Measures how near PipeFusion's pictures are to those of one rank, and how many captions stay right, by patches and warm-up.

It generates held-out captions with the shipped model, on one rank and on two stages, and prints the table of docs/parallel.md.
"""
from tools import missing_packages  # noqa: F401  (says how to get those that are missing)
import argparse
import math
import pathlib
import subprocess
import tempfile

import numpy as np
from PIL import Image

from tools.score import check_demo

ROOT = pathlib.Path(__file__).resolve().parents[2]


def generate(program, captions, folder, flags):
    folder.mkdir()
    subprocess.run([program, "generate", *captions, "--seed", "1", "--dtype", "fp32", "-q", "-o", str(folder / "p.png"),
                    *flags], check=True, stdout=subprocess.DEVNULL)
    return [np.asarray(Image.open(folder / f"p-{i}.png").convert("RGB")) for i in range(len(captions))]


def psnr(a, b):
    error = np.mean((a.astype(np.float64) - b.astype(np.float64)) ** 2)
    return math.inf if error == 0 else 10 * math.log10(255 ** 2 / error)


def right(pictures, captions):
    return 100 * np.mean([check_demo.check(picture, caption).right for picture, caption in zip(pictures, captions)])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tessera", default=str(ROOT / "build" / "tessera"))
    parser.add_argument("--each", type=int, default=200, help="held-out captions of one object, and of two")
    parser.add_argument("--patches", type=int, nargs="*", default=[2, 4, 8])
    parser.add_argument("--warmup", type=int, nargs="*", default=[0, 1, 2, 4])
    args = parser.parse_args()
    captions = check_demo.held_out_captions(1000, args.each)
    single, two = slice(0, args.each), slice(args.each, None)
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        truth = generate(args.tessera, captions, scratch / "one", [])
        print("| patches | warm-up steps | PSNR to one rank, median (least) | one object right | two objects right |")
        print("|---|---|---|---|---|")
        print(f"| one rank | | | {right(truth[single], captions[single]):.1f} % | {right(truth[two], captions[two]):.1f} % |")
        for patches in args.patches:
            for warmup in args.warmup:
                pictures = generate(args.tessera, captions, scratch / f"{patches}-{warmup}",
                                    ["--pipefusion-parallel-degree", "2", "--num-pipeline-patch", str(patches),
                                     "--warmup-steps", str(warmup)])
                near = [psnr(a, b) for a, b in zip(pictures, truth)]
                print(f"| {patches} | {warmup} | {np.median(near):.1f} dB ({min(near):.1f}) | "
                      f"{right(pictures[single], captions[single]):.1f} % | {right(pictures[two], captions[two]):.1f} % |",
                      flush=True)


if __name__ == "__main__":
    main()
