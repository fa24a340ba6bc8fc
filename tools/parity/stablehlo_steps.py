"""Runs with programs of stages, and of ranks that use what an earlier step left, step by step; tools/parity/stablehlo.py."""
import json
import pathlib
import subprocess
import tempfile

import numpy as np
import torch

from tools.parity.stablehlo_runs import GOLDEN, MOST, PROMPT, difference, export_ranks, part_of, run_ranks

EVEN = ["--height", "64", "--width", "96", "--no-resolution-binning"]
TALL = ["--height", "96", "--width", "64"]
PIPEFUSION, DISPLACED = ["--pipefusion-parallel-degree", "2"], ["--displaced-patch-degree", "2"]
STALE_STEPS = 4
TOKENS, REFERENCE = 24, GOLDEN / "tiny-flux2-klein" / "golden" / "64x80.png"
EDIT = [*TALL, "--image", REFERENCE, "--max-sequence-length", str(TOKENS)]
# name: the model's folder, flags, those of the ranks, which use what an earlier step left
STALE = {
    "pixart pipefusion": ("tiny-pixart", EVEN, PIPEFUSION),
    "pixart pipefusion of four patches": ("tiny-pixart", EVEN, [*PIPEFUSION, "--num-pipeline-patch", "4"]),
    "pixart pipefusion and ulysses": ("tiny-pixart", EVEN, [*PIPEFUSION, "--ulysses-degree", "2"]),
    "pixart pipefusion and ring": ("tiny-pixart", EVEN, [*PIPEFUSION, "--ring-degree", "2"]),
    "pixart pipefusion and gather": ("tiny-pixart", EVEN, [*PIPEFUSION, "--kv-gather-degree", "2"]),
    "sd displaced": ("tiny-sd", TALL, DISPLACED),
    "sd displaced, stale norms": ("tiny-sd", TALL, [*DISPLACED, "--displaced-mode", "stale_gn"]),
    "pixart displaced": ("tiny-pixart", EVEN, DISPLACED),
    "z-image pipefusion": ("tiny-z-image", TALL, PIPEFUSION),
    "z-image pipefusion and ulysses": ("tiny-z-image", TALL, [*PIPEFUSION, "--ulysses-degree", "2"]),
    "z-image displaced": ("tiny-z-image", TALL, DISPLACED),
    "flux2 klein pipefusion": ("tiny-flux2-klein", EDIT, PIPEFUSION),
    "flux2 klein pipefusion and gather": ("tiny-flux2-klein", EDIT, [*PIPEFUSION, "--kv-gather-degree", "2"]),
    "flux2 klein displaced": ("tiny-flux2-klein", EDIT, DISPLACED),
}


def encode_with_pipeline(folder):
    """The same of a model whose prompts have a template, and the latents of the picture of EDIT, by diffusers' pipeline."""
    import diffusers
    from PIL import Image

    pipeline = diffusers.DiffusionPipeline.from_pretrained(folder)
    states = pipeline.encode_prompt([PROMPT, ""], **({} if "z-image" in folder.name else {"max_sequence_length": TOKENS}))[0]
    named = {f"prompt.{i}": each.numpy() for i, each in enumerate(states)}
    if "flux2" in folder.name:
        picture = pipeline.image_processor.preprocess(Image.open(REFERENCE))
        named["reference.0"] = pipeline._encode_vae_image(picture, generator=None).numpy()
    return named


def solver_of(folder, size):
    """diffusers' scheduler with the noise levels that its pipelines give it, for latents of this height and width."""
    import diffusers
    from diffusers.pipelines.flux2.pipeline_flux2_klein import compute_empirical_mu
    from diffusers.pipelines.z_image.pipeline_z_image import get_default_z_image_sigmas

    solver = getattr(diffusers, json.loads((folder / "model_index.json").read_text())["scheduler"][1]).from_pretrained(folder / "scheduler")
    if "z-image" in folder.name:
        solver.set_timesteps(sigmas=get_default_z_image_sigmas(STALE_STEPS))
    elif "flux2" in folder.name:
        solver.set_timesteps(sigmas=np.linspace(1, 1 / STALE_STEPS, STALE_STEPS), mu=compute_empirical_mu(size[0] * size[1], STALE_STEPS))
    else:
        solver.set_timesteps(STALE_STEPS)
    return solver


def packed(folder, latents):
    """Latents of a result as they are denoised."""
    if "flux2" not in folder.name:
        return latents
    import diffusers

    vae = diffusers.AutoencoderKLFlux2.from_pretrained(folder / "vae")
    mean, variance = (numbers.view(-1, 1, 1) for numbers in (vae.bn.running_mean, vae.bn.running_var))
    return (torch.nn.functional.pixel_unshuffle(latents, 2) - mean) / torch.sqrt(variance + vae.config.batch_norm_eps)


@torch.inference_mode()
def prompt_states(folder):
    """Of the prompt, and of an empty one."""
    import transformers as library

    part = json.loads((folder / "model_index.json").read_text())
    if part["text_encoder"][1].startswith("Qwen3"):
        return encode_with_pipeline(folder)
    tokenizer = getattr(library, part["tokenizer"][1]).from_pretrained(folder / "tokenizer")
    encoder = getattr(library, part["text_encoder"][1]).from_pretrained(folder / "text_encoder", dtype=torch.float32)
    is_padded = part["text_encoder"][1].startswith("CLIP")
    options = {"padding": "max_length", "truncation": True} if is_padded else {}
    return {f"prompt.{i}": encoder(tokenizer(text, return_tensors="pt", **options).input_ids).last_hidden_state[0].numpy()
            for i, text in enumerate((PROMPT, ""))}


def run_stages(programs, folder, given):
    """The results by rank, of stages one after another: what one gives is what the next takes."""
    results = [None] * len(programs)
    stages = []
    for one in programs:
        if one.description["partitions"] not in stages:
            stages.append(one.description["partitions"])
    inputs = [dict(own) for own in given]
    for number, ranks in enumerate(stages):
        found = run_ranks([programs[rank] for rank in ranks], folder, [inputs[rank] for rank in ranks])
        for rank, result in zip(ranks, found, strict=True):
            results[rank] = result
        if number + 1 < len(stages):
            for rank, peer in zip(ranks, stages[number + 1], strict=True):
                inputs[peer] |= {key: value for key, value in results[rank].items() if key.startswith("hidden")}
    return results


def check_stale(program, name):
    """Runs the programs of the first step and of the later ones with a scheduler of diffusers, and compares the latents with those of
    a run of the engine."""
    from safetensors.torch import load_file

    source, flags, of_ranks = STALE[name]
    with tempfile.TemporaryDirectory() as scratch:
        scratch, folder = pathlib.Path(scratch), GOLDEN / source
        steps = ["--num-inference-steps", str(STALE_STEPS), "--warmup-steps", "1", "--guidance-scale", "4"]
        latents = scratch / "latents.safetensors"
        subprocess.run([program, "generate", PROMPT, "--model", folder, "--dtype", "fp32", "--seed", "3", *flags, *of_ranks, *steps,
                        "--output-type", "latent", "-q", "-o", latents], check=True, stdout=subprocess.DEVNULL)
        expected = packed(folder, next(iter(load_file(latents).values())))
        first, later = (export_ranks(program, scratch / part, folder, [*flags, *of_ranks, *steps], part)
                        for part in ("first_step", "denoiser"))
        solver = solver_of(folder, expected.shape[2:])
        z = torch.randn(expected.shape, generator=torch.Generator().manual_seed(3)) * getattr(solver, "init_noise_sigma", 1)
        texts = prompt_states(folder)
        caches = [{} for _ in first]
        for i, timestep in enumerate(solver.timesteps):
            programs = later if i else first
            given = []
            for one, own in zip(programs, caches, strict=True):
                named = texts | own | {"timestep": np.array([timestep], np.float32)}
                samples = z.numpy().repeat(len(one.description["prompt_of_sample"]), 0)
                for each in one.inputs():
                    if each["name"].startswith("latents"):
                        named[each["name"]] = part_of(samples, None, each["slice"])
                given.append(named)
            results = run_stages(programs, folder, given)
            caches = [own | {key: value for key, value in result.items() if key.startswith("cache")}
                      for own, result in zip(caches, results, strict=True)]
            whole = np.full((2, *expected.shape[1:]), np.nan, np.float32)
            for one, result in zip(programs, results, strict=True):
                for each in one.description["results"]:
                    if each["name"].startswith("prediction"):
                        part_of(whole, None, each["slice"])[...] = result[each["name"]]
            without, with_prompt = torch.from_numpy(whole).chunk(2)
            start = with_prompt if "z-image" in folder.name else without
            z = solver.step(start + 4 * (with_prompt - without), timestep, z).prev_sample
    found = difference(z.numpy(), expected, name)
    is_near = found <= MOST
    print(f"{name:33} fp32 latents after {STALE_STEPS} steps {found:.1e}{'' if is_near else '  FAILED'}", flush=True)
    return is_near
