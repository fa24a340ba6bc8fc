#!/usr/bin/env python3
"""Makes tests/golden/opensora/iddpm_masked.json and its tensors: Open-Sora 1.1's sampling with guidance and given frames, from
tools/stdit2.py, which is first compared with the golden of the public code, and diffusers' DDPMScheduler."""
import json
import pathlib

import torch
from diffusers import DDPMScheduler
from diffusers.schedulers import scheduling_ddpm
from safetensors.torch import load_file, save_file
from stdit2 import STDiT2

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "opensora"
STEPS, SCALE, GUIDED = 4, 7.0, 3  # channels of the noise that guidance changes
MASK = [[0, 1, 0.5, 1], [1, 1, 1, 0]]


def check_against_the_public_code(model, io):
    texts = [model.text(y[0, :length]) for y, length in zip(io["in.y"], io["in.mask"].sum(1).tolist())]
    numbers = {name: io[f"in.{name}"] for name in ("fps", "num_frames", "ar", "height", "width")}
    for name, mask in (("out.x", io["in.x_mask"]), ("out.x_without_x_mask", None)):
        y = model(io["in.x"], io["in.timestep"], texts, numbers, mask)
        error = ((y - io[name]).abs().max() / io[name].abs().max()).item()
        print(f"{name}: {error:.1e} of the largest value")
        assert error < 2e-6, name


def sample(model, io):
    """Returns the result, and what the model gets in each step."""
    z, mask = io["in.z"], io["in.frame_mask"]
    lengths = io["in.mask"].sum(1).tolist()
    texts = [model.text(y[0, :length]) for y, length in zip(io["in.y"], lengths)] + [model.text(model.null_text(n)) for n in lengths]
    numbers = {name: io[f"in.{name}"].repeat(2) for name in ("fps", "num_frames", "ar", "height", "width")}
    scheduler = DDPMScheduler(beta_start=1e-4, beta_end=0.02, variance_type="learned_range", clip_sample=False)
    # In fp32, as diffusers has them, the least noise has three digits, of which the variance is made.
    scheduler.alphas_cumprod = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64), 0)
    timesteps = [round(i * 999 / (STEPS - 1)) for i in reversed(range(STEPS))]
    scheduler.set_timesteps(timesteps=timesteps)
    share = (mask * STEPS).int()
    generator, inputs = torch.Generator().manual_seed(0), []
    for step, timestep in enumerate(timesteps):
        left = STEPS - 1 - step
        entering, denoised, kept = (which[:, None, :, None, None] for which in (share == left, share > left, share < left))
        z = torch.where(entering, scheduler.add_noise(z, io["in.step_noise"][step], torch.tensor(timestep)), z)
        inputs.append(z)
        y = model(torch.cat([z, z]), torch.full((2 * len(z),), float(timestep)), texts, numbers, (share > left).repeat(2, 1))
        positive, negative = y.chunk(2)
        noise = negative[:, :GUIDED] + SCALE * (positive[:, :GUIDED] - negative[:, :GUIDED])
        drawn = torch.randn(z.shape, generator=generator)
        scheduling_ddpm.randn_tensor = lambda *args, drawn=drawn, **options: drawn
        z = torch.where(kept, z, scheduler.step(torch.cat([noise, positive[:, GUIDED:]], 1), timestep, z).prev_sample).float()
    return z, inputs


@torch.inference_mode()
def main():
    one = json.loads((FOLDER / "stdit2_a.json").read_text())
    given = load_file(FOLDER / "stdit2_a.io.safetensors")
    model = STDiT2(load_file(FOLDER / one["weights"]), one["config"])
    check_against_the_public_code(model, given)
    generator = torch.Generator().manual_seed(7)
    shape = given["in.x"].shape
    io = {name: given[f"in.{name}"] for name in ("y", "mask", "fps", "num_frames", "ar", "height", "width")}
    io = {f"in.{name}": value for name, value in io.items()}
    io |= {"in.z": torch.randn(shape, generator=generator), "in.step_noise": torch.randn(STEPS, *shape, generator=generator),
           "in.frame_mask": torch.tensor(MASK)}
    z, inputs = sample(model, io)
    print("largest values:", *(f"{x.abs().max().item():.1f}" for x in [*inputs, z]))
    outputs = {f"out.model_input.{step}": x for step, x in enumerate(inputs)} | {"out.z": z}
    save_file(io | {name: x.contiguous() for name, x in outputs.items()}, FOLDER / "iddpm_masked.io.safetensors")
    case = {"kind": "iddpm.sample", "weights": one["weights"], "io": "iddpm_masked.io.safetensors", "model_config": one["config"],
            "config": {"num_sampling_steps": STEPS, "cfg_scale": SCALE}}
    (FOLDER / "iddpm_masked.json").write_text(json.dumps(case, indent=1) + "\n")


if __name__ == "__main__":
    main()
