"""Compares Tessera on many ranks with diffusers on whole pipelines of tiny random models, one per row of ROWS.

Exact methods, and PipeFusion with one patch or only warm-up steps, are compared with diffusers as tools/parity/pixart.py compares
one rank, with its limits. In bf16 the latents of many ranks may be at most 1.2 times as far (RMS) from diffusers' fp32
latents as those of Tessera on one rank, over all bf16 rows together, and 1.3 times in any row, each picture counting alike,
because tensor parallelism rounds the parts of a sum before it adds them (1.24 was measured over 24 pictures). A row of bf16 is of
six models: the ratio of one alone was 0.77 to 1.49 over 14 seeds, that of six 0.94 to 1.13 in all rows.

PipeFusion is compared, with the same limits, with its definition applied to diffusers' transformer and pipeline: the
blocks take patch after patch, and self-attention sees the latest input of each patch. There diffusers' latents must
be at least 50 times the tolerance away from those of whole pictures, because a row that cannot distinguish the two
shows nothing."""
from tools import missing_packages  # noqa: F401  (says how to get those that are missing)
import dataclasses
import re

import numpy as np
import torch

from tools.parity import pixart as parity
from tools.parity.pixart import ALPHA_1024, ANCESTRAL, CIRCLE, DDIM, DPM, EULER, FLOW, LONG, MILD, SHAPES, SHIPPED, THREE, UNIPC, Row

BF16_RATIO, BF16_ROW_RATIO, BF16_MODELS = 1.2, 1.3, 6
LEAST_STALENESS = 50 * parity.LATENT_TOLERANCE

SDE = (DPM, {**MILD, "algorithm_type": "sde-dpmsolver++"})
PLAIN_DDIM = (DDIM, {**MILD, "clip_sample": False})


@dataclasses.dataclass(frozen=True)
class StaleRow(Row):
    patches: int = 2
    warmup: int = 0


def short(flags):
    return re.sub("--(use-|num-)?|-parallel|-degree|attn-layer-num-for-", "", flags)


def exact(flags, name="", **options):
    return Row(f"{short(flags)} {name}".strip(), flags=flags, **{"steps": 5, **options})


def bf16(flags, **options):
    return parity.bf16(short(flags), flags=flags, **{"steps": 8, **options})


def stale(stages, patches, warmup, inside="", **options):
    flags = f"--pipefusion-parallel-degree {stages} --num-pipeline-patch {patches} --warmup-steps {warmup} {inside}"
    return StaleRow(f"stale {stages} x {patches}, warm-up {warmup} {short(inside)}".strip(), patches=patches,
                    warmup=warmup, flags=flags, sharpness=6.0,  # so that wrong keys matter
                    **{"layers": 4, "size": (176, 64), "steps": 6, **options})


PIPELINE = "--pipefusion-parallel-degree"
ROWS = [
    # These have one method. In hardly any row do the ranks divide the sizes.
    exact("--ulysses-degree 2"),
    exact("--ulysses-degree 3", heads=(5, 8), size=(112, 64), layers=3),
    exact("--ulysses-degree 2", "alpha 1024", **ALPHA_1024, size=(80, 112), prompts=THREE),
    exact("--ring-degree 2", size=(80, 96), prompts=THREE, negative="blurry, a Cat"),
    exact("--ring-degree 3", "flow", size=(112, 48), scheduler=(FLOW, {"shift": 3.0})),
    exact("--ulysses-degree 2 --ring-degree 2", size=(112, 80), heads=(3, 20), scheduler=(UNIPC, MILD)),
    exact("--tensor-parallel-degree 2", prompts=["a cat", LONG], transformer={"attention_bias": False}),
    exact("--tensor-parallel-degree 3", heads=(5, 8), transformer={"patch_size": 4}, size=(96, 160)),
    exact("--tensor-parallel-degree 4 --split-scheme 2d", heads=(5, 8), prompts=["a cat", CIRCLE]),
    exact("--tensor-parallel-degree 4 --split-scheme 2d", "alpha 1024", **ALPHA_1024, heads=(4, 12)),
    exact("--use-cfg-parallel", prompts=THREE, negative="blurry, a Cat"),
    exact("--use-cfg-parallel", "patch 1", transformer={"patch_size": 1}, size=(40, 72)),
    exact("--use-cfg-parallel --ulysses-degree 2", "one column", size=(96, 16)),
    exact("--data-parallel-degree 2", prompts=THREE, scheduler=SDE),
    exact("--data-parallel-degree 3", "one branch", prompts=["a cat", CIRCLE], images=2, guidance=1.0),
    # Here PipeFusion is exact.
    exact(f"{PIPELINE} 2 --num-pipeline-patch 3 --warmup-steps 5", prompts=THREE, negative="blurry, a Cat"),
    exact(f"{PIPELINE} 3 --num-pipeline-patch 1 --warmup-steps 0", layers=5, scheduler=(ANCESTRAL, MILD)),
    exact(f"{PIPELINE} 2 --num-pipeline-patch 1 --ring-degree 2", scheduler=(EULER, MILD)),
    # These combine methods.
    exact("--use-cfg-parallel --ulysses-degree 2", **ALPHA_1024, prompts=THREE, negative="a long tail of words"),
    exact("--use-cfg-parallel --tensor-parallel-degree 2", scheduler=(ANCESTRAL, MILD), prompts=["a cat", CIRCLE]),
    exact("--data-parallel-degree 2 --ulysses-degree 2", prompts=THREE, scheduler=(ANCESTRAL, MILD)),
    exact("--ulysses-degree 2 --tensor-parallel-degree 2", heads=(5, 8), scheduler=PLAIN_DDIM),
    exact("--use-cfg-parallel --ulysses-degree 2", "shipped", **{**SHIPPED, "steps": None}, prompts=SHAPES),
    exact("--use-cfg-parallel --ulysses-degree 2 --ring-degree 2", size=(112, 80), scheduler=SDE, prompts=THREE),
    exact(f"--data-parallel-degree 2 --tensor-parallel-degree 2 {PIPELINE} 2 --warmup-steps 5", prompts=THREE),
    # bf16.
    bf16("--ulysses-degree 2"),
    bf16("--ulysses-degree 2 --ring-degree 2", size=(112, 80)),
    bf16("--tensor-parallel-degree 2", heads=(4, 36), layers=4),
    bf16("--tensor-parallel-degree 4 --split-scheme 2d", **ALPHA_1024, heads=(4, 18)),
    bf16("--use-cfg-parallel", guidance=7.5),
    bf16("--use-cfg-parallel --ring-degree 2", **{**SHIPPED, "steps": None}, prompts=SHAPES, images=4),
    # Here PipeFusion is stale. Every pair of values of stages, patches and warm-up occurs; then come other methods and samplers.
    *[stale(stages, patches, warmup) for stages, patches, warmup in (
        (2, 2, 0), (3, 3, 0), (4, 5, 0), (2, 9, 0), (4, 2, 1), (2, 3, 1), (3, 5, 1), (4, 9, 1), (3, 2, 3), (4, 3, 3),
        (2, 5, 3), (3, 9, 3))],
    stale(2, 3, 0, "--use-cfg-parallel", scheduler=PLAIN_DDIM, prompts=["a cat", CIRCLE], negative="blurry, a Cat"),
    stale(2, 5, 1, "--ulysses-degree 2", scheduler=(ANCESTRAL, MILD)),
    stale(2, 3, 0, "--ring-degree 3", scheduler=(ANCESTRAL, MILD), size=(160, 80)),
    stale(2, 2, 1, "--ulysses-degree 2 --ring-degree 2", **ALPHA_1024, scheduler=PLAIN_DDIM),
    stale(3, 5, 0, "--tensor-parallel-degree 2", heads=(5, 8), layers=5, scheduler=(EULER, MILD)),
    stale(2, 3, 3, "--data-parallel-degree 2", prompts=THREE, scheduler=SDE),
    stale(2, 3, 1, "--tensor-parallel-degree 4 --split-scheme 2d", heads=(4, 12), guidance=1.0),
    stale(3, 5, 1, "--attn-layer-num-for-pp 1 4 2", layers=7, scheduler=(UNIPC, MILD)),
    stale(2, 2, 0, "--attn-layer-num-for-pp 1,3 --use-cfg-parallel --ulysses-degree 2", scheduler=(DPM, {
        **MILD, "solver_order": 3})),
    stale(4, 9, 0, "--use-cfg-parallel", transformer={"patch_size": 1}, size=(80, 48), scheduler=(FLOW, {})),
    # The number of a row is its seed, so newer rows come last. Gathered keys and values, and ranks of unequal shares.
    exact("--kv-gather-degree 2", size=(80, 96), prompts=THREE, negative="blurry, a Cat"),
    exact("--kv-gather-degree 3", "flow", size=(112, 48), scheduler=(FLOW, {"shift": 3.0})),
    exact("--ulysses-degree 2 --kv-gather-degree 2", size=(112, 80), heads=(3, 20), scheduler=(UNIPC, MILD)),
    exact("--kv-gather-degree 2 --ring-degree 2", size=(112, 80), scheduler=(EULER, MILD)),
    exact("--ulysses-degree 2 --rank-shares 3,2"),
    exact("--use-cfg-parallel --ring-degree 2 --rank-shares 1,1,1,7", size=(112, 80)),
    exact("--tensor-parallel-degree 3 --rank-shares 2.5,1,1", heads=(5, 8)),
    bf16("--kv-gather-degree 2", size=(112, 80)),
    stale(2, 3, 0, "--kv-gather-degree 3", scheduler=(ANCESTRAL, MILD), size=(160, 80)),
    stale(2, 3, 1, "--rank-shares 1,5", layers=7),
]


class Patches(torch.nn.Module):
    """Replaces a transformer's blocks with PipeFusion by its definition: the first `warmup` steps take the whole
    picture; in the others, patches of rows of tokens pass through all blocks one after the other.

    Keys and values are linear functions of attn1's input, so it remembers that input, the latest one of each patch: of this
    step for earlier patches, of the step before for later ones, and none for patches that have not come yet."""

    def __init__(self, blocks, rows, patches, warmup):
        super().__init__()
        self.blocks, self.rows, self.patches, self.warmup = blocks, rows, patches, warmup
        self.step, self.begin, self.end = 0, 0, 0
        self.seen = {}
        for block in blocks:
            block.attn1.register_forward_pre_hook(self.attend_to_all_seen, with_kwargs=True)

    def forward(self, hidden_states, **options):
        columns = hidden_states.shape[1] // self.rows
        count = 1 if self.step < self.warmup else self.patches
        done = []
        for rows in np.array_split(np.arange(self.rows), count):  # larger parts first
            self.begin, self.end = columns * rows[0], columns * (rows[-1] + 1)
            x = hidden_states[:, self.begin:self.end]
            for block in self.blocks:
                x = block(x, **options)
            done.append(x)
        self.step += 1
        return torch.cat(done, dim=1)

    def attend_to_all_seen(self, attention, arguments, options):
        (patch,) = arguments
        seen = self.seen.get(attention, patch[:, :0])
        self.seen[attention] = torch.cat([seen[:, :self.begin], patch, seen[:, self.end:]], dim=1)
        return arguments, {**options, "encoder_hidden_states": self.seen[attention]}


def compare_stale(row, reference, ours, images):
    whole = reference.latents()
    transformer = reference.pipeline.transformer
    rows = whole.shape[2] // transformer.config.patch_size
    patches = Patches(transformer.transformer_blocks, rows, row.patches, row.warmup)
    transformer.transformer_blocks = torch.nn.ModuleList([patches])
    latents, pictures = reference.latents_and_pictures()
    staleness = (latents - whole).abs().max().item() / max(whole.std().item(), 1.0)
    outcome = parity.compare_fp32(ours, images, latents, pictures)
    return dataclasses.replace(outcome, passed=outcome.passed and staleness >= LEAST_STALENESS,
                               text=f"{outcome.text}, {staleness:.1e} from whole pictures")


def compare_rounding(row, number, program, folder, pieces):
    """Of several models, but for the one that ships: the pictures of a model share the rounding of its texts."""
    many, one, true = [], [], []
    for model in range(1 if row.saved == "shipped" else BF16_MODELS):
        within = folder / str(model)
        within.mkdir()
        reference, start = parity.prepare(row, number + 1000 * model, program, within, pieces)
        many += [start("out.safetensors").latents()]
        one += [start("one.safetensors", dataclasses.replace(row, flags="")).latents()]
        true += [reference.latents()]
        parity.require_informative(true[-1], [])
    return parity.compare_bf16(torch.cat(many), "many ranks", torch.cat(one), "one rank", torch.cat(true), BF16_ROW_RATIO)


def compare(row, number, program, folder, pieces):
    if row.dtype == "bf16":
        return compare_rounding(row, number, program, folder, pieces)
    reference, start = parity.prepare(row, number, program, folder, pieces)
    ours = start("out.safetensors")
    images = start("out.png")
    if isinstance(row, StaleRow):
        return compare_stale(row, reference, ours, images)
    return parity.compare_fp32(ours, images, *reference.latents_and_pictures())


if __name__ == "__main__":
    parity.main(ROWS, compare, __doc__, "on one rank", BF16_RATIO)
