"""The video model's autoencoder in the form of Open-Sora's VAE 1.2: the image model's VAE for each frame, and a
temporal VAE, trained here on its latents, that makes 5 latents of 17 frames.

Shapes: B clips, F frames, T latent frames, h x w latent size.
"""

from __future__ import annotations

import glob
import math
import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL
from torch import nn

from tools.train import vae as demo_vae
from tools.train import video_scenes as scenes
from tools.train import video_text as demo_video_text
from tools.train.optim import Muon, cosine
from tools.train.run import TrainingRun, autocast, device, is_first, process_rank

SPATIAL = "models/shapes/vae"
# In the work folder: the spatial VAE with a decoder of its own.
SPATIAL_STATE = "spatial.pt"
# Open-Sora multiplies latents of the spatial VAE by this factor, whatever its own configuration says.
SCALING = 0.18215
CONFIG = {"in_out_channels": 4, "latent_embed_dim": 4, "embed_dim": 4, "filters": 16, "num_res_blocks": 1,
          "channel_multipliers": [1, 2, 4, 4], "temporal_downsample": [False, True, True], "num_groups": 8}
CLIP, LATENT_CLIP, FACTOR = 17, 5, 4
# The posterior's noise has a fixed size, as in the image model's VAE.
NOISE = 0.1


class CausalConv3d(nn.Module):
    def __init__(self, inner: int, outer: int, kernel: int = 3, stride: int = 1, bias: bool = True):
        super().__init__()
        self.before = kernel - 1 + 1 - stride if kernel > 1 else 0
        self.conv = nn.Conv3d(inner, outer, kernel, (stride, 1, 1), (0, kernel // 2, kernel // 2), bias=bias)

    def forward(self, x):
        return self.conv(F.pad(x, (0, 0, 0, 0, self.before, 0)) if self.before else x)


class ClipNorm(nn.GroupNorm):
    """GroupNorm of a clip, in the few passes of the image VAE's, and SiLU."""

    def forward(self, x):
        flat = x.permute(0, 2, 3, 4, 1).flatten(1, 3).contiguous()
        y = demo_vae.fast_group_norm(flat, self.weight, self.bias, self.num_groups, self.eps)
        return F.silu(y).view(x.shape[0], *x.shape[2:], x.shape[1]).permute(0, 4, 1, 2, 3)


class ResBlock(nn.Module):
    def __init__(self, inner: int, outer: int, groups: int):
        super().__init__()
        self.norm1, self.norm2 = ClipNorm(groups, inner), ClipNorm(groups, outer)
        self.conv1, self.conv2 = CausalConv3d(inner, outer, bias=False), CausalConv3d(outer, outer, bias=False)
        self.conv3 = CausalConv3d(inner, outer, 1, bias=False) if inner != outer else nn.Identity()

    def forward(self, x):
        return self.conv2(self.norm2(self.conv1(self.norm1(x)))) + self.conv3(x)


def res_blocks(count: int, inner: int, outer: int, groups: int) -> nn.Sequential:
    return nn.Sequential(*(ResBlock(outer if i else inner, outer, groups) for i in range(count)))


class Encoder(nn.Module):
    def __init__(self, config):
        super().__init__()
        widths = [config["filters"] * m for m in config["channel_multipliers"]]
        count, groups = config["num_res_blocks"], config["num_groups"]
        self.conv_in = CausalConv3d(config["in_out_channels"], config["filters"], bias=False)
        self.block_res_blocks = nn.ModuleList(
            res_blocks(count, inner, outer, groups) for inner, outer in zip([config["filters"], *widths], widths))
        self.conv_blocks = nn.ModuleList(
            CausalConv3d(width, width, stride=2) if halves else nn.Identity()
            for width, halves in zip(widths, config["temporal_downsample"]))
        self.res_blocks = res_blocks(count, widths[-1], widths[-1], groups)
        self.norm1 = ClipNorm(groups, widths[-1])
        self.conv2 = CausalConv3d(widths[-1], 2 * config["latent_embed_dim"], 1)

    def forward(self, x):
        x = self.conv_in(x)
        for blocks, conv in zip(self.block_res_blocks, [*self.conv_blocks, nn.Identity()]):
            x = conv(blocks(x))
        return self.conv2(self.norm1(self.res_blocks(x)))


class Decoder(nn.Module):
    def __init__(self, config):
        super().__init__()
        widths = [config["filters"] * m for m in config["channel_multipliers"]]
        count, groups = config["num_res_blocks"], config["num_groups"]
        self.conv1 = CausalConv3d(config["latent_embed_dim"], widths[-1])
        self.res_blocks = res_blocks(count, widths[-1], widths[-1], groups)
        self.block_res_blocks = nn.ModuleList(
            res_blocks(count, inner, outer, groups) for inner, outer in zip([*widths[1:], widths[-1]], widths))
        self.conv_blocks = nn.ModuleList(
            CausalConv3d(width, 2 * width) if doubles else nn.Identity()
            for width, doubles in zip(widths[1:], config["temporal_downsample"]))
        self.norm1 = ClipNorm(groups, widths[0])
        self.conv_out = CausalConv3d(widths[0], config["in_out_channels"])

    def forward(self, x):
        x = self.res_blocks(self.conv1(x))
        for level in reversed(range(len(self.block_res_blocks))):
            x = self.block_res_blocks[level](x)
            if level and not isinstance(self.conv_blocks[level - 1], nn.Identity):
                # Of adjacent channels the second is the later frame.
                x = self.conv_blocks[level - 1](x).unflatten(1, (-1, 2)).permute(0, 1, 3, 2, 4, 5).flatten(2, 3)
        return self.conv_out(self.norm1(x))


class TemporalVae(nn.Module):
    """Latents of the spatial VAE here have unit variance, without SCALING."""

    def __init__(self, config=None):
        super().__init__()
        config = {**CONFIG, **(config or {})}
        self.encoder, self.decoder = Encoder(config), Decoder(config)
        self.quant_conv = CausalConv3d(2 * config["latent_embed_dim"], 2 * config["embed_dim"], 1)
        self.post_quant_conv = CausalConv3d(config["embed_dim"], config["latent_embed_dim"], 1)

    def moments(self, x):
        """A clip [B, 4, F, h, w] -> [B, 8, T, h, w]."""
        x = F.pad(x, (0, 0, 0, 0, -x.shape[2] % FACTOR, 0))
        return self.quant_conv(self.encoder(x.contiguous(memory_format=torch.channels_last_3d)))

    def decode(self, z, frames: int):
        x = self.decoder(self.post_quant_conv(z.contiguous(memory_format=torch.channels_last_3d)))
        return x[:, :, x.shape[2] - frames :]


class TrainStep(nn.Module):
    """Reconstructs a batch of clips and computes its loss."""

    def __init__(self, vae: TemporalVae):
        super().__init__()
        self.vae = vae

    def forward(self, x, noise):
        with autocast():
            mean = self.vae.moments(x)[:, :4].float()
            y = self.vae.decode(mean + NOISE * noise, x.shape[2])
        error = y.float() - x
        square = error.square().mean()
        penalty = demo_vae.latent_penalty(mean.transpose(1, 2).flatten(0, 1))
        return square + 0.25 * error.abs().mean() + 0.02 * penalty, square.detach()


def load_spatial(work: str) -> AutoencoderKL:
    """Returns the image model's VAE, with the decoder that was trained on in the work folder, if there is one."""
    vae = AutoencoderKL.from_pretrained(SPATIAL, torch_dtype=torch.float32).eval().requires_grad_(False)
    state = os.path.join(work, SPATIAL_STATE)
    if os.path.exists(state):
        vae.load_state_dict(torch.load(state, map_location="cpu"))
    demo_vae.use_fast_norms(vae)
    return vae.to(device(), memory_format=torch.channels_last)


@torch.no_grad()
def encode_frames(spatial: AutoencoderKL, video: np.ndarray) -> torch.Tensor:
    """Pictures [F, height, width, 3] -> latents of the spatial VAE [4, F, h, w], on the host."""
    x = torch.from_numpy(video).to(device()).permute(0, 3, 1, 2).float().div_(127.5).sub_(1)
    with autocast():
        moments = spatial.encoder(x.contiguous(memory_format=torch.channels_last))
    return spatial.quant_conv(moments.float())[:, :4].transpose(0, 1).contiguous().cpu()


@torch.no_grad()
def decode_frames(spatial: AutoencoderKL, latents: torch.Tensor) -> np.ndarray:
    """Latents of the spatial VAE [4, F, h, w] -> pictures, uint8 [F, height, width, 3]."""
    pictures = []
    for part in latents.transpose(0, 1).split(17):
        with autocast():
            x = spatial.decode(part.contiguous(memory_format=torch.channels_last)).sample
        pictures.append(((x.float().clamp(-1, 1) + 1) * 127.5).permute(0, 2, 3, 1).round().byte().cpu().numpy())
    return np.concatenate(pictures)


def write_frames(work: str, seed: int, shards: int, processes: int = 1, short: int = 1024, long: int = 128) -> None:
    """Adds shards of the spatial VAE's latents of training videos up to the given number; each is seeded by its index.
    Processes of one torch.distributed group divide the shards."""
    spatial = load_spatial(work)
    for index in range(process_rank(), shards, processes):
        path = os.path.join(work, f"frames-{index:04d}.npz")
        if os.path.exists(path):
            continue
        rng = np.random.default_rng([seed, 77, index])
        arrays, start = {}, time.time()
        for name, count, frames in (("short", short, scenes.FRAMES), ("long", long, scenes.LONG_FRAMES)):
            drawn = [scenes.sample_scene(rng) for _ in range(count)]
            latents = [encode_frames(spatial, scenes.render(s, rng, frames)).half().numpy() for s in drawn]
            arrays[name] = np.stack(latents)
            arrays[name + "_attributes"] = np.array([demo_video_text.attribute_targets(s) for s in drawn], np.uint8)
        np.savez(path + ".new.npz", **arrays)
        os.replace(path + ".new.npz", path)
        print(f"frames: shard {index + 1} of {shards}, {time.time() - start:.0f} s", flush=True)


def frame_shards(work: str) -> list[str]:
    return sorted(glob.glob(os.path.join(work, "frames-????.npz")))


def held_out_clips(spatial: AutoencoderKL, seed: int, count: int = 16):
    """Returns videos that training never saw and their latents [count, 4, F, h, w]."""
    rng = np.random.default_rng(seed + 2)
    videos = [scenes.render(scenes.sample_scene(rng, True), rng) for _ in range(count)]
    return videos, torch.stack([encode_frames(spatial, v) for v in videos]).to(device())


@torch.no_grad()
def quality(vae: TemporalVae, spatial: AutoencoderKL, videos, latents) -> tuple[float, float]:
    """Returns the temporal VAE's mean squared error on latents, and the PSNR of pixels after both VAEs."""
    with autocast():
        y = vae.decode(vae.moments(latents)[:, :4].float(), latents.shape[2]).float()
    pictures = [decode_frames(spatial, one) for one in y[:6]]
    error = np.mean([np.square(p.astype(float) - v).mean() for p, v in zip(pictures, videos)])
    return F.mse_loss(y, latents).item(), 10 * math.log10(255**2 / error)


def shape_at(progress: float) -> tuple[int, int]:
    """Returns the sides of the crops in latent pixels and how many make a batch: small crops first, whole frames last."""
    side, batch = (10, 12) if progress < 0.6 else (16, 6)
    return side, batch if device().type == "cpu" else 4 * batch


def optimisers_of(vae: TemporalVae, lr: float, adam_lr: float):
    """Returns Muon for the kernels within the network and AdamW for everything else."""
    kernels = [p for n, p in vae.named_parameters() if p.ndim == 5 and p.shape[2] == 3 and "conv_in" not in n
               and "conv_out" not in n and "decoder.conv1." not in n]
    chosen = {id(p) for p in kernels}
    rest = [p for p in vae.parameters() if id(p) not in chosen]
    return [(Muon(kernels, lr=lr), lr),
            (torch.optim.AdamW(rest, lr=adam_lr, betas=(0.9, 0.99), weight_decay=0.0), adam_lr)]


def train_vae(work: str, seed: int, minutes: float, lr: float = 0.02, adam_lr: float = 2e-3) -> None:
    """Trains for a budget of processor time; a stopped run continues from its last checkpoint."""
    torch.manual_seed(seed)
    shards = [np.load(path) for path in frame_shards(work)]
    clips = torch.cat([torch.from_numpy(shard["short"]) for shard in shards]).to(device())
    pairs = np.concatenate([demo_video_text.are_pairs(shard["short_attributes"]) for shard in shards])
    spatial = load_spatial(work)
    held = held_out_clips(spatial, seed)
    vae = TemporalVae().to(device(), memory_format=torch.channels_last_3d)
    nn.init.zeros_(vae.quant_conv.conv.bias)
    run = TrainingRun(os.path.join(work, "vae.pt"), vae, 0.998, optimisers_of(vae, lr, adam_lr), minutes)
    rng = np.random.default_rng([seed, run.step, process_rank()])
    torch.manual_seed(seed + run.step + 1000003 * process_rank())
    train = TrainStep(vae)
    log = open(os.path.join(work, "vae.csv"), "a", encoding="utf-8")
    if log.tell() == 0:
        log.write("step,seconds,mse,mse_held_out,psnr_held_out\n")
    pause = 120 if device().type == "cpu" else 15
    mark, squares = run.spent, []
    while not run.done:
        side, batch = shape_at(run.progress)
        row, column = rng.integers(0, clips.shape[-1] - side + 1, 2)
        chosen = clips[torch.from_numpy(scenes.draw_rows(pairs, batch, rng)).to(device())]
        x = chosen[..., row : row + side, column : column + side].float()
        loss, square = train(x, torch.randn(batch, 4, LATENT_CLIP, side, side, device=device()))
        run.update(loss, cosine(run.progress))
        squares.append(square)
        if run.spent - mark >= pause or run.done:
            mark = run.spent
            if not is_first():
                continue
            mse = torch.stack(squares).mean().item()
            error, decibel = quality(run.ema.module, spatial, *held)
            print(f"vae step {run.step} {mark:.0f} s mse {mse:.5f} held-out {error:.5f} {decibel:.2f} dB",
                  flush=True)
            log.write(f"{run.step},{mark:.0f},{mse:.6f},{error:.6f},{decibel:.3f}\n")
            log.flush()
            squares = []
            run.save()
            run.skip_time()


def load_vae(work: str) -> TemporalVae:
    """Returns the averaged weights; the log-variances, which training never used, become those of the fixed noise."""
    vae = TemporalVae()
    vae.load_state_dict(torch.load(os.path.join(work, "vae.pt"), map_location="cpu")["ema"])
    with torch.no_grad():
        vae.quant_conv.conv.weight[4:] = 0
        vae.quant_conv.conv.bias[4:] = 2 * math.log(NOISE)
    return vae.to(device(), memory_format=torch.channels_last_3d).eval().requires_grad_(False)


@torch.no_grad()
def encode(vae: TemporalVae, latents: torch.Tensor) -> torch.Tensor:
    """Latents of frames [B, 4, F, h, w] -> latents of clips [B, 4, T, h, w], not normalised."""
    with autocast():
        return torch.cat([vae.moments(clip)[:, :4].float() for clip in latents.split(CLIP, 2)], 2)


@torch.no_grad()
def decode(vae: TemporalVae, z: torch.Tensor, frames: int) -> torch.Tensor:
    """Latents of clips [B, 4, T, h, w], not normalised -> latents of frames [B, 4, F, h, w]."""
    clips = [vae.decode(clip, min(CLIP, frames - i * CLIP)) for i, clip in enumerate(z.split(LATENT_CLIP, 2))]
    return torch.cat(clips, 2).float()


def statistics(work: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns shift and scale [1, 4, 1, 1, 1] of the latents, measured once on training clips."""
    path = os.path.join(work, "statistics.pt")
    if not os.path.exists(path):
        clips = torch.from_numpy(np.load(frame_shards(work)[0])["short"]).float()
        vae = load_vae(work)
        z = torch.cat([encode(vae, part.to(device())) for part in clips.split(16)]).transpose(0, 1).flatten(1).double()
        print("covariance of the latents", torch.cov(z).cpu().numpy().round(3).tolist(), flush=True)
        torch.save([x.float().view(1, 4, 1, 1, 1).cpu() for x in (z.mean(1), z.std(1))], path)
    shift, scale = torch.load(path, map_location=device())
    return shift, scale


def published_weights(work: str) -> dict[str, torch.Tensor]:
    """Returns the whole autoencoder under the names of VAE 1.2.  The two 1x1 convolutions beside the spatial latents undo
    SCALING, so that the temporal VAE and the spatial decoder get what they were trained with."""
    spatial = {key: value.cpu() for key, value in load_spatial(work).state_dict().items()}
    spatial["quant_conv.weight"][:4] /= SCALING
    spatial["quant_conv.bias"][:4] /= SCALING
    spatial["quant_conv.bias"][4:] -= 2 * math.log(SCALING)
    spatial["post_quant_conv.weight"] *= SCALING
    shift, scale = (x.cpu() for x in statistics(work))
    weights = {f"spatial_vae.module.{key}": value for key, value in spatial.items()}
    weights |= {f"temporal_vae.{key}": value.cpu() for key, value in load_vae(work).state_dict().items()}
    return {key: value.contiguous() for key, value in (weights | {"shift": shift, "scale": scale}).items()}


def spatial_weights(published: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns the spatial VAE of published_weights as it was before these scaled it."""
    prefix = "spatial_vae.module."
    spatial = {key.removeprefix(prefix): value.clone() for key, value in published.items() if key.startswith(prefix)}
    spatial["quant_conv.weight"][:4] *= SCALING
    spatial["quant_conv.bias"][:4] *= SCALING
    spatial["quant_conv.bias"][4:] += 2 * math.log(SCALING)
    spatial["post_quant_conv.weight"] /= SCALING
    return spatial


def published_config() -> dict:
    with_sizes = AutoencoderKL.load_config(SPATIAL)
    kept = ("block_out_channels", "layers_per_block", "norm_num_groups", "mid_block_add_attention", "sample_size")
    return {"_class_name": "OpenSoraVAE_V1_2", "model_type": "VideoAutoencoderPipeline", "micro_frame_size": CLIP,
            "vae_2d": {"type": "VideoAutoencoderKL", "micro_batch_size": 4, **{key: with_sizes[key] for key in kept}},
            "vae_temporal": {"type": "VAE_Temporal_SD", **CONFIG}}
