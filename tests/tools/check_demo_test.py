"""Tests tools/score/check_demo.py: correct pictures pass, and pictures of other scenes are rejected."""

import dataclasses
import pathlib
import sys
import unittest

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tools.score import check_demo  # noqa: E402
from tools.train import scenes  # noqa: E402


def other(options, *taken):
    return next(o for o in options if o not in taken)


def changed_scenes(scene):
    """Yields variants of the scene that each differ in one thing."""
    first = scene.first
    taken = [first.colour, scene.background] + ([scene.second.colour] if scene.second else [])
    colour = other(scenes.COLOURS, *taken)
    yield dataclasses.replace(scene, first=scenes.Item(colour, first.shape))
    for shape in scenes.SHAPES:
        if shape != first.shape:
            yield dataclasses.replace(scene, first=scenes.Item(first.colour, shape))
    yield dataclasses.replace(scene, background=other(scenes.BACKGROUNDS, *taken))
    if scene.second is None:
        yield scenes.Scene(first, scene.background, "above", scenes.Item(colour, "circle"))
        return
    for relation in scenes.RELATIONS:
        if relation != scene.relation:
            yield dataclasses.replace(scene, relation=relation)
    yield scenes.Scene(first, scene.background)
    swapped = (scenes.Item(first.colour, scene.second.shape),
               scenes.Item(scene.second.colour, first.shape))
    if first.shape != scene.second.shape:
        yield dataclasses.replace(scene, first=swapped[0], second=swapped[1])


class CheckerTest(unittest.TestCase):
    def test_true_pictures_pass(self):
        rng = np.random.default_rng(5)
        for _ in range(100):
            scene = scenes.sample_scene(rng)
            text = scenes.caption(scene, rng)
            verdict = check_demo.check(scenes.render(scene, rng), text)
            self.assertTrue(verdict.right, f"{text}: {verdict}")

    def test_slightly_blurred_and_noisy_pictures_pass(self):
        rng = np.random.default_rng(6)
        right = 0
        for _ in range(50):
            scene = scenes.sample_scene(rng)
            picture = scenes.render(scene, rng).astype(np.float32)
            picture = (picture + np.roll(picture, 1, 0) + np.roll(picture, 1, 1)) / 3
            picture = np.clip(picture + rng.normal(0, 6, picture.shape), 0, 255)
            right += check_demo.check(picture.astype(np.uint8), scenes.caption(scene)).right
        self.assertGreaterEqual(right, 49)

    def test_changed_scenes_are_refused(self):
        rng = np.random.default_rng(7)
        for _ in range(20):
            scene = scenes.sample_scene(rng)
            for wrong in changed_scenes(scene):
                verdict = check_demo.check(scenes.render(wrong, rng), scenes.caption(scene))
                self.assertFalse(verdict.right, f"{scene} passed with a picture of {wrong}")

    def test_blotches_are_no_shapes(self):
        rng = np.random.default_rng(8)
        picture = np.full((scenes.SIZE, scenes.SIZE, 3), scenes.PALETTE["white"], np.uint8)
        picture[60:64, 20:108] = scenes.PALETTE["red"]
        picture[40:90, 62:68] = scenes.PALETTE["red"]
        for shape in scenes.SHAPES:
            text = f"a red {shape} on a white background"
            self.assertFalse(check_demo.check(picture, text).right)
        noise = rng.integers(0, 256, picture.shape).astype(np.uint8)
        self.assertFalse(check_demo.check(noise, "a red circle on a white background").right)

    def test_captions_are_read_in_every_wording(self):
        rng = np.random.default_rng(9)
        for _ in range(500):
            scene = scenes.sample_scene(rng)
            self.assertEqual(scenes.parse_caption(scenes.caption(scene, rng)), scene)
        for text in ("a red dog on a white background", "nothing", "a red circle on a red thing"):
            self.assertRaises(ValueError, scenes.parse_caption, text)

    def test_held_out_captions_are_held_out_and_repeatable(self):
        captions = check_demo.held_out_captions(1000, 50)
        self.assertEqual(captions, check_demo.held_out_captions(1000, 50))
        self.assertTrue(all(scenes.parse_caption(c).held_out() for c in captions))
        rng = np.random.default_rng(10)
        self.assertFalse(any(scenes.sample_scene(rng).held_out() for _ in range(500)))


if __name__ == "__main__":
    unittest.main()
