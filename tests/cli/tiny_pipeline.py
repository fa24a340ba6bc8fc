"""Whole tiny models of tests/golden with requests that diffusers ran: runs the program on them and compares its results."""
import json
import shutil

from files import assert_near, change_json, floats, psnr, read_latents, read_png, read_safetensors
from harness import ROOT


class TinyPipeline:
    SMALL = ["--height", "32", "--width", "48", "--num-inference-steps", "2", "--seed", "1"]

    def __init__(self, name):
        self.folder = ROOT / "tests" / "golden" / name
        self.runs = json.loads((self.folder / "golden" / "runs.json").read_text())
        self.golden = read_safetensors(self.folder / "golden" / "golden.safetensors")[0]

    def words(self, run):
        options = dict(self.runs["runs"][run])
        words = [*options.pop("prompt"), "--seed", str(self.runs["seed"])]
        for path in options.pop("image", []):
            words += ["--image", self.folder / "golden" / path]
        for key, value in options.items():
            words += [f"--{key}", str(value)]
        return words

    def generate(self, box, *words, model=None):
        outcome = box.run("generate", "--model", model or self.folder, "--dtype", "fp32", *words)
        assert outcome.code == 0, outcome
        return outcome

    def expect_latents(self, box, run, *words, model=None):
        path = box.folder / "out.safetensors"
        outcome = self.generate(box, *self.words(run), *words, "--output-type", "latent", "-o", path, model=model)
        tensor = self.golden[f"{run}.latents"]
        assert_near(read_latents(path), (tensor[1], floats(tensor)), 1e-3)
        return outcome

    def expect_pictures(self, box, run, *words):
        outcome = self.generate(box, *self.words(run), *words, "-o", f"{run}.png")
        _, (count, height, width, _), pixels = self.golden[f"{run}.pixels"]
        paths = outcome.out.split()
        assert len(paths) == count, outcome
        size = height * width * 3
        for number, path in enumerate(paths):
            shown = read_png(box.folder / path)
            assert shown[:2] == (width, height) and psnr(shown[2], pixels[number * size:(number + 1) * size]) > 50, (run, number)

    def copy(self, box):
        target = box.folder / "model"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(self.folder, target, ignore=shutil.ignore_patterns("golden"))
        return target

    def refuse(self, box, code, needle, *words, model=None):
        box.refuse(code, needle, "generate", "a cat", "--model", model or self.folder, *self.SMALL, *words)

    def refuse_changed(self, box, needle, file, **keys):
        """Refuses the model with other keys in a file, or with the file cut off; `tessera models` says the same."""
        model = self.copy(box)
        if keys:
            change_json(model / file, **keys)
        else:
            (model / file).write_bytes((model / file).read_bytes()[:1000])
        self.refuse(box, 3, needle, model=model)
        outcome = box.run("models", model)
        assert outcome.code == 3 and needle in outcome.out, outcome

    def refuse_cut_off(self, box):
        weights = "diffusion_pytorch_model.safetensors"
        for file in (f"transformer/{weights}", f"vae/{weights}", "text_encoder/model.safetensors"):
            self.refuse_changed(box, "it is cut off", file)
