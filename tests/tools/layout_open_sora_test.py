"""Test of tools/layout_open_sora.py: it links the parts of a model, and refuses parts that are not what they should be."""
import json
import pathlib
import shutil
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tools import layout_open_sora as layout  # noqa: E402

MODEL = ROOT / "tests" / "golden" / "tiny-open-sora"
MODEL_1_1 = MODEL.parent / "tiny-open-sora-1.1"
PARTS = ("transformer", "vae", "text_encoder", "tokenizer")


class LayoutTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.copy(MODEL)

    def copy(self, model):
        for name in PARTS:
            shutil.rmtree(self.folder / name, ignore_errors=True)
            shutil.copytree(model / name, self.folder / name)

    def lay_out(self, **parts):
        layout.lay_out(*(parts.get(name, self.folder / name if name != "tokenizer" else None) for name in PARTS), self.folder / "out")

    def change(self, part, **values):
        path = self.folder / part / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    def expect_refusal(self, text, **parts):
        before = sorted(self.folder.iterdir())
        with self.assertRaises(layout.Refused) as caught:
            self.lay_out(**parts)
        self.assertIn(text, str(caught.exception))
        self.assertNotIn("\n", str(caught.exception))
        self.assertEqual(sorted(self.folder.iterdir()), before)

    def test_links_every_file(self):
        self.expect_links(MODEL)

    def test_links_version_1_1(self):
        self.copy(MODEL_1_1)
        self.expect_links(MODEL_1_1)

    def test_refuses_parts_of_another_version(self):
        self.expect_refusal("the VAE of Open-Sora 1.1 has the _class_name", transformer=MODEL_1_1 / "transformer")
        self.expect_refusal("the VAE has no weight spatial_vae", vae=MODEL_1_1 / "vae")
        self.copy(MODEL_1_1)
        self.change("transformer", depth=3)
        self.expect_refusal("no weight blocks.2.attn.qkv.weight")

    def expect_links(self, model):
        self.lay_out()
        for file in [path for name in PARTS for path in sorted((self.folder / name).iterdir())]:
            link = self.folder / "out" / file.relative_to(self.folder)
            self.assertTrue(link.is_symlink())
            self.assertEqual(link.resolve(), file)
        for name in ("model_index.json", "scheduler/scheduler_config.json"):
            self.assertEqual((self.folder / "out" / name).read_text(), (model / name).read_text())

    def test_takes_files_and_shards(self):
        vae = self.folder / "vae"
        (vae / "model.safetensors").rename(vae / "other.safetensors")
        encoder = self.folder / "text_encoder"
        (encoder / "model.safetensors").rename(encoder / "model-1.safetensors")
        shards = {name: "model-1.safetensors" for name in layout.shapes_of(encoder / "model-1.safetensors")}
        (encoder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
        self.lay_out(vae=vae / "other.safetensors")
        self.assertEqual((self.folder / "out" / "vae" / "model.safetensors").resolve(), vae / "other.safetensors")
        self.assertEqual(len(list((self.folder / "out" / "text_encoder").iterdir())), 3)

    def test_links_weights_as_the_program_looks_for_them(self):
        """Whoever saved them, and whatever the config.json says of that."""
        for part in ("transformer", "vae", "text_encoder"):
            self.change(part, _class_name="Any")
            (self.folder / part / "model.safetensors").rename(self.folder / part / "diffusion_pytorch_model.safetensors")
        self.lay_out()
        for part in ("transformer", "vae", "text_encoder"):
            link = self.folder / "out" / part / "model.safetensors"
            self.assertEqual(link.resolve(), self.folder / part / "diffusion_pytorch_model.safetensors")

    def test_reads_the_version_under_either_key(self):
        self.copy(MODEL_1_1)
        path = self.folder / "transformer" / "config.json"
        config = json.loads(path.read_text())
        config["_class_name"] = config.pop("model_type")
        path.write_text(json.dumps(config))
        self.lay_out()
        self.assertEqual(json.loads((self.folder / "out" / "model_index.json").read_text())["_class_name"], "OpenSoraV1_1Pipeline")
        shutil.rmtree(self.folder / "out")
        self.change("transformer", _class_name="PixArtTransformer2DModel")
        self.expect_refusal("_class_name of the transformer is 'PixArtTransformer2DModel', not 'STDiT3' or 'STDiT2'")

    def test_refuses_to_overwrite(self):
        (self.folder / "out").symlink_to("nowhere")
        self.expect_refusal("out: exists")

    def test_refuses_other_models(self):
        self.expect_refusal("model_type of the transformer is 'VideoAutoencoderPipeline', not 'STDiT3' or 'STDiT2'",
                            transformer=self.folder / "vae")
        self.expect_refusal("the text encoder gives 12 channels, but the transformer takes 24",
                            text_encoder=MODEL.parent / "tiny-pixart" / "text_encoder")
        self.change("vae", vae_temporal={"type": "None"})
        self.expect_refusal("vae_temporal of the VAE has no type 'VAE_Temporal_SD'")

    def test_refuses_weights_of_another_shape(self):
        self.change("transformer", depth=3)
        self.expect_refusal("no weight spatial_blocks.2.attn.qkv.weight")
        self.change("transformer", depth=2, hidden_size=96)
        self.expect_refusal("x_embedder.proj.weight has the shape [40, 4, 1, 2, 2], but the config.json says [96, any, any, any, any]")
        self.change("transformer", hidden_size="wide")
        self.expect_refusal("hidden_size has to be a whole number")

    def test_refuses_what_is_not_there(self):
        self.expect_refusal("there is no VAE", vae=self.folder / "none")
        shutil.rmtree(self.folder / "tokenizer")
        self.expect_refusal("no spiece.model")
        weights = self.folder / "vae" / "model.safetensors"
        data = weights.read_bytes()
        for bad in (b"", b"12345", data[:100], b"\xff" * 16):
            weights.write_bytes(bad)
            self.expect_refusal("no safetensors file")
        weights.rename(weights.with_suffix(".bin"))
        self.expect_refusal("the VAE has no model.safetensors, only model.bin")
        (self.folder / "vae" / "config.json").write_text("[")
        self.expect_refusal("no JSON")


if __name__ == "__main__":
    unittest.main()
