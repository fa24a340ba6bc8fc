"""Makes tests/golden/tiny-lcm: the U-Net and the scheduler of a latent consistency model, which takes the guidance scale as an
input, for the other parts of tests/golden/tiny-sd; and under golden/ the latents and pixels that diffusers makes with it."""
import json
import pathlib
import shutil

import diffusers
import numpy
import torch
from safetensors.torch import save_file

from tools.golden import tiny_pipeline as tiny
from tools.parity import pixart as parity
from tools.parity import stable_diffusion as sd

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "tiny-lcm"
REST = FOLDER.parent / "tiny-sd"
UNET = {"sample_size": 16, "layers_per_block": 1, "block_out_channels": (4, 8), "attention_head_dim": 2, "norm_num_groups": 2,
        "cross_attention_dim": 12, "time_cond_proj_dim": 8, "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D")}
RUNS = {
    # name: the request, under diffusers' names; what is negative has no effect
    "default": dict(prompt=["a green star", "a cat"], negative_prompt="blurry", guidance_rescale=0.5, height=40, width=56,
                    num_inference_steps=4),
    "low": dict(prompt=["a green star"], height=32, width=48, num_inference_steps=2, guidance_scale=0.3, num_images_per_prompt=2),
}


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    torch.manual_seed(0)
    unet = parity.randomize(diffusers.UNet2DConditionModel(**UNET))
    scheduler = diffusers.LCMScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear")
    for part, name in ((unet, "unet"), (scheduler, "scheduler")):
        part.save_pretrained(FOLDER / name)
    pipeline = diffusers.StableDiffusionPipeline.from_pretrained(REST, unet=unet, scheduler=scheduler, safety_checker=None)
    pipeline.set_progress_bar_config(disable=True)
    sd.show_last_norm(pipeline)
    (FOLDER / "golden").mkdir()
    (FOLDER / "golden" / "runs.json").write_text(json.dumps({"seed": tiny.SEED, "runs": RUNS}, indent=1) + "\n")
    tensors = {}
    for name, options in RUNS.items():
        count = len(options["prompt"])
        request = {key: [value] * count if key.startswith("negative") else value for key, value in options.items()}

        def run(output_type):
            return pipeline(**request, generator=torch.Generator().manual_seed(tiny.SEED), output_type=output_type).images

        tensors[f"{name}.latents"] = run("latent")
        tensors[f"{name}.pixels"] = torch.from_numpy(numpy.stack([numpy.asarray(picture) for picture in run("pil")]))
    save_file(tensors, FOLDER / "golden" / "golden.safetensors")


if __name__ == "__main__":
    main()
