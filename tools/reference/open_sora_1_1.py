"""Open-Sora 1.1 from prompts to frames in plain PyTorch and fp32: an oracle for the engine's pipeline, beside that of version 1.2 in
open_sora.py. The sampler is diffusers' DDPMScheduler. Version 1.1 has no scores, no clips of its VAE, and no alignment.

The noise of a request comes from one torch.Generator of the CPU. For n videos of latents [C, T, h, w] these tensors are drawn in
this order:
  for each loop:
    [n, C, T, h, w]    what the loop starts from
    for each step in which frames of any video begin to be denoised from a given state:
    [n, C, T, h, w]    which the entering frames take their part of
    for each step:
    [n, C, T, h, w]    of the step; that of the last one is not used"""
import torch
from diffusers import AutoencoderKL, DDPMScheduler
from diffusers.schedulers import scheduling_ddpm

from tools.golden.captions import cleaned_for_open_sora
from tools.reference.open_sora import OpenSora, Video, of_latents, place
from tools.reference.open_sora_request import IMAGE_FPS, SPACE_FACTOR, Given, parse_mask_strategy, schedule, text_of_loop
from tools.reference.stdit2 import STDiT2

SCALING, GUIDED = 0.18215, 3  # channels of the noise that guidance changes


def scheduler_of(steps):
    """The scheduler, its timesteps set."""
    scheduler = DDPMScheduler(beta_start=1e-4, beta_end=0.02, variance_type="learned_range", clip_sample=False)
    # In fp32, as diffusers has them, the least noise has three digits, of which the variance is made.
    scheduler.alphas_cumprod = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64), 0)
    scheduler.set_timesteps(timesteps=[round(i * 999 / (steps - 1)) for i in reversed(range(steps))])
    return scheduler


def guided(model, z, timestep, texts, numbers, denoised, scale):
    """Noise and variance of latents z [n, ..]. `texts`: n projected prompts. `numbers` [n] or [1] by name."""
    branches = 1 if scale == 1 else 2
    if branches == 2:
        texts = texts + [model.text(model.null_text(len(text))) for text in texts]
    count = branches * len(z)
    y = model(z.repeat(branches, 1, 1, 1, 1), torch.full((count,), float(timestep)), texts,
              {name: value.expand(len(z)).repeat(branches) for name, value in numbers.items()}, denoised.repeat(branches, 1))
    if branches == 1:
        return y
    positive, negative = y.chunk(2)
    noise = negative[:, :GUIDED] + scale * (positive[:, :GUIDED] - negative[:, :GUIDED])
    return torch.cat([noise, positive[:, GUIDED:]], 1)


def entering_steps(mask, steps):
    """The steps in which frames of a mask [n, T] begin to be denoised."""
    share = (mask * steps).int()
    return [step for step in range(steps) if (share == steps - 1 - step).any()]


def sample(predict, z, mask, steps, entering_noise, draw, seen=None):
    """z [n, C, T, h, w] holds noise where mask [n, T] is 1, and given frames elsewhere. predict(z, timestep, denoised [n, T]) is guided;
    entering_noise(step) is that of frames that begin to be denoised, draw() that of a step. `seen` gets what the model gets."""
    scheduler, share = scheduler_of(steps), (mask * steps).int()
    for step, timestep in enumerate(scheduler.timesteps.tolist()):
        left = steps - 1 - step
        entering, kept = of_latents(share == left), of_latents(share < left)
        if entering.any():
            z = torch.where(entering, scheduler.add_noise(z, entering_noise(step), torch.tensor(timestep)), z)
        if seen is not None:
            seen.append(z)
        y = predict(z, timestep, share > left)
        drawn = draw()
        scheduling_ddpm.randn_tensor = lambda *args, drawn=drawn, **options: drawn  # which step() would draw itself
        z = torch.where(kept, z, scheduler.step(y, timestep, z).prev_sample).float()
    return z


class OpenSora11(OpenSora):
    def load_networks(self, folder, weights, config):
        self.transformer = STDiT2(weights("transformer"), config("transformer"))
        self.vae = AutoencoderKL.from_pretrained(folder / "vae").eval()

    def encode_frames(self, frames):
        """[F, 3, H, W] -> [1, C, F, h, w]."""
        return (self.vae.encode(frames).latent_dist.mean * SCALING).transpose(0, 1)[None]

    def decode(self, z):
        """[C, T, h, w] -> [T, 3, H, W]."""
        return self.vae.decode(z.transpose(0, 1) / SCALING).sample

    @torch.inference_mode()
    def __call__(self, prompts, height, width, num_frames, seed, *, fps=24, steps=None, guidance=None, references=(), mask_strategy="",
                 loops=1, condition_frames=4, condition_edit=0.0, videos_per_prompt=1):
        """`references` [F, 3, H, W] of the video's size and the mask strategy hold for all prompts. `condition_frames` of a clip are
        given to the next."""
        parts = [[(first, cleaned_for_open_sora(text)) for first, text in schedule(prompt)]
                 for prompt in prompts for _ in range(videos_per_prompt)]
        generator = torch.Generator().manual_seed(seed)
        shape = (len(parts), self.transformer.config["in_channels"], num_frames, height // SPACE_FACTOR, width // SPACE_FACTOR)

        def draw():
            return torch.randn(shape, generator=generator)

        numbers = {"fps": IMAGE_FPS if num_frames == 1 else fps, "num_frames": num_frames, "ar": height / width, "height": height,
                   "width": width}
        numbers = {name: torch.tensor([float(value)]) for name, value in numbers.items()}
        steps, guidance = steps or self.scheduler["num_sampling_steps"], self.scheduler["cfg_scale"] if guidance is None else guidance
        groups, known, latents, clips = parse_mask_strategy(mask_strategy), [], [], []
        for loop in range(loops):
            z = draw()
            if loop == 0:
                known = [self.encode_frames(reference) for reference in references]
            else:
                known.append(torch.cat([self.encode_frames(clip) for clip in clips[-1]]))
                groups.append(Given(loop, len(known) - 1, -condition_frames, 0, condition_frames, condition_edit))
            mask = place(z, [group for group in groups if group.loop == loop], known, None)
            entering = {step: draw() for step in entering_steps(mask, steps)}
            texts = self.encode_texts([text_of_loop(part, loop) for part in parts])
            latents.append(sample(lambda z, timestep, denoised, texts=texts: guided(self.transformer, z, timestep, texts, numbers, denoised,
                                                                                    guidance),
                                  z, mask, steps, entering.get, draw))
            clips.append(torch.stack([self.decode(one) for one in latents[-1]]))
        return Video(latents, torch.cat([clip[:, condition_frames if loop > 0 else 0:] for loop, clip in enumerate(clips)], 1))
