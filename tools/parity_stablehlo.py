#!/usr/bin/env python3
"""Exports programs with `tessera trace --stablehlo`, runs them with XLA (or IREE) on a checkpoint's weights, and compares them with
diffusers (Open-Sora: with the oracles of tools/). It also has a program that JAX lowers read by `tessera analyze`.

    tools/parity_stablehlo.py [build/tessera] [NAME ...]
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import stablehlo
import torch
import transformers
from diffusers.utils import logging

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"  # before JAX is imported

ROOT = pathlib.Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"
MOST = 1e-4  # of the largest number


logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


def weights_of(folder):
    return {key: value.float() for key, value in stablehlo.read_weights(folder).items()}


def padded(texts):
    """Prompts [L, D] of different lengths as a batch, and the mask of their tokens."""
    mask = torch.zeros(len(texts), max(len(text) for text in texts))
    for row, text in zip(mask, texts):
        row[: len(text)] = 1
    return torch.nn.utils.rnn.pad_sequence(texts, batch_first=True), mask


def pixart(folder, latents, texts, given, dtype):
    from diffusers import PixArtTransformer2DModel

    model = PixArtTransformer2DModel.from_pretrained(folder / "transformer").to(dtype).eval()
    hidden, mask = padded(texts)
    y = model(latents.to(dtype), encoder_hidden_states=hidden.to(dtype), encoder_attention_mask=mask.to(dtype),
              timestep=given["timestep"].expand(len(texts)),
              added_cond_kwargs={"resolution": None, "aspect_ratio": None}).sample
    return y[:, : latents.shape[1]]  # the other channels are a variance


def unet(folder, latents, texts, given, dtype):
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel.from_pretrained(folder / "unet").to(dtype).eval()
    added = {}
    if "pooled" in given:
        height, width = (8 * size for size in latents.shape[2:])
        ids = torch.tensor([[height, width, 0, 0, height, width]] * len(texts), dtype=torch.float32)
        added = {"text_embeds": torch.stack(given["pooled"]).to(dtype), "time_ids": ids.to(dtype)}
    return model(latents.to(dtype), given["timestep"], torch.stack(texts).to(dtype), added_cond_kwargs=added).sample


def stdit3(folder, latents, texts, given, dtype=None):
    from stdit3 import STDiT3

    model = STDiT3(weights_of(folder / "transformer"), json.loads((folder / "transformer" / "config.json").read_text()))
    count = len(latents)
    texts = [model.text(text if text is not None else model.null_text(given["null"])) for text in texts]
    return model(latents, given["timestep"].expand(count), texts, given["fps"].expand(count), given["height"].item(),
                 given["width"].item())[:, : latents.shape[1]]


def stdit2(folder, latents, texts, given, dtype=None):
    from stdit2 import STDiT2

    model = STDiT2(weights_of(folder / "transformer"), json.loads((folder / "transformer" / "config.json").read_text()))
    count = len(latents)
    texts = [model.text(text if text is not None else model.null_text(given["null"])) for text in texts]
    numbers = {name: given[name].expand(count) for name in ("fps", "num_frames", "ar", "height", "width")}
    return model(latents, given["timestep"].expand(count), texts, numbers)


def t5(folder, inputs, dtype):
    from transformers import T5EncoderModel

    model = T5EncoderModel.from_pretrained(folder / "text_encoder", dtype=dtype).eval()
    return {"states": model(inputs["tokens"][None]).last_hidden_state[0]}


def clip(folder, inputs, dtype, part="text_encoder", layer=None):
    """The states before the last layers, or after the last norm, and the pooled vector where there is one."""
    from transformers import CLIPTextModel, CLIPTextModelWithProjection

    has_projection = json.loads((folder / "model_index.json").read_text())[part][1].endswith("WithProjection")
    model = (CLIPTextModelWithProjection if has_projection else CLIPTextModel).from_pretrained(folder / part).to(dtype).eval()
    made = model(inputs["tokens"][None], output_hidden_states=True)
    results = {"states": (made.last_hidden_state if layer is None else made.hidden_states[layer])[0]}
    if has_projection:
        results["pooled"] = made.text_embeds[0]
    return results


def autoencoder(folder, inputs, dtype):
    from diffusers import AutoencoderKL

    model = AutoencoderKL.from_pretrained(folder / "vae").to(dtype).eval()
    return {"frames": model.decode(inputs["latents"].to(dtype) / model.config.scaling_factor).sample}


def video_vae(folder, inputs, dtype=None):
    from open_sora import OpenSora

    return {"frames": OpenSora(folder).vae.decode(inputs["latents"].transpose(0, 1)[None], 17)}


IMAGE = ["--height", "48", "--width", "80", "--no-resolution-binning"]
PICTURE = ["--height", "64", "--width", "48"]
VIDEO = ["--height", "43", "--width", "61", "--num-frames", "22"]
DENOISERS = {
    # name: the model's folder, flags, the reference
    "pixart": ("tiny-pixart", IMAGE, pixart),
    "pixart without guidance": ("tiny-pixart", [*IMAGE, "--guidance-scale", "1"], pixart),
    "sd": ("tiny-sd", PICTURE, unet),
    "sdxl": ("tiny-sdxl", PICTURE, unet),
    "stdit3": ("tiny-open-sora", VIDEO, stdit3),
    "stdit2": ("tiny-open-sora-1.1", VIDEO, stdit2),
}
PARTS = {
    # name: the model's folder, flags, the part, the reference
    "t5": ("tiny-pixart", IMAGE, "text_encoder", t5),
    "clip": ("tiny-sd", PICTURE, "text_encoder", clip),
    "clip of sdxl": ("tiny-sdxl", PICTURE, "text_encoder", lambda *given: clip(*given, layer=-2)),
    "second clip of sdxl": ("tiny-sdxl", PICTURE, "text_encoder_2", lambda *given: clip(*given, part="text_encoder_2", layer=-2)),
    "decoder": ("tiny-sd", PICTURE, "decoder", autoencoder),
    "video decoder": ("tiny-open-sora", VIDEO, "decoder", video_vae),
}


EVEN = ["--height", "64", "--width", "96", "--no-resolution-binning"]
EVEN_VIDEO = ["--height", "64", "--width", "96", "--num-frames", "17"]
RANKS = {
    # name: the model's folder, flags, those of the ranks, how many there are, and how many have the same rows
    "pixart ulysses": ("tiny-pixart", EVEN, ["--ulysses-degree", "2"], 2, 1),
    "pixart ring": ("tiny-pixart", EVEN, ["--ring-degree", "2"], 2, 1),
    "pixart ring of four": ("tiny-pixart", EVEN, ["--ring-degree", "4"], 4, 1),
    "pixart usp": ("tiny-pixart", EVEN, ["--ulysses-degree", "2", "--ring-degree", "2"], 4, 1),
    "pixart tensor": ("tiny-pixart", EVEN, ["--tensor-parallel-degree", "2"], 2, 2),
    "pixart ring and tensor": ("tiny-pixart", EVEN, ["--ring-degree", "2", "--tensor-parallel-degree", "2"], 4, 2),
    "stdit3 ulysses": ("tiny-open-sora", EVEN_VIDEO, ["--ulysses-degree", "2"], 2, 1),
    "stdit3 ring": ("tiny-open-sora", EVEN_VIDEO, ["--ring-degree", "2"], 2, 1),
    "stdit2 ulysses": ("tiny-open-sora-1.1", EVEN_VIDEO, ["--ulysses-degree", "2"], 2, 1),
    "stdit2 ring": ("tiny-open-sora-1.1", EVEN_VIDEO, ["--ring-degree", "2"], 2, 1),
}
SHARDED = {
    # name: the model's folder, flags, the part, those of the methods, and which kind of collective is as in the engine's trace: where
    # XLA chooses others (docs/stablehlo.md), None
    "sharded pixart tensor": ("tiny-pixart", EVEN, "denoiser", ["--tensor-parallel-degree", "2"], "all-reduce"),
    "sharded pixart ulysses": ("tiny-pixart", EVEN, "denoiser", ["--ulysses-degree", "2"], "all-to-all"),
    "sharded pixart ring": ("tiny-pixart", EVEN, "denoiser", ["--ring-degree", "2"], None),
    "sharded pixart cfg": ("tiny-pixart", EVEN, "denoiser", ["--use-cfg-parallel"], "nothing"),
    "sharded pixart data": ("tiny-pixart", [*EVEN, "--num-images-per-prompt", "2"], "denoiser", ["--data-parallel-degree", "2"],
                            "nothing"),
    "sharded pixart cfg and ulysses": ("tiny-pixart", EVEN, "denoiser", ["--use-cfg-parallel", "--ulysses-degree", "2"], "all-to-all"),
    "sharded pixart ring and tensor": ("tiny-pixart", EVEN, "denoiser", ["--ring-degree", "2", "--tensor-parallel-degree", "2"], None),
    "sharded stdit3 tensor": ("tiny-open-sora", EVEN_VIDEO, "denoiser", ["--tensor-parallel-degree", "2"], "all-reduce"),
    "sharded stdit3 2d tensor": ("tiny-open-sora", EVEN_VIDEO, "denoiser", ["--tensor-parallel-degree", "4", "--split-scheme", "2d"], None),
    "sharded stdit3 ulysses": ("tiny-open-sora", EVEN_VIDEO, "denoiser", ["--ulysses-degree", "2"], None),
    "sharded stdit3 cfg": ("tiny-open-sora", EVEN_VIDEO, "denoiser", ["--use-cfg-parallel"], "nothing"),
    "sharded stdit2 tensor": ("tiny-open-sora-1.1", EVEN_VIDEO, "denoiser", ["--tensor-parallel-degree", "2"], "all-reduce"),
    "sharded stdit2 ulysses": ("tiny-open-sora-1.1", EVEN_VIDEO, "denoiser", ["--ulysses-degree", "2"], None),
    "sharded t5 tensor": ("tiny-open-sora", EVEN_VIDEO, "text_encoder", ["--tensor-parallel-degree", "2"], "all-reduce"),
    "sharded pixart stages": ("tiny-pixart", EVEN, "denoiser", ["--ulysses-degree", "2", "--stages", "0-0,1-1"], None),
    "sharded stdit3 mesh": ("tiny-open-sora", EVEN_VIDEO, "denoiser",
                            ["--use-cfg-parallel", "--tensor-parallel-degree", "2", "--mesh", "2x2"], "all-reduce"),
}
JAX = "read from jax"
SHORT = ["pixart", "sdxl", "stdit3", "t5", "decoder"]


def export(program, scratch, folder, flags, part, dtype):
    path = pathlib.Path(scratch) / f"{part}.mlir"
    command = [program, "trace", "a red circle left of a star", "--model", folder, "--dtype", dtype, *flags, "--part", part,
               "--stablehlo", path]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return stablehlo.Program(path)


def random_inputs(program):
    random = np.random.default_rng(0)
    inputs = {}
    for each in program.inputs():
        if each["name"] == "tokens":
            inputs["tokens"] = random.integers(3, 90, each["shape"])
        else:
            inputs[each["name"]] = random.standard_normal(each["shape"]).astype(np.float32)
    return inputs


def difference(result, expected, name):
    """The largest, as a share of the largest number."""
    expected = expected.float().numpy()
    if expected.shape != result.shape:
        raise SystemExit(f"{name}: the program gives {result.shape}, the reference {expected.shape}")
    return float(np.abs(result.astype(np.float32) - expected).max() / np.abs(expected).max())


def denoiser(program, name, dtype, engine):
    """The program's results, and a function from a dtype to those of the reference."""
    folder, flags, reference = DENOISERS[name]
    folder = GOLDEN / folder
    with tempfile.TemporaryDirectory() as scratch:
        exported = export(program, scratch, folder, flags, "denoiser", dtype)
    inputs = random_inputs(exported)
    inputs["timestep"] = np.array([321.0], np.float32)
    inputs.update({key: np.full([1], value, np.float32) for key, value in exported.description["values"].items()})
    given = {key: torch.from_numpy(value) for key, value in inputs.items()}
    samples = exported.description["prompt_of_sample"]
    # The unconditional branch of Open-Sora has as many tokens of a learned text as its prompt has.
    texts = [given.get(f"prompt.{i}") for i in samples]
    if "pooled.0" in given:
        given["pooled"] = [given[f"pooled.{i}"] for i in samples]
    given["null"] = next(len(text) for text in texts if text is not None)
    return exported.run(folder, inputs, engine), lambda of: {"prediction": reference(folder, given["latents"], texts, given, of)}


def other_part(program, name, dtype, engine):
    folder, flags, part, reference = PARTS[name]
    folder = GOLDEN / folder
    with tempfile.TemporaryDirectory() as scratch:
        exported = export(program, scratch, folder, flags, part, dtype)
    inputs = random_inputs(exported)
    given = {key: torch.from_numpy(value) for key, value in inputs.items()}
    return exported.run(folder, inputs, engine), lambda of: reference(folder, given, of)


@torch.inference_mode()
def check(program, name, dtype, engine):
    """Prints how far the program is from the reference, and returns whether it is near enough: in bf16, whether it is no farther from
    the reference in fp32 than 1.2 times the reference's own bf16, or two units in the last place of the largest number."""
    results, reference = (denoiser if name in DENOISERS else other_part)(program, name, dtype, engine)
    expected = reference(torch.float32)
    if results.keys() != expected.keys():
        raise SystemExit(f"{name}: the program gives {sorted(results)}, the reference {sorted(expected)}")
    found = {key: difference(results[key], expected[key], name) for key in results}
    most = dict.fromkeys(found, MOST)
    if dtype == "bf16":
        rounded = reference(torch.bfloat16)
        most = {key: max(1.2 * difference(rounded[key].float().numpy(), expected[key], name), 2 ** -7) for key in found}
    is_near = all(found[key] <= most[key] for key in found)
    shown = ", ".join(f"{key} {value:.1e}" + (f" of {most[key]:.1e}" if dtype == "bf16" else "") for key, value in found.items())
    print(f"{name:26} {dtype} {shown}{'' if is_near else '  FAILED'}", flush=True)
    return is_near


def check_ranks(program, name):
    """Compares the programs of all ranks, on as many devices, with that of one rank, which check() compares with a reference."""
    folder, flags, of_ranks, count, alike = RANKS[name]
    folder = GOLDEN / folder
    with tempfile.TemporaryDirectory() as scratch:
        alone = export(program, scratch, folder, flags, "denoiser", "fp32")
        subprocess.run([program, "trace", "a red circle left of a star", "--model", folder, "--dtype", "fp32", *flags, *of_ranks,
                        "--stablehlo", pathlib.Path(scratch) / "ranks.mlir"], check=True, stdout=subprocess.DEVNULL)
        programs = [stablehlo.Program(pathlib.Path(scratch) / f"ranks.{rank}.mlir") for rank in range(count)]
    inputs = random_inputs(alone)
    inputs["timestep"] = np.array([321.0], np.float32)
    inputs.update({key: np.full([1], value, np.float32) for key, value in alone.description["values"].items()})
    latents = [next(each["shape"] for each in one.inputs() if each["name"] == "latents") for one in programs]
    dim = next((dim for dim, size in enumerate(latents[0]) if size != inputs["latents"].shape[dim]), 0)
    parts = np.split(inputs["latents"], count // alike, dim) if alike < count else [inputs["latents"]]
    given = [inputs | {"latents": parts[rank // alike]} for rank in range(count)]
    results = stablehlo.Program.run_together(programs, folder, given)
    joined = np.concatenate([each["prediction"] for each in results[::alike]], dim) if len(parts) > 1 else results[0]["prediction"]
    found = difference(joined, torch.tensor(alone.run(folder, inputs)["prediction"]), name)
    print(f"{name:26} fp32 prediction {found:.1e}{'' if found <= MOST else '  FAILED'}", flush=True)
    return found <= MOST


# What the engine calls the collectives of XLA; a sum is scattered and gathered.
OF_ENGINE = {"all-reduce": {"reduce_scatter", "all_gather"}, "all-to-all": {"all_to_all"}, "nothing": set()}


def sent_by_engine(program, folder, flags, part):
    """The bytes that a rank sends in one evaluation, by kind, as a trace tells them."""
    with tempfile.TemporaryDirectory() as scratch:
        trace = pathlib.Path(scratch) / "trace.json"
        subprocess.run([program, "trace", "a red circle left of a star", "--model", folder, "--dtype", "fp32", *flags,
                        "--num-inference-steps", "2", "--no-cache", "--quiet", "-o", trace], check=True, stdout=subprocess.DEVNULL)
        told = subprocess.run([program, "analyze", "comm", trace, "--json"], check=True, stdout=subprocess.PIPE).stdout
    phase, sent = ("denoise", "step_sent") if part == "denoiser" else ("encode", "sent")
    own = [row for row in json.loads(told)["rows"] if row["phase"] == phase and row[sent] and row["axis"] != "cfg"]
    return {kind: sum(row[sent] for row in own if row["collective"] == kind) for kind in {row["collective"] for row in own}}


def export_sharded(program, scratch, folder, flags, part):
    """The program, or one for each stage."""
    subprocess.run([program, "trace", "a red circle left of a star", "--model", folder, "--dtype", "fp32", *flags, "--part", part,
                    "--sharding", "sdy", "--stablehlo", pathlib.Path(scratch) / "sharded.mlir"], check=True, stdout=subprocess.DEVNULL)
    return [stablehlo.Program(path) for path in sorted(pathlib.Path(scratch).glob("sharded*.mlir"))]


def check_sharded(program, name):
    """Compares a program with shardings, divided by XLA, with that of one rank, and what XLA sends with what the engine does."""
    folder, flags, part, methods, kind = SHARDED[name]
    folder = GOLDEN / folder
    with tempfile.TemporaryDirectory() as scratch:
        alone = export(program, scratch, folder, flags, part, "fp32")
        stages = export_sharded(program, scratch, folder, [*flags, *methods], part)
    inputs = random_inputs(alone)
    inputs["timestep"] = np.array([321.0], np.float32)
    inputs.update({key: np.full([1], value, np.float32) for key, value in alone.description["values"].items()})
    results, sent = {}, {}
    for stage in stages:
        results, of_stage = stage.run_sharded(folder, inputs | results)
        for key, (calls, size) in of_stage.items():
            before = sent.get(key, (0, 0))
            sent[key] = (before[0] + calls, before[1] + size)
    expected = alone.run(folder, inputs)
    found = {key: difference(results[key], torch.tensor(expected[key]), name) for key in expected}
    is_near = max(found.values()) <= MOST
    if kind is not None:
        without_mesh = methods[: methods.index("--mesh")] if "--mesh" in methods else methods
        by_engine = sent_by_engine(program, folder, [*flags, *without_mesh], part)
        is_near = is_near and set(by_engine) == OF_ENGINE[kind] and set(sent) <= {kind}
        is_near = is_near and sum(by_engine.values()) == sum(size for _, size in sent.values())
    shown = ", ".join(f"{key} {value:.1e}" for key, value in found.items())
    words = ", ".join(f"{calls} {key} of {size} bytes" for key, (calls, size) in sorted(sent.items()))
    print(f"{name:31} fp32 {shown}; {words or 'nothing sent'}{'' if is_near else '  FAILED'}", flush=True)
    return is_near


def check_jax(program):
    """A transformer that JAX lowers is read, and counts what a closed form says, with and without JAX's locations."""
    import jax_transformer

    found = []
    with tempfile.TemporaryDirectory() as scratch:
        path = pathlib.Path(scratch) / "transformer.mlir"
        for has_locations in (False, True):
            path.write_text(jax_transformer.lowered().as_text(debug_info=has_locations))
            told = subprocess.run([program, "analyze", "flops", path, "--json"], check=True, stdout=subprocess.PIPE).stdout
            found.append({key: value for key, value in json.loads(told)["sum"].items() if key in ("products", "elementwise")})
    is_equal = all(each == jax_transformer.flops() for each in found)
    print(f"{JAX:26} {found[0]['products']} FLOP of products, {found[0]['elementwise']} elementwise{'' if is_equal else '  FAILED'}", flush=True)
    return is_equal


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", nargs="?", default=ROOT / "build" / "tessera")
    parser.add_argument("names", nargs="*", default=[])
    parser.add_argument("--short", action="store_true", help="some programs, in fp32")
    parser.add_argument("--engine", choices=["xla", "iree"], default="xla")
    arguments = parser.parse_args()
    chosen = arguments.names or ([*SHORT, "pixart usp", "sharded pixart ulysses", JAX] if arguments.short else
                                 [*DENOISERS, *PARTS, *RANKS, *SHARDED, JAX])
    names = [name for name in chosen if name in DENOISERS or name in PARTS]
    # The references of videos are in fp32.
    with_bf16 = [] if arguments.short else [name for name in names if not name.startswith(("stdit", "video"))]
    passed = [check(arguments.program, name, "fp32", arguments.engine) for name in names]
    passed += [check(arguments.program, name, "bf16", arguments.engine) for name in with_bf16]
    if arguments.engine == "xla":
        passed += [check_ranks(arguments.program, name) for name in chosen if name in RANKS]
        passed += [check_sharded(arguments.program, name) for name in chosen if name in SHARDED]
    if JAX in chosen:
        passed.append(check_jax(arguments.program))
    sys.exit(not all(passed))


if __name__ == "__main__":
    main()
