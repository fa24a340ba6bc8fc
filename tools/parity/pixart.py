"""Compares Tessera with diffusers on whole pipelines of tiny random models, one per row of ROWS.

Each row builds a pipeline of diffusers, saves it, and runs the same prompts, seed and steps with diffusers and with
`tessera generate`. In fp32 the final latents may differ by 1e-3, and pictures must have a PSNR above 50 dB. (Untrained weights
can blow the latents up to a standard deviation of hundreds, where 1e-3 is a few units in the last place; there the limit is
1e-5 times that deviation.) In bf16 every program rounds differently, so Tessera's latents may be at most 1.1 times as far (RMS)
from diffusers' fp32 latents as diffusers' bf16 latents are, in the geometric mean over a row's pictures. Each such row has three
pictures or more. diffusers would draw different noise in bf16, so it is given the fp32 noise, rounded."""
from tools import missing_packages  # noqa: F401  (says how to get those that are missing)
import argparse
import dataclasses
import logging
import math
import pathlib
import shutil
import sys
import tempfile
import time
import traceback
import warnings

import diffusers
import numpy as np
import torch
import transformers

from tools.golden import tokenizer as tokenizers
from tools.parity.short import short_list
from tools.parity.tessera_process import Tessera

LATENT_TOLERANCE = 1e-3
RELATIVE_TOLERANCE = 1e-5  # times the standard deviation; the larger tolerance holds
LEAST_PSNR, BF16_RATIO = 50.0, 1.1
PIECES = 700
SHIPPED_MODEL = pathlib.Path(__file__).resolve().parents[2] / "models" / "shapes"

DDIM, PNDM = "DDIMScheduler", "PNDMScheduler"
EULER, ANCESTRAL = "EulerDiscreteScheduler", "EulerAncestralDiscreteScheduler"
DPM, UNIPC, FLOW = "DPMSolverMultistepScheduler", "UniPCMultistepScheduler", "FlowMatchEulerDiscreteScheduler"
SHORT_NAMES = {  # what --scheduler NAME means in diffusers
    "ddim": (DDIM, {"clip_sample": False}), "pndm": (PNDM, {"skip_prk_steps": True}), "euler": (EULER, {}),
    "euler-a": (ANCESTRAL, {}), "unipc": (UNIPC, {}), "flow-euler": (FLOW, {}), "dpm++": (DPM, {"algorithm_type": "dpmsolver++"}), "dpm++-sde": (DPM, {"algorithm_type": "sde-dpmsolver++"})}
# PixArt's training noise ends at a signal of 1/150, by which an untrained model's latents grow 150-fold.
RELEASED = (DPM, {"beta_start": 0.0001, "beta_end": 0.02})
MILD = {"beta_start": 0.0001, "beta_end": 0.002}
SCALED = {"beta_schedule": "scaled_linear", "beta_start": 0.00085, "beta_end": 0.012}
V = {"prediction_type": "v_prediction"}

CIRCLE = "A red circle above a blue square, on a white background"
LONG = ", ".join(["a photo of a cat wearing a hat", "detailed", "4k"] * 40)  # longer than 300 tokens
UNICODE = "  Ein naïver КРАСНЫЙ круг \u2014 日本語 かな \U0001f600 ＡＢＣ e\u0301t\xe9  "
THREE = [CIRCLE, "", UNICODE]
WEB = ["<b>Red &amp; blue</b> circles #42 \u2014 https://a.com/b.png", "IMG_2031.JPG 19x10 \u732b a_very_long-table-cloth 20%27"]


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    # the model
    family: str = "Sigma"  # or Alpha
    heads: tuple = (3, 12)  # count, size
    layers: int = 2
    sharpness: float = 1.0  # of self-attention
    sample_size: int = 32  # of latents
    transformer: dict = dataclasses.field(default_factory=dict)  # options of PixArtTransformer2DModel
    vae: dict = dataclasses.field(default_factory=dict)  # options of AutoencoderKL
    text: dict = dataclasses.field(default_factory=dict)  # options of T5Config
    scheduler: tuple = (DPM, MILD)
    tokenizer: dict = dataclasses.field(default_factory=dict)  # of its config
    saved: str = "fp32"  # fp32, fp16, bf16, sharded, variant, sharded variant, tokenizer.json; "shipped": models/shapes
    # the request
    prompts: list = dataclasses.field(default_factory=lambda: [CIRCLE])
    negative: str | list | None = None  # one for all prompts, or one for each
    size: tuple | None = (64, 96)  # height, width
    steps: int | None = 20
    guidance: float | None = 4.5
    images: int = 1
    tokens: int | None = None
    binning: bool = False
    clean: bool = True
    override: str | None = None  # --scheduler
    eta: float | None = None
    dtype: str = "fp32"
    threads: int | None = 1  # None leaves the number to the program
    flags: str = ""  # of parallel methods
    is_long: bool = False  # takes 20 s or more, most of them diffusers, on a processor without products in bf16

    def save(self, folder, pieces):
        """Builds and saves the pipeline; returns the options for from_pretrained."""
        return save(self, folder, pieces)

    def request(self):
        """Returns the options of the request under diffusers' names, without those left to the program's defaults."""
        height, width = self.size or (None, None)
        options = {"height": height, "width": width, "num_inference_steps": self.steps, "guidance_scale": self.guidance,
                "max_sequence_length": self.tokens, "negative_prompt": self.negative, "eta": self.eta}
        return {key: value for key, value in options.items() if value is not None}

    def call(self, pipeline, **options):
        return pipeline(self.prompts, num_images_per_prompt=self.images, use_resolution_binning=self.binning,
                        clean_caption=self.clean, **self.request(), **options).images

    def call_and_watch(self, pipeline, **options):
        """Returns the pictures, and the latents after each step."""
        after_steps = []
        return self.call(pipeline, callback=lambda i, t, latents: after_steps.append(latents), **options), after_steps

    def model(self, folder):
        """Returns the options that name the model."""
        return ["--model", folder]

    def words(self):
        """Returns the request as arguments of `tessera generate`."""
        words = [f"--{name.replace('_', '-')}={each}" for name, value in self.request().items() for each in np.atleast_1d(value)]
        if self.override:
            words.append(f"--scheduler={self.override}")
        return words + ["--no-clean-caption"] * (not self.clean) + ["--no-resolution-binning"] * (not self.binning)


def alpha(name, **options):
    return Row(name, family="Alpha", **options)


def bf16(name, **options):
    return Row("bf16 " + name, dtype="bf16", **{"prompts": THREE, "images": 2, **options})


SHIPPED = {"family": "Alpha", "saved": "shipped", "size": None, "steps": None, "guidance": None}
SHAPES = ["a red circle above a blue square on a white background", "an orange cross on a gray background"]
ALPHA_1024 = {"family": "Alpha", "sample_size": 128}  # with size conditions
ROWS = [
    # These resemble the released models, at the program's defaults.
    Row("sigma defaults", scheduler=RELEASED, size=None, steps=None, guidance=None, binning=True),
    alpha("alpha defaults", scheduler=RELEASED, size=None, steps=None, guidance=None, binning=True),
    Row("alpha 1024 with size conditions", scheduler=RELEASED, **ALPHA_1024, heads=(2, 12)),
    Row("alpha 1024, tall, three prompts", **ALPHA_1024, heads=(1, 24), size=(112, 48), prompts=THREE, steps=4),
    Row("alpha 1024, one branch", **ALPHA_1024, guidance=1.0, steps=4, size=(32, 80)),
    Row("alpha 1024 without size conditions", **ALPHA_1024, transformer={"use_additional_conditions": False}, steps=4),
    Row("alpha 1024 in bins", **ALPHA_1024, heads=(1, 12), layers=1, size=(600, 1000), binning=True, steps=2),
    alpha("alpha 512 in bins, any size", sample_size=64, size=(401, 598), binning=True, steps=4),
    Row("sigma 256 in bins, any size", size=(263, 133), binning=True, steps=4),
    Row("sigma 512 in bins", sample_size=64, size=(320, 520), binning=True, steps=4),
    Row("sigma 1024 in bins", sample_size=128, heads=(1, 12), layers=1, size=(1000, 520), binning=True, steps=2,
        transformer={"use_additional_conditions": False, "interpolation_scale": 2}, vae={"mid_block_add_attention": False}),
    Row("sigma 2048 in bins", sample_size=256, heads=(1, 12), layers=1, size=(520, 2000), binning=True, steps=2,
        transformer={"use_additional_conditions": False, "interpolation_scale": 4, "patch_size": 4},
        vae={"mid_block_add_attention": False}),
    # These vary the shapes of the models.
    Row("heads 5 x 8", heads=(5, 8), steps=4),
    Row("heads 1 x 20", heads=(1, 20), steps=4),
    Row("heads 7 x 4", heads=(7, 4), steps=4, layers=3),
    Row("heads 3 x 20", heads=(3, 20), steps=4, size=(48, 176)),
    Row("heads 2 x 72", heads=(2, 72), steps=4),
    Row("sample size 20, interpolated", sample_size=20, transformer={"interpolation_scale": 1.7}, size=(160, 208)),
    Row("patch 1", transformer={"patch_size": 1}, size=(40, 72), steps=4),
    Row("patch 4", transformer={"patch_size": 4}, size=(96, 160), steps=4),
    Row("no learned variance", transformer={"out_channels": 4}, steps=4),
    Row("16 latent channels", transformer={"in_channels": 16, "out_channels": 32}, steps=4),
    Row("no attention bias", transformer={"attention_bias": False}, steps=4),
    Row("T5 with ReLU", text={"feed_forward_proj": "relu", "num_layers": 3}, steps=4),
    Row("T5, few buckets", text={"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20}, steps=4,
        prompts=[CIRCLE + " and a long tail of words that are far apart"]),
    Row("VAE without quant convs", vae={"use_quant_conv": False, "use_post_quant_conv": False}, steps=4),
    Row("VAE without attention", vae={"mid_block_add_attention": False}, steps=4),
    Row("VAE of 4 x 4", vae={"block_out_channels": (4, 8, 12)}, steps=4, size=(32, 48)),
    Row("VAE of 2 layers, wider", vae={"block_out_channels": (12, 24, 24, 36), "layers_per_block": 2, "norm_num_groups": 6},
        steps=4),
    Row("VAE with a shift", vae={"shift_factor": 0.4, "scaling_factor": 0.36}, steps=4),
    Row("VAE with latent statistics", vae={"latents_mean": [0.5, -0.5, 0.2, 1], "latents_std": [2, 0.5, 3, 1]}, steps=4),
    # These vary the requests.
    Row("three prompts, negative", prompts=THREE, negative=["blurry, a Cat", "", CIRCLE]),
    Row("two pictures each of two prompts", prompts=["a cat", CIRCLE], images=2, steps=4),
    Row("empty prompt, one branch", prompts=[""], guidance=1.0, steps=4),
    Row("one branch, two prompts", prompts=[UNICODE, CIRCLE], guidance=1.0, negative="unused"),
    Row("guidance 7.5", guidance=7.5, negative="white background"),
    Row("guidance below 1", guidance=0.3, steps=4),
    Row("sigma, prompt beyond 300 tokens", prompts=[LONG, "a dog"], negative=LONG, steps=4),
    alpha("alpha, prompt beyond 120 tokens", prompts=[LONG], steps=4),
    Row("prompt cut at the left", prompts=[LONG, "a dog"], tokenizer={"truncation_side": "left"}, steps=4),
    Row("7 tokens", prompts=[CIRCLE, "a cat"], tokens=7, steps=4, negative="blurry, white, background, red, circle"),
    alpha("300 tokens with alpha", prompts=[LONG], tokens=300, steps=4),
    Row("one token", prompts=[CIRCLE], tokens=1, steps=4),
    Row("one step", steps=1),
    alpha("one step of DDIM", steps=1, scheduler=(DDIM, {**MILD, "clip_sample": False})),
    alpha("one step of Euler", steps=1, guidance=9.0, scheduler=(EULER, {**SCALED, **V})),
    Row("odd aspect", size=(16, 272), steps=4),
    # These take the sampler from scheduler_config.json.
    Row("DDIM", scheduler=(DDIM, {**MILD, "clip_sample": False})),
    Row("DDIM, clipped", scheduler=(DDIM, {})),
    Row("DDIM, v, zero SNR, trailing", scheduler=(DDIM, {**SCALED, **V, "clip_sample": False, "rescale_betas_zero_snr": True,
                                                        "timestep_spacing": "trailing"})),
    Row("DDIM, eta", scheduler=(DDIM, {**MILD, "clip_sample": False}), eta=0.6, prompts=["a cat", "a dog"]),
    Row("PNDM", scheduler=(PNDM, {**MILD, "skip_prk_steps": True, "set_alpha_to_one": False, "steps_offset": 1})),
    Row("PNDM with Runge-Kutta steps", scheduler=(PNDM, MILD)),
    Row("Euler", scheduler=(EULER, MILD)),
    Row("Euler, Karras, v", scheduler=(EULER, {**SCALED, **V, "use_karras_sigmas": True, "timestep_spacing": "leading"})),
    Row("Euler ancestral", scheduler=(ANCESTRAL, MILD), prompts=["a cat", "a dog"]),
    Row("DPM-Solver++ order 1", scheduler=(DPM, {**MILD, "solver_order": 1})),
    Row("DPM-Solver++ order 3", scheduler=(DPM, {**MILD, "solver_order": 3})),
    Row("DPM-Solver++ order 3, 4 steps", scheduler=(DPM, {**MILD, "solver_order": 3}), steps=4),
    Row("DPM-Solver++ Karras", scheduler=(DPM, {**MILD, "use_karras_sigmas": True})),
    Row("DPM-Solver++ Karras, sigma min, v", scheduler=(DPM, {**V, "use_karras_sigmas": True, "final_sigmas_type": "sigma_min"})),
    Row("DPM-Solver++ lambdas", scheduler=(DPM, {**MILD, "use_lu_lambdas": True})),
    Row("DPM-Solver++ Heun, cosine", scheduler=(DPM, {**V, "solver_type": "heun", "beta_schedule": "squaredcos_cap_v2"})),
    Row("DPM-Solver++ SDE", scheduler=(DPM, {**MILD, "algorithm_type": "sde-dpmsolver++"}), images=2),
    Row("DPM-Solver++ flow", scheduler=(DPM, {"use_flow_sigmas": True, "prediction_type": "flow_prediction", "flow_shift": 3.0})),
    Row("DPM-Solver", scheduler=(DPM, {**MILD, "algorithm_type": "dpmsolver", "final_sigmas_type": "sigma_min"})),
    Row("UniPC", scheduler=(UNIPC, MILD)),
    Row("UniPC order 3, Karras", scheduler=(UNIPC, {**MILD, "solver_order": 3, "use_karras_sigmas": True})),
    Row("UniPC flow", scheduler=(UNIPC, {"use_flow_sigmas": True, "prediction_type": "flow_prediction", "flow_shift": 2.0})),
    Row("flow matching", scheduler=(FLOW, {})),
    Row("flow matching, shifted", scheduler=(FLOW, {"shift": 3.0}), guidance=1.0),
    # These take the sampler from --scheduler, instead of the checkpoint's.
    *[Row(f"--scheduler {name}", override=name) for name in ("ddim", "pndm", "euler", "euler-a", "dpm++", "dpm++-sde", "unipc")],
    Row("--scheduler flow-euler", override="flow-euler", scheduler=(FLOW, {"shift": 2.0})),
    Row("--scheduler by class", override=UNIPC, scheduler=(DPM, {**SCALED, **V, "use_karras_sigmas": True})),
    Row("--scheduler over DDIM", override="euler", scheduler=(DDIM, {**SCALED, **V, "timestep_spacing": "trailing"})),
    # These vary how the folder was saved.
    Row("sharded", saved="sharded", steps=4),
    Row("variant", saved="variant", steps=4),
    Row("sharded variant", saved="sharded variant", steps=4),
    alpha("saved in fp16", saved="fp16"),
    Row("saved in bf16", saved="bf16"),
    Row("tokenizer.json", saved="tokenizer.json", prompts=THREE, negative=UNICODE, steps=4),
    # These use the trained model that ships: its weights are not random, and its latents have deviation 1.
    Row("shipped model", **SHIPPED),
    Row("shipped model, prompts, negative", **SHIPPED, prompts=SHAPES, negative="a green star on a pink background", images=2),
    Row("shipped model, Euler ancestral", **{**SHIPPED, "guidance": 3.0}, prompts=SHAPES, override="euler-a"),
    # The bf16 rows only have samplers that draw no noise, because diffusers would draw it in bf16.
    bf16("sigma"),
    bf16("alpha 1024", **ALPHA_1024, heads=(4, 18)),
    bf16("wide, guidance 7.5", heads=(4, 72), layers=4, guidance=7.5, images=1, is_long=True),
    bf16("one branch, Euler", guidance=1.0, scheduler=(EULER, MILD)),
    bf16("DDIM, v", scheduler=(DDIM, {**V, "clip_sample": False})),
    bf16("flow matching", scheduler=(FLOW, {})),
    bf16("shipped model", **SHIPPED, clean=False, is_long=True),
    # These run on several threads, all others on one.
    Row("all cores", size=(160, 208), threads=None),
    alpha("three threads", size=(48, 176), threads=3, steps=4),
    # These have captions as web pages have them.
    Row("captions to clean", prompts=WEB, negative=WEB[::-1], steps=4),
    alpha("captions as they are", prompts=[*WEB, *THREE], negative=WEB[0], clean=False, steps=4),
]


def randomize(module):
    """Fills every tensor with noise, including those that start at 0 or 1."""
    for parameter in module.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=1.0 if parameter.mean() > 0.5 else 0.0, std=0.1)
        else:
            torch.nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
    return module.eval()


def build(row, tokenizer):
    heads, head_size = row.heads
    channels = row.transformer.get("in_channels", 4)
    text_encoder = transformers.T5EncoderModel(transformers.T5Config(**{
        "vocab_size": PIECES + 100, "d_model": 20, "d_kv": 4, "d_ff": 28, "num_layers": 2, "num_heads": 3,
        "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "is_encoder_decoder": False, "use_cache": False,
        **row.text}))
    transformer = diffusers.PixArtTransformer2DModel(**{
        "num_attention_heads": heads, "attention_head_dim": head_size, "cross_attention_dim": heads * head_size,
        "num_layers": row.layers, "sample_size": row.sample_size, "in_channels": 4, "out_channels": 8,
        "caption_channels": 20, **row.transformer})
    options = {"block_out_channels": (4, 4, 8, 8), "layers_per_block": 1, "norm_num_groups": 4, "latent_channels": channels,
               "scaling_factor": 0.13025, **row.vae}
    blocks = len(options["block_out_channels"])
    vae = diffusers.AutoencoderKL(down_block_types=["DownEncoderBlock2D"] * blocks,
                                  up_block_types=["UpDecoderBlock2D"] * blocks, **options)
    name, scheduler = row.scheduler
    pipeline = getattr(diffusers, f"PixArt{row.family}Pipeline")(
        tokenizer=tokenizer, text_encoder=randomize(text_encoder), vae=randomize(vae), transformer=randomize(transformer),
        scheduler=getattr(diffusers, name)(**scheduler))
    for block in transformer.transformer_blocks:
        block.attn1.to_q.weight.data *= row.sharpness
    return pipeline


def save(row, folder, pieces):
    """Builds the row's pipeline and saves it; returns the options for from_pretrained."""
    if row.saved == "shipped":
        shutil.copytree(SHIPPED_MODEL, folder, dirs_exist_ok=True)
        return {}
    tokenizers.save_spiece(folder / "tokenizer", pieces, {"extra_ids": 100, "model_max_length": 300, **row.tokenizer})
    pipeline = build(row, transformers.T5Tokenizer.from_pretrained(folder / "tokenizer"))
    variant = "fp16" if "variant" in row.saved else None
    if variant or row.saved in ("fp16", "bf16"):
        pipeline.to(torch.bfloat16 if row.saved == "bf16" else torch.float16)
    if row.saved == "tokenizer.json":
        (folder / "tokenizer" / "spiece.model").unlink()
    else:  # as in published checkpoints
        pipeline.tokenizer = None
    pipeline.save_pretrained(folder, variant=variant, max_shard_size="20KB" if "sharded" in row.saved else "10GB")
    if row.saved != "tokenizer.json":
        index = folder / "model_index.json"
        index.write_text(index.read_text().replace('"tokenizer": [\n    null,\n    null\n  ]',
                                                   '"tokenizer": [\n    "transformers",\n    "T5Tokenizer"\n  ]'))
    return {"variant": variant}


def load(row, folder, options, dtype):
    pipeline = diffusers.DiffusionPipeline.from_pretrained(folder, torch_dtype=dtype, **options)
    pipeline.set_progress_bar_config(disable=True)
    if row.override:
        name, changed = SHORT_NAMES.get(row.override, (row.override, {}))
        pipeline.scheduler = getattr(diffusers, name).from_config(pipeline.scheduler.config, **changed)
    if isinstance(pipeline.scheduler, diffusers.FlowMatchEulerDiscreteScheduler):  # lacks members that PixArt's pipelines use
        pipeline.scheduler.init_noise_sigma = 1.0
        pipeline.scheduler.scale_model_input = lambda latents, timestep: latents
    return pipeline


class Diffusers:
    """Runs a row with diffusers."""

    def __init__(self, row, folder, options, seed):
        self.row, self.folder, self.options, self.seed = row, folder, options, seed
        self.pipeline = load(row, folder, options, torch.float32)

    def generator(self):
        return torch.Generator().manual_seed(self.seed)

    def latents(self):
        return self.row.call(self.pipeline, generator=self.generator(), output_type="latent")

    def latents_and_pictures(self):
        pictures, after_steps = self.row.call_and_watch(self.pipeline, generator=self.generator(), output_type="pil")
        return after_steps[-1], [np.asarray(picture) for picture in pictures]

    def bf16_latents(self, shape):
        noise = torch.randn(shape, generator=self.generator())
        pipeline = load(self.row, self.folder, self.options, torch.bfloat16)
        return self.row.call(pipeline, generator=self.generator(), output_type="latent", latents=noise.bfloat16()).float()


def root_mean_square(x):
    return x.double().square().mean().sqrt().item()


def psnr(picture, reference):
    if picture.shape != reference.shape:
        raise RuntimeError(f"picture of {picture.shape}, expected {reference.shape}")
    error = np.mean((picture.astype(np.float64) - reference) ** 2)
    return math.inf if error == 0 else 10 * math.log10(255 ** 2 / error)


def require_informative(latents, pictures):
    """Fails if the reference is flat or saturated, because comparing with it would show nothing."""
    if not (latents.isfinite().all() and latents.std() > 0.1):
        raise RuntimeError(f"diffusers' latents are uninformative (standard deviation {latents.std():.3g})")
    for picture in pictures:
        between = np.mean((picture > 0) & (picture < 255))
        if picture.std() < 10 or between < 0.5:
            raise RuntimeError(f"diffusers' picture is uninformative (deviation {picture.std():.3g}, {between:.0%} in range)")


@dataclasses.dataclass
class Outcome:
    passed: bool
    text: str
    latents: float = 0.0  # largest difference, fp32
    psnr: float = math.inf
    ratio: float | None = None  # bf16: of Tessera's error to the reference's


def prepare(row, number, program, folder, pieces):
    """Saves the row's pipeline; returns a Diffusers for it, and a function that starts Tessera, given the output's name."""
    seed = 1000 + number
    torch.manual_seed(seed)
    options = row.save(folder, pieces)

    def start(output, row=row):
        return Tessera(program, row, folder, seed, folder / output)

    return Diffusers(row, folder, options, seed), start


def compare_fp32(ours, images, latents, pictures):
    result = ours.latents()
    if result.shape != latents.shape:
        raise RuntimeError(f"latents of {list(result.shape)}, expected {list(latents.shape)}")
    difference = (result - latents).abs().max().item()
    worst = min(psnr(*pair) for pair in zip(images.pictures(len(pictures)), pictures, strict=True))
    require_informative(latents, pictures)
    text = f"latents {difference:.1e} (deviation {latents.std():.1f}), pictures {worst:.1f} dB"
    tolerance = max(LATENT_TOLERANCE, RELATIVE_TOLERANCE * latents.std().item())
    return Outcome(difference <= tolerance and worst > LEAST_PSNR, text, difference, worst)


def compare_bf16(latents, name, others, other_name, truth, limit):
    """Compares the distances of two latents from the true ones. Each picture counts alike: a step can multiply the error of one
    picture by ten in either program, and such a picture would decide the ratio of all (it was 0.27 to 1.43 over eight seeds of the
    shipped model's row, where the geometric mean was 0.38 to 0.88)."""
    errors, other_errors = ([root_mean_square(each - true) for each, true in zip(run, truth, strict=True)] for run in (latents, others))
    ratio = math.exp(np.mean([math.log(error / other) for error, other in zip(errors, other_errors)]))
    text = f"bf16 errors: {name} {np.median(errors):.2e}, {other_name} {np.median(other_errors):.2e}, ratio {ratio:.3f}"
    return Outcome(ratio <= limit, text, ratio=ratio)  # false with NaN


def compare(row, number, program, folder, pieces):
    reference, start = prepare(row, number, program, folder, pieces)
    ours = start("out.safetensors")
    if row.dtype == "fp32":
        return compare_fp32(ours, start("out.png"), *reference.latents_and_pictures())
    truth = reference.latents()
    require_informative(truth, [])
    return compare_bf16(ours.latents(), "tessera", reference.bf16_latents(truth.shape), "diffusers", truth, BF16_RATIO)


def run(row, number, compare, program, root, pieces):
    folder = root / row.name.replace(" ", "_").replace("/", "_")
    folder.mkdir(parents=True)
    start = time.monotonic()
    try:
        outcome = compare(row, number, program, folder, pieces)
    except Exception as error:  # one row must not end the others
        where = traceback.extract_tb(error.__traceback__)[-1]
        outcome = Outcome(False, f"{type(error).__name__}: {error} ({pathlib.Path(where.filename).name}:{where.lineno})")
    print(f"{'ok  ' if outcome.passed else 'FAIL'} {row.name:36} {outcome.text}  [{time.monotonic() - start:.1f} s]", flush=True)
    return outcome


def summarize(outcomes, bf16_reference, bf16_ratio):
    """Prints the worst figures; returns whether every row and the bf16 rows together passed."""
    fp32 = [outcome for outcome in outcomes if outcome.ratio is None and outcome.text.startswith("latents")]
    if fp32:
        print(f"fp32: largest difference of latents {max(o.latents for o in fp32):.1e}, worst pictures "
              f"{min(o.psnr for o in fp32):.1f} dB, {sum(o.psnr == math.inf for o in fp32)} of {len(fp32)} rows equal in "
              "every pixel")
    ratios = [outcome.ratio for outcome in outcomes if outcome.ratio is not None]
    ratio = math.sqrt(np.mean(np.square(ratios))) if ratios else 0.0
    if ratios:
        print(f"bf16: tessera is {ratio:.3f} times as far from fp32 as {bf16_reference} (at most {bf16_ratio})")
    failed = sum(not outcome.passed for outcome in outcomes)
    print(f"{len(outcomes) - failed} passed, {failed} failed")
    return failed == 0 and ratio <= bf16_ratio


def train_spiece():
    return tokenizers.train(5, PIECES, normalization_rule_name="nmt_nfkc")


def main(rows, compare, description, bf16_reference, bf16_ratio, train=train_spiece):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tessera", type=pathlib.Path, default=pathlib.Path("build/tessera"), help="the program")
    parser.add_argument("--only", action="append", metavar="NAME", help="rows whose name contains NAME (may be repeated)")
    parser.add_argument("--short", action="store_true", help="run the smallest set of rows in which every option of all rows occurs")
    parser.add_argument("--list", action="store_true", help="print the names of the rows")
    parser.add_argument("--keep", type=pathlib.Path, metavar="FOLDER", help="keep the checkpoints and outputs there")
    options = parser.parse_args()
    rows = [(number, row) for number, row in enumerate(rows)
            if not options.only or any(name in row.name for name in options.only)]
    if options.short:
        rows = short_list(rows)
    if options.list:
        return print("\n".join(row.name for _, row in rows))
    if not rows:
        parser.error("no row has such a name; see --list")
    if not options.tessera.is_file():
        parser.error(f"{options.tessera} is missing; build it with: make build")

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    diffusers.logging.disable_progress_bar()
    transformers.logging.disable_progress_bar()
    pieces = train()
    with tempfile.TemporaryDirectory() as temporary:
        root = options.keep or pathlib.Path(temporary)
        outcomes = [run(row, number, compare, options.tessera.resolve(), root, pieces) for number, row in rows]
    sys.exit(0 if summarize(outcomes, bf16_reference, bf16_ratio) else 1)


if __name__ == "__main__":
    main(ROWS, compare, __doc__, "diffusers", BF16_RATIO)
