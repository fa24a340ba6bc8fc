#!/usr/bin/env python3
"""How near the pictures of displaced patches are to those of one rank, by mode, ranks and warm-up: the tables of
docs/displaced.md, and a sheet of pictures.

Paints held-out captions with models/shapes-xl. Distances to the picture of one rank: PSNR, and 1 - SSIM (Wang et al. 2004,
windows of 7 x 7) in gray, averaged over three scales, which counts what eyes see rather than single pixels. Bytes are what a
rank sends in a step after the warm-up (the most of all ranks), by the program's own report."""
import argparse
import json
import pathlib
import subprocess
import tempfile

import numpy as np
from PIL import Image
from scipy import ndimage

import check_demo
from stale_table import paint, psnr, right

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODES = ["full_sync", "sync_gn", "corrected_async_gn", "stale_gn", "separate_gn", "no_sync"]
SCALES = 3


def dissimilarity(a, b):
    """1 - SSIM, averaged over three scales."""
    a, b = (np.asarray(Image.fromarray(x).convert("L"), np.float64) for x in (a, b))
    values = []
    for _ in range(SCALES):
        mean_a, mean_b = (ndimage.uniform_filter(x, 7) for x in (a, b))
        variance_a, variance_b = (ndimage.uniform_filter(x * x, 7) - m * m for x, m in ((a, mean_a), (b, mean_b)))
        covariance = ndimage.uniform_filter(a * b, 7) - mean_a * mean_b
        c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
        values.append(np.mean((2 * mean_a * mean_b + c1) * (2 * covariance + c2)
                              / ((mean_a ** 2 + mean_b ** 2 + c1) * (variance_a + variance_b + c2))))
        a, b = (x.reshape(x.shape[0] // 2, 2, x.shape[1] // 2, 2).mean((1, 3)) for x in (a, b))
    return 1 - np.mean(values)


def bytes_of_a_step(args, flags, folder):
    """What a longer run sends more than a shorter one, for each of its further steps."""
    def sent(steps):
        report = folder / f"{steps}.json"
        subprocess.run([args.tessera, "generate", "a red circle on a white background", "--model", args.model, "--seed", "1", "--dtype",
                        "fp32", "-q", "-o", str(folder / "x.png"), "--num-inference-steps", str(steps), "--report", str(report), *flags],
                       check=True, stdout=subprocess.DEVNULL)
        ranks = json.loads(report.read_text())["ranks"]
        return np.array([sum(kind["bytes"] for kind in rank["communication"]) for rank in ranks])
    return int(((sent(14) - sent(10)) / 4).max())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tessera", default=str(ROOT / "build" / "tessera"))
    parser.add_argument("--model", default=str(ROOT / "models" / "shapes-xl"))
    parser.add_argument("--each", type=int, default=20, help="held-out captions of one object, and of two")
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4, 8])
    parser.add_argument("--warmup", type=int, nargs="*", default=[0, 1, 2, 4])
    parser.add_argument("--modes", nargs="*", default=MODES)
    parser.add_argument("--sheet", type=pathlib.Path, help="PNG of the first two-object caption: a row a mode, a column a warm-up")
    args = parser.parse_args()
    captions = check_demo.held_out_captions(1000, args.each)
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        truth = paint(args.tessera, captions, scratch / "one", ["--model", args.model])
        print(f"one rank: {right(truth, captions):.1f} % of {len(captions)} captions right")
        print("| ranks | mode | warm-up | PSNR, median (least) | dissimilarity, median | right | kB a step |")
        print("|---|---|---|---|---|---|---|")
        rows = []
        for ranks in args.ranks:
            for mode in args.modes:
                row = [truth[args.each]]
                for warmup in args.warmup if mode != "full_sync" else [0]:
                    flags = ["--displaced-patch-degree", str(ranks), "--displaced-mode", mode, "--warmup-steps", str(warmup)]
                    pictures = paint(args.tessera, captions, scratch / f"{ranks}-{mode}-{warmup}", ["--model", args.model, *flags])
                    near = [psnr(a, b) for a, b in zip(pictures, truth)]
                    apart = [dissimilarity(a, b) for a, b in zip(pictures, truth)]
                    sent = bytes_of_a_step(args, flags, scratch) / 1000
                    print(f"| {ranks} | {mode} | {warmup} | {np.median(near):.1f} dB ({min(near):.1f}) | {np.median(apart):.4f} | "
                          f"{right(pictures, captions):.1f} % | {sent:.0f} |", flush=True)
                    row.append(pictures[args.each])
                rows.append(row + [np.full_like(row[0], 255)] * (1 + len(args.warmup) - len(row)))
        if args.sheet:
            Image.fromarray(np.concatenate([np.concatenate(row, 1) for row in rows])).save(args.sheet)


if __name__ == "__main__":
    main()
