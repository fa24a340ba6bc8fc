"""Draws predicted against measured seconds, with a band of 15 %: docs/planning/NAME.svg of each published table, whose rows
tools/figures/planned_tables.py predicts, and docs/planning/own.svg of the JSON that bench/planned.py -o writes.

    python3 -m tools.figures.draw_planned [build/tessera] [NAME ...] [--own planned.json]
"""
import argparse
import html
import json
import math
import pathlib

from tools.figures import planned_tables

BAND = 0.15
LEFT, TOP, SIDE, WIDTH, HEIGHT = 70, 40, 440, 720, 540
# By the word that names a method, in options and in the names of layouts; the first that occurs counts.
METHODS = (("pipefusion", "PipeFusion"), ("displaced", "displaced patches"), ("tensor", "tensor"), ("ring", "Ring, also with Ulysses"),
           ("dsp", "DSP"), ("ulysses", "Ulysses"), ("gather", "gathered keys"), ("cfg", "CFG"), ("data", "data"))
OTHERS = "one device"
COLOURS = ("#2f6fb3", "#d9822b", "#3a9a5b", "#a04a9c", "#b33a3a", "#7a7a2f", "#4aa3a3", "#777777", "#c2185b", "#222222")
MARKS = ("M-5,0a5,5 0 1,0 10,0a5,5 0 1,0 -10,0", "M-5,-5h10v10h-10z", "M0,-6l6,11h-12z", "M0,-7l6,7l-6,7l-6,-7z", "M0,6l6,-11h-12z",
         "M-6,-2h4v-4h4v4h4v4h-4v4h-4v-4h-4z", "M-6,-6l4,0l2,3l2,-3l4,0l-4,6l4,6h-4l-2,-3l-2,3h-4l4,-6z", "M-6,-3h12v6h-12z", "M-3,-6h6v12h-6z",
         "M0,-7l2,5h5l-4,3l2,6l-5,-4l-5,4l2,-6l-4,-3h5z")


def method_of(words):
    words = words.lower().replace("_", "-")
    return next((method for word, method in METHODS if word in words), OTHERS)


def number(value):
    return f"{value:.1f}".rstrip("0").rstrip(".")


def ticks(least, most):
    """1, 2 and 5 times powers of ten."""
    powers = range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1)
    return [step * 10**power for power in powers for step in (1, 2, 5) if least <= step * 10**power <= most]


def draw(title, points):
    """The SVG of points (method, label, measured, predicted)."""
    values = [value for *_, measured, predicted in points for value in (measured, predicted)]
    least, most = min(values) / 1.3, max(values) * 1.3

    def place(value):
        return SIDE * math.log(value / least) / math.log(most / least)

    def x(value):
        return number(LEFT + place(value))

    def y(value):
        return number(TOP + SIDE - place(value))

    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" font-family="sans-serif" '
             'font-size="12" fill="#222">', f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
             f'<text x="{LEFT}" y="20" font-size="14">{html.escape(title)}</text>']
    up, down = 1 + BAND, 1 - BAND
    band = [(least, least), (least, least * up), (most / up, most), (most, most), (most, most * down), (least / down, least)]
    corners = " ".join(f"{x(a)},{y(b)}" for a, b in band)
    lines.append(f'<polygon points="{corners}" fill="#e8eef5"/>')
    shown = ticks(least, most)
    labelled = [value for value in shown if len(shown) <= 12 or math.isclose(math.log10(value) % 1, 0, abs_tol=1e-9)]
    for value in shown:
        lines += [f'<path d="M{x(value)},{TOP}V{TOP + SIDE}M{LEFT},{y(value)}H{LEFT + SIDE}" stroke="#ddd" fill="none"/>']
    for value in labelled:
        lines += [f'<text x="{x(value)}" y="{TOP + SIDE + 16}" text-anchor="middle">{value:g}</text>',
                  f'<text x="{LEFT - 6}" y="{float(y(value)) + 4:.1f}" text-anchor="end">{value:g}</text>']
    lines += [f'<path d="M{LEFT},{TOP + SIDE}L{LEFT + SIDE},{TOP}" stroke="#888" fill="none"/>',
              f'<rect x="{LEFT}" y="{TOP}" width="{SIDE}" height="{SIDE}" stroke="#888" fill="none"/>',
              f'<text x="{LEFT + SIDE / 2}" y="{TOP + SIDE + 38}" text-anchor="middle">measured, s</text>',
              f'<text x="16" y="{TOP + SIDE / 2}" text-anchor="middle" transform="rotate(-90 16 {TOP + SIDE / 2})">predicted, s</text>']
    names = [method for _, method in METHODS] + [OTHERS]
    present = [name for name in names if any(point[0] == name for point in points)]
    for line, name in enumerate(present):
        colour, mark = COLOURS[names.index(name)], MARKS[names.index(name)]
        for _, label, measured, predicted in (point for point in points if point[0] == name):
            lines.append(f'<path d="{mark}" transform="translate({x(measured)},{y(predicted)})" fill="{colour}" fill-opacity="0.75" '
                         f'stroke="white" stroke-width="0.8"><title>{html.escape(label)}: {predicted:.4g} of {measured:.4g} s</title></path>')
        at = TOP + 12 + 22 * line
        lines += [f'<path d="{mark}" transform="translate({LEFT + SIDE + 24},{at})" fill="{colour}"/>',
                  f'<text x="{LEFT + SIDE + 38}" y="{at + 4}">{html.escape(name)}</text>']
    at = TOP + 12 + 22 * len(present)
    lines += [f'<rect x="{LEFT + SIDE + 18}" y="{at - 6}" width="12" height="12" fill="#e8eef5"/>',
              f'<text x="{LEFT + SIDE + 38}" y="{at + 4}">within {100 * BAND:.0f} %</text>', "</svg>"]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", nargs="?", default="build/tessera", type=pathlib.Path)
    parser.add_argument("names", nargs="*", help=f"tables (default: {' '.join(planned_tables.NAMES)})")
    parser.add_argument("--own", type=pathlib.Path, help="draw the JSON of bench/planned.py, and only it unless tables are named")
    args = parser.parse_args()
    for name in args.names or ([] if args.own else planned_tables.NAMES):
        points = [(method_of(row["flags"].replace("ulysses-degree 2 --ring", "ring")), f"{row['height']} px, {row['flags']}", row["measured"],
                   row["predicted"]) for row in planned_tables.table(args.program.resolve(), name)]
        (planned_tables.FOLDER / f"{name}.svg").write_text(draw(f"{name}, rows that nothing was fitted to: seconds of a run", points))
    if args.own:
        points = [(method_of(row["layout"]), f"{row['model']}, {row['size']}, {row['layout']}", row["measured"]["step"], row["planned"]["step"])
                  for row in json.loads(args.own.read_text())]
        (planned_tables.FOLDER / "own.svg").write_text(draw("This program on two cores: seconds of a steady step", points))


if __name__ == "__main__":
    main()
