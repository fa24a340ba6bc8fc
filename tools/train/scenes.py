"""Seeded generator of the demo model's captions and pictures.

A scene is one or two flat shapes on a flat background.  The caption describes everything that the
picture shows, so that a checker can verify it from the pixels.  A hash holds out one tenth of all
combinations; training never draws one of them.
"""

from __future__ import annotations

import argparse
import hashlib
import os
from dataclasses import dataclass

import numpy as np
from PIL import Image

SIZE = 128

PALETTE = {
    "red": (220, 40, 40),
    "green": (40, 160, 60),
    "blue": (40, 80, 220),
    "yellow": (245, 215, 50),
    "orange": (245, 135, 30),
    "purple": (130, 50, 180),
    "pink": (250, 150, 190),
    "brown": (125, 75, 35),
    "cyan": (50, 200, 220),
    "gray": (128, 128, 128),
    "black": (20, 20, 20),
    "white": (245, 245, 245),
}
COLOURS = tuple(PALETTE)
BACKGROUNDS = ("white", "black", "gray", "yellow", "cyan", "pink")
SHAPES = ("circle", "square", "triangle", "star", "cross", "heart")
RELATIONS = ("above", "below", "left of", "right of")
OPPOSITE = {"above": "below", "below": "above", "left of": "right of", "right of": "left of"}

SINGLE_SHARE = 0.35
HELD_OUT_ONE_IN = 10

# Wordings of each relation, the plain one first.
RELATION_WORDS = {
    "above": ("above", "over"),
    "below": ("below", "under"),
    "left of": ("to the left of", "left of"),
    "right of": ("to the right of", "right of"),
}
COLOUR_WORDS = {"gray": ("gray", "grey")}


@dataclass(frozen=True)
class Item:
    colour: str
    shape: str


@dataclass(frozen=True)
class Scene:
    first: Item
    background: str
    relation: str | None = None
    second: Item | None = None

    def key(self) -> str:
        """Returns one text per content of a picture: "a above b" and "b below a" give the same one."""
        first, second, relation = self.first, self.second, self.relation
        if second is None:
            return f"{first.colour} {first.shape} on {self.background}"
        if relation in ("below", "right of"):
            first, second, relation = second, first, OPPOSITE[relation]
        return (
            f"{first.colour} {first.shape} {relation} {second.colour} {second.shape}"
            f" on {self.background}"
        )

    def held_out(self) -> bool:
        digest = hashlib.sha256(self.key().encode()).digest()
        return int.from_bytes(digest[:8], "big") % HELD_OUT_ONE_IN == 0


def sample_scene(rng: np.random.Generator, held_out: bool = False, objects: int = 0) -> Scene:
    """Draws a scene of the training part, or of the held-out part.  objects = 0 allows either count."""
    while True:
        background = str(rng.choice(BACKGROUNDS))
        colours = rng.choice([c for c in COLOURS if c != background], size=2, replace=False)
        shapes = rng.choice(SHAPES, size=2)
        first = Item(str(colours[0]), str(shapes[0]))
        single = rng.random() < SINGLE_SHARE if objects == 0 else objects == 1
        if single:
            scene = Scene(first, background)
        else:
            second = Item(str(colours[1]), str(shapes[1]))
            scene = Scene(first, background, str(rng.choice(RELATIONS)), second)
        if scene.held_out() == held_out:
            return scene


def caption(scene: Scene, rng: np.random.Generator | None = None) -> str:
    """Returns the caption in plain wording, or with random synonyms if rng is given."""

    def pick(options):
        return options[0] if rng is None else options[int(rng.integers(len(options)))]

    def colour(name):
        return pick(COLOUR_WORDS.get(name, (name,)))

    def noun(item):
        word = colour(item.colour)
        article = "an" if word[0] in "aeiou" else "a"
        return f"{article} {word} {item.shape}"

    text = noun(scene.first)
    if scene.second is not None:
        text += f" {pick(RELATION_WORDS[scene.relation])} {noun(scene.second)}"
    word = colour(scene.background)
    return f"{text} on {'an' if word[0] in 'aeiou' else 'a'} {word} background"


def parse_caption(text: str) -> Scene:
    """Parses a caption of any supported wording; raises ValueError for other texts."""
    aliases = {w: c for c, words in COLOUR_WORDS.items() for w in words}
    body = text.strip().lower()
    if body.endswith(" background"):
        body = body[: -len(" background")]
    head, _, background = body.rpartition(" on ")

    def words_of(part):
        return [aliases.get(w, w) for w in part.split() if w not in ("a", "an", "the")]

    def item(part):
        words = words_of(part)
        if len(words) != 2 or words[0] not in PALETTE or words[1] not in SHAPES:
            raise ValueError(f"not an object: '{part}' in '{text}'")
        return Item(words[0], words[1])

    ground = words_of(background)
    if len(ground) != 1 or ground[0] not in BACKGROUNDS:
        raise ValueError(f"not a background: '{background}' in '{text}'")
    for relation, options in RELATION_WORDS.items():
        for words in options:
            left, found, right = head.partition(f" {words} ")
            if found:
                return Scene(item(left), ground[0], relation, item(right))
    return Scene(item(head), ground[0])


def inside(shape: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Returns which points (shape units, y downwards, centroid near 0) lie in a shape of unit size."""
    if shape == "circle":
        return x * x + y * y < 1.0
    if shape == "square":
        return np.maximum(np.abs(x), np.abs(y)) < 0.9
    if shape == "triangle":
        # The triangle is equilateral with its tip up and a circumradius of 1.35.
        return (y < 0.675) & (np.abs(x) * 1.7320508 - y < 1.35)
    if shape == "cross":
        a, b = np.abs(x), np.abs(y)
        return (np.maximum(a, b) < 1.15) & (np.minimum(a, b) < 0.42)
    if shape == "star":
        # Symmetry folds the star into half a point: from the tip's ray to the inner corner's ray at 36 degrees.
        outer, inner = 1.4, 0.64
        angle = np.abs(np.mod(np.arctan2(x, -y) + np.pi / 5, 2 * np.pi / 5) - np.pi / 5)
        radius = np.hypot(x, y)
        px, py = radius * np.cos(angle), radius * np.sin(angle)
        cx, cy = inner * np.cos(np.pi / 5), inner * np.sin(np.pi / 5)
        return (cx - outer) * py - cy * (px - outer) > 0
    if shape == "heart":
        u, v = x * 1.05, 0.2 - y * 1.05
        return (u * u + v * v - 1.0) ** 3 - u * u * v * v * v < 0
    raise ValueError(f"unknown shape '{shape}'")


def shape_mask(shape: str, cx: float, cy: float, radius: float, size: int = SIZE, sub: int = 3):
    """Returns a shape's coverage, 0..1, as (y0, x0, array) of the part of the canvas that it touches."""
    reach = 1.45 * radius
    x0, x1 = max(0, int(cx - reach)), min(size, int(cx + reach) + 2)
    y0, y1 = max(0, int(cy - reach)), min(size, int(cy + reach) + 2)
    if x0 >= x1 or y0 >= y1:
        return 0, 0, np.zeros((0, 0), np.float32)
    step = np.float32(1.0 / sub)
    x = (np.arange(x0 * sub, x1 * sub, dtype=np.float32) + 0.5) * step
    y = (np.arange(y0 * sub, y1 * sub, dtype=np.float32) + 0.5) * step
    hit = inside(shape, ((x - cx) / radius)[None, :], ((y - cy) / radius)[:, None])
    hit = hit.reshape(y1 - y0, sub, x1 - x0, sub)
    return y0, x0, hit.mean(axis=(1, 3), dtype=np.float32)


def _draw_shape(canvas, shape, colour, cx, cy, radius):
    y0, x0, cover = shape_mask(shape, cx, cy, radius, canvas.shape[0])
    box = canvas[y0 : y0 + cover.shape[0], x0 : x0 + cover.shape[1]]
    box += cover[:, :, None] * (np.asarray(PALETTE[colour], np.float32) - box)


def _canvas(background, size):
    return np.broadcast_to(np.asarray(PALETTE[background], np.float32), (size, size, 3)).copy()


def render(scene: Scene, rng: np.random.Generator) -> np.ndarray:
    """Draws a scene with random places and sizes, uint8 [SIZE, SIZE, 3]."""
    canvas = _canvas(scene.background, SIZE)
    mid = SIZE / 2
    if scene.second is None:
        # The place varies little: with offsets of up to 10 pixels and radii from 18 to 27, a denoiser
        # of this size drew single stars and crosses unevenly long after those of pairs were right.
        dx, dy = rng.uniform(-5, 5, 2)
        _draw_shape(canvas, scene.first.shape, scene.first.colour, mid + dx, mid + dy,
                    rng.uniform(20, 25))
    else:
        sign = -1.0 if scene.relation in ("above", "left of") else 1.0
        for item, side in ((scene.first, sign), (scene.second, -sign)):
            along, across = mid + side * 31 + rng.uniform(-2, 2), mid + rng.uniform(-7, 7)
            vertical = scene.relation in ("above", "below")
            cx, cy = (across, along) if vertical else (along, across)
            _draw_shape(canvas, item.shape, item.colour, cx, cy, rng.uniform(16, 20.5))
    return np.rint(canvas).astype(np.uint8)


def render_dense(rng: np.random.Generator, size: int) -> np.ndarray:
    """Draws a crowd of shapes, some cut by the edge, which gives the VAE's training more outlines per pixel."""
    canvas = _canvas(str(rng.choice(COLOURS)), size)
    area = (size / 64) ** 2
    for _ in range(int(rng.integers(max(1, round(area)), round(3 * area) + 1))):
        cx, cy = rng.uniform(0, size, 2)
        _draw_shape(canvas, str(rng.choice(SHAPES)), str(rng.choice(COLOURS)), cx, cy,
                    rng.uniform(15, 27))
    return np.rint(canvas).astype(np.uint8)


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes sample pictures and their captions.")
    parser.add_argument("--out", required=True, help="folder for NNN.png and captions.txt")
    parser.add_argument("--count", type=int, default=16, help="number of pictures (default 16)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--held-out", action="store_true", help="draw from the held-out part")
    parser.add_argument("--objects", type=int, default=0, choices=(0, 1, 2),
                        help="objects per picture; 0 takes the mix of training (default)")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    rng = np.random.default_rng(args.seed)
    with open(os.path.join(args.out, "captions.txt"), "w", encoding="utf-8") as lines:
        for index in range(args.count):
            scene = sample_scene(rng, args.held_out, args.objects)
            Image.fromarray(render(scene, rng)).save(os.path.join(args.out, f"{index:03d}.png"))
            lines.write(caption(scene, rng) + "\n")


if __name__ == "__main__":
    main()
