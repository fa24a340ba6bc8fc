"""Runs Tessera beside diffusers on random checkpoints that are legal and unusual: keys of every part's configuration at values
other than the default, null, absent or unknown, older versions, files beside the weights.

Latents after the last step may differ by TOLERANCE of their deviation: an option that is ignored changes them far more, and the
rounding of weights that nobody trained far less. A case fails if both run and differ, if the description of the checkpoint says
that it can run and the run refuses it (or the other way round), and if a refusal is not one line with exit code 2 or 3. What only
one of the two runs is counted."""
import argparse
import collections
import dataclasses
import json
import logging
import pathlib
import random
import subprocess
import sys
import tempfile
import traceback
import typing
import warnings

import diffusers
import safetensors.torch
import torch
import transformers

from tools.golden import bpe_tokenizer as clip_tokenizers
from tools.parity import checkpoints, flux2_klein, samplers, stable_diffusion, z_image
from tools.parity import pixart as parity

TOLERANCE = 1e-3
# Options of a part, and those that few or no published models have. A case has some of the former and at most one of the latter,
# most of which are refused here.
UNET = {
    "norm_eps": [1e-6, 1e-3], "dropout": [0.3], "use_linear_projection": [True, False], "layers_per_block": [2, (1, 2, 1)],
    "norm_num_groups": [4, 2], "block_out_channels": [(8, 16, 16), (32, 32, 64), (16, 48, 16)], "attention_head_dim": [2, (1, 2, 4)],
    "transformer_layers_per_block": [2, (2, 1, 1)], "reverse_transformer_layers_per_block": [(1, 2, 1)], "upcast_attention": [True],
    "mid_block_type": [None], "sample_size": [8, 24], "addition_embed_type_num_heads": [4], "time_cond_proj_dim": [16, 7]}
RARE_UNET = {
    "flip_sin_to_cos": [False], "freq_shift": [1], "center_input_sample": [True], "act_fn": ["gelu", "mish", "swish"],
    "mid_block_scale_factor": [0.7], "only_cross_attention": [True, (True, False, True)], "dual_cross_attention": [True],
    "resnet_time_scale_shift": ["scale_shift"], "resnet_skip_time_act": [True], "resnet_out_scale_factor": [1.5],
    "time_embedding_type": ["fourier"], "time_embedding_dim": [40], "time_embedding_act_fn": ["silu"], "timestep_post_act": ["silu"],
    "conv_in_kernel": [1, 5], "conv_out_kernel": [1, 5], "class_embed_type": ["timestep", "identity"],
    "time_cond_proj_dim": [3], "num_class_embeds": [10], "attention_type": ["gated"], "cross_attention_norm": ["layer_norm"],
    "encoder_hid_dim": [24], "mid_block_only_cross_attention": [True], "downsample_padding": [0], "sample_size": [(8, 12)],
    "num_attention_heads": [2]}
VAE = {
    "layers_per_block": [2], "norm_num_groups": [2], "scaling_factor": [0.5], "shift_factor": [0.3],
    "latents_mean": [[0.1, 0.2, 0.3, 0.4]], "latents_std": [[1.0, 2.0, 0.5, 1.5]], "force_upcast": [False],
    "use_quant_conv": [False], "use_post_quant_conv": [False], "mid_block_add_attention": [False], "sample_size": [8, 64],
    "block_out_channels": [(4, 8, 8, 8), (8, 4, 4, 8)], "act_fn": ["gelu", "relu", "mish", "swish"]}
RARE_VAE = {"act_fn": ["tanh"], "out_channels": [1, 4]}
CLIP = {
    "hidden_act": ["gelu"], "layer_norm_eps": [1e-6, 1e-3], "attention_dropout": [0.5], "num_hidden_layers": [2, 3],
    "intermediate_size": [56], "num_attention_heads": [2, 6], "initializer_factor": [2.0], "max_position_embeddings": [96],
    "projection_dim": [12], "eos_token_id": [2]}
RARE_CLIP = {"hidden_act": ["gelu_new", "relu", "silu"], "use_attention_mask": [True], "max_position_embeddings": [40]}
T5 = {
    "feed_forward_proj": ["relu", "gated-silu", "gated-gelu"], "layer_norm_epsilon": [1e-3], "initializer_factor": [2.0],
    "relative_attention_num_buckets": [8, 64], "relative_attention_max_distance": [40], "num_layers": [1, 3], "d_ff": [36],
    "dropout_rate": [0.5], "d_kv": [6], "num_heads": [2]}
RARE_T5 = {"feed_forward_proj": ["gated-relu", "gelu", "gelu_new", "gated-gelu_new"]}
PIXART = {
    "norm_eps": [1e-3], "attention_bias": [False], "interpolation_scale": [2, 1.5, None], "use_additional_conditions": [True, False],
    "dropout": [0.2], "num_embeds_ada_norm": [500], "upcast_attention": [True], "norm_num_groups": [4], "out_channels": [4],
    "patch_size": [1, 4]}
RARE_PIXART = {"activation_fn": ["gelu", "geglu", "silu"], "norm_type": ["layer_norm"], "norm_elementwise_affine": [True],
               "attention_type": ["gated"]}
Z_IMAGE = {
    "qk_norm": [False], "norm_eps": [1e-3], "rope_theta": [100.0, 10000.0], "t_scale": [300.0], "n_refiner_layers": [0, 1, 3],
    "n_layers": [0, 1, 3], "n_kv_heads": [1], "axes_dims": [[2, 4, 6], [8, 2, 2], [0, 6, 6]], "axes_lens": [[640, 8, 8]]}
RARE_Z_IMAGE = {"all_patch_size": [(2, 4), (4,)], "siglip_feat_dim": [8], "axes_lens": [[40, 64, 64], [33, 8, 8], [640, 3, 64]],
                "n_refiner_layers": [-1]}
FLUX2 = {
    "mlp_ratio": [1.5, 2.3], "rope_theta": [100, 10000], "eps": [1e-3], "timestep_guidance_channels": [10, 37, 64], "num_layers": [0, 2, 3],
    "num_single_layers": [0, 1, 3], "axes_dims_rope": [[0, 2, 4, 2], [2, 6, 0, 0], [2, 2, 4], [4, 4], [8]], "guidance_embeds": [True]}
RARE_FLUX2 = {"patch_size": [2], "out_channels": [8, 16], "axes_dims_rope": [[2, 2, 2, 2, 0], [1, 3, 2, 2]]}
FLUX2_VAE = {
    "layers_per_block": [2], "norm_num_groups": [2], "batch_norm_eps": [0.5], "batch_norm_momentum": [0.3], "use_quant_conv": [False],
    "use_post_quant_conv": [False], "mid_block_add_attention": [False], "sample_size": [8, 64], "block_out_channels": [(4, 8, 8), (8, 4, 4, 8)],
    "decoder_block_out_channels": [(8, 4, 12, 8)], "act_fn": ["gelu", "relu", "mish", "swish"]}
RARE_FLUX2_VAE = {"act_fn": ["tanh"], "out_channels": [1, 4], "patch_size": [(1, 1), (1, 4)]}
QWEN3 = {
    "num_key_value_heads": [1, 4], "head_dim": [6, 10], "num_hidden_layers": [1, 2, 4], "rms_norm_eps": [1e-3], "intermediate_size": [44],
    "hidden_size": [24], "tie_word_embeddings": [True], "initializer_range": [0.1], "attention_dropout": [0.3], "attention_bias": [True],
    "hidden_act": ["gelu", "relu", "swish"], "max_position_embeddings": [64], "use_sliding_window": [True], "sliding_window": [4, 30],
    "max_window_layers": [0, 1],
    "rope_parameters": [{"rope_type": "default", "rope_theta": 300.0}, {"rope_type": "dynamic", "factor": 3.0},
                        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}]}
RARE_QWEN3 = {"hidden_act": ["prelu"], "rope_parameters": [{"rope_type": "axial"}],
              "layer_types": [["full_attention", "sliding_attention", "full_attention"]]}
FLOW = {
    "shift": [1.0, 6.0], "use_dynamic_shifting": [True], "time_shift_type": ["linear"], "base_shift": [0.7], "max_shift": [2.0],
    "base_image_seq_len": [100], "max_image_seq_len": [2000], "shift_terminal": [0.1], "use_karras_sigmas": [True],
    "use_exponential_sigmas": [True], "use_beta_sigmas": [True], "num_train_timesteps": [500, 2], "invert_sigmas": [True]}
RARE_SHARE = 0.25
FAMILIES = ("1.5", "2.1", "XL", "Alpha", "Sigma", "Z-Image", "klein")
INDEX = {"force_zeros_for_empty_prompt": [False, None]}
# Keys that a file may have null, lack, or hold although no class has them.
PARTS = {"SD": ("unet", "vae", "text_encoder", "scheduler", "index"),
         "PixArt": ("transformer", "vae", "text_encoder", "scheduler", "index"),
         "Z-Image": ("transformer", "vae", "text_encoder", "scheduler", "index"),
         "klein": ("transformer", "vae", "text_encoder", "scheduler", "index")}
FILES = [checkpoints.stray_files, checkpoints.weights_and_index]


def one_rare(source, parts):
    """Gives one part of (name, rare options) an option of those, in some of the cases."""
    name, options = source.choice(parts)
    key = source.choice(list(options))
    return {name: {key: source.choice(options[key])}} if source.random() < RARE_SHARE else {}


def some(source, options, share):
    return {key: source.choice(values) for key, values in options.items() if source.random() < share}


def file_of(folder, part):
    return folder / {"scheduler": "scheduler/scheduler_config.json", "index": "model_index.json"}.get(part, f"{part}/config.json")


def store_as(folder, dtype):
    """Rounds the weights of a part to a dtype and stores them so."""
    for path in folder.glob("*.safetensors"):
        weights = safetensors.torch.load_file(path)
        stored = {key: weight.to(dtype) if weight.is_floating_point() else weight for key, weight in weights.items()}
        safetensors.torch.save_file(stored, path, {"format": "pt"})


def random_edits(source, family):
    """Returns changes of the saved files, as functions of the folder, and their descriptions."""
    edits, texts = [], []
    for part in PARTS[family]:
        if source.random() < 0.12:
            kind, pick = source.choice(["null", "absent", "unknown", "version"]), source.random()

            def edit(folder, part=part, kind=kind, pick=pick):
                path = file_of(folder, part)
                keys = [key for key in json.loads(path.read_text()) if not key.startswith("_")]
                key = keys[int(pick * len(keys))] if kind in ("null", "absent") else "new_option"
                change = {"null": {key: None}, "absent": {key: ...}, "unknown": {key: 7},
                          "version": {"_diffusers_version": "0.8.1" if pick < 0.5 else "0.30.0"}}[kind]
                checkpoints.change(path, **change)
                texts.append(f"{part}: {change}")

            edits.append(edit)
    if source.random() < 0.1:
        part = source.choice([part for part in PARTS[family] if part not in ("index", "scheduler")])
        dtype = source.choice([torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2])
        edits.append(lambda folder: store_as(folder / part, dtype))
        texts.append(f"{part} stored as {dtype}")
    if family == "SD" and source.random() < 0.1:
        edits.append(source.choice(FILES))
        texts.append(edits[-1].__name__)
    return edits, texts


@dataclasses.dataclass
class Case:
    row: parity.Row
    texts: list


def merge(parts, request, rare):
    for name, options in rare.items():
        (parts if name in parts else request)[name].update(options)


@dataclasses.dataclass(frozen=True)
class ZImage(checkpoints.Edited, z_image.Row):
    edit: typing.Callable = lambda folder: None
    pieces: str = "qwen"


@dataclasses.dataclass(frozen=True)
class Klein(checkpoints.Edited, flux2_klein.Row):
    edit: typing.Callable = lambda folder: None
    pieces: str = "qwen"


def random_flow(source, share, scales, options):
    """What requests of pipelines with Qwen3 and flow matching have in common."""
    scheduler = (source.choice([parity.FLOW] * 18 + [parity.EULER, parity.UNIPC]), {**options, **some(source, FLOW, share)})
    if scheduler[0] != parity.FLOW:
        scheduler = (scheduler[0], parity.MILD)
    prompts = source.choice([[parity.CIRCLE], [""], parity.THREE, [parity.LONG, "a"], z_image.SPECIAL])
    # A single step cannot end at a noise level of its own.
    least = 2 if "shift_terminal" in scheduler[1] else 1
    return {"steps": source.randint(least, 5), "guidance": source.choice(scales), "scheduler": scheduler,
            "size": (16 * source.randint(1, 6), 16 * source.randint(1, 6)), "negative": source.choice([None, "blurry, white"]),
            "images": source.choice([1, 1, 2]), "tokens": source.choice([None, None, 7, 40, 200]), "prompts": prompts}


def random_z_image(source, share, edit, texts):
    request = {**random_flow(source, share, [0.0, 0.4, 1.0, 3.0, 5.0], {"shift": 3.0}),
               "cfg_normalization": source.choice([None, None, 0.5, 1]), "cfg_truncation": source.choice([None, None, 0.0, 0.4, 1]),
               "channels": source.choice([4, 4, 16]), "causal": source.random() < 0.2, "vae": some(source, VAE, share)}
    parts = {"transformer": some(source, Z_IMAGE, share), "text": some(source, QWEN3, share)}
    if request["channels"] != 4:  # statistics are of four
        request["vae"] = {key: value for key, value in request["vae"].items() if not key.startswith("latents_")}
    merge(parts, request, one_rare(source, [("transformer", RARE_Z_IMAGE), ("text", RARE_QWEN3), ("vae", RARE_VAE)]))
    texts.insert(0, {**request, **parts})
    return Case(ZImage("case", edit=edit, **request, **parts), texts)


def random_klein(source, share, edit, texts):
    request = {**random_flow(source, share, [None, 0.4, 1.0, 3.0, 5.0], flux2_klein.SHIFT[1]), "distilled": source.random() < 0.3,
               "channels": source.choice([16, 16, 4]), "causal": source.random() < 0.7, "vae": some(source, FLUX2_VAE, share)}
    parts = {"transformer": some(source, FLUX2, share),
             "text": {**some(source, QWEN3, share), "num_hidden_layers": source.choice([27, 28, 28, 29, 31])}}
    rare_text = {**RARE_QWEN3, "num_hidden_layers": [9, 26]}
    del rare_text["layer_types"]
    merge(parts, request, one_rare(source, [("transformer", RARE_FLUX2), ("text", rare_text), ("vae", RARE_FLUX2_VAE)]))
    texts.insert(0, {**request, **parts})
    return Case(Klein("case", edit=edit, **request, **parts), texts)


def random_case(source, family):
    share = source.choice([0.05, 0.1, 0.2])
    base = {"1.5": "SD", "2.1": "SD", "XL": "SD", "Z-Image": "Z-Image", "klein": "klein"}.get(family, "PixArt")
    name, options = source.choice([stable_diffusion.RELEASED_PNDM, (parity.EULER, parity.MILD), (parity.DDIM, parity.SCALED),
                                   (parity.DPM, parity.MILD), (parity.UNIPC, parity.MILD)])
    if source.random() < 0.3:
        name = source.choice(samplers.CLASSES)
        options = {**options, **some(source, samplers.OPTIONS, 0.1)}
    edits, texts = random_edits(source, base)
    if base == "Z-Image":
        return random_z_image(source, share, checkpoints.both(*edits), texts)
    if base == "klein":
        return random_klein(source, share, checkpoints.both(*edits), texts)
    request = {"steps": source.randint(1, 5), "guidance": source.choice([1.0, 0.5, 3.0, 7.5]), "size": (64, 64),
               "negative": source.choice([None, "blurry, white"]), "images": source.choice([1, 1, 2]), "scheduler": (name, options),
               "prompts": [source.choice([parity.CIRCLE, "", parity.UNICODE])], "vae": some(source, VAE, share)}
    edit = checkpoints.both(*edits)
    if base == "PixArt":
        rare = one_rare(source, [("transformer", RARE_PIXART), ("text", RARE_T5), ("vae", RARE_VAE)])
        parts = {"transformer": some(source, PIXART, share), "text": some(source, T5, share)}
        merge(parts, request, rare)
        row = checkpoints.PixArt("case", family=family, edit=edit, **request, **parts)
    else:
        rare = one_rare(source, [("unet", RARE_UNET), ("unet", RARE_UNET), ("text", RARE_CLIP), ("vae", RARE_VAE)])
        parts = {"unet": some(source, UNET, share), "text": some(source, CLIP, share)}
        if family == "XL":
            parts["index"] = some(source, INDEX, share)
            if source.random() < 0.1:
                parts["unet"]["cross_attention_dim"] = 32
                edit = checkpoints.both(edit, checkpoints.no_first_encoder)
                texts.append("no first encoder")
        merge(parts, request, rare)
        row = checkpoints.StableDiffusion("case", family=family, edit=edit, **request, **parts)
    texts.insert(0, {**{key: request[key] for key in ("scheduler", "steps", "guidance", "vae")}, **parts})
    return Case(row, texts)


def run_diffusers(row, folder, options, seed):
    """Returns the final latents, or nothing if diffusers refuses the checkpoint or the request."""
    try:
        reference = parity.Diffusers(row, folder, options, seed)
        latents = row.call(reference.pipeline, generator=reference.generator(), output_type="latent")
    except Exception:  # whatever it raises is a refusal
        return None
    return latents if torch.isfinite(latents).all() else None


def compare(case, seed, program, folder, pieces):
    """Returns an outcome, and a description of the failure if there is one."""
    torch.manual_seed(seed)
    try:
        options = case.row.save(folder, pieces)
    except Exception:  # diffusers cannot make a part of these options
        return "cannot be made", ""
    expected = run_diffusers(case.row, folder, options, seed)
    described = subprocess.run([program, "models", folder], capture_output=True, text=True, check=False)
    ours = parity.Tessera(program, case.row, folder, seed, folder / "out.safetensors")
    _, errors = ours.process.communicate()
    code = ours.process.returncode
    if code not in (0, 2, 3) or (code != 0 and len([line for line in errors.splitlines() if "warning:" not in line]) != 1):
        return "", f"exit code {code}: {errors.strip()[-500:]}"
    # A request that is wrong in itself (2) is refused before the model is.
    if code != 2 and (described.returncode == 0) != (code == 0):
        return "", f"described with exit code {described.returncode}, run with {code}: {described.stdout[-300:]} {errors.strip()}"
    if code != 0:
        return ("both refuse" if expected is None else "only diffusers runs"), errors.strip() if expected is not None else ""
    if expected is None:
        return "only Tessera runs", ""
    result = ours.latents()
    if result.shape != expected.shape:
        return "", f"latents of {list(result.shape)}, expected {list(expected.shape)}"
    difference = (result - expected).abs().max().item() / max(expected.std().item(), 1e-6)
    return ("equal", "") if difference <= TOLERANCE else ("", f"latents differ by {difference:.1e} of their deviation")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tessera", type=pathlib.Path, default=pathlib.Path("build/tessera"), help="the program")
    parser.add_argument("--family", action="append", choices=FAMILIES, help="(may be repeated)")
    parser.add_argument("--count", type=int, default=100, help="cases of each family")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", type=int, help="run this one alone")
    parser.add_argument("--refused", action="store_true", help="print what only diffusers runs")
    parser.add_argument("--keep", type=pathlib.Path, metavar="FOLDER", help="keep the checkpoint of --case there")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    diffusers.logging.disable_progress_bar()
    transformers.logging.disable_progress_bar()
    pieces = {"spiece": parity.train_spiece(), "clip": clip_tokenizers.train_clip(31, stable_diffusion.WORDS),
              "qwen": z_image.train()}
    failed = 0
    for family in options.family or FAMILIES:
        tally = collections.Counter()
        for number in range(options.count) if options.case is None else [options.case]:
            case = random_case(random.Random(f"{options.seed} {family} {number}"), family)
            with tempfile.TemporaryDirectory() as folder:
                try:
                    outcome, text = compare(case, number, options.tessera.resolve(), options.keep or pathlib.Path(folder), pieces)
                except Exception as error:  # one case must not end the others
                    outcome, text = "", "".join(traceback.format_exception_only(error)).strip()
            tally[outcome or "FAILED"] += 1
            if not outcome or (options.refused and text):
                print(f"{outcome or 'FAILED'}: {family} case {number}: {text}\n  {case.texts}", flush=True)
        failed += tally["FAILED"]
        print(f"{family}: {options.count} checkpoints: " + ", ".join(f"{count} {outcome}" for outcome, count in tally.most_common()),
              flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
