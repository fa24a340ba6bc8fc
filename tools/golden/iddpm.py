"""Makes tests/golden/opensora/iddpm.safetensors: six steps of DDPM with a learned range of variances, by diffusers' scheduler, on
random outputs of a model."""
import pathlib

import torch
from diffusers import DDPMScheduler
from diffusers.schedulers import scheduling_ddpm
from safetensors.torch import save_file

FILE = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "opensora" / "iddpm.safetensors"
STEPS = 6


def main():
    generator = torch.Generator().manual_seed(11)

    def draw(*shape):
        return torch.randn(*shape, generator=generator)

    scheduler = DDPMScheduler(beta_start=1e-4, beta_end=0.02, variance_type="learned_range", clip_sample=False)
    timesteps = [round(i * 999 / (STEPS - 1)) for i in reversed(range(STEPS))]
    scheduler.set_timesteps(timesteps=timesteps)
    # diffusers takes the timestep before one from a regular spacing, unless it is told the timesteps themselves.
    assert scheduler.custom_timesteps
    shape = (2, 4, 2, 3, 3)
    outputs = torch.cat([draw(STEPS, *shape), torch.rand(STEPS, *shape, generator=generator) * 2 - 1], 2)
    noise, z = draw(STEPS, *shape), draw(*shape)
    tensors = {"in.z": z, "in.outputs": outputs, "in.noise": noise, "out.timesteps": torch.tensor(timesteps, dtype=torch.float32)}
    tensors["out.noisy"] = torch.stack([scheduler.add_noise(z, noise[i], torch.tensor(timesteps[i])) for i in range(STEPS)])
    latents = []
    for i, timestep in enumerate(timesteps):
        # step() draws its noise itself; this gives it ours.
        scheduling_ddpm.randn_tensor = lambda *args, i=i, **options: noise[i]
        z = scheduler.step(outputs[i], timestep, z).prev_sample
        latents.append(z)
    tensors["out.latents"] = torch.stack(latents)
    save_file(tensors, FILE)


if __name__ == "__main__":
    main()
