"""Tests the modules with which tools/train/video.py trains: they are the published networks under the published names."""

import math
import pathlib
import sys
import tempfile
import unittest

import numpy as np
import torch
from safetensors.torch import load_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tools.reference import stdit3  # noqa: E402
from tools.train import stdit as demo_stdit  # noqa: E402
from tools.train import video_scenes as scenes  # noqa: E402
from tools.train import video_text as demo_video_text  # noqa: E402
from tools.train import video_vae as demo_video_vae  # noqa: E402
from tools.train.run import save_weights  # noqa: E402

GOLDEN = ROOT / "tests" / "golden" / "opensora"
PUBLISHED_VAE = {"filters": 4, "num_res_blocks": 4, "channel_multipliers": [1, 2, 2, 4], "num_groups": 2}
PUBLISHED_STDIT = {"hidden_size": 48, "depth": 3, "num_heads": 2, "pred_sigma": True, "caption_channels": 32,
                   "model_max_length": 20}


def distance(got, expected):
    return ((got - expected).abs().max() / expected.abs().max()).item()


class DenoiserTest(unittest.TestCase):
    def setUp(self):
        # The golden's weights are all noise, so nothing starts at zero.
        self.weights = load_file(GOLDEN / "stdit3_a.weights.safetensors")
        self.model = demo_stdit.STDiT3(PUBLISHED_STDIT)
        self.model.load_state_dict({k: v for k, v in self.weights.items() if k not in ("rope.freqs", "pos_embed")})
        generator = torch.Generator().manual_seed(3)
        self.z = torch.randn(3, 4, 5, 8, 12, generator=generator)
        self.text = torch.randn(3, 11, 32, generator=generator)

    def test_is_the_oracle(self):
        lengths, times, fps = [7, 11, 4], torch.tensor([900.5, 31.25, 400.0]), torch.tensor([24.0, 8.0, 120.0])
        mask = torch.arange(11)[None] < torch.tensor(lengths)[:, None]
        is_null = torch.tensor([False, False, True])
        oracle = stdit3.STDiT3(self.weights, {**demo_stdit.CONFIG, **PUBLISHED_STDIT})
        texts = [oracle.text(self.text[i, : lengths[i]]) for i in range(2)] + [oracle.text(oracle.null_text(4))]
        with torch.no_grad():
            expected = oracle(self.z, times, texts, fps, 64, 96)
            got = self.model(self.z, times[:, None].expand(-1, 5), self.text, mask, is_null, fps, 64, 96)
        self.assertLess(distance(got, expected), 1e-5)

    def test_timesteps_are_those_of_each_frame(self):
        arguments = (self.text, torch.ones(3, 11), torch.zeros(3, dtype=torch.bool), torch.full((3,), 24.0), 64, 96)
        times = torch.full((3, 5), 500.0)
        with torch.no_grad():
            plain = self.model(self.z, times, *arguments)
            times[:, 0] = 0
            got = self.model(self.z, times, *arguments)
        self.assertGreater(distance(got[:, :, 0], plain[:, :, 0]), 1e-2)
        self.assertGreater(distance(got[:, :, 1:], plain[:, :, 1:]), 1e-4)

    def test_sampler_has_the_published_timesteps(self):
        times = demo_stdit.sampler_timesteps(30, 240, 426, 51)[[0, 1, 15, 28, 29]]
        np.testing.assert_allclose(times, [1000, 985.944, 707.493, 147.315, 76.983], atol=1e-3)

    def test_sampler_reaches_what_a_perfect_model_predicts(self):
        target = torch.randn(2, 4, 5, 4, 4)

        def perfect(z, times, *_):
            goal = torch.cat([target, target])
            return (goal - z) / (times / 1000).clamp_min(1e-6)[:, None, :, None, None]

        noise, text = torch.randn(2, 4, 5, 4, 4), torch.zeros(2, 3, 8)
        for given in (None, target[:, :, :1]):
            z = demo_stdit.sample(perfect, noise, text, text[..., 0], 17, 24, 7, 4.0, given)
            self.assertLess(distance(z, target), 1e-5)


class VaeTest(unittest.TestCase):
    def test_is_the_published_temporal_vae(self):
        vae = demo_video_vae.TemporalVae(PUBLISHED_VAE)
        weights = load_file(GOLDEN / "vae12.weights.safetensors")
        vae.load_state_dict({k.removeprefix("temporal_vae."): v for k, v in weights.items() if k.startswith("temporal_vae.")})
        golden = load_file(GOLDEN / "vae_temporal.io.safetensors")
        with torch.no_grad():
            for frames in (1, 5, 17, 22):
                mean = vae.moments(golden[f"in.{frames}.x"])[:, :4]
                self.assertLess(distance(mean, golden[f"out.{frames}.mean"]), 1e-5)
                x = vae.decode(golden[f"in.{frames}.z"], frames)
                self.assertLess(distance(x, golden[f"out.{frames}.x"]), 1e-5)

    def test_export_undoes_the_scaling(self):
        """What Open-Sora does with the exported weights equals what training does with its own."""
        torch.manual_seed(1)
        rng = np.random.default_rng(1)
        video = scenes.render(scenes.sample_scene(rng), rng, 2)
        with tempfile.TemporaryDirectory() as work:
            save_weights(f"{work}/vae.pt", demo_video_vae.TemporalVae().state_dict())
            torch.save((torch.randn(1, 4, 1, 1, 1), torch.rand(1, 4, 1, 1, 1) + 1), f"{work}/statistics.pt")
            weights = demo_video_vae.published_weights(work)
            spatial, exported = demo_video_vae.load_spatial(work), demo_video_vae.load_spatial(work)
        prefix = "spatial_vae.module."
        exported.load_state_dict({k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)})
        x = demo_video_vae.demo_vae.to_tensor(video)
        with torch.no_grad():
            inner, plain = exported.encode(x).latent_dist, spatial.encode(x).latent_dist
            scaled = inner.mean * demo_video_vae.SCALING
            self.assertLess(distance(scaled, plain.mean), 1e-5)
            self.assertLess(distance(inner.std * demo_video_vae.SCALING, plain.std), 1e-5)
            pictures = exported.decode(scaled / demo_video_vae.SCALING).sample
            self.assertLess(distance(pictures, spatial.decode(scaled).sample), 1e-4)
        self.assertTrue(torch.equal(weights["temporal_vae.quant_conv.conv.bias"][4:], torch.full((4,), 2 * math.log(0.1))))
        # The names are those of the published file, whose temporal VAE has four blocks where this one has one.
        published = load_file(GOLDEN / "vae12.weights.safetensors")
        temporal = {k for k in weights if k.startswith("temporal_vae.") and ".conv3." not in k}
        self.assertLessEqual(temporal, set(published))
        self.assertEqual(weights["shift"].shape, published["shift"].shape)


class TextTest(unittest.TestCase):
    def test_targets_say_what_the_scene_is(self):
        rng = np.random.default_rng(2)
        for _ in range(200):
            scene = scenes.sample_scene(rng)
            self.assertEqual(demo_video_text.scene_of(demo_video_text.attribute_targets(scene)), scene)

    def test_words_are_all_in_the_vocabulary(self):
        rng = np.random.default_rng(3)
        words = set(demo_video_text.vocabulary_words())
        for _ in range(300):
            self.assertLessEqual(set(scenes.caption(scenes.sample_scene(rng), rng).split()), words)


if __name__ == "__main__":
    unittest.main()
