"""Measures how near the pictures of displaced patches are to those of one rank, by mode, ranks and warm-up, and what each mode
costs. It prints the tables of docs/displaced.md and draws a sheet of pictures.

It generates held-out captions in 50 steps. The distances to the picture of one rank are PSNR, and 1 - SSIM (Wang et al. 2004,
windows of 7 x 7) in gray, averaged over three scales, which weighs visible structure rather than single pixels. Costs are those
of one picture, from the difference of a run of 10 steps and one of 50; one rank and all modes take turns, with one thread per
rank. Bytes are those that the busiest rank sends in a step after the warm-up, by the program's report."""
from tools import missing_packages  # noqa: F401  (says how to get those that are missing)
import argparse
import itertools
import json
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

import numpy as np
from PIL import Image, ImageDraw
from scipy import ndimage

from tools.figures.stale_table import psnr, right
from tools.score import check_demo

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODES = ["full_sync", "sync_gn", "corrected_async_gn", "stale_gn", "separate_gn", "no_sync"]
SCALES = 3
SHORT, LONG = 10, 50  # steps of the two runs whose difference gives the costs
CORES = 2             # more ranks than these are not timed


def dissimilarity(a, b):
    """Returns 1 - SSIM, averaged over three scales."""
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


def displaced(ranks, mode, warmup):
    return ["--displaced-patch-degree", str(ranks), "--displaced-mode", mode, "--warmup-steps", str(warmup)]


class Study:
    """Generates and measures. Results stay in the work folder and are not computed again."""

    def __init__(self, args):
        self.args = args
        self.captions = check_demo.held_out_captions(1000, args.each)
        self.end = time.monotonic() + 60 * args.minutes if args.minutes else None
        self.name = f"{args.size or 'default'}-{args.steps}-{args.each}"
        self.common = ["--model", args.model, "--seed", "1", "--dtype", "fp32", "-q"]
        if args.size:
            self.common += ["--height", str(args.size), "--width", str(args.size)]

    def check_time(self):
        if self.end and time.monotonic() > self.end:
            sys.exit("unfinished: run the same command again")

    def pictures(self, name, flags):
        folder = self.args.work / f"{self.name}-{name}"
        if not folder.exists():
            self.check_time()
            part = folder.with_suffix(".part")
            part.mkdir(parents=True, exist_ok=True)
            subprocess.run([self.args.tessera, "generate", *self.captions, *self.common, "--num-inference-steps", str(self.args.steps),
                            "-o", str(part / "p.png"), *flags], check=True, stdout=subprocess.DEVNULL)
            part.rename(folder)
        return [np.asarray(Image.open(folder / f"p-{i}.png").convert("RGB")) for i in range(len(self.captions))]

    def run(self, steps, flags):
        """Returns (seconds of each step, bytes of each rank, processor seconds of all ranks)."""
        report = self.args.work / "report.json"
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([self.args.tessera, "generate", "a red circle on a white background", *self.common, "--threads", "1",
                        "--num-inference-steps", str(steps), "--output-type", "latent", "-o", str(self.args.work / "x.safetensors"),
                        "--report", str(report), *flags], check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        run = json.loads(report.read_text())
        sent = [sum(kind["bytes"] for kind in rank["communication"]) for rank in run["ranks"]]
        return run["step_seconds"], np.array(sent), after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def costs(self):
        """Returns {(ranks, mode): {"bytes", "seconds", "processor"}} with a value for every round; (1, "") is one rank."""
        kinds = [(1, "")] + list(itertools.product(self.args.ranks, self.args.modes))
        found = {kind: {"bytes": [], "seconds": [], "processor": []} for kind in kinds}
        for number in range(self.args.rounds):
            file = self.args.work / f"{self.args.size or 'default'}-costs-{number}.json"
            if not file.exists():
                self.check_time()
                results = []
                for ranks, mode in kinds:
                    flags = displaced(ranks, mode, 4) if mode else []
                    _, sent, processor = self.run(SHORT, flags)
                    seconds, more_sent, more_processor = self.run(LONG, flags)
                    results.append([ranks, mode, int((more_sent - sent).max()) / (LONG - SHORT), float(np.median(seconds[6:-1])),
                                    (more_processor - processor) / (LONG - SHORT)])
                file.write_text(json.dumps(results))
            for ranks, mode, *values in json.loads(file.read_text()):
                for key, value in zip(("bytes", "seconds", "processor"), values):
                    found.setdefault((ranks, mode), {"bytes": [], "seconds": [], "processor": []})[key].append(value)
        return found


def ratio(values, ones):
    each = np.array(values) / np.array(ones)
    return f"{np.median(each):.2f} [{each.min():.2f} .. {each.max():.2f}]"


def print_costs(args, costs):
    if not args.rounds:
        return
    one = costs[1, ""]
    print(f"\nOne rank: {1000 * np.median(one['seconds']):.1f} ms a step, {1000 * np.median(one['processor']):.1f} ms of processor time\n")
    print("| ranks | mode | kB a step a rank | time a step, against one rank | processor time a step, against one rank |")
    print("|---|---|---|---|---|")
    for ranks, mode in itertools.product(args.ranks, args.modes):
        kind = costs[ranks, mode]
        seconds = ratio(kind["seconds"], one["seconds"]) if ranks <= CORES else "not timed: more ranks than cores"
        print(f"| {ranks} | {mode} | {kind['bytes'][0] / 1000:.0f} | {seconds} | {ratio(kind['processor'], one['processor'])} |")


def decibels(value):
    return f"{value:.1f}" if np.isfinite(value) else "same"


def print_near(args, near, apart, scores):
    """Prints a table for each measure, with a row for each mode and a column for each warm-up."""
    def table(title, cell):
        print(f"\n{title}\n\n| ranks | mode | " + " | ".join(f"warm-up {warmup}" for warmup in args.warmup) + " |")
        print("|---|---|" + "---|" * len(args.warmup))
        for ranks, mode in itertools.product(args.ranks, args.modes):
            print(f"| {ranks} | {mode} | " + " | ".join(cell((ranks, mode, warmup)) for warmup in args.warmup) + " |")

    table("PSNR to one rank in dB, median (least)", lambda key: f"{decibels(np.median(near[key]))} ({decibels(min(near[key]))})")
    table("Dissimilarity to one rank, median (most)", lambda key: f"{np.median(apart[key]):.4f} ({max(apart[key]):.4f})")
    table("Captions right, %", lambda key: f"{scores[key]:.0f}")


def print_order(args, near):
    """Prints the modes from best to worst, and for how many captions each beats the next one in the paper's order."""
    modes = [mode for mode in args.modes if mode != "full_sync"]
    print("\n| ranks | warm-up | PSNR of the modes, median [quartiles] | better than the next |")
    print("|---|---|---|---|")
    for ranks, warmup in itertools.product(args.ranks, args.warmup):
        values = {mode: np.array(near[ranks, mode, warmup]) for mode in modes}
        best = sorted(modes, key=lambda mode: -np.median(values[mode]))
        texts = [f"{mode} {np.median(values[mode]):.1f} [{np.quantile(values[mode], .25):.1f}, {np.quantile(values[mode], .75):.1f}]"
                 for mode in best]
        pairs = [f"{mode} > {other}: {np.sum(values[mode] > values[other])}" for mode, other in zip(modes, modes[1:])]
        print(f"| {ranks} | {warmup} | {' > '.join(texts)} | {', '.join(pairs)} of {len(values[modes[0]])} |")


def draw_sheet(args, truth, pictures):
    """Draws a row for each mode: the picture of one rank, then for each number of ranks a column for each warm-up."""
    modes = [mode for mode in args.modes if mode != "full_sync"]
    height, width = truth.shape[:2]
    left, top, gap = 120, 16, 6
    columns = list(itertools.product(args.ranks, args.warmup))
    places = [left + width + gap + i * width + (i // len(args.warmup)) * gap for i in range(len(columns))]
    sheet = Image.new("RGB", (places[-1] + width, top + len(modes) * (height + 2)), "white")
    draw = ImageDraw.Draw(sheet)
    draw.text((left, 2), "one rank", fill="black")
    for (ranks, warmup), x in zip(columns, places):
        draw.text((x + 2, 2), f"{ranks} ranks, warm-up {warmup}", fill="black")
    for row, mode in enumerate(modes):
        y = top + row * (height + 2)
        draw.text((2, y + height // 2), mode, fill="black")
        sheet.paste(Image.fromarray(truth), (left, y))
        for (ranks, warmup), x in zip(columns, places):
            sheet.paste(Image.fromarray(pictures[ranks, mode, warmup]), (x, y))
    # A palette of few colours keeps the file small.
    sheet.quantize(128, dither=Image.Dither.NONE).save(args.sheet, optimize=True)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tessera", default=str(ROOT / "build" / "tessera"))
    parser.add_argument("--model", default=str(ROOT / "models" / "shapes-xl"))
    parser.add_argument("--each", type=int, default=10, help="held-out captions of one object, and of two [10]")
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4, 8])
    parser.add_argument("--warmup", type=int, nargs="*", default=[0, 1, 2, 4])
    parser.add_argument("--modes", nargs="*", default=MODES, choices=MODES, metavar="MODE")
    parser.add_argument("--steps", type=int, default=50, help="denoising steps of the pictures [50]")
    parser.add_argument("--size", type=int, help="height and width in pixels [the model's]")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each mode that measure its costs; 0 leaves costs out [5]")
    parser.add_argument("--sheet", type=pathlib.Path, help="PNG of the first two-object caption, with a row for each mode and a column for each warm-up")
    parser.add_argument("--work", type=pathlib.Path, help="folder that keeps pictures and times; what it holds is not computed again")
    parser.add_argument("--minutes", type=float, help="start nothing new after this many minutes; with --work, run again to continue")
    args = parser.parse_args()
    if args.minutes and not args.work:
        parser.error("--minutes needs --work")
    return args


def main():
    args = arguments()
    with tempfile.TemporaryDirectory() as scratch:
        args.work = args.work or pathlib.Path(scratch)
        args.work.mkdir(parents=True, exist_ok=True)
        study = Study(args)
        truth = study.pictures("one", [])
        near, apart, scores, shown = {}, {}, {}, {}
        for ranks, mode in itertools.product(args.ranks, args.modes):
            for warmup in args.warmup:
                key = (ranks, mode, warmup)
                first = (ranks, mode, args.warmup[0])
                if mode == "full_sync" and key != first:  # this mode has no warm-up
                    near[key], apart[key], scores[key] = near[first], apart[first], scores[first]
                    continue
                pictures = study.pictures(f"{ranks}-{mode}-{warmup}", displaced(ranks, mode, warmup))
                near[key] = [psnr(a, b) for a, b in zip(pictures, truth)]
                apart[key] = [dissimilarity(a, b) for a, b in zip(pictures, truth)]
                scores[key] = right(pictures, study.captions)
                shown[key] = pictures[args.each]
        costs = study.costs()
        print(f"one rank: {right(truth, study.captions):.0f} % of {len(truth)} captions right, {args.steps} steps")
        print_near(args, near, apart, scores)
        print_order(args, near)
        print_costs(args, costs)
        if args.sheet:
            draw_sheet(args, truth[args.each], shown)


if __name__ == "__main__":
    main()
