"""Makes tests/golden/tiny-sd: a whole Stable Diffusion 1.x pipeline with random weights, small enough for the repository; the
same weights in one file under their original names (single.safetensors, fp16 as published); and under golden/ the latents and
pixels that diffusers makes with it."""
import json
import pathlib
import shutil

import numpy
import torch
from safetensors.torch import load_file, save_file

from tools.golden import bpe_tokenizer as tokenizers
from tools.golden import tiny_pipeline as tiny
from tools.parity import stable_diffusion as sd

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "tiny-sd"
TEXT = {"hidden_size": 12, "intermediate_size": 20, "num_attention_heads": 3, "num_hidden_layers": 3, "projection_dim": 12}
VAE = {"block_out_channels": (4, 4, 8), "down_block_types": ["DownEncoderBlock2D"] * 3, "up_block_types": ["UpDecoderBlock2D"] * 3,
       "scaling_factor": 0.18215, "sample_size": 32}  # pixels of a tile
MODEL = sd.Row("tiny", family="1.5", sample_size=16, scheduler=sd.RELEASED_PNDM, text=TEXT, vae=VAE, unet={
    "block_out_channels": (8, 16), "attention_head_dim": 2, "norm_num_groups": 4, "cross_attention_dim": 12,
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"), "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D")})
RUNS = {
    # name: the request, under diffusers' names
    "plain": dict(prompt=["A red circle above a blue square"], height=64, width=48, num_inference_steps=5, guidance_scale=7.5),
    "all": dict(prompt=["a green star", "a cat"], negative_prompt="blurry", clip_skip=1, guidance_rescale=0.5, height=40, width=56,
                num_inference_steps=4, guidance_scale=6.0),
    "unguided": dict(prompt=["a green star"], height=32, width=48, num_inference_steps=4, guidance_scale=1.0, num_images_per_prompt=2),
}


def round_to_fp16(pipeline):
    """So that a file in fp16 holds the same weights."""
    for part in (pipeline.unet, pipeline.vae, pipeline.text_encoder):
        for parameter in part.parameters():
            parameter.data = parameter.data.half().float()


def save_single_file(pipeline, path):
    sd.save_single_file(pipeline, "1.5", path)
    save_file({name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in load_file(path).items()}, path)


def write_golden(pipeline):
    golden = FOLDER / "golden"
    golden.mkdir()
    (golden / "runs.json").write_text(json.dumps({"seed": tiny.SEED, "runs": RUNS}, indent=1) + "\n")
    tensors = {}
    for name, options in RUNS.items():
        count = len(options["prompt"])
        request = {key: [value] * count if key.startswith("negative") else value for key, value in options.items()}

        def run(output_type):
            generator = torch.Generator().manual_seed(tiny.SEED)
            return pipeline(**request, generator=generator, output_type=output_type).images

        def pixels():
            return torch.from_numpy(numpy.stack([numpy.asarray(picture) for picture in run("pil")]))

        tensors[f"{name}.latents"] = run("latent")
        tensors[f"{name}.pixels"] = pixels()
        if name == "plain":
            pipeline.vae.enable_tiling()
            tensors["tiled.latents"], tensors["tiled.pixels"] = tensors["plain.latents"].clone(), pixels()
            pipeline.vae.disable_tiling()
    save_file(tensors, golden / "golden.safetensors")


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    torch.manual_seed(0)
    pipeline = MODEL.build(FOLDER, tokenizers.train_clip(31, 60))
    round_to_fp16(pipeline)
    published = (FOLDER / "tokenizer").rename(FOLDER / "published tokenizer")
    pipeline.save_pretrained(FOLDER)
    shutil.rmtree(FOLDER / "tokenizer")
    published.rename(FOLDER / "tokenizer")
    save_single_file(pipeline, FOLDER / "single.safetensors")
    pipeline.set_progress_bar_config(disable=True)
    sd.show_last_norm(pipeline)
    write_golden(pipeline)


if __name__ == "__main__":
    main()
