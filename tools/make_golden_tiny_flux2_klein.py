#!/usr/bin/env python3
"""Makes tests/golden/tiny-flux2-klein, as tools/make_golden_tiny_z_image.py makes that of Z-Image: a whole pipeline like FLUX.2
klein, and what diffusers makes with it. The run "distilled" is that of a model that says that it is."""
import parity_flux2_klein as klein
from make_golden_tiny_z_image import make

MODEL = klein.Row("tiny", heads=(4, 8), vae={"block_out_channels": (4, 4, 4, 8), "sample_size": 32},
                  text={"hidden_size": 8, "intermediate_size": 12, "head_dim": 4, "tie_word_embeddings": True})
RUNS = {
    "guided": dict(prompts=["A red circle above a blue square", ""], negative="blurry", size=(48, 80), steps=4),
    "unguided": dict(prompts=["a green star"], size=(48, 48), steps=3, guidance=1.0, images=2, tokens=None),
    "distilled": dict(prompts=["a green star", "a cat"], size=(64, 48), steps=4, guidance=4.0, distilled=True, tokens=40),
}


class Row(klein.Row):
    def call(self, pipeline, **options):
        pipeline.register_to_config(is_distilled=self.distilled)
        return super().call(pipeline, **options)


if __name__ == "__main__":
    make("tiny-flux2-klein", Row(**vars(MODEL)), RUNS)
