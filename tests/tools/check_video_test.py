"""Tests tools/score/check_video.py: true videos pass, and videos of other scenes, or that are unsteady, are rejected."""

import dataclasses
import pathlib
import sys
import tempfile
import unittest

import numpy as np
from PIL import Image

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tools.score import check_video  # noqa: E402
from tools.train import video_scenes as scenes  # noqa: E402


def other(options, *taken):
    return next(o for o in options if o not in taken)


def changed_scenes(scene):
    """Yields variants of the scene that each differ in one thing."""
    first, second = scene.first, scene.second
    taken = [first.colour, scene.background] + ([second.colour] if second else [])
    colour = other(scenes.COLOURS, *taken)
    yield dataclasses.replace(scene, first=scenes.Item(colour, first.shape))
    for shape in scenes.SHAPES:
        if shape != first.shape:
            yield dataclasses.replace(scene, first=scenes.Item(first.colour, shape))
    yield dataclasses.replace(scene, background=other(scenes.BACKGROUNDS, *taken))
    for motion in scenes.MOTIONS:
        if motion != scene.motion:
            yield dataclasses.replace(scene, motion=motion)
    if second is None:
        if scene.motion != scenes.STILL:
            yield dataclasses.replace(scene, second=scenes.Item(colour, "circle"))
        return
    yield dataclasses.replace(scene, second=None)
    yield dataclasses.replace(scene, second=scenes.Item(colour, second.shape))
    yield dataclasses.replace(scene, second=scenes.Item(second.colour, other(scenes.SHAPES, second.shape)))
    yield dataclasses.replace(scene, first=second, second=first)


def disturbed(video, rng):
    """Yields videos of the right things that are not steady."""
    half = len(video) // 2
    yield "order", video[rng.permutation(len(video))]
    yield "to and fro", np.concatenate([video[::2], video[-2::-2]])
    yield "jump", np.concatenate([video[:3], video[-3:]])
    yield "stops", np.concatenate([video[:half], np.repeat(video[half : half + 1], half, 0)])
    empty = np.broadcast_to(video[0, 0, 0], video[0].shape)[None].repeat(4, 0)
    yield "vanishes", np.concatenate([video[:6], empty, video[6:]])


class VideoCheckerTest(unittest.TestCase):
    def test_true_videos_pass(self):
        rng = np.random.default_rng(5)
        for index in range(60):
            scene = scenes.sample_scene(rng, objects=1 + index % 2)
            text = scenes.caption(scene, rng)
            video = scenes.render(scene, rng, scenes.LONG_FRAMES if index % 10 == 0 else scenes.FRAMES)
            verdict = check_video.check(video, text)
            self.assertTrue(verdict.right, f"{text}: {verdict}")

    def test_slightly_blurred_and_noisy_videos_pass(self):
        rng = np.random.default_rng(6)
        right = 0
        for index in range(30):
            scene = scenes.sample_scene(rng, objects=1 + index % 2)
            video = scenes.render(scene, rng).astype(np.float32)
            video = (video + np.roll(video, 1, 1) + np.roll(video, 1, 2)) / 3
            video = np.clip(video + rng.normal(0, 6, video.shape), 0, 255)
            right += check_video.check(video.astype(np.uint8), scenes.caption(scene)).right
        self.assertGreaterEqual(right, 29)

    def test_changed_scenes_are_refused(self):
        rng = np.random.default_rng(7)
        for index in range(8):
            scene = scenes.sample_scene(rng, objects=1 + index % 2)
            for wrong in changed_scenes(scene):
                verdict = check_video.check(scenes.render(wrong, rng), scenes.caption(scene))
                self.assertFalse(verdict.right, f"{scene} passed with a video of {wrong}")

    def test_unsteady_videos_are_refused(self):
        rng = np.random.default_rng(8)
        for index in range(10):
            while (scene := scenes.sample_scene(rng, objects=1 + index % 2)).motion == scenes.STILL:
                pass
            for name, video in disturbed(scenes.render(scene, rng), rng):
                self.assertFalse(check_video.check(video, scenes.caption(scene)).right, f"{name}: {scene}")

    def test_things_that_change_on_the_way_are_refused(self):
        rng = np.random.default_rng(9)
        for index in range(10):
            while (scene := scenes.sample_scene(rng, objects=2)).first.shape == scene.second.shape:
                pass
            shape = other(scenes.SHAPES, scene.first.shape)
            colour = other(scenes.COLOURS, scene.first.colour, scene.second.colour, scene.background)
            for item in (scenes.Item(scene.first.colour, shape), scenes.Item(colour, scene.first.shape)):
                seed = int(rng.integers(1000))
                parts = [scenes.render(dataclasses.replace(scene, first=one), np.random.default_rng(seed))
                         for one in (scene.first, item)]
                video = np.concatenate([parts[0][:10], parts[1][10:]])
                self.assertFalse(check_video.check(video, scenes.caption(scene)).right, f"{scene} and {item}")
            # The standing thing leaves after the first half.
            alone = scenes.render(dataclasses.replace(scene, second=None), rng)
            video = np.concatenate([scenes.render(scene, rng)[:9], alone[9:]])
            self.assertFalse(check_video.check(video, scenes.caption(scene)).right, str(scene))

    def test_captions_are_read_in_every_wording(self):
        rng = np.random.default_rng(10)
        for _ in range(500):
            scene = scenes.sample_scene(rng)
            self.assertEqual(scenes.parse_caption(scenes.caption(scene, rng)), scene)
            self.assertEqual(scenes.parse_caption(scenes.caption(scene)), scene)
        white = scenes.parse_caption("a red circle moves left to right over a green square")
        self.assertEqual((white.background, white.second.shape), ("white", "square"))
        for text in ("a red dog moves up", "a red circle", "a red circle moves", "nothing",
                     "a red circle stays still over a blue star on a white background"):
            self.assertRaises(ValueError, scenes.parse_caption, text)

    def test_held_out_captions_are_held_out_and_repeatable(self):
        captions = check_video.held_out_captions(1000, 50)
        self.assertEqual(captions, check_video.held_out_captions(1000, 50))
        self.assertTrue(all(scenes.parse_caption(c).held_out() for c in captions))
        rng = np.random.default_rng(11)
        self.assertFalse(any(scenes.sample_scene(rng).held_out() for _ in range(500)))

    def test_videos_are_read_from_files(self):
        rng = np.random.default_rng(12)
        video = scenes.render(scenes.sample_scene(rng), rng)
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "frames").mkdir()
            for i, frame in enumerate(video):
                Image.fromarray(frame).save(folder / "frames" / f"{i}.png")
            np.save(folder / "video.npy", video)
            images = [Image.fromarray(frame) for frame in video]
            images[0].save(folder / "video.webp", save_all=True, append_images=images[1:], lossless=True)
            for path in ("frames", "video.npy", "video.webp"):
                np.testing.assert_array_equal(check_video.read_video(str(folder / path)), video)


if __name__ == "__main__":
    unittest.main()
