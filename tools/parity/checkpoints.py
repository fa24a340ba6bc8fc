"""Compares Tessera with diffusers on checkpoints that are not as save_pretrained leaves them, by the rules of tools/parity/pixart.py:
files beside the weights, variants, classes in model_index.json, keys that are null, absent or unknown."""
import dataclasses
import json
import typing

import torch
import transformers
from safetensors.torch import load_file, save_file

from tools.golden import bpe_tokenizer as clip_tokenizers
from tools.parity import pixart as parity
from tools.parity import stable_diffusion
from tools.parity.pixart import ANCESTRAL, DDIM, EULER, MILD, PNDM, SCALED, V

UNET, VAE = ("unet/diffusion_pytorch_model", "vae/diffusion_pytorch_model")
TEXT = "text_encoder/model"
OLD_PNDM = {**MILD, "skip_prk_steps": True}


def change(path, **changes):
    """Sets keys of a JSON file; those that are ... are taken out."""
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))


def config(part, **changes):
    name = {"scheduler": "scheduler/scheduler_config.json", "index": "model_index.json"}.get(part, f"{part}/config.json")
    return lambda folder: change(folder / name, **changes)


def other_weights(folder, source, *targets):
    """The weights of `source` with other numbers."""
    tensors = {key: value.flip(0).contiguous() for key, value in load_file(folder / f"{source}.safetensors").items()}
    for target in targets:
        save_file(tensors, folder / target, metadata={"format": "pt"})


def index_of(folder, name, shard):
    keys = load_file(folder / shard).keys()
    (folder / name).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(keys, shard.split("/")[1])}))


def stray_files(folder):
    for part in (UNET, VAE):
        other_weights(folder, part, *[f"{part}.{variant}.safetensors" for variant in ("ema", "fp8", "full", "fp16", "non_ema")],
                      *[f"{part.split('/')[0]}/{name}.safetensors" for name in ("adapter_model", "backup", "model")])
    other_weights(folder, TEXT, *[f"text_encoder/{name}.safetensors" for name in (
        "adapter_model", "flax_model", "diffusion_pytorch_model", "model.fp16")])


def weights_and_index(folder):
    """transformers takes the one file, diffusers the index."""
    for part in (UNET, TEXT):
        shard = f"{part}-00001-of-00001.safetensors"
        other_weights(folder, part, shard)
        index_of(folder, f"{part}.safetensors.index.json", shard)


def variant(name, *parts):
    def edit(folder):
        for part in parts:
            other_weights(folder, part, f"{part}.{name}.safetensors")
        return {"variant": name}
    return edit


def variant_of_shards(folder):
    shard = f"{UNET}.ema-00001-of-00001.safetensors"
    other_weights(folder, UNET, shard)
    index_of(folder, f"{UNET}.safetensors.index.ema.json", shard)
    return {"variant": "ema"}


def first_encoder_with_projection(folder):
    options = transformers.CLIPTextConfig.from_pretrained(folder / "text_encoder")
    options.projection_dim = 20
    parity.randomize(transformers.CLIPTextModelWithProjection(options)).save_pretrained(folder / "text_encoder")
    change(folder / "model_index.json", text_encoder=["transformers", "CLIPTextModelWithProjection"])


def no_first_encoder(folder):
    """The folders stay, as model_index.json alone says what the pipeline has."""
    change(folder / "model_index.json", text_encoder=[None, None], tokenizer=[None, None])


def two_tables(folder):
    """The text encoder's own table of tokens beside the one that it would share with a decoder."""
    tensors = load_file(folder / f"{TEXT}.safetensors")
    tensors["encoder.embed_tokens.weight"] = tensors["shared.weight"].flip(0).contiguous()
    save_file(tensors, folder / f"{TEXT}.safetensors", metadata={"format": "pt"})


def both(*edits):
    def edit(folder):
        for each in edits:
            each(folder)
    return edit


class Edited:
    def save(self, folder, pieces):
        options = super().save(folder, pieces[self.pieces])
        return {**options, **(self.edit(folder) or {})}


@dataclasses.dataclass(frozen=True)
class PixArt(Edited, parity.Row):
    edit: typing.Callable = lambda folder: None
    pieces: str = "spiece"


@dataclasses.dataclass(frozen=True)
class StableDiffusion(Edited, stable_diffusion.Row):
    edit: typing.Callable = lambda folder: None
    pieces: str = "clip"


def pixart(name, edit, **options):
    return PixArt("PixArt, " + name, edit=edit, **{"steps": 4, "size": (64, 64), **options})


def one(name, edit, **options):
    return StableDiffusion("1.5, " + name, family="1.5", edit=edit, **{
        "scheduler": stable_diffusion.RELEASED_PNDM, "steps": 4, "guidance": 7.5, **options})


def xl(name, edit, **options):
    return StableDiffusion("XL, " + name, family="XL", edit=edit, **{
        "scheduler": (EULER, MILD), "steps": 4, "guidance": 5.0, **options})


def scheduler_class(name):
    return config("index", scheduler=["diffusers", name])


ROWS = [
    # Files.
    one("files beside the weights", stray_files),
    one("weights and an index", weights_and_index),
    one("a variant of the U-Net", variant("ema", UNET), flags="--variant ema"),
    one("a variant of two parts", variant("bf16", VAE, TEXT), flags="--variant bf16"),
    one("a variant in shards", variant_of_shards, flags="--variant ema"),
    # Classes.
    one("Euler ancestral over a file of Euler", scheduler_class(ANCESTRAL), scheduler=(EULER, MILD)),
    xl("DDIM over a file of PNDM", scheduler_class(DDIM), scheduler=(PNDM, OLD_PNDM)),
    xl("a scheduler's file without a class", config("scheduler", _class_name=...)),
    xl("a first encoder with a projection", first_encoder_with_projection),
    xl("a second encoder without its class", config("text_encoder_2", architectures=...)),
    pixart("the class of the first releases", config("index", transformer=["diffusers", "Transformer2DModel"])),
    xl("no first encoder", no_first_encoder, unet={"cross_attention_dim": 32}, negative="white", prompt_2=["a square"], clip_skip=1),
    # Keys.
    pixart("T5 with another activation", config("text_encoder", dense_act_fn="relu")),
    pixart("T5 with two tables", two_tables),
    pixart("T5 with SiLU", lambda folder: None, text={"feed_forward_proj": "gated-silu"}),
    pixart("attention_bias null", config("transformer", attention_bias=None, attention_type=None)),
    one("mid_block_type null", config("unet", mid_block_type=None, attention_type=None)),
    one("VAE, all null", config("vae", mid_block_add_attention=None, use_quant_conv=None, use_post_quant_conv=None,
                                force_upcast=None, shift_factor=None)),
    one("set_alpha_to_one null", config("scheduler", set_alpha_to_one=None, clip_sample=None, steps_offset=None),
        scheduler=(DDIM, SCALED)),
    xl("force_zeros_for_empty_prompt null", config("index", force_zeros_for_empty_prompt=None)),
    xl("an unknown option of the scheduler", config("scheduler", new_option=3)),
    one("--scheduler of a file without offset", config("scheduler", steps_offset=..., clip_sample=...),
        scheduler=(PNDM, OLD_PNDM), override=DDIM),
    one("--scheduler of DDIM's own file", config("scheduler", clip_sample=...), scheduler=(DDIM, {**SCALED, **V}),
        override=DDIM),
    one("--scheduler of a file with offset", config("scheduler", steps_offset=0, clip_sample=True),
        scheduler=(PNDM, OLD_PNDM), override=DDIM),
    one("a U-Net of before 0.9", config("unet", _diffusers_version="0.8.1", sample_size=32), size=None, steps=1),
    xl("a U-Net of before 0.9", config("unet", _diffusers_version="0.8.1", sample_size=8), size=None),
    one("odd channels", lambda folder: None, unet={"block_out_channels": (15, 30, 30), "norm_num_groups": 5, "attention_head_dim": 5}),
    xl("odd embedding of sizes", lambda folder: None, unet={
        "addition_time_embed_dim": 7, "projection_class_embeddings_input_dim": 20 + 6 * 7}),
    # A single step of PixArt-alpha ends in the sample that it predicts.
    *[pixart(f"Alpha, one step of {name}", lambda folder: None, family="Alpha", steps=1, scheduler=(name, {**SCALED, **options}))
      for name, options in ((DDIM, {"set_alpha_to_one": False}), (EULER, {"final_sigmas_type": "sigma_min"}),
                            (ANCESTRAL, {"timestep_spacing": "trailing", **V}))],
    pixart("Sigma, one step", lambda folder: None, steps=1, scheduler=(DDIM, {**MILD, "set_alpha_to_one": False})),
]


if __name__ == "__main__":
    torch.set_num_threads(1)
    parity.main(ROWS, parity.compare, __doc__, "diffusers", parity.BF16_RATIO, lambda: {
        "spiece": parity.train_spiece(), "clip": clip_tokenizers.train_clip(31, stable_diffusion.WORDS)})
