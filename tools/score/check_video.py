"""Checks videos against the video model's captions, from pixels alone.

Each frame is read as check_demo.py reads a picture.  The thing that moves is one patch of its colour in every
frame, whole because it passes in front; its centres give the motion, and its outline must stay the same.  Of the
thing that stands, each frame shows what is not hidden; all frames together show it whole.
"""

from __future__ import annotations

from tools import missing_packages  # noqa: F401  (says how to get those that are missing)
import argparse
import json
import os
import sys
from dataclasses import dataclass, field

import numpy as np
from PIL import Image, ImageSequence
from scipy import ndimage

from tools.score import check_demo
from tools.train import scenes as pictures
from tools.train import video_scenes as scenes

# So many of the frames must show each thing; the others may be blurred.
SHARE = 0.9
# A motion covers so many pixels or more along its axis, of 74 in true videos, and strays so many across.
LEAST_WAY, MOST_ASIDE = 50, 12
# From frame to frame it goes back by so many pixels at most, and never faster than so many times its mean speed.
MOST_BACK, MOST_SPEED = 2, 3
# A thing that stays still leaves its mean place by so many pixels at most.
MOST_SHAKE = 4
# How much the area may change between the frames, and by how much the outlines of neighbouring frames overlap.
MOST_GROWTH, LEAST_OVERLAP = 1.35, 0.8

PARTS = ("background", "colours", "shapes", "motion", "steadiness")
KINDS = {1: "single", 2: "two"}


@dataclass
class Verdict:
    caption: str
    objects: int
    background: bool = False
    colours: bool = False
    shapes: bool = False
    motion: bool = False
    steadiness: bool = False
    seen: list[str] = field(default_factory=list)

    @property
    def right(self) -> bool:
        return all(getattr(self, part) for part in PARTS)


@dataclass
class Sight:
    """What is seen of a thing in one frame."""
    mask: np.ndarray
    x: float
    y: float


def mostly(flags) -> bool:
    flags = list(flags)
    return sum(flags) >= SHARE * len(flags)


def sight(mask: np.ndarray) -> Sight:
    y, x = ndimage.center_of_mass(mask)
    return Sight(mask, x, y)


def overlap(a: np.ndarray, b: np.ndarray) -> float:
    return float((a & b).sum() / max(1, (a | b).sum()))


def outlines_overlap(one: Sight, other: Sight) -> float:
    """Returns by how much two outlines overlap when the second is moved to the first."""
    moved = np.roll(other.mask, (round(one.y - other.y), round(one.x - other.x)), (0, 1))
    return overlap(one.mask, moved)


def motion_is(motion: str, places: np.ndarray) -> bool:
    """Returns whether the centres [frames, 2] go the way of a motion."""
    direction = np.array(scenes.DIRECTIONS[motion], float)
    if motion == scenes.STILL:
        return bool(np.hypot(*(places - places.mean(0)).T).max() <= MOST_SHAKE)
    along, across = places @ direction, places @ direction[::-1]
    steps = np.diff(along)
    # Centres are exact to about a pixel.
    fastest = MOST_SPEED * steps.mean() + 2
    return bool(along[-1] - along[0] >= LEAST_WAY and np.ptp(across) <= MOST_ASIDE
                and steps.min() >= -MOST_BACK and steps.max() <= fastest)


def is_steady(sights: list[Sight]) -> bool:
    areas = [s.mask.sum() for s in sights]
    return bool(max(areas) <= MOST_GROWTH * min(areas)) and mostly(
        outlines_overlap(a, b) >= LEAST_OVERLAP for a, b in zip(sights, sights[1:]))


def stands(whole: np.ndarray, visible: list[np.ndarray], movers: list[np.ndarray]) -> bool:
    """Returns whether each frame shows all of a standing thing that the moving one does not hide."""
    flags = []
    for mask, mover in zip(visible, movers):
        # Colours mix at the edge of what is in front.
        free = ndimage.binary_opening(whole & ~ndimage.binary_dilation(mover, iterations=3))
        if free.sum() >= check_demo.LEAST_AREA:
            flags.append((mask & free).sum() >= LEAST_OVERLAP * free.sum())
    return mostly(flags)


def fit_size(video: np.ndarray) -> np.ndarray:
    if video.shape[1:3] == (scenes.SIZE, scenes.SIZE):
        return video
    return np.stack([np.asarray(Image.fromarray(f).resize((scenes.SIZE, scenes.SIZE), Image.BOX)) for f in video])


def check(video: np.ndarray, text: str) -> Verdict:
    """Compares a video, uint8 [frames, height, width, 3], with its caption."""
    scene = scenes.parse_caption(text)
    verdict = Verdict(text, 2 if scene.second else 1)
    video = fit_size(video)
    frames = [check_demo.find_masks(frame) for frame in video]
    verdict.background = mostly(ground == scene.background for ground, _ in frames)
    wanted = {item.colour for item in (scene.first, scene.second) if item}
    moving = [[m for colour, m in masks if colour == scene.first.colour] for _, masks in frames]
    grounds, names = sorted({g for g, _ in frames}), sorted({c for _, masks in frames for c, _ in masks})
    verdict.seen = [f"backgrounds {grounds}", f"colours {names}"]
    # A frame with anything that the caption does not name is wrong.
    whole = [len(m) == 1 and {c for c, _ in masks} <= wanted for m, (_, masks) in zip(moving, frames)]
    if len(frames) < 2 or not (mostly(whole) and whole[0] and whole[-1]):
        return verdict
    kept = [i for i, one in enumerate(whole) if one]
    movers = [sight(moving[i][0]) for i in kept]
    verdict.colours = True
    shapes = [check_demo.best_shape(s.mask)[0] for s in movers]
    verdict.shapes = sum(s == scene.first.shape for s in shapes) > len(shapes) / 2
    verdict.steadiness = is_steady(movers) and mostly(s == scene.first.shape for s in shapes)
    verdict.motion = motion_is(scene.motion, np.array([(s.x, s.y) for s in movers]))
    verdict.seen += [f"shapes {sorted({str(s) for s in shapes})}",
                     f"from ({movers[0].x:.0f}, {movers[0].y:.0f}) to ({movers[-1].x:.0f}, {movers[-1].y:.0f})"]
    if scene.second is not None:
        check_standing(verdict, scene.second, video[kept], [s.mask for s in movers])
    return verdict


def check_standing(verdict: Verdict, item, video: np.ndarray, movers: list[np.ndarray]) -> None:
    """Adds what is seen of the standing thing to a verdict."""
    number = pictures.COLOURS.index(item.colour)
    # The moving thing may leave small pieces of it, so no piece is too small here.
    visible = [ndimage.binary_opening(check_demo.colour_map(frame) == number) for frame in video]
    # What shows in one frame only, as a wrong colour at an edge, is no part of it.
    often = sum(v.astype(int) for v in visible) >= 2
    if not (visible[0].any() and visible[-1].any() and often.sum() >= check_demo.LEAST_AREA):
        verdict.colours = False
        return
    shape, value, x, y = check_demo.best_shape(often)
    verdict.seen.append(f"standing {shape} at ({x:.0f}, {y:.0f}) overlap {value:.2f}")
    verdict.shapes &= shape == item.shape
    verdict.steadiness &= stands(often, visible, movers)


def summary(verdicts: list[Verdict]) -> dict:
    table = {}
    for objects, name in KINDS.items():
        group = [v for v in verdicts if v.objects == objects]
        if group:
            table[name] = {"videos": len(group), "right": int(sum(v.right for v in group))}
            table[name] |= {part: int(sum(getattr(v, part) for v in group)) for part in PARTS}
    return table


def print_summary(table: dict) -> None:
    for name, row in table.items():
        share = 100 * row["right"] / row["videos"]
        parts = ", ".join(f"{part} {row[part]}" for part in PARTS)
        print(f"{name}-object captions: {row['right']} of {row['videos']} right ({share:.1f} %); {parts}", flush=True)


def held_out_captions(seed: int, each: int) -> list[str]:
    """Returns captions that training never saw: first those of one object, then those of two."""
    rng = np.random.default_rng(seed)
    return [scenes.caption(scenes.sample_scene(rng, True, objects), rng) for objects in KINDS for _ in range(each)]


def read_video(path: str) -> np.ndarray:
    """Reads a folder of pictures, an array, or an animation that Pillow knows (GIF, WebP, PNG)."""
    if path.endswith(".npy"):
        return np.load(path)
    if os.path.isdir(path):
        names = sorted(os.listdir(path), key=lambda n: (len(n), n))  # 9.png before 10.png
        images = [Image.open(os.path.join(path, name)) for name in names]
    else:
        images = list(ImageSequence.all_frames(Image.open(path)))
    return np.stack([np.asarray(image.convert("RGB")) for image in images])


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Scores videos against captions, or writes a list of held-out captions.")
    parser.add_argument("--videos", help="folder with a video for each caption, in the order of their names: a folder "
                        "of frames, a .npy array [frames, height, width, 3], or a .gif, .webp or animated .png")
    parser.add_argument("--captions", help="text file, one caption per line")
    parser.add_argument("--write-captions", metavar="FILE", help="write held-out captions and stop")
    parser.add_argument("--each", type=int, default=50, help="number of captions to write of each kind (default 50)")
    parser.add_argument("--seed", type=int, default=1000, help="seed of --write-captions")
    parser.add_argument("--json", metavar="FILE", help="also write the counts as JSON")
    parser.add_argument("--strips", metavar="FILE", help="also draw six frames of each video, one video a row")
    parser.add_argument("--verbose", action="store_true", help="print what is wrong with each wrong video")
    parser.add_argument("--need", type=float, default=0, metavar="PERCENT",
                        help="exit with 1 if less than PERCENT of the videos are right")
    args = parser.parse_args()
    if args.write_captions:
        with open(args.write_captions, "w", encoding="utf-8") as out:
            out.write("\n".join(held_out_captions(args.seed, args.each)) + "\n")
        return 0
    if not args.videos or not args.captions:
        parser.error("give --videos and --captions, or --write-captions")
    with open(args.captions, encoding="utf-8") as source:
        captions = [line.strip() for line in source if line.strip()]
    names = sorted(os.listdir(args.videos), key=lambda n: (len(n), n))
    if len(names) != len(captions):
        sys.exit(f"{len(names)} videos in {args.videos} but {len(captions)} captions")
    verdicts, strips = [], []
    for name, text in zip(names, captions):
        video = read_video(os.path.join(args.videos, name))
        verdicts.append(check(video, text))
        strips.append(scenes.strip(fit_size(video)))
        if args.verbose and not verdicts[-1].right:
            wrong = [part for part in PARTS if not getattr(verdicts[-1], part)]
            print(f"{name}: '{text}': not {', '.join(wrong)}; saw {'; '.join(verdicts[-1].seen)}")
    table = summary(verdicts)
    print_summary(table)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as out:
            json.dump(table, out, indent=2)
            out.write("\n")
    if args.strips:
        Image.fromarray(np.concatenate(strips)).save(args.strips)
    right = sum(v.right for v in verdicts)
    return 0 if 100 * right >= args.need * len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
