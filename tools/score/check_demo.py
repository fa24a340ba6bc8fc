"""Checks pictures against the demo model's captions, from pixels alone.

It uses colours, shapes and positions and needs no model: each pixel takes the nearest palette
colour, morphological opening removes specks and edges, the colour at the border is the background,
and the shape of each remaining patch is the template of equal area and centre that covers it best.
"""

from __future__ import annotations

from tools import missing_packages  # noqa: F401  (says how to get those that are missing)
import argparse
import json
import os
import sys
from dataclasses import dataclass, field

import numpy as np
from PIL import Image
from scipy import ndimage

from tools.train import scenes

# Patches of fewer pixels (of 128 x 128) are not objects; the smallest real object has 580.
LEAST_AREA = 250
# A patch whose best template overlaps by less (intersection over union) has no known shape.
LEAST_OVERLAP = 0.75
# A relation holds only at this distance or more, in pixels, along its axis.
LEAST_DISTANCE = 16
BORDER = 3

_PALETTE = np.array([scenes.PALETTE[c] for c in scenes.COLOURS], np.float32)


def _unit_forms():
    """Returns each shape's area and centroid at radius 1, measured on a large drawing."""
    forms = {}
    for shape in scenes.SHAPES:
        y0, x0, cover = scenes.shape_mask(shape, 100, 100, 50, 200)
        area = cover.sum()
        ys, xs = np.arange(cover.shape[0]) + y0 + 0.5, np.arange(cover.shape[1]) + x0 + 0.5
        cy, cx = (cover.sum(1) * ys).sum() / area, (cover.sum(0) * xs).sum() / area
        forms[shape] = (area / 2500, (cx - 100) / 50, (cy - 100) / 50)
    return forms


_FORMS = _unit_forms()


@dataclass
class Patch:
    colour: str
    shape: str | None
    overlap: float
    x: float
    y: float
    area: int


@dataclass
class Verdict:
    caption: str
    objects: int
    background: bool = False
    colours: bool = False
    shapes: bool = False
    relation: bool = False
    seen: list[str] = field(default_factory=list)

    @property
    def right(self) -> bool:
        return self.background and self.colours and self.shapes and self.relation


def colour_map(picture: np.ndarray) -> np.ndarray:
    flat = picture.reshape(-1, 3).astype(np.float32)
    distance = ((flat[:, None, :] - _PALETTE[None]) ** 2).sum(-1)
    return distance.argmin(1).reshape(picture.shape[:2])


def best_shape(mask: np.ndarray) -> tuple[str | None, float, float, float]:
    """Returns (shape or None, overlap, centre x, centre y) of one patch."""
    area = int(mask.sum())
    ys, xs = np.nonzero(mask)
    my, mx = ys.mean() + 0.5, xs.mean() + 0.5
    best, overlap = None, 0.0
    for shape, (unit, ux, uy) in _FORMS.items():
        radius = (area / unit) ** 0.5
        cx, cy = mx - ux * radius, my - uy * radius
        y0, x0, cover = scenes.shape_mask(shape, cx, cy, radius, mask.shape[0])
        template = cover > 0.5
        both = (mask[y0 : y0 + cover.shape[0], x0 : x0 + cover.shape[1]] & template).sum()
        value = both / (area + template.sum() - both)
        if value > overlap:
            best, overlap = shape, float(value)
    return (best if overlap >= LEAST_OVERLAP else None), overlap, mx, my


def find_masks(picture: np.ndarray) -> tuple[str, list[tuple[str, np.ndarray]]]:
    """Returns the background's colour, and the colour and the pixels of each object, largest first."""
    index = colour_map(picture)
    edge = np.ones(index.shape, bool)
    edge[BORDER:-BORDER, BORDER:-BORDER] = False
    ground = int(np.bincount(index[edge], minlength=len(scenes.COLOURS)).argmax())
    masks = []
    for number, colour in enumerate(scenes.COLOURS):
        if number == ground or (index == number).sum() < LEAST_AREA:
            continue
        # Opening removes thin rims, where two colours mix into a third.
        mask = ndimage.binary_opening(index == number)
        labels, count = ndimage.label(mask)
        parts = [labels == label for label in range(1, count + 1)]
        masks += [(colour, part) for part in parts if part.sum() >= LEAST_AREA]
    return scenes.COLOURS[ground], sorted(masks, key=lambda m: -m[1].sum())


def read_picture(picture: np.ndarray) -> tuple[str, list[Patch]]:
    """Returns the background's colour and the objects, largest first."""
    ground, masks = find_masks(picture)
    return ground, [Patch(colour, *best_shape(mask), int(mask.sum())) for colour, mask in masks]


def check(picture: np.ndarray, text: str) -> Verdict:
    """Compares a picture, uint8 [height, width, 3], with its caption."""
    if picture.shape[:2] != (scenes.SIZE, scenes.SIZE):
        small = Image.fromarray(picture).resize((scenes.SIZE, scenes.SIZE), Image.BOX)
        picture = np.asarray(small)
    scene = scenes.parse_caption(text)
    background, patches = read_picture(picture)
    wanted = [scene.first] + ([scene.second] if scene.second else [])
    verdict = Verdict(text, len(wanted))
    verdict.seen = [f"{p.colour} {p.shape} at ({p.x:.0f}, {p.y:.0f}) overlap {p.overlap:.2f}"
                    for p in patches] + [f"{background} background"]
    verdict.background = background == scene.background
    by_colour = {p.colour: p for p in patches}
    # Any object that the caption does not name makes the picture wrong.
    verdict.colours = (len(patches) == len(wanted)
                       and all(item.colour in by_colour for item in wanted))
    if not verdict.colours:
        return verdict
    found = [by_colour[item.colour] for item in wanted]
    verdict.shapes = all(p.shape == item.shape for p, item in zip(found, wanted))
    if scene.second is None:
        verdict.relation = True
    else:
        dx, dy = found[0].x - found[1].x, found[0].y - found[1].y
        along = {"above": -dy, "below": dy, "left of": -dx, "right of": dx}[scene.relation]
        across = abs(dx) if scene.relation in ("above", "below") else abs(dy)
        verdict.relation = along >= LEAST_DISTANCE and along > across
    return verdict


def summary(verdicts: list[Verdict]) -> dict:
    table = {}
    for objects, name in ((1, "single"), (2, "two")):
        group = [v for v in verdicts if v.objects == objects]
        if group:
            table[name] = {"pictures": len(group), "right": int(sum(v.right for v in group))}
            for part in ("background", "colours", "shapes", "relation"):
                table[name][part] = int(sum(getattr(v, part) for v in group))
    return table


def print_summary(table: dict) -> None:
    for name, row in table.items():
        share = 100 * row["right"] / row["pictures"]
        parts = ", ".join(f"{part} {row[part]}" for part in
                          ("background", "colours", "shapes", "relation"))
        print(f"{name}-object captions: {row['right']} of {row['pictures']} right"
              f" ({share:.1f} %); {parts}")


def held_out_captions(seed: int, each: int) -> list[str]:
    """Returns captions that training never saw: first those of one object, then those of two."""
    rng = np.random.default_rng(seed)
    return [scenes.caption(scenes.sample_scene(rng, True, objects), rng)
            for objects in (1, 2) for _ in range(each)]


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Scores pictures against captions, or writes a list of held-out captions.")
    parser.add_argument("--pictures", help="folder of pictures: p-0.png for the first caption, p-1.png, ...")
    parser.add_argument("--captions", help="text file, one caption per line")
    parser.add_argument("--write-captions", metavar="FILE", help="write held-out captions and stop")
    parser.add_argument("--each", type=int, default=200,
                        help="number of captions to write of each kind (default 200)")
    parser.add_argument("--seed", type=int, default=1000, help="seed of --write-captions")
    parser.add_argument("--json", metavar="FILE", help="also write the counts as JSON")
    parser.add_argument("--verbose", action="store_true", help="print what is wrong with each wrong picture")
    parser.add_argument("--need-single", type=float, default=0, metavar="PERCENT",
                        help="exit with 1 if less than PERCENT of the single-object pictures are right")
    parser.add_argument("--need-two", type=float, default=0, metavar="PERCENT",
                        help="exit with 1 if less than PERCENT of the two-object pictures are right")
    args = parser.parse_args()
    if args.write_captions:
        with open(args.write_captions, "w", encoding="utf-8") as out:
            out.write("\n".join(held_out_captions(args.seed, args.each)) + "\n")
        return 0
    if not args.pictures or not args.captions:
        parser.error("give --pictures and --captions, or --write-captions")
    with open(args.captions, encoding="utf-8") as source:
        captions = [line.strip() for line in source if line.strip()]
    names = sorted((n for n in os.listdir(args.pictures)
                    if n.lower().endswith((".png", ".ppm", ".jpg", ".jpeg", ".webp"))),
                   key=lambda n: (len(n), n))  # p-9 before p-10
    if len(names) != len(captions):
        sys.exit(f"{len(names)} pictures in {args.pictures} but {len(captions)} captions")
    verdicts = []
    for name, text in zip(names, captions):
        picture = np.asarray(Image.open(os.path.join(args.pictures, name)).convert("RGB"))
        verdicts.append(check(picture, text))
        if args.verbose and not verdicts[-1].right:
            print(f"{name}: '{text}' but saw {'; '.join(verdicts[-1].seen)}")
    table = summary(verdicts)
    print_summary(table)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as out:
            json.dump(table, out, indent=2)
            out.write("\n")
    needs = {"single": args.need_single, "two": args.need_two}
    enough = all(100 * row["right"] >= needs[name] * row["pictures"] for name, row in table.items())
    return 0 if enough else 1


if __name__ == "__main__":
    sys.exit(main())
