"""Makes tests/golden/tiny-sdxl: a whole Stable Diffusion XL pipeline with random weights, small enough for the repository;
the same weights in one file under their original names (single.safetensors); and under golden/ the latents and pictures that
diffusers generates with it."""
import pathlib
import shutil

import torch

from tools.golden import bpe_tokenizer as tokenizers
from tools.golden import tiny_pipeline as tiny
from tools.parity import stable_diffusion as sd

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "tiny-sdxl"
MODEL = sd.Row("tiny", family="XL", sample_size=8, scheduler=(sd.EULER, {**sd.MILD, "timestep_spacing": "trailing"}), unet={
    "block_out_channels": (8, 16), "attention_head_dim": (1, 2), "transformer_layers_per_block": (1, 1), "norm_num_groups": 4,
    "cross_attention_dim": 24, "projection_class_embeddings_input_dim": 8 + 6 * 4, "addition_time_embed_dim": 4,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"), "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D")})
SMALL = {"intermediate_size": 16, "num_hidden_layers": 3}
RUNS = {
    # name: the request, under diffusers' names
    "plain": dict(prompt=["A red circle above a blue square"], height=64, width=96, num_inference_steps=5, guidance_scale=5.0),
    "all": dict(prompt=["a green star", "a cat"], prompt_2=["a dog", "a dog"], negative_prompt="blurry",
                negative_prompt_2="a square", clip_skip=1, guidance_rescale=0.5, original_size=[100, 90],
                target_size=[72, 80], crops_coords_top_left=[5, 3], height=72, width=56, num_inference_steps=4,
                guidance_scale=6.0),
    "unguided": dict(prompt=["a green star"], height=32, width=48, num_inference_steps=4, guidance_scale=1.0,
                     num_images_per_prompt=2),
}


def diffusers_options(options):
    """Repeats the single negative prompt for every prompt."""
    count = len(options["prompt"])
    return {name: [value] * count if name.startswith("negative") else tuple(value) if "size" in name or "crops" in name else value
            for name, value in options.items()}


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    torch.manual_seed(0)
    clip = sd.clip
    sd.clip = lambda tokens, seconds=False, **options: clip(tokens, seconds, **{
        **options, **SMALL, "hidden_size": 16 if seconds else 8, "num_attention_heads": 2, **({"projection_dim": 8} if seconds else {})})
    pieces = tokenizers.train_clip(31, 60)
    pipeline = MODEL.build(FOLDER, pieces)
    published = {name: (FOLDER / name).rename(FOLDER / f"published {name}") for name in ("tokenizer", "tokenizer_2")}
    pipeline.save_pretrained(FOLDER)
    for name, folder in published.items():
        shutil.rmtree(FOLDER / name)
        folder.rename(FOLDER / name)
    sd.save_single_file(pipeline, "XL", FOLDER / "single.safetensors")
    pipeline.set_progress_bar_config(disable=True)
    tiny.write_golden(FOLDER, RUNS, lambda **options: pipeline(**diffusers_options(options)))


if __name__ == "__main__":
    main()
