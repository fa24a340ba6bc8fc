"""Draws some steps of a timeline of `tessera generate --timeline`, with a line of work and one of messages for each rank.

draw_timeline.py trace.json out.png [--steps 0 1 2]
"""
from tools import missing_packages  # noqa: F401  (says how to get those that are missing)
import argparse
import json
import pathlib
import re

from PIL import Image, ImageDraw, ImageFont

WIDTH, MARGIN, LINE, GAP, FOOT = 1200, 70, 26, 6, 30
PATCH_COLOURS = ["#4878a8", "#6a9fcf", "#8fbfe0", "#b4d4ea"]
WHOLE, WAIT, MESSAGE = "#2f5d8a", "#d9534f", "#e8a33d"


def read(path):
    """Returns rank -> (work, waits, messages), lists of (begin, end in seconds, name)."""
    ranks = {}
    for event in json.loads(path.read_text())["traceEvents"]:
        if event["ph"] != "X":
            continue
        work, waits, messages = ranks.setdefault(event["pid"], ([], [], []))
        bar = (event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6, event["name"])
        if event["tid"] == 1:
            messages.append(bar)
        elif event["name"].startswith("wait: "):
            waits.append(bar)
        elif event["name"].startswith("step "):
            work.append(bar)
    return dict(sorted(ranks.items()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--steps", type=int, nargs="*", default=[0, 1, 2])
    args = parser.parse_args()
    ranks = read(args.trace)
    shown = [bar for work, _, _ in ranks.values() for bar in work if int(re.match(r"step (\d+)", bar[2])[1]) in args.steps]
    if not shown:
        parser.error(f"{args.trace} has no work of steps {args.steps}")
    first, last = min(bar[0] for bar in shown), max(bar[1] for bar in shown)

    image = Image.new("RGB", (WIDTH, len(ranks) * 2 * (LINE + GAP) + 2 * GAP + FOOT), "white")
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(13)

    def x(seconds):
        return MARGIN + (WIDTH - MARGIN - 10) * (min(max(seconds, first), last) - first) / (last - first)

    def bars(all_, top, height, colour_of, text_of=lambda name: ""):
        for begin, end, name in all_:
            if end <= first or begin >= last:
                continue
            left, right = x(begin), max(x(end), x(begin) + 1)
            draw.rectangle([left, top, right, top + height], fill=colour_of(name), outline="white" if right - left > 4 else None)
            text = text_of(name)
            if text and draw.textlength(text, font=font) < right - left - 4:
                draw.text(((left + right) / 2, top + height / 2), text, fill="white", font=font, anchor="mm")

    def colour(name):
        patch = re.search(r"patch (\d+)$", name)
        return PATCH_COLOURS[int(patch[1]) % len(PATCH_COLOURS)] if patch else WHOLE

    top = GAP
    for rank, (work, waits, messages) in ranks.items():
        draw.text((6, top + LINE / 2), f"rank {rank}", fill="black", font=font, anchor="lm")
        bars(work, top, LINE, colour, lambda name: name.replace(", patch ", "."))
        bars(waits, top, LINE, lambda _: WAIT)
        bars(messages, top + LINE + GAP, LINE // 2, lambda _: MESSAGE)
        top += 2 * (LINE + GAP)
    left = MARGIN
    for what, fill in [("work (step.patch)", PATCH_COLOURS[0]), ("waiting", WAIT), ("a message under way", MESSAGE)]:
        draw.rectangle([left, top + 4, left + 14, top + 18], fill=fill)
        draw.text((left + 20, top + 11), what, fill="black", font=font, anchor="lm")
        left += 190
    draw.text((WIDTH - 10, top + 11), f"{last - first:.2f} s", fill="black", font=font, anchor="rm")
    image.save(args.out)


if __name__ == "__main__":
    main()
