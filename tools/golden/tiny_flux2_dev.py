"""Makes tests/golden/tiny-flux2-dev, as tools/golden/tiny_flux2_klein.py does that of klein: a whole pipeline like FLUX.2 dev, and what
diffusers makes with it. The run "edited" refers to a picture, which lies beside the results."""
from tools.golden.tiny_flux2_klein import keep_pictures
from tools.golden.tiny_z_image import GOLDEN, make
from tools.parity import flux2_dev as dev

MODEL = dev.Row("tiny", heads=(4, 8), vae={"block_out_channels": (4, 4, 4, 8), "sample_size": 32},
                text={"hidden_size": 8, "intermediate_size": 12, "head_dim": 4})
RUNS = {
    "guided": dict(prompts=["A red circle above a blue square", ""], size=(48, 80), steps=4, guidance=2.5),
    "default": dict(prompts=["a green star [IMG]"], size=(48, 48), steps=3, guidance=None, images=2, tokens=None),
    "edited": dict(prompts=["a blue star", "a cat"], size=None, steps=4, references=((70, 101),)),
}

if __name__ == "__main__":
    make("tiny-flux2-dev", MODEL, RUNS, dev.mistral3.TEKKEN)
    keep_pictures(GOLDEN / "tiny-flux2-dev" / "golden")
