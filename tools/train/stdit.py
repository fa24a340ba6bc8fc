"""The video model's denoiser: STDiT3 as modules that train fast on a CPU, and sampling by rectified flow.

Weights have the published names and the result is that of tools/reference/stdit3.py.  Here videos of one size and prompts of
several lengths, padded and masked, make a batch, and attention is a product, a softmax and a product, because the
backward of the fused kernel is slow on CPUs.

Shapes: B videos, T latent frames, S tokens of a frame, C width, H heads, D their size, L tokens of the longest prompt.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from tools.reference.stdit3 import positions, rms_norm, sinusoids

CONFIG = {"hidden_size": 192, "depth": 4, "num_heads": 3, "in_channels": 4, "pred_sigma": False, "caption_channels": 128,
          "model_max_length": 40, "input_sq_size": 512, "mlp_ratio": 4.0, "qk_norm": True, "patch_size": [1, 2, 2]}
NUM_TIMESTEPS = 1000


class NumberEmbedder(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, numbers):
        return self.mlp(sinusoids(numbers))


def gelu(x):
    """The GELU with tanh; in compiled code by way of the sigmoid, which it computes faster."""
    if not torch.compiler.is_compiling():
        return F.gelu(x, approximate="tanh")
    return x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))


class Mlp(nn.Module):
    def __init__(self, inner: int, middle: int, outer: int):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(inner, middle), nn.Linear(middle, outer)

    def forward(self, x):
        return self.fc2(gelu(self.fc1(x)))


class RmsNorm(nn.Module):
    def __init__(self, size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))


def attention(q, k, v, bias=None):
    """q [.., N, D], k and v [.., M, D] -> [.., N, D]."""
    weights = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
    if bias is not None:
        weights = weights + bias
    return weights.softmax(-1).to(v.dtype) @ v


def rotation(frames: int, depth: int, device: torch.device) -> torch.Tensor:
    """Returns cosines and sines of the angles of pairs of channels, [2, frames, depth / 2]."""
    angles = torch.arange(frames, device=device)[:, None] / 10000 ** (torch.arange(0, depth, 2, device=device).float() / depth)
    return torch.stack([angles.cos(), angles.sin()])


def rotate(x, turns):
    """Rotates pairs of channels of x [.., T, D], of which the first half holds one of each pair."""
    one, other = x.chunk(2, -1)
    cos, sin = turns
    return torch.cat([one * cos - other * sin, other * cos + one * sin], -1)


class SelfAttention(nn.Module):
    """Attends over the tokens of a frame or, with turns, over the frames of a token."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.q_norm, self.k_norm = RmsNorm(width // heads), RmsNorm(width // heads)

    def forward(self, x, turns=None):
        # Pairs that are rotated are neighbours. Their channels are sorted here, on the weights, because compiled code is slow
        # on neighbours; queries and keys are sorted alike, which leaves their products as they are.
        depth = self.q_norm.weight.shape[0]
        order = torch.cat([torch.arange(i, depth, 2, device=x.device) for i in (0, 1)])
        weight, bias, norms = self.qkv.weight, self.qkv.bias, [self.q_norm.weight, self.k_norm.weight]
        if turns is not None:
            weight, bias = (p.unflatten(0, (3, self.heads, depth)) for p in (weight, bias))
            weight, bias = (torch.cat([p[:2, :, order], p[2:]]).flatten(0, 2) for p in (weight, bias))
            norms = [norm[order] for norm in norms]
        qkv = F.linear(x, weight, bias).unflatten(-1, (3, self.heads, -1))  # [B, T, S, 3, H, D]
        q, k, v = qkv.permute(3, 0, 1, 4, 2, 5) if turns is None else qkv.permute(3, 0, 2, 4, 1, 5)
        q, k = (rms_norm(part, norm) for part, norm in zip((q, k), norms))
        if turns is not None:
            q, k = rotate(q, turns), rotate(k, turns)
        y = attention(q.to(v.dtype), k.to(v.dtype), v)  # [B, T, H, S, D] or [B, S, H, T, D]
        y = y.permute(0, 1, 3, 2, 4) if turns is None else y.permute(0, 3, 1, 2, 4)
        return self.proj(y.flatten(3))


class CrossAttention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.q_linear, self.kv_linear = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x, text, bias):
        q = self.q_linear(x).flatten(1, 2).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv_linear(text).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = attention(q, k, v, bias)  # [B, H, T S, D]
        return self.proj(y.transpose(1, 2).flatten(2)).view(x.shape)


def modulated(x, shift, scale):
    """x [B, T, S, C], shift and scale [B, T, C]."""
    return F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale[:, :, None]) + shift[:, :, None]


class HalfBlock(nn.Module):
    def __init__(self, config):
        super().__init__()
        width, heads = config["hidden_size"], config["num_heads"]
        self.scale_shift_table = nn.Parameter(torch.randn(6, width) / width**0.5)
        self.attn, self.cross_attn = SelfAttention(width, heads), CrossAttention(width, heads)
        self.mlp = Mlp(width, int(width * config["mlp_ratio"]), width)

    def forward(self, x, modulation, text, bias, turns=None):
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = (self.scale_shift_table + modulation).unbind(2)
        x = x + gate_a[:, :, None] * self.attn(modulated(x, shift_a, scale_a), turns)
        x = x + self.cross_attn(x, text, bias)
        return x + gate_m[:, :, None] * self.mlp(modulated(x, shift_m, scale_m))


class PatchEmbedder(nn.Module):
    def __init__(self, channels: int, width: int):
        super().__init__()
        self.proj = nn.Conv3d(channels, width, (1, 2, 2), (1, 2, 2))

    def forward(self, z):
        """[B, channels, T, h, w], with even h and w -> [B, T, h / 2, w / 2, C]."""
        patches = z.unflatten(4, (-1, 2)).unflatten(3, (-1, 2)).permute(0, 2, 3, 5, 1, 4, 6).flatten(4)
        return F.linear(patches, self.proj.weight.flatten(1), self.proj.bias)


class TextEmbedder(nn.Module):
    def __init__(self, config):
        super().__init__()
        channels, width = config["caption_channels"], config["hidden_size"]
        self.y_embedding = nn.Parameter(torch.randn(config["model_max_length"], channels) / channels**0.5)
        self.y_proj = Mlp(channels, width, width)

    def forward(self, text, is_null):
        """text [B, L, channels]; those of is_null [B] are replaced by the learned text."""
        return self.y_proj(torch.where(is_null[:, None, None], self.y_embedding[: text.shape[1]], text))


class FinalLayer(nn.Module):
    def __init__(self, width: int, channels: int):
        super().__init__()
        self.scale_shift_table = nn.Parameter(torch.randn(2, width) / width**0.5)
        self.linear = nn.Linear(width, 4 * channels)

    def forward(self, x, time):
        return self.linear(modulated(x, *(self.scale_shift_table + time[:, :, None]).unbind(2)))


class STDiT3(nn.Module):
    def __init__(self, config=None):
        super().__init__()
        self.config = config = {**CONFIG, **(config or {})}
        width, channels = config["hidden_size"], config["in_channels"]
        self.x_embedder = PatchEmbedder(channels, width)
        self.t_embedder, self.fps_embedder = NumberEmbedder(width), NumberEmbedder(width)
        self.t_block = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))
        self.y_embedder = TextEmbedder(config)
        self.spatial_blocks = nn.ModuleList(HalfBlock(config) for _ in range(config["depth"]))
        self.temporal_blocks = nn.ModuleList(HalfBlock(config) for _ in range(config["depth"]))
        self.final_layer = FinalLayer(width, channels * (2 if config["pred_sigma"] else 1))
        self.initialise()

    def initialise(self) -> None:
        """The output starts at zero, and the layers that read numbers start small."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        nn.init.xavier_uniform_(self.x_embedder.proj.weight.data.view(self.config["hidden_size"], -1))
        for layer in (*self.t_embedder.mlp, *self.fps_embedder.mlp, *self.t_block):
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=0.02)
        nn.init.zeros_(self.fps_embedder.mlp[2].weight)
        nn.init.zeros_(self.final_layer.linear.weight)

    def forward(self, z, times, text, mask, is_null, fps, height: int, width: int):
        """z [B, channels, T, h, w]; times [B, T] of the frames, 0 for those that are given; text [B, L, caption channels]
        with its mask [B, L]; is_null [B]; fps [B]; the video's height and width in pixels -> [B, channels, T, h, w]."""
        x = self.x_embedder(z)
        batch, frames, rows, columns, size = x.shape
        scale = math.sqrt(height * width) / self.config["input_sq_size"]
        x = x + positions(size, rows, columns, scale, round(math.sqrt(rows * columns)), z.device)
        x = x.flatten(2, 3)  # [B, T, S, C]
        time = self.t_embedder(times.flatten()).view(batch, frames, size) + self.fps_embedder(fps)[:, None]
        modulation = self.t_block(time).unflatten(2, (6, -1))  # [B, T, 6, C]
        text = self.y_embedder(text, is_null)
        bias = torch.where(mask.bool(), 0.0, -1e4)[:, None, None]
        turns = rotation(frames, size // self.config["num_heads"], z.device)
        for spatial, temporal in zip(self.spatial_blocks, self.temporal_blocks):
            x = spatial(x, modulation, text, bias)
            x = temporal(x, modulation, text, bias, turns)
        y = self.final_layer(x, time).unflatten(3, (2, 2, -1)).unflatten(2, (rows, columns))
        return y.permute(0, 6, 1, 2, 4, 3, 5).flatten(5, 6).flatten(3, 4).float()


def sampler_timesteps(steps: int, height: int, width: int, frames: int, transform: bool = True) -> torch.Tensor:
    """Returns the timesteps of Open-Sora 1.2 for a video of so many frames of pixels."""
    u = 1 - torch.arange(steps).double() / steps
    if transform:
        ratio = math.sqrt(height * width / 512**2) * math.sqrt(frames // 17 * 5 if frames > 1 else 1)
        u = ratio * u / (1 + (ratio - 1) * u)
    return u.float() * NUM_TIMESTEPS


def guided_velocity(denoiser, z, times, text, mask, fps: float, guidance: float):
    """Returns the velocity of z [B, channels, T, h, w] at times [B, T] with classifier-free guidance."""
    size = [8 * side for side in z.shape[3:]]
    is_null = torch.arange(2 * len(z), device=z.device) >= len(z)
    rates = torch.full((2 * len(z),), float(fps), device=z.device)
    twice = [torch.cat([part, part]) for part in (z, times, text, mask)]
    conditional, unconditional = denoiser(*twice, is_null, rates, *size)[:, : z.shape[1]].chunk(2)
    return unconditional + guidance * (conditional - unconditional)


@torch.no_grad()
def sample(denoiser, noise, text, mask, frames: int, fps: float, steps: int, guidance: float, given=None,
           transform: bool = True):
    """Returns latents like noise [B, channels, T, h, w]. `given` are latents [B, channels, n, h, w] to begin with."""
    size = [8 * side for side in noise.shape[3:]]
    z, start = noise, 0
    if given is not None:
        start = given.shape[2]
        z = torch.cat([given, noise[:, :, start:]], 2)
    times = sampler_timesteps(steps, *size, frames, transform)
    for t, after in zip(times, [*times[1:], torch.tensor(0.0)]):
        of_frames = t.to(noise.device).expand(z.shape[0], z.shape[2]).clone()
        of_frames[:, :start] = 0
        v = guided_velocity(denoiser, z, of_frames, text, mask, fps, guidance)
        v[:, :, :start] = 0
        z = z + v * ((t - after) / NUM_TIMESTEPS)
    return z
