"""Makes tests/golden/tiny-flux2-klein, as tools/golden/tiny_z_image.py makes that of Z-Image: a whole pipeline like FLUX.2
klein, and what diffusers makes with it. The run "distilled" is that of a model that says that it is, and the runs "edited" and
"edited_two" refer to pictures, which lie beside the results."""
import json
import pathlib
import shutil

from tools.golden.tiny_z_image import GOLDEN, make
from tools.parity import flux2_klein as klein

MODEL = klein.Row("tiny", heads=(4, 8), vae={"block_out_channels": (4, 4, 4, 8), "sample_size": 32},
                  text={"hidden_size": 8, "intermediate_size": 12, "head_dim": 4, "tie_word_embeddings": True})
RUNS = {
    "guided": dict(prompts=["A red circle above a blue square", ""], negative="blurry", size=(48, 80), steps=4),
    "unguided": dict(prompts=["a green star"], size=(48, 48), steps=3, guidance=1.0, images=2, tokens=None),
    "distilled": dict(prompts=["a green star", "a cat"], size=(64, 48), steps=4, guidance=4.0, distilled=True, tokens=40),
    "edited": dict(prompts=["a blue star"], negative="blurry", size=None, steps=4, references=((70, 101),)),
    "edited_two": dict(prompts=["a blue star", "a cat"], size=(48, 64), steps=4, references=((96, 64), (64, 80))),
}


class Row(klein.Row):
    def call(self, pipeline, **options):
        pipeline.register_to_config(is_distilled=self.distilled)
        return super().call(pipeline, **options)


def keep_pictures(golden):
    """Copies the pictures of the requests, which then name them without their folders."""
    file = json.loads((golden / "runs.json").read_text())
    for request in file["runs"].values():
        for path in request.get("image", []):
            shutil.copy(path, golden)
        if "image" in request:
            request["image"] = [pathlib.Path(path).name for path in request["image"]]
    (golden / "runs.json").write_text(json.dumps(file, indent=1) + "\n")


if __name__ == "__main__":
    make("tiny-flux2-klein", Row(**vars(MODEL)), RUNS)
    keep_pictures(GOLDEN / "tiny-flux2-klein" / "golden")
