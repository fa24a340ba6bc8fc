"""The video model's captions as its text encoder reads them: with the scores in which Open-Sora's prompts end."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from tools.train import scenes as pictures
from tools.train import text as demo_text
from tools.train import video_scenes as scenes
from tools.train.run import device

MAX_TOKENS = 40
# A prompt gets this score if the user gives no other.
AESTHETIC = 6.5
ATTRIBUTES = {
    "first colour": ("none",) + scenes.COLOURS,
    "first shape": ("none",) + scenes.SHAPES,
    "motion": ("none",) + scenes.MOTIONS,
    "second colour": ("none",) + scenes.COLOURS,
    "second shape": ("none",) + scenes.SHAPES,
    "background": ("none",) + scenes.BACKGROUNDS,
}


def vocabulary_words() -> list[str]:
    words = {"a", "an", "the", "on", "background", "aesthetic", "motion", "score"}
    words |= set(scenes.SHAPES) | set(scenes.COLOURS) | set(scenes.VERBS)
    for name in scenes.BACKGROUNDS:
        words |= set(pictures.COLOUR_WORDS.get(name, (name,)))
    for options in (*scenes.MOTION_WORDS.values(), scenes.STILL_WORDS, scenes.OVER_WORDS):
        for option in options:
            words |= set(option.split())
    return sorted(words)


def with_scores(caption: str, rng=None) -> str:
    """Adds the usual score, or with rng sometimes another, more of them, or none; the videos do not depend on them."""
    if rng is None:
        return f"{caption} aesthetic score: {AESTHETIC}."
    chance = rng.random()
    if chance < 0.15:
        return caption
    if chance < 0.85:
        return with_scores(caption)
    caption = f"{caption} aesthetic score: {rng.uniform(4, 7):.1f}."
    return caption if rng.random() < 0.5 else f"{caption} motion score: {rng.uniform(0, 20):.1f}."


def attribute_targets(scene: scenes.Scene | None) -> list[int]:
    """Returns the index of each attribute's value; a missing caption has none of the values."""
    if scene is None:
        return [0] * len(ATTRIBUTES)
    second = scene.second or pictures.Item("none", "none")
    values = (scene.first.colour, scene.first.shape, scene.motion, second.colour, second.shape, scene.background)
    return [options.index(v) for options, v in zip(ATTRIBUTES.values(), values)]


def scene_of(targets) -> scenes.Scene:
    """Returns the scene that the indices of attribute_targets describe."""
    values = [options[int(i)] for options, i in zip(ATTRIBUTES.values(), targets)]
    second = None if values[3] == "none" else pictures.Item(values[3], values[4])
    return scenes.Scene(pictures.Item(values[0], values[1]), values[2], values[5], second)


def backwards(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns which of the rows [N, attributes] describe, shown backwards, another video of the training part, and the rows
    of these."""
    kept, changed = [], []
    for i, row in enumerate(rows):
        scene = scene_of(row)
        if scene.motion == scenes.STILL:
            continue
        scene = dataclasses.replace(scene, motion=scenes.REVERSED[scene.motion])
        if not scene.held_out():
            kept.append(i)
            changed.append(attribute_targets(scene))
    return np.array(kept), np.array(changed, rows.dtype)


def are_pairs(rows: np.ndarray) -> np.ndarray:
    """Returns which rows of attribute_targets [N, attributes] are of two shapes."""
    return rows[:, 3] != ATTRIBUTES[list(ATTRIBUTES)[3]].index("none")


def draw_captions(rng, count: int, held_out: bool = False):
    drawn = [None if rng.random() < 0.05 else scenes.sample_scene(rng, held_out) for _ in range(count)]
    captions = [with_scores("" if s is None else scenes.caption(s, rng), rng).strip() for s in drawn]
    return captions, torch.tensor([attribute_targets(s) for s in drawn])


CORPUS = demo_text.Corpus(vocabulary_words(), ATTRIBUTES, draw_captions, MAX_TOKENS, layers=3)


def train_text(work: str, seed: int) -> None:
    """Trains longer and at a lower rate than the image model's: after its 2,500 steps half of the captions were wrong."""
    demo_text.train_text(work, seed, steps=3000, lr=1e-3, corpus=CORPUS)


def load_text(work: str):
    coder, encoder = demo_text.load_text(work, CORPUS)
    return coder, encoder.to(device())
