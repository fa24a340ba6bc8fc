"""Makes tests/golden/tiny-z-image: a whole Z-Image pipeline with random weights, small enough for the repository, and under golden/
the latents and pixels that diffusers makes with it. The transformer is saved in bf16, as released; most of it is what embeds the
timestep, whose layers have the released sizes."""
import dataclasses
import json
import pathlib
import shutil
import tempfile

import numpy
import torch
from safetensors.torch import save_file

from tools.golden import bpe_tokenizer as bpe
from tools.golden import tiny_pipeline as tiny
from tools.parity import z_image

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden"
MODEL = z_image.Row("tiny", heads=(4, 6), text={"hidden_size": 12, "intermediate_size": 256, "head_dim": 4},
                    vae={"block_out_channels": (4, 4, 8), "sample_size": 32})
RUNS = {
    # name: what the request changes in the row
    "guided": dict(prompts=["A red circle above a blue square", ""], negative="blurry", size=(40, 56), steps=4, guidance=4.0),
    "turbo": dict(prompts=["a green star"], size=(32, 48), steps=3, guidance=0.0, images=2),
    "limited": dict(prompts=["a green star", "a cat"], size=(48, 32), steps=4, guidance=0.5, cfg_normalization=0.9, cfg_truncation=0.5),
}


def write_golden(folder, row, runs, pipeline):
    golden = folder / "golden"
    golden.mkdir()
    requests, tensors = {}, {}
    for name, options in runs.items():
        run = dataclasses.replace(row, **options)
        requests[name] = {"prompt": run.prompts, **run.request(), **({"num_images_per_prompt": run.images} if run.images > 1 else {})}
        for kind, output_type in (("latents", "latent"), ("pixels", "pil")):
            made = run.call(pipeline, generator=torch.Generator().manual_seed(tiny.SEED), output_type=output_type)
            is_latents = output_type == "latent"
            tensors[f"{name}.{kind}"] = made.contiguous() if is_latents else torch.from_numpy(numpy.stack([numpy.asarray(each) for each in made]))
    (golden / "runs.json").write_text(json.dumps({"seed": tiny.SEED, "runs": requests}, indent=1) + "\n")
    save_file(tensors, golden / "golden.safetensors")


def make(name, row, runs, pattern=bpe.QWEN2):
    """Writes a golden: the row's pipeline, with a vocabulary that splits texts by `pattern`, and what diffusers makes of it with the
    requests."""
    folder = GOLDEN / name
    shutil.rmtree(folder, ignore_errors=True)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as published:
        pipeline = row.build(pathlib.Path(published), bpe.train(41, 60, pattern, "isolated"))
    pipeline.transformer.to(torch.bfloat16)
    pipeline.save_pretrained(folder)
    pipeline.transformer.to(torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    write_golden(folder, row, runs, pipeline)


if __name__ == "__main__":
    make("tiny-z-image", MODEL, RUNS)
