#!/usr/bin/env python3
"""Makes tests/golden/tiny-z-image: a whole Z-Image pipeline with random weights, small enough for the repository, and under golden/
the latents and pixels that diffusers makes with it. The transformer is saved in bf16, as released; most of it is what embeds the
timestep, whose layers have the released sizes."""
import json
import pathlib
import shutil
import tempfile

import numpy
import torch
from safetensors.torch import save_file

import make_golden_bpe_tokenizer as bpe
import make_golden_tiny_pipeline as tiny
import parity_z_image as z_image

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "tiny-z-image"
MODEL = z_image.Row("tiny", heads=(4, 6), text={"hidden_size": 12, "intermediate_size": 256, "head_dim": 4},
                    vae={"block_out_channels": (4, 4, 8), "sample_size": 32})
RUNS = {
    # name: the request, under diffusers' names
    "guided": dict(prompt=["A red circle above a blue square", ""], negative_prompt="blurry", height=40, width=56,
                   num_inference_steps=4, guidance_scale=4.0),
    "turbo": dict(prompt=["a green star"], height=32, width=48, num_inference_steps=3, guidance_scale=0.0, num_images_per_prompt=2),
    "limited": dict(prompt=["a green star", "a cat"], height=48, width=32, num_inference_steps=4, guidance_scale=0.5,
                    cfg_normalization=0.9, cfg_truncation=0.5),
}


def write_golden(pipeline):
    golden = FOLDER / "golden"
    golden.mkdir()
    (golden / "runs.json").write_text(json.dumps({"seed": tiny.SEED, "runs": RUNS}, indent=1) + "\n")
    tensors = {}
    for name, options in RUNS.items():
        def run(output_type):
            prompts = list(options["prompt"])  # the pipeline writes into the list
            request = {key: [value] * len(prompts) if key.startswith("negative") else value for key, value in options.items()}
            generator = torch.Generator().manual_seed(tiny.SEED)
            return pipeline(**{**request, "prompt": prompts}, generator=generator, output_type=output_type).images

        tensors[f"{name}.latents"] = run("latent")
        tensors[f"{name}.pixels"] = torch.from_numpy(numpy.stack([numpy.asarray(picture) for picture in run("pil")]))
    save_file(tensors, golden / "golden.safetensors")


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as published:
        pipeline = MODEL.build(pathlib.Path(published), bpe.train(41, 60, bpe.QWEN2, "isolated"))
    pipeline.transformer.to(torch.bfloat16)
    pipeline.save_pretrained(FOLDER)
    pipeline.transformer.to(torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    write_golden(pipeline)


if __name__ == "__main__":
    main()
