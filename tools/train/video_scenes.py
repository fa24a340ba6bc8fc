"""Seeded generator of the video model's captions and videos.

A scene is a flat shape that moves in a straight line, at one speed, over a flat background; a second shape
may stand in the middle, and the first one passes in front of it.  A video shows the whole way whatever its
length, so that a longer one is slower.  A hash holds out one tenth of all combinations; training never draws
one of them.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
from dataclasses import dataclass

import numpy as np
from PIL import Image

from tools.train import scenes as pictures
from tools.train.scenes import PALETTE, SHAPES, SIZE, Item

FRAMES, LONG_FRAMES = 17, 34

# Brown, gray and pink are left out because they lie between others.
COLOURS = ("red", "green", "blue", "yellow", "orange", "purple", "cyan", "black", "white")
BACKGROUNDS = pictures.BACKGROUNDS
STILL = "still"
MOTIONS = ("left to right", "right to left", "up", "down", STILL)
# The direction of each motion, x to the right and y downwards.
DIRECTIONS = {"left to right": (1, 0), "right to left": (-1, 0), "up": (0, -1), "down": (0, 1), STILL: (0, 0)}

# What a motion is when a video is shown backwards.
REVERSED = {"left to right": "right to left", "right to left": "left to right", "up": "down", "down": "up"}
STILL_SHARE = 0.1
PAIR_SHARE = 0.45
# Of the videos that are drawn for a batch more show two, because those with one are learned long before.
DRAWN_PAIR_SHARE = 0.75
# The background that a caption need not name occurs oftener than the others, so that enough captions name none.
DEFAULT_GROUND_SHARE, UNNAMED_SHARE = 0.3, 0.6

# Wordings, the plain one first.
VERBS = ("moves", "slides")
MOTION_WORDS = {
    "left to right": ("left to right", "from left to right", "to the right"),
    "right to left": ("right to left", "from right to left", "to the left"),
    "up": ("up", "upwards"),
    "down": ("down", "downwards"),
}
STILL_WORDS = ("stays still", "stands still")
OVER_WORDS = ("over", "across")

# Places and sizes vary little: what varies more takes a small model far longer to learn.
RADIUS = (16, 18.5)
REACH = 37  # from the middle to where a motion begins or ends


@dataclass(frozen=True)
class Scene:
    first: Item
    motion: str
    background: str
    second: Item | None = None

    def key(self) -> str:
        over = f" over {self.second.colour} {self.second.shape}" if self.second else ""
        return f"{self.first.colour} {self.first.shape} {self.motion}{over} on {self.background}"

    def held_out(self) -> bool:
        digest = hashlib.sha256(self.key().encode()).digest()
        return int.from_bytes(digest[:8], "big") % pictures.HELD_OUT_ONE_IN == 0


def draw_rows(pairs: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Returns `count` random rows of training videos, of which `pairs` says whether they show two shapes."""
    kinds = rng.random(count) < DRAWN_PAIR_SHARE
    return np.where(kinds, rng.choice(np.flatnonzero(pairs), count), rng.choice(np.flatnonzero(~pairs), count))


def default_background(first: Item, second: Item | None) -> str:
    """Returns the background of a caption that names none."""
    return "black" if "white" in (first.colour, second and second.colour) else "white"


def sample_scene(rng: np.random.Generator, held_out: bool = False, objects: int = 0) -> Scene:
    """Draws a scene of the training part, or of the held-out part.  objects = 0 allows either count."""
    while True:
        colours = rng.choice(COLOURS, size=2, replace=False)
        shapes = rng.choice(SHAPES, size=2)
        first, second = (Item(str(c), str(s)) for c, s in zip(colours, shapes))
        if not (rng.random() < PAIR_SHARE if objects == 0 else objects == 2):
            second = None
        default = default_background(first, second)
        background = default if rng.random() < DEFAULT_GROUND_SHARE else str(rng.choice(BACKGROUNDS))
        motion = STILL if second is None and rng.random() < STILL_SHARE else str(rng.choice(MOTIONS[:-1]))
        scene = Scene(first, motion, background, second)
        taken = (first.colour, second and second.colour)
        if background not in taken and scene.held_out() == held_out:
            return scene


def caption(scene: Scene, rng: np.random.Generator | None = None) -> str:
    """Returns the caption in plain wording, or with random synonyms if rng is given; some of these do not
    name the default background."""

    def pick(options):
        return options[0] if rng is None else options[int(rng.integers(len(options)))]

    def noun(item):
        return f"{'an' if item.colour[0] in 'aeiou' else 'a'} {item.colour} {item.shape}"

    if scene.motion == STILL:
        text = f"{noun(scene.first)} {pick(STILL_WORDS)}"
    else:
        text = f"{noun(scene.first)} {pick(VERBS)} {pick(MOTION_WORDS[scene.motion])}"
    if scene.second is not None:
        text += f" {pick(OVER_WORDS)} {noun(scene.second)}"
    is_default = scene.background == default_background(scene.first, scene.second)
    if rng is not None and is_default and rng.random() < UNNAMED_SHARE:
        return text
    return f"{text} on a {pick(pictures.COLOUR_WORDS.get(scene.background, (scene.background,)))} background"


def _pattern():
    ways = sorted((w for words in MOTION_WORDS.values() for w in words), key=len, reverse=True)
    return re.compile(rf"(?P<first>.+?) (?:(?:{'|'.join(VERBS)}) (?P<way>{'|'.join(ways)})|{'|'.join(STILL_WORDS)})"
                      rf"(?: (?:{'|'.join(OVER_WORDS)}) (?P<second>.+?))?(?: on (?P<ground>.+) background)?")


_PATTERN = _pattern()


def parse_caption(text: str) -> Scene:
    """Parses a caption of any supported wording; raises ValueError for other texts."""
    aliases = {w: c for c, words in pictures.COLOUR_WORDS.items() for w in words}
    found = _PATTERN.fullmatch(text.strip().lower().rstrip("."))
    if not found:
        raise ValueError(f"not a caption of the video model: '{text}'")

    def words_of(part):
        return [aliases.get(w, w) for w in part.split() if w not in ("a", "an", "the")]

    def item(part):
        words = words_of(part)
        if len(words) != 2 or words[0] not in COLOURS or words[1] not in SHAPES:
            raise ValueError(f"not an object: '{part}' in '{text}'")
        return Item(*words)

    first, second = item(found["first"]), found["second"] and item(found["second"])
    ground = words_of(found["ground"]) if found["ground"] else [default_background(first, second)]
    if len(ground) != 1 or ground[0] not in BACKGROUNDS:
        raise ValueError(f"not a background: '{found['ground']}' in '{text}'")
    motion = next((m for m, words in MOTION_WORDS.items() if found["way"] in words), STILL)
    if motion == STILL and second:
        raise ValueError(f"nothing can stay still in front of another thing: '{text}'")
    return Scene(first, motion, ground[0], second)


def draw(canvas: np.ndarray, item: Item, x: float, y: float, radius: float) -> None:
    """Draws an object on a picture [SIZE, SIZE, 3] of float32."""
    y0, x0, cover = pictures.shape_mask(item.shape, x, y, radius)
    box = canvas[y0 : y0 + cover.shape[0], x0 : x0 + cover.shape[1]]
    box += cover[:, :, None] * (np.asarray(PALETTE[item.colour], np.float32) - box)


def render(scene: Scene, rng: np.random.Generator, frames: int = FRAMES) -> np.ndarray:
    """Draws a scene with slightly random places and sizes, uint8 [frames, SIZE, SIZE, 3]."""
    ground = np.broadcast_to(np.asarray(PALETTE[scene.background], np.float32), (SIZE, SIZE, 3)).copy()
    middle = SIZE / 2
    if scene.second is not None:
        x, y = middle + rng.uniform(-2, 2, 2)
        draw(ground, scene.second, x, y, rng.uniform(*RADIUS))
    direction = np.array(DIRECTIONS[scene.motion], float)
    begin = middle - REACH * direction + rng.uniform(-1.5, 1.5, 2)
    way = 2 * REACH * direction + rng.uniform(-1.5, 1.5) * direction
    radius = rng.uniform(*RADIUS)
    video = np.empty((frames, SIZE, SIZE, 3), np.uint8)
    for i in range(frames):
        canvas = ground.copy()
        draw(canvas, scene.first, *(begin + way * (i / max(1, frames - 1))), radius)
        video[i] = np.rint(canvas)
    return video


def strip(video: np.ndarray, count: int = 6) -> np.ndarray:
    """Returns a few frames of a video side by side, with thin gray lines between them."""
    chosen = video[np.linspace(0, len(video) - 1, min(count, len(video))).round().astype(int)]
    framed = np.pad(chosen, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=90)
    return np.concatenate(list(framed), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes sample videos and their captions.")
    parser.add_argument("--out", required=True, help="folder for NNN.png (strips), NNN.gif and captions.txt")
    parser.add_argument("--count", type=int, default=8, help="number of videos (default 8)")
    parser.add_argument("--frames", type=int, default=FRAMES, help=f"frames of each (default {FRAMES})")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--held-out", action="store_true", help="draw from the held-out part")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    rng = np.random.default_rng(args.seed)
    with open(os.path.join(args.out, "captions.txt"), "w", encoding="utf-8") as lines:
        for index in range(args.count):
            scene = sample_scene(rng, args.held_out)
            video = render(scene, rng, args.frames)
            name = os.path.join(args.out, f"{index:03d}")
            Image.fromarray(strip(video)).save(name + ".png")
            images = [Image.fromarray(frame) for frame in video]
            images[0].save(name + ".gif", save_all=True, append_images=images[1:], duration=1000 / 24, loop=0)
            lines.write(caption(scene, rng) + "\n")


if __name__ == "__main__":
    main()
