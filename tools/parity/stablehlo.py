"""Exports programs with `tessera trace --stablehlo`, runs them with XLA (or IREE) on a checkpoint's weights, and compares them with
diffusers (Open-Sora: with the oracles of tools/). It also has a program that JAX lowers read by `tessera analyze`.

    .venv/bin/python -m tools.parity.stablehlo [build/tessera] [NAME ...]
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import torch
import transformers
from diffusers.utils import logging

from tools.parity.stablehlo_jax import JAX, check_jax
from tools.parity.stablehlo_references import autoencoder, clip, flux2, flux2_autoencoder, pixart, qwen3
from tools.parity.stablehlo_references import stdit2, stdit3, t5, unet, video_vae, z_image
from tools.parity.stablehlo_runs import GOLDEN, MOST, PROMPT, ROOT, difference, export_ranks, part_of, random_inputs, run_ranks
from tools.parity.stablehlo_steps import STALE, check_stale
from tools.reference import stablehlo

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"  # before JAX is imported

DRAWS = 8  # of inputs, in bf16

logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

IMAGE = ["--height", "48", "--width", "80", "--no-resolution-binning"]
PICTURE = ["--height", "64", "--width", "48"]
VIDEO = ["--height", "43", "--width", "61", "--num-frames", "22"]
DENOISERS = {
    # name: the model, flags, the reference
    "pixart": ("tiny-pixart", IMAGE, pixart),
    "pixart without guidance": ("tiny-pixart", [*IMAGE, "--guidance-scale", "1"], pixart),
    "sd": ("tiny-sd", PICTURE, unet),
    "sdxl": ("tiny-sdxl", PICTURE, unet),
    "lcm": ("lcm", PICTURE, unet),
    "lcm of two pictures": ("lcm", [*PICTURE, "--num-images-per-prompt", "2"], unet),
    "stdit3": ("tiny-open-sora", VIDEO, stdit3),
    "stdit2": ("tiny-open-sora-1.1", VIDEO, stdit2),
    "z-image": ("tiny-z-image", PICTURE, z_image),
    "z-image without guidance": ("tiny-z-image", [*PICTURE, "--guidance-scale", "0"], z_image),
    "flux2 klein": ("tiny-flux2-klein", PICTURE, flux2),
    "flux2 klein of pictures": ("tiny-flux2-klein", [*PICTURE, "--image-size", "70x101", "--image-size", "64x80"], flux2),
}
PARTS = {
    # name: the model, flags, the part, the reference
    "t5": ("tiny-pixart", IMAGE, "text_encoder", t5),
    "clip": ("tiny-sd", PICTURE, "text_encoder", clip),
    "clip of sdxl": ("tiny-sdxl", PICTURE, "text_encoder", lambda *given: clip(*given, layer=-2)),
    "second clip of sdxl": ("tiny-sdxl", PICTURE, "text_encoder_2", lambda *given: clip(*given, part="text_encoder_2", layer=-2)),
    "qwen3": ("tiny-z-image", PICTURE, "text_encoder", qwen3),
    "decoder": ("tiny-sd", PICTURE, "decoder", autoencoder),
    "video decoder": ("tiny-open-sora", VIDEO, "decoder", video_vae),
    "decoder of flux2": ("tiny-flux2-klein", PICTURE, "decoder", flux2_autoencoder),
}


EVEN = ["--height", "64", "--width", "96", "--no-resolution-binning"]
EVEN_VIDEO = ["--height", "64", "--width", "96", "--num-frames", "17"]
TALL = ["--height", "96", "--width", "64"]
ULYSSES, RING, TENSOR = ["--ulysses-degree", "2"], ["--ring-degree", "2"], ["--tensor-parallel-degree", "2"]
GATHER = ["--kv-gather-degree", "2"]
CFG, SEQUENCE = ["--use-cfg-parallel"], ["--sequence-parallel"]
TENSOR_2D = ["--tensor-parallel-degree", "4", "--split-scheme", "2d"]
DATA = ["--guidance-scale", "1", "--prompt", "a star", "--data-parallel-degree", "2"]


# Heads for four ranks, of the same weights: the folder, the part, and what is written into its config.
WIDE = {"wide pixart": ("tiny-pixart", "transformer", {"num_attention_heads": 4, "attention_head_dim": 4}),
        "wide sd": ("tiny-sd", "unet", {"attention_head_dim": 4}),
        "wide sdxl": ("tiny-sdxl", "unet", {"attention_head_dim": [2, 4]})}


def layouts(name, folder, flags):
    """Rows of RANKS: two and four ranks of each method, and of several."""
    rows = {f"{name} {method} {count}": [flag, count] for count in ("2", "4")
            for method, flag in (("ulysses", "--ulysses-degree"), ("ring", "--ring-degree"), ("gather", "--kv-gather-degree"),
                                 ("tensor", "--tensor-parallel-degree"))}
    rows |= {f"{name} tensor 2 x 2": TENSOR_2D, f"{name} cfg": CFG, f"{name} data": DATA, f"{name} cfg and ulysses": [*CFG, *ULYSSES],
             f"{name} usp": [*ULYSSES, *RING], f"{name} ring and tensor": [*RING, *TENSOR], f"{name} gather and ring": [*GATHER, *RING]}
    return {row: (folder, flags, of_ranks, "denoiser") for row, of_ranks in rows.items()}


# name: the model, flags, those of the ranks, the part
RANKS = (layouts("pixart", "wide pixart", EVEN) | layouts("sd", "wide sd", TALL) | layouts("sdxl", "wide sdxl", TALL)
         | layouts("stdit3", "tiny-open-sora", EVEN_VIDEO) | layouts("stdit2", "tiny-open-sora-1.1", EVEN_VIDEO))
# All ranks divide the other parts, whatever the method.
RANKS |= {f"{name} {count}": (folder, flags, ["--ring-degree", count], part) for count in ("2", "4") for name, folder, flags, part in (
    ("t5", "wide pixart", EVEN, "text_encoder"), ("clip", "wide sd", TALL, "text_encoder"),
    ("second clip of sdxl", "wide sdxl", TALL, "text_encoder_2"), ("decoder", "wide sd", TALL, "decoder"),
    ("video decoder", "tiny-open-sora", EVEN_VIDEO, "decoder"))}
# Parts of different sizes: rows of tokens, frames, heads.
RANKS |= {f"uneven {name}": (folder, flags, of_ranks, "denoiser") for name, folder, flags, of_ranks in (
    ("pixart ulysses 2", "tiny-pixart", IMAGE, ULYSSES), ("pixart ring 3", "tiny-pixart", IMAGE, ["--ring-degree", "3"]),
    ("pixart gather 3", "tiny-pixart", IMAGE, ["--kv-gather-degree", "3"]),
    ("pixart shares", "wide pixart", EVEN, [*ULYSSES, *RING, "--rank-shares", "1,1,1,7"]),
    ("pixart tensor 3", "wide pixart", IMAGE, ["--tensor-parallel-degree", "3"]),
    ("sd ring 3", "wide sd", TALL, ["--ring-degree", "3"]), ("stdit3 ulysses 3", "tiny-open-sora", VIDEO, ["--ulysses-degree", "3"]),
    ("stdit3 ring 2", "tiny-open-sora", VIDEO, RING), ("stdit3 usp", "tiny-open-sora", VIDEO, [*ULYSSES, *RING]),
    ("stdit2 tensor 3", "tiny-open-sora-1.1", VIDEO, ["--tensor-parallel-degree", "3"]))}
EDIT = [*TALL, "--image-size", "70x101", "--image-size", "64x80"]
RANKS |= layouts("z-image", "tiny-z-image", TALL) | layouts("flux2 klein", "tiny-flux2-klein", EDIT)
RANKS |= {f"{name} {count}": (folder, TALL, ["--ring-degree", count], part) for count in ("2", "4") for name, folder, part in (
    ("qwen3", "tiny-z-image", "text_encoder"), ("qwen3 of flux2", "tiny-flux2-klein", "text_encoder"),
    ("decoder of flux2", "tiny-flux2-klein", "decoder"))}
RANKS |= {f"uneven {name}": (folder, flags, of_ranks, "denoiser") for name, folder, flags, of_ranks in (
    ("z-image ulysses 3", "tiny-z-image", TALL, ["--ulysses-degree", "3"]), ("z-image ring 3", "tiny-z-image", PICTURE, ["--ring-degree", "3"]),
    ("flux2 klein gather 3", "tiny-flux2-klein", EDIT, ["--kv-gather-degree", "3"]),
    ("flux2 klein tensor 3", "tiny-flux2-klein", EDIT, ["--tensor-parallel-degree", "3"]),
    ("flux2 klein shares", "tiny-flux2-klein", EDIT, [*ULYSSES, "--rank-shares", "3,2"]))}
# Of these bf16 too, beside the reference.
RANKS_IN_BF16 = {"pixart ulysses 2": pixart, "pixart tensor 2": pixart, "pixart tensor 2 x 2": pixart, "sd ulysses 2": unet,
                 "stdit3 ring 2": stdit3, "z-image gather 2": z_image, "flux2 klein ring 2": flux2, "flux2 klein tensor 2 x 2": flux2}
SHARDED = {
    # name: the model, flags, the part, those of the methods, and a kind of AS_ENGINE: where XLA chooses others (docs/stablehlo.md), None
    "sharded pixart tensor": ("tiny-pixart", EVEN, "denoiser", ["--tensor-parallel-degree", "2"], "all-reduce"),
    "sharded pixart sequence": ("tiny-pixart", EVEN, "denoiser", [*TENSOR, *SEQUENCE], "sequence"),
    "sharded pixart sequence 4": ("wide pixart", EVEN, "denoiser", ["--tensor-parallel-degree", "4", *SEQUENCE], "sequence"),
    "sharded pixart cfg and sequence": ("tiny-pixart", EVEN, "denoiser", [*CFG, *TENSOR, *SEQUENCE], "sequence"),
    "sharded pixart ring and sequence": ("tiny-pixart", EVEN, "denoiser", [*RING, *TENSOR, *SEQUENCE], None),
    "sharded pixart ulysses": ("tiny-pixart", EVEN, "denoiser", ["--ulysses-degree", "2"], "all-to-all"),
    "sharded pixart ring": ("tiny-pixart", EVEN, "denoiser", ["--ring-degree", "2"], None),
    "sharded pixart gather": ("tiny-pixart", EVEN, "denoiser", GATHER, "all-gather"),
    "sharded pixart cfg": ("tiny-pixart", EVEN, "denoiser", ["--use-cfg-parallel"], "nothing"),
    "sharded pixart data": ("tiny-pixart", [*EVEN, "--num-images-per-prompt", "2"], "denoiser", ["--data-parallel-degree", "2"],
                            "nothing"),
    "sharded pixart cfg and ulysses": ("tiny-pixart", EVEN, "denoiser", ["--use-cfg-parallel", "--ulysses-degree", "2"], "all-to-all"),
    "sharded pixart ring and tensor": ("tiny-pixart", EVEN, "denoiser", ["--ring-degree", "2", "--tensor-parallel-degree", "2"], None),
    "sharded stdit3 tensor": ("tiny-open-sora", EVEN_VIDEO, "denoiser", ["--tensor-parallel-degree", "2"], "all-reduce"),
    "sharded stdit3 sequence": ("tiny-open-sora", EVEN_VIDEO, "denoiser", [*TENSOR, *SEQUENCE], "sequence"),
    "sharded stdit2 sequence": ("tiny-open-sora-1.1", EVEN_VIDEO, "denoiser", [*TENSOR, *SEQUENCE], None),
    "sharded stdit3 2d tensor": ("tiny-open-sora", EVEN_VIDEO, "denoiser", ["--tensor-parallel-degree", "4", "--split-scheme", "2d"], None),
    "sharded stdit3 ulysses": ("tiny-open-sora", EVEN_VIDEO, "denoiser", ["--ulysses-degree", "2"], None),
    "sharded stdit3 cfg": ("tiny-open-sora", EVEN_VIDEO, "denoiser", ["--use-cfg-parallel"], "nothing"),
    "sharded stdit2 tensor": ("tiny-open-sora-1.1", EVEN_VIDEO, "denoiser", ["--tensor-parallel-degree", "2"], "all-reduce"),
    "sharded stdit2 ulysses": ("tiny-open-sora-1.1", EVEN_VIDEO, "denoiser", ["--ulysses-degree", "2"], None),
    "sharded sd tensor": ("tiny-sd", TALL, "denoiser", TENSOR, "all-reduce"),
    "sharded sd sequence": ("tiny-sd", TALL, "denoiser", [*TENSOR, *SEQUENCE], "sequence"),
    "sharded sd cfg": ("tiny-sd", TALL, "denoiser", CFG, "nothing"),
    "sharded sd cfg and tensor": ("tiny-sd", TALL, "denoiser", [*CFG, *TENSOR], "all-reduce"),
    "sharded sd ulysses": ("tiny-sd", TALL, "denoiser", ULYSSES, None),
    "sharded t5 tensor": ("tiny-open-sora", EVEN_VIDEO, "text_encoder", ["--tensor-parallel-degree", "2"], "all-reduce"),
    "sharded pixart stages": ("tiny-pixart", EVEN, "denoiser", ["--ulysses-degree", "2", "--stages", "0-0,1-1"], None),
    "sharded stdit3 mesh": ("tiny-open-sora", EVEN_VIDEO, "denoiser",
                            ["--use-cfg-parallel", "--tensor-parallel-degree", "2", "--mesh", "2x2"], "all-reduce"),
}
SHORT = ["pixart", "sdxl", "stdit3", "t5", "decoder"]


def export(program, scratch, folder, flags, part, dtype):
    path = pathlib.Path(scratch) / f"{part}.mlir"
    command = [program, "trace", PROMPT, "--model", folder, "--dtype", dtype, *flags, "--part", part,
               "--quiet", "--stablehlo", path]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return stablehlo.Program(path)


def mean_square(result, expected):
    """Of the differences, as shares of the largest number."""
    expected = expected.float().numpy()
    return float(np.mean(((result.astype(np.float32) - expected) / np.abs(expected).max()) ** 2))


def reference_of(exported, reference, folder, inputs):
    """A function from a dtype to the results of the reference."""
    given = {key: torch.from_numpy(value) for key, value in inputs.items()}
    samples = exported.description["prompt_of_sample"]
    # The unconditional branch of Open-Sora has as many tokens of a learned text as its prompt has.
    texts = [given.get(f"prompt.{i}") for i in samples]
    if "pooled.0" in given:
        given["pooled"] = [given[f"pooled.{i}"] for i in samples]
    given["null"] = next(len(text) for text in texts if text is not None)
    return lambda of: {"prediction": reference(folder, given["latents"], texts, given, of)}


def denoiser(program, name, dtype, engine, scratch):
    """A function from the number of a draw of inputs to the program's results, and a function from a dtype to those of the reference."""
    model, flags, reference = DENOISERS[name]
    folder = checkpoint(model, scratch)
    exported = export(program, scratch, folder, flags, "denoiser", dtype)

    def run(draw):
        inputs = random_inputs(exported, draw)
        return exported.run(folder, inputs, engine), reference_of(exported, reference, folder, inputs)

    return run


def other_part(program, name, dtype, engine, scratch):
    model, flags, part, reference = PARTS[name]
    folder = checkpoint(model, scratch)
    exported = export(program, scratch, folder, flags, part, dtype)

    def run(draw):
        inputs = random_inputs(exported, draw)
        given = {key: torch.from_numpy(value) for key, value in inputs.items()}
        return exported.run(folder, inputs, engine), lambda of: reference(folder, given, of)

    return run


def denoiser_of_ranks(program, name, dtype, engine, scratch):
    """As denoiser(), of the programs of all ranks, whose results are joined."""
    model, flags, of_ranks, part = RANKS[name]
    folder = checkpoint(model, scratch)
    alone = export(program, scratch, folder, flags, part, dtype)
    programs = export_ranks(program, pathlib.Path(scratch) / "ranks", folder, [*flags, *of_ranks], part, dtype)

    def run(draw):
        inputs = random_inputs(alone, draw)
        whole = {each["name"]: np.full(each["shape"], np.nan, np.float32) for each in alone.description["results"]}
        for one, own, result in results_of_ranks(programs, folder, inputs, alone):
            for each in one.description["results"]:
                made = whole[each["name"]]
                made.flat[places_of(made, own, each)] = result[each["name"]].astype(np.float32).ravel()
        return whole, reference_of(alone, RANKS_IN_BF16[name], folder, inputs)

    return run


@torch.inference_mode()
def check(program, name, dtype, engine):
    """Prints how far the program is from the reference, and returns whether it is near enough. In bf16, one draw of inputs tells
    little of so small a model: the root mean square over several is at most 1.2 times that of the reference's own bf16."""
    with tempfile.TemporaryDirectory() as scratch:
        run = (denoiser if name in DENOISERS else other_part if name in PARTS else denoiser_of_ranks)(program, name, dtype, engine, scratch)
        squares, found = [], {}
        for draw in range(DRAWS if dtype == "bf16" else 1):
            results, reference = run(draw)
            expected = reference(torch.float32)
            if results.keys() != expected.keys():
                raise SystemExit(f"{name}: the program gives {sorted(results)}, the reference {sorted(expected)}")
            found = {key: difference(results[key], expected[key], name) for key in results}
            if dtype == "bf16":
                rounded = reference(torch.bfloat16)
                squares.append({key: [mean_square(made, expected[key]) for made in (results[key], rounded[key].float().numpy())]
                                for key in results})
    most = dict.fromkeys(found, MOST)
    if dtype == "bf16":
        for key in found:
            found[key], of_reference = np.sqrt(np.mean([each[key] for each in squares], 0))
            most[key] = 1.2 * of_reference
    is_near = all(found[key] <= most[key] for key in found)
    shown = ", ".join(f"{key} {value:.1e}" + (f" of {most[key]:.1e}" if dtype == "bf16" else "") for key, value in found.items())
    print(f"{name:26} {dtype} {shown}{'' if is_near else '  FAILED'}", flush=True)
    return is_near


def checkpoint(name, scratch):
    """The folder of a model."""
    folder = pathlib.Path(scratch) / "model"
    if name == "lcm":  # that has some parts alone
        shutil.copytree(GOLDEN / "tiny-sd", folder)
        for part in ("unet", "scheduler"):
            shutil.copytree(GOLDEN / "tiny-lcm" / part, folder / part, dirs_exist_ok=True)
        return folder
    if name not in WIDE:
        return GOLDEN / name
    source, part, changes = WIDE[name]
    shutil.copytree(GOLDEN / source, folder)
    config = folder / part / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))
    return folder


def check_ranks(program, name):
    """Compares the programs of all ranks, on as many devices where they work together, with that of one rank, which check() compares
    with a reference."""
    model, flags, of_ranks, part = RANKS[name]
    with tempfile.TemporaryDirectory() as scratch:
        folder = checkpoint(model, scratch)
        alone = export(program, scratch, folder, [*flags, *(DATA[:4] if of_ranks == DATA else [])], part, "fp32")
        programs = export_ranks(program, pathlib.Path(scratch) / "ranks", folder, [*flags, *of_ranks], part)
        return compare_ranks(name, folder, alone, programs)


def results_of_ranks(programs, folder, inputs, alone):
    """Runs them on their parts of the inputs of `alone`, the program of one rank. Yields each with the samples that it has and its results."""
    numbers = alone.description["prompt_of_sample"]
    samples = [[numbers.index(number) for number in each.description["prompt_of_sample"]] if numbers else None for each in programs]
    given = [{each["name"]: part_of(inputs[each["name"]], own if each["name"] == "latents" else None, each.get("slice"))
              for each in one.inputs()} for one, own in zip(programs, samples, strict=True)]
    return zip(programs, samples, run_ranks(programs, folder, given), strict=True)


def places_of(whole, samples, result):
    """Where in an array of all samples a rank's result lies, according to its description."""
    return part_of(np.arange(whole.size).reshape(whole.shape), samples, result.get("slice")).ravel()


def compare_ranks(name, folder, alone, programs):
    """Runs them on random inputs."""
    inputs = random_inputs(alone)
    expected = alone.run(folder, inputs)
    found, missing = 0.0, {key: np.ones(value.size, bool) for key, value in expected.items()}
    for one, own, result in results_of_ranks(programs, folder, inputs, alone):
        for each in one.description["results"]:
            key = each["name"]
            found = max(found, difference(result[key], torch.tensor(part_of(expected[key], own, each.get("slice"))), name))
            missing[key][places_of(expected[key], own, each)] = False
    is_near = found <= MOST and not any(each.any() for each in missing.values())
    print(f"{name:26} fp32 {', '.join(expected)} {found:.1e}{'' if is_near else '  FAILED'}", flush=True)
    return is_near


# For each collective of XLA those of the engine's trace that send as many bytes. The engine scatters a sum and gathers it; XLA on CPU
# does all of it even where a device goes on with its own part.
AS_ENGINE = {"all-reduce": {"all-reduce": ["reduce_scatter", "all_gather"]},
             "sequence": {"all-reduce": ["reduce_scatter", "reduce_scatter"], "all-gather": ["all_gather"]},
             "all-to-all": {"all-to-all": ["all_to_all"]}, "all-gather": {"all-gather": ["all_gather"]}, "nothing": {}}


def sent_by_engine(program, folder, flags, part):
    """The bytes that a rank sends in one evaluation, by kind, according to a trace."""
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
                    "--sharding", "sdy", "--quiet", "--stablehlo", pathlib.Path(scratch) / "sharded.mlir"], check=True, stdout=subprocess.DEVNULL)
    return [stablehlo.Program(path) for path in sorted(pathlib.Path(scratch).glob("sharded*.mlir"))]


def expected_sends(program, folder, flags, part, methods, kind):
    """The bytes that a device sends, by the kind of XLA, where it does as the engine does."""
    of_sharding = next((i for i, word in enumerate(methods) if word in ("--mesh", *SEQUENCE)), len(methods))
    by_engine = sent_by_engine(program, folder, [*flags, *methods[:of_sharding]], part)
    if {each for kinds in AS_ENGINE[kind].values() for each in kinds} != set(by_engine):
        raise SystemExit(f"the engine sends {by_engine}, which is not what '{kind}' is for")
    return {key: sum(by_engine[each] for each in kinds) for key, kinds in AS_ENGINE[kind].items()}


def check_sharded(program, name):
    """Compares a program with shardings, divided by XLA, with that of one rank, and what XLA sends with what the engine does."""
    model, flags, part, methods, kind = SHARDED[name]
    with tempfile.TemporaryDirectory() as scratch:
        folder = checkpoint(model, scratch)
        alone = export(program, scratch, folder, flags, part, "fp32")
        stages = export_sharded(program, scratch, folder, [*flags, *methods], part)
        expected_bytes = expected_sends(program, folder, flags, part, methods, kind) if kind else None
        return compare_sharded(name, folder, alone, stages, expected_bytes)


def compare_sharded(name, folder, alone, stages, expected_bytes):
    """Runs them on random inputs. `expected_bytes`, unless it is None, is what a device sends, by kind."""
    inputs = random_inputs(alone)
    results, sent = {}, {}
    for stage in stages:
        results, of_stage = stage.run_sharded(folder, inputs | results)
        for key, (calls, size) in of_stage.items():
            before = sent.get(key, (0, 0))
            sent[key] = (before[0] + calls, before[1] + size)
    expected = alone.run(folder, inputs)
    found = {key: difference(results[key], torch.tensor(expected[key]), name) for key in expected}
    is_near = max(found.values()) <= MOST and expected_bytes in (None, {key: size for key, (_, size) in sent.items()})
    shown = ", ".join(f"{key} {value:.1e}" for key, value in found.items())
    words = ", ".join(f"{calls} {key} of {size} bytes" for key, (calls, size) in sorted(sent.items()))
    print(f"{name:31} fp32 {shown}; {words or 'nothing sent'}{'' if is_near else '  FAILED'}", flush=True)
    return is_near


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", nargs="?", default=ROOT / "build" / "tessera")
    parser.add_argument("names", nargs="*", default=[])
    parser.add_argument("--short", action="store_true", help="some programs, of one rank in fp32")
    parser.add_argument("--engine", choices=["xla", "iree"], default="xla")
    arguments = parser.parse_args()
    some = [*SHORT, "pixart usp", "sd ulysses 2", "pixart pipefusion", "sharded pixart ulysses", "sharded pixart sequence", JAX]
    chosen = arguments.names or (some if arguments.short else [*DENOISERS, *PARTS, *RANKS, *STALE, *SHARDED, JAX])
    names = [name for name in chosen if name in DENOISERS or name in PARTS]
    # The other references of videos are in fp32.
    with_bf16 = [] if arguments.short else [name for name in names if not name.startswith(("stdit2", "video"))]
    ranks_in_bf16 = ["pixart ulysses 2"] if arguments.short else [name for name in chosen if name in RANKS_IN_BF16]
    passed = [check(arguments.program, name, "fp32", arguments.engine) for name in names]
    passed += [check(arguments.program, name, "bf16", arguments.engine) for name in with_bf16]
    if arguments.engine == "xla":
        passed += [check(arguments.program, name, "bf16", "xla") for name in ranks_in_bf16]
        passed += [check_ranks(arguments.program, name) for name in chosen if name in RANKS]
        passed += [check_sharded(arguments.program, name) for name in chosen if name in SHARDED]
        passed += [check_stale(arguments.program, name) for name in chosen if name in STALE]
    if JAX in chosen:
        passed.append(check_jax(arguments.program))
    sys.exit(not all(passed))


if __name__ == "__main__":
    main()
