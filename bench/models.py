#!/usr/bin/env python3
"""Saves random weights with the shapes of real models once, in bf16 under build/bench-models, for both sides of a comparison.

    bench/models.py FAMILY FOLDER LAYERS TEXT_LAYERS

The other tools here run this as a command instead of making weights themselves, because a child's peak memory starts at that of
the parent that forked it.
"""
import json
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PIXART = dict(num_attention_heads=16, attention_head_dim=72, in_channels=4, out_channels=8,
              cross_attention_dim=1152, caption_channels=4096, sample_size=64, use_additional_conditions=False)
UNET = dict(sample_size=128, in_channels=4, out_channels=4, block_out_channels=(320, 640, 1280), layers_per_block=2,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"), attention_head_dim=(5, 10, 20),
            cross_attention_dim=2048, use_linear_projection=True, addition_embed_type="text_time", addition_time_embed_dim=256,
            projection_class_embeddings_input_dim=2816)
VAE = dict(block_out_channels=(128, 256, 512, 512), layers_per_block=2, latent_channels=4,
           down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
           sample_size=1024, scaling_factor=0.13025)
CLIP = dict(num_attention_heads=12, hidden_size=768, intermediate_size=3072)
CLIP_2 = dict(num_attention_heads=20, hidden_size=1280, intermediate_size=5120, projection_dim=1280, hidden_act="gelu")
LAYERS = {"pixart": 28, "sdxl": 10}  # of the real models; for SDXL's U-Net those of the transformers at the coarsest scale
TEXT_LAYERS = 4  # of T5-XXL's 24, which take 9.5 GB; of CLIP's 12 and 32


def make_pixart(folder, layers, text_layers):
    from diffusers import DPMSolverMultistepScheduler, PixArtTransformer2DModel
    from transformers import T5Config, T5EncoderModel
    save(folder / "transformer", 0, lambda: PixArtTransformer2DModel(num_layers=layers, **PIXART))
    save(folder / "text_encoder", 2, lambda: T5EncoderModel(T5Config(
        d_model=4096, d_ff=10240, d_kv=64, num_heads=64, num_layers=text_layers, vocab_size=32128, feed_forward_proj="gated-gelu")))
    shutil.copytree(ROOT / "models" / "shapes" / "tokenizer", folder / "tokenizer", dirs_exist_ok=True)
    DPMSolverMultistepScheduler().save_pretrained(folder / "scheduler")
    return "PixArtSigmaPipeline", {
        "scheduler": ["diffusers", "DPMSolverMultistepScheduler"], "text_encoder": ["transformers", "T5EncoderModel"],
        "tokenizer": ["transformers", "T5Tokenizer"], "transformer": ["diffusers", "PixArtTransformer2DModel"],
        "vae": ["diffusers", "AutoencoderKL"]}


def make_sdxl(folder, layers, text_layers):
    from diffusers import EulerDiscreteScheduler, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection
    small = ROOT / "models" / "shapes-xl"
    save(folder / "unet", 0, lambda: UNet2DConditionModel(transformer_layers_per_block=(1, 2, layers), **UNET))
    tokens = {name: value for name, value in json.loads((small / "text_encoder" / "config.json").read_text()).items()
              if name.endswith("_token_id") or name == "vocab_size"}
    save(folder / "text_encoder", 2, lambda: CLIPTextModel(CLIPTextConfig(num_hidden_layers=text_layers, **tokens, **CLIP)))
    save(folder / "text_encoder_2", 3, lambda: CLIPTextModelWithProjection(
        CLIPTextConfig(num_hidden_layers=text_layers, **tokens, **CLIP_2)))
    for name in ("tokenizer", "tokenizer_2"):
        shutil.copytree(small / name, folder / name, dirs_exist_ok=True)
    EulerDiscreteScheduler(beta_schedule="scaled_linear", timestep_spacing="leading", steps_offset=1).save_pretrained(folder / "scheduler")
    return "StableDiffusionXLPipeline", {
        "scheduler": ["diffusers", "EulerDiscreteScheduler"], "text_encoder": ["transformers", "CLIPTextModel"],
        "text_encoder_2": ["transformers", "CLIPTextModelWithProjection"], "tokenizer": ["transformers", "CLIPTokenizer"],
        "tokenizer_2": ["transformers", "CLIPTokenizer"], "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": ["diffusers", "AutoencoderKL"]}


def save(folder, seed, build):
    """Builds the model in bf16 directly, because in fp32 the largest would not fit into memory."""
    import torch
    if folder.exists():
        return
    torch.manual_seed(seed)
    torch.set_default_dtype(torch.bfloat16)
    build().save_pretrained(folder)
    torch.set_default_dtype(torch.float32)


def make(family, folder, layers, text_layers):
    from diffusers import AutoencoderKL
    name, parts = {"pixart": make_pixart, "sdxl": make_sdxl}[family](folder, layers, text_layers)
    save(folder / "vae", 1, lambda: AutoencoderKL(**VAE))
    (folder / "model_index.json").write_text(json.dumps({"_class_name": name, "_diffusers_version": "0.42.1", **parts}))


def add_options(parser):
    parser.add_argument("--family", choices=LAYERS, default="pixart", help="PixArt-Sigma-XL, or Stable Diffusion XL")
    parser.add_argument("--layers", type=int, help="blocks of the transformer, or of the U-Net's deepest one (default: as in the real model)")
    parser.add_argument("--text-layers", type=int, default=TEXT_LAYERS, help="layers of the text encoder (24 is T5-XXL)")
    parser.add_argument("--models", type=pathlib.Path, default=ROOT / "build" / "bench-models")


def folder_of(args):
    """The folder of the model that the options name; it is made if it does not exist."""
    layers = LAYERS[args.family] if args.layers is None else args.layers
    folder = args.models / f"{args.family}-{layers}-{args.text_layers}"
    if not (folder / "model_index.json").exists():
        subprocess.run([sys.executable, __file__, args.family, str(folder), str(layers), str(args.text_layers)], check=True)
    return folder


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    make(sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
