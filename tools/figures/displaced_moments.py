"""Measures how far the rules of displaced patches take the moments of group norms from those of the whole picture.

It generates held-out captions with models/shapes-xl on diffusers' unchanged pipeline on one rank. At each group norm of the U-Net
it records mean and mean square of each group in bands of rows, and computes from them the moments that N ranks would estimate by
each rule. The error of the mean is in standard deviations of the whole picture, that of the standard deviation is a ratio; both
are root mean squares over captions, steps from the second on, norms, groups and ranks. "together" is the root mean square of the
change from step to step that all bands' means share, "apart" that of each band's deviation from it."""
import argparse
import collections
import pathlib

import torch
from diffusers import StableDiffusionXLPipeline

from tools.score import check_demo

ROOT = pathlib.Path(__file__).resolve().parents[2]
RULES = ["corrected_async_gn", "stale_gn", "separate_gn"]


def bands_of(x, groups, bands):
    """Returns mean and mean square, [2, samples, groups, bands]."""
    parts = x.double().reshape(x.shape[0], groups, x.shape[1] // groups, bands, -1).transpose(2, 3).flatten(3)
    return torch.stack([parts.mean(-1), parts.square().mean(-1)])


def rms(tensors):
    return torch.cat([tensor.flatten() for tensor in tensors]).square().mean().sqrt().item()


def estimate(rule, now, before):
    """Returns each rank's estimate of the whole picture's moments; `now` and `before` are [2, samples, groups, ranks]."""
    share = {"corrected_async_gn": 1, "stale_gn": 1 / now.shape[-1]}
    if rule == "separate_gn":
        return now
    return before.mean(-1, keepdim=True) + share[rule] * (now - before)


def judge(ranks, runs):
    """Returns the errors and the shares of negative variances. Each of `runs` is [steps][norms] of moments in bands."""
    seen = collections.defaultdict(list)
    negative = {rule: [] for rule in RULES}
    for steps in runs:
        for before_all, now_all in zip(steps, steps[1:]):
            for before, now in zip(before_all, now_all):
                before, now = (x.unflatten(-1, (ranks, -1)).mean(-1) for x in (before, now))
                mean, square = now.mean(-1, keepdim=True)
                deviation = (square - mean.square()).clamp(min=1e-5).sqrt()
                change = (now[0] - before[0]) / deviation
                together = change.mean(-1, keepdim=True)
                seen["together"].append(together)
                seen["apart"].append(change - together)
                for rule in RULES:
                    about, about_square = estimate(rule, now, before)
                    variance = about_square - about.square()
                    negative[rule].append(variance < 0)
                    variance = torch.where(variance < 0, now[1] - now[0].square(), variance)
                    seen[rule, "mean"].append((about - mean) / deviation)
                    seen[rule, "deviation"].append((variance.clamp(min=1e-5).sqrt() / deviation) - 1)
    shares = {rule: 100 * torch.cat([x.flatten() for x in flags]).double().mean().item() for rule, flags in negative.items()}
    return {key: rms(values) for key, values in seen.items()}, shares


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(ROOT / "models" / "shapes-xl"))
    parser.add_argument("--each", type=int, default=3, help="held-out captions of one object, and of two [3]")
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4, 8])
    parser.add_argument("--steps", type=int, nargs="*", default=[50, 20, 10])
    parser.add_argument("--size", type=int, default=128, help="height and width in pixels [128]")
    args = parser.parse_args()
    pipeline = StableDiffusionXLPipeline.from_pretrained(args.model, torch_dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    step, inputs = [], []

    def note(norm, arguments):
        step.append(bands_of(arguments[0], norm.num_groups, max(args.ranks)))

    for module in pipeline.unet.modules():
        if isinstance(module, torch.nn.GroupNorm):
            module.register_forward_pre_hook(note)
    pipeline.unet.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0][0].clone()))

    print("| steps | ranks | change of the input | together, apart | " + " | ".join(f"{rule}: mean, deviation" for rule in RULES)
          + " | negative variances of corrected_async_gn, stale_gn |")
    print("|---" * 8 + "|")
    for count in args.steps:
        runs, changes = [], []
        for caption in check_demo.held_out_captions(1000, args.each):
            steps = []
            inputs.clear()

            def end(_pipe, _index, _time, state):
                steps.append(list(step))  # pylint: disable=cell-var-from-loop
                step.clear()
                return state

            pipeline(caption, num_inference_steps=count, guidance_scale=5.0, height=args.size, width=args.size, output_type="latent",
                     generator=torch.Generator().manual_seed(1), callback_on_step_end=end)
            runs.append(steps)
            changes += [(now - before) / now.std() for before, now in zip(inputs, inputs[1:])]
        for ranks in args.ranks:
            errors, negative = judge(ranks, runs)
            cells = [f"{errors[rule, 'mean']:.3f}, {errors[rule, 'deviation']:.3f}" for rule in RULES]
            print(f"| {count} | {ranks} | {rms(changes):.3f} | {errors['together']:.4f}, {errors['apart']:.4f} | {' | '.join(cells)} | "
                  f"{negative['corrected_async_gn']:.3f} %, {negative['stale_gn']:.3f} % |", flush=True)


if __name__ == "__main__":
    main()
