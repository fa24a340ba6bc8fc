"""Training of the video model's decoders, the temporal and the spatial one together, on latents that the denoiser made.

The denoiser's latents are not quite those of videos. They differ most where shapes cross, and decoders that know only
the latents of videos show that as wobbling outlines.  Here true latents are noised, the denoiser removes the noise, and the decoders
learn to make the true pixels of the result.  The encoders, and so the latents, stay as they are.
"""

from __future__ import annotations

import glob
import os
import time

import numpy as np
import torch
from torch import nn

from tools.score import check_video
from tools.train import stdit as demo_stdit
from tools.train import vae as demo_vae
from tools.train import video_denoiser as denoising
from tools.train import video_scenes as scenes
from tools.train import video_text as demo_video_text
from tools.train import video_vae as autoencoder
from tools.train.optim import Muon, cosine
from tools.train.run import TrainingRun, autocast, device, is_first, process_rank

# The noise that is added is uniform up to this one. With more, what the denoiser makes is another video.
MOST_NOISE = 0.6
# Steps in which the denoiser removes it.
STEPS = 5
# Videos of a shard, and of a batch on a CPU and on a GPU.
SHARD, BATCH, GPU_BATCH = 128, 8, 64


class Decoders(nn.Module):
    """The decoding halves of a temporal and of a spatial VAE."""

    def __init__(self, temporal: nn.Module, spatial: nn.Module):
        super().__init__()
        self.temporal, self.spatial = (
            nn.ModuleDict({name: getattr(vae, name) for name in ("post_quant_conv", "decoder")}) for vae in (temporal, spatial))

    def forward(self, z, frames):
        """Latents [B, 4, T, h, w], not normalised, and frames [B, n] -> pixels [B n, 3, height, width] in [-1, 1]."""
        x = self.temporal.decoder(self.temporal.post_quant_conv(z.contiguous(memory_format=torch.channels_last_3d)))
        x = x[:, :, x.shape[2] - scenes.FRAMES :].transpose(1, 2)
        x = torch.cat([clip[chosen] for clip, chosen in zip(x, frames)])
        return self.spatial.decoder(self.spatial.post_quant_conv(x.contiguous(memory_format=torch.channels_last)))


def draw(seed: int, index: int) -> tuple[scenes.Scene, np.ndarray]:
    """Returns a training scene and its video, as its number says."""
    rng = np.random.default_rng([seed, 78, index])
    scene = scenes.sample_scene(rng, objects=1 + int(rng.random() < scenes.DRAWN_PAIR_SHARE))
    return scene, scenes.render(scene, rng)


@torch.no_grad()
def remake(denoiser, text, latents, noise, t, captions: list[str]) -> torch.Tensor:
    """Adds noise to normalised latents up to t [B], and lets the denoiser remove it."""
    coder, encoder = text
    hidden, mask = denoising.encode_tokens(encoder, *coder([demo_video_text.with_scores(c) for c in captions]))
    z = torch.lerp(latents, noise, t[:, None, None, None, None])
    for step in range(STEPS):
        times = (t * (1 - step / STEPS) * demo_stdit.NUM_TIMESTEPS)[:, None].expand(z.shape[0], z.shape[2])
        with autocast():
            v = demo_stdit.guided_velocity(denoiser, z, times, hidden, mask, denoising.FPS, denoising.GUIDANCE)
        z = z + v.float() * (t / STEPS)[:, None, None, None, None]
    return z


def write_remade(work: str, seed: int, shards: int, processes: int = 1) -> None:
    """Adds shards of remade latents, which hold the numbers of their videos, up to the given number. Processes of one
    torch.distributed group divide the shards."""
    spatial, vae, (shift, scale) = autoencoder.load_spatial(work), autoencoder.load_vae(work), autoencoder.statistics(work)
    denoiser, text = denoising.load_denoiser(work).to(device()), demo_video_text.load_text(work)
    for index in range(process_rank(), shards, processes):
        path = os.path.join(work, f"remade-{index:04d}.npz")
        if os.path.exists(path):
            continue
        start, rng, parts = time.time(), np.random.default_rng([seed, 79, index]), []
        generator = torch.Generator().manual_seed(seed + 1000003 * index)
        numbers = np.arange(index * SHARD, (index + 1) * SHARD)
        for rows in np.split(numbers, len(numbers) // 16):
            drawn = [draw(seed, number) for number in rows]
            frames = torch.stack([autoencoder.encode_frames(spatial, video) for _, video in drawn])
            z = (autoencoder.encode(vae, frames.to(device())) - shift) / scale
            noise = torch.randn(z.shape, generator=generator).to(device())
            t = torch.from_numpy(rng.uniform(0, MOST_NOISE, len(rows))).float().to(device())
            captions = [scenes.caption(scene, rng) for scene, _ in drawn]
            parts.append((remake(denoiser, text, z, noise, t, captions) * scale + shift).half().cpu().numpy())
        np.savez(path + ".new.npz", latents=np.concatenate(parts), numbers=numbers)
        os.replace(path + ".new.npz", path)
        print(f"remade: shard {index + 1} of {shards}, {time.time() - start:.0f} s", flush=True)


class RemadeLatents:
    """Shards of remade latents on disk; shards may be added while training runs."""

    def __init__(self, work: str, seed: int):
        self.pattern, self.seed, self.files = os.path.join(work, "remade-????.npz"), seed, []
        self.latents, self.numbers = np.empty((0, 4, autoencoder.LATENT_CLIP, 16, 16), np.float16), np.empty(0, int)

    def refresh(self) -> None:
        for path in sorted(set(glob.glob(self.pattern)) - set(self.files)):
            shard = np.load(path)
            self.latents = np.concatenate([self.latents, shard["latents"]])
            self.numbers = np.append(self.numbers, shard["numbers"])
            self.files.append(path)

    def batch(self, rng):
        """Returns latents [B, 4, T, h, w], chosen frames [B, n] and their pixels [B n, 3, height, width]."""
        count = BATCH if device().type == "cpu" else GPU_BATCH
        rows = rng.integers(0, len(self.numbers), count)
        # One frame of each half of a video becomes pixels, oftener one near the middle, where the shapes cross.
        away = rng.random((count, 2)) ** 1.5
        frames = ((1 + np.array([-1, 1]) * away) * (scenes.FRAMES / 2)).astype(int).clip(0, scenes.FRAMES - 1)
        videos = [draw(self.seed, self.numbers[row])[1][chosen] for row, chosen in zip(rows, frames)]
        return (torch.from_numpy(self.latents[rows]).float().to(device()), torch.from_numpy(frames),
                demo_vae.to_tensor(np.concatenate(videos)).to(device()))


def loss_of(pixels, target) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the loss, in which edges count once more, and the mean squared error."""
    error = pixels.float() - target
    edges = (error[..., 1:, :] - error[..., :-1, :]).abs().mean() + (error[..., 1:] - error[..., :-1]).abs().mean()
    square = error.square().mean()
    return 2 * square + error.abs().mean() + 0.25 * edges, square.detach()


def optimisers_of(decoders: Decoders, lr: float, adam_lr: float):
    """Returns Muon for the kernels within the networks and AdamW for everything else."""
    kernels = [p for n, p in decoders.named_parameters() if p.ndim >= 4 and p.shape[-1] == 3
               and not any(end in n for end in ("conv_in", "conv_out", "decoder.conv1."))]
    chosen = {id(p) for p in kernels}
    rest = [p for p in decoders.parameters() if id(p) not in chosen]
    return [(Muon(kernels, lr=lr), lr), (torch.optim.AdamW(rest, lr=adam_lr, betas=(0.9, 0.99), weight_decay=0.0), adam_lr)]


def save_decoders(work: str, decoders: Decoders) -> None:
    """Puts decoders into the files of the VAEs, from which the later phases take them."""
    path = os.path.join(work, "vae.pt")
    state = torch.load(path, map_location="cpu")
    trained = {key: value.cpu() for key, value in decoders.temporal.state_dict().items()}
    state["ema"] = {**state["ema"], **trained}
    torch.save(state, path + ".new")
    os.replace(path + ".new", path)
    spatial = autoencoder.load_spatial(work).state_dict() | decoders.spatial.state_dict()
    torch.save({key: value.cpu() for key, value in spatial.items()}, os.path.join(work, autoencoder.SPATIAL_STATE))


def train_decoders(work: str, seed: int, minutes: float, lr: float) -> None:
    """Trains for a budget of processor time; a stopped run continues from its last checkpoint."""
    temporal = autoencoder.load_vae(work).train().requires_grad_(True)
    decoders = Decoders(temporal, autoencoder.load_spatial(work).train().requires_grad_(True))
    cache = RemadeLatents(work, seed)
    cache.refresh()
    run = TrainingRun(os.path.join(work, "decoders.pt"), decoders, 0.995, optimisers_of(decoders, lr, lr / 10), minutes)
    rng = np.random.default_rng([seed, run.step, process_rank()])
    mark, squares = run.spent, []
    while not run.done:
        z, frames, pixels = cache.batch(rng)
        with autocast():
            y = decoders(z, frames)
        loss, square = loss_of(y, pixels)
        run.update(loss, cosine(run.progress))
        squares.append(square)
        if run.spent - mark < 60 and not run.done:
            continue
        mark = run.spent
        cache.refresh()
        if is_first():
            psnr = 10 * torch.log10(4 / torch.stack(squares).mean()).item()
            print(f"decoders step {run.step} {mark:.0f} s, {len(cache.numbers)} videos, {psnr:.2f} dB", flush=True)
            run.save()
        squares = []
        run.skip_time()
    if is_first():
        save_decoders(work, run.ema.module)
        print(f"decoders: {check_true_videos(work)} of 40 true videos of two shapes pass the check after both VAEs", flush=True)


def check_true_videos(work: str, count: int = 40) -> int:
    """Returns how many of `count` true videos of two shapes that training never saw pass the check after both VAEs."""
    spatial, vae = autoencoder.load_spatial(work), autoencoder.load_vae(work)
    right, rng = 0, np.random.default_rng(3)
    for _ in range(count):
        scene = scenes.sample_scene(rng, True, 2)
        frames = autoencoder.encode_frames(spatial, scenes.render(scene, rng))[None].to(device())
        y = autoencoder.decode(vae, autoencoder.encode(vae, frames), scenes.FRAMES)[0]
        right += check_video.check(autoencoder.decode_frames(spatial, y), scenes.caption(scene)).right
    return right
