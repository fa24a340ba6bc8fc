"""The demo model's AutoencoderKL: its configuration, training and normalisation."""

from __future__ import annotations

import math
import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL

from tools.train import scenes
from tools.train.optim import Ema, Muon, cosine

# The posterior's noise has a fixed size; see normalised_vae.
NOISE = 0.1
LATENT_CHANNELS = 4


def _scaled(base, x, scale):
    """Returns base + x * scale for x [batch, pixels, channels], with one base and scale per picture
    and channel.  Rows of few channels are slow on the CPU, so several pixels share a row."""
    batch, pixels, channels = x.shape
    fold = max(1, 64 // channels)
    while pixels % fold:
        fold //= 2
    rows = x.view(batch, pixels // fold, fold * channels)
    base = base.to(x.dtype).view(batch, 1, channels).repeat(1, 1, fold)
    scale = scale.to(x.dtype).view(batch, 1, channels).repeat(1, 1, fold)
    return torch.addcmul(base, rows, scale).view(x.shape)


class _GroupNormFunction(torch.autograd.Function):
    """Computes GroupNorm on [batch, pixels, channels] as a scale and a shift per picture and channel.

    PyTorch's backward on the CPU takes more than half of a training step on bfloat16 in
    channels_last; here forward and backward are a few plain passes over the memory.
    """

    @staticmethod
    def forward(ctx, x, weight, bias, groups, eps):
        batch, pixels, channels = x.shape
        sums = x.sum(1, dtype=torch.float32).view(batch, groups, -1)
        squares = (x * x).sum(1, dtype=torch.float32).view(batch, groups, -1)
        count = pixels * channels // groups
        mean = sums.sum(-1, keepdim=True) / count
        variance = (squares.sum(-1, keepdim=True) / count - mean * mean).clamp_min(0)
        rstd = torch.rsqrt(variance + eps)
        scale = rstd * weight.view(1, groups, -1)
        shift = bias.view(1, groups, -1) - mean * scale
        ctx.save_for_backward(x, weight, mean, rstd, scale)
        ctx.count = count
        return _scaled(shift, x, scale)

    @staticmethod
    def backward(ctx, grad):
        x, weight, mean, rstd, scale = ctx.saved_tensors
        batch, pixels, channels = x.shape
        groups = mean.shape[1]
        grad = grad.contiguous()
        g0 = grad.sum(1, dtype=torch.float32).view(batch, groups, -1)
        g1 = (grad * x).sum(1, dtype=torch.float32).view(batch, groups, -1)
        # This is, per channel, the sum of grad times the normalised input.
        gn = (g1 - mean * g0) * rstd
        w = weight.view(1, groups, -1)
        a = (gn * w).sum(-1, keepdim=True) / ctx.count * rstd * rstd
        b = (g0 * w).sum(-1, keepdim=True) / ctx.count * rstd - a * mean
        a = a.expand(-1, -1, channels // groups).reshape(batch, channels)
        b = b.expand(-1, -1, channels // groups).reshape(batch, channels)
        dx = _scaled(-b, grad, scale).sub_(_scaled(torch.zeros_like(a), x, a))
        return dx, gn.sum(0).view(-1), g0.sum(0).view(-1), None, None


fast_group_norm = _GroupNormFunction.apply


class FastGroupNorm(torch.nn.GroupNorm):
    """Has the same parameters and, up to rounding, the same result as PyTorch's module."""

    def forward(self, x):
        batch, channels, height, width = x.shape
        flat = x.permute(0, 2, 3, 1).reshape(batch, height * width, channels)
        y = fast_group_norm(flat, self.weight, self.bias, self.num_groups, self.eps)
        return y.view(batch, height, width, channels).permute(0, 3, 1, 2)


def build_vae() -> AutoencoderKL:
    return AutoencoderKL(
        in_channels=3, out_channels=3, latent_channels=LATENT_CHANNELS,
        block_out_channels=(16, 32, 64, 96), layers_per_block=1, norm_num_groups=8,
        down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
        mid_block_add_attention=False, sample_size=scenes.SIZE, scaling_factor=1.0,
    )


def use_fast_norms(module: torch.nn.Module) -> None:
    for name, child in module.named_children():
        if isinstance(child, torch.nn.GroupNorm):
            fast = FastGroupNorm(child.num_groups, child.num_channels, child.eps)
            fast.load_state_dict(child.state_dict())
            setattr(module, name, fast)
        else:
            use_fast_norms(child)


def to_tensor(pictures: np.ndarray) -> torch.Tensor:
    x = torch.from_numpy(np.ascontiguousarray(pictures)).permute(0, 3, 1, 2)
    return x.float().div_(127.5).sub_(1)


def psnr(vae: AutoencoderKL, pictures: np.ndarray) -> float:
    x = to_tensor(pictures)
    with torch.no_grad():
        y = vae.decode(vae.encode(x).latent_dist.mean).sample.clamp(-1, 1)
    return 10 * math.log10(4.0 / F.mse_loss(y, x).item())


def scene_pictures(seed: int, count: int, held_out: bool) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.stack([scenes.render(scenes.sample_scene(rng, held_out), rng) for _ in range(count)])


def picture_pool(work: str, seed: int, dense: int = 8000, plain: int = 4000):
    """Returns dense crowds and plain scenes, drawn once; random crops and flips multiply them."""
    path = os.path.join(work, "pool.npz")
    if not os.path.exists(path):
        rng = np.random.default_rng(seed)
        crowd = np.stack([scenes.render_dense(rng, scenes.SIZE) for _ in range(dense)])
        np.savez(path, dense=crowd, plain=scene_pictures(seed + 1, plain, False))
    pool = np.load(path)
    return pool["dense"], pool["plain"]


def draw_batch(pool, rng, size: int, count: int, plain_share: float) -> torch.Tensor:
    dense, plain = pool
    out = np.empty((count, size, size, 3), np.uint8)
    for i in range(count):
        source = plain if rng.random() < plain_share else dense
        picture = source[int(rng.integers(len(source)))]
        y, x = rng.integers(0, scenes.SIZE - size + 1, 2)
        picture = picture[y : y + size, x : x + size]
        if source is dense:
            picture = picture[:: 1 if rng.random() < 0.5 else -1, :: 1 if rng.random() < 0.5 else -1]
        out[i] = picture
    return to_tensor(out)


def latent_penalty(z: torch.Tensor) -> torch.Tensor:
    """Returns the distance of the latents' mean from 0 plus that of their channel covariance from the identity."""
    flat = z.float().permute(1, 0, 2, 3).flatten(1)
    mean = flat.mean(1, keepdim=True)
    centred = flat - mean
    covariance = centred @ centred.T / flat.shape[1]
    return mean.square().sum() + (covariance - torch.eye(len(flat), device=z.device)).square().sum()


class TrainStep(torch.nn.Module):
    """Reconstructs a batch and computes its loss."""

    def __init__(self, vae: AutoencoderKL):
        super().__init__()
        self.vae = vae

    def forward(self, x, noise):
        with torch.autocast("cpu", torch.bfloat16):
            moments = self.vae.quant_conv(self.vae.encoder(x))
            mean = moments[:, :LATENT_CHANNELS].float()
            y = self.vae.decoder(self.vae.post_quant_conv(mean + NOISE * noise))
        error = y.float() - x
        edges = (error[..., 1:, :] - error[..., :-1, :]).abs().mean()
        edges = edges + (error[..., 1:] - error[..., :-1]).abs().mean()
        square = error.square().mean()
        loss = 2 * square + 0.5 * error.abs().mean() + 0.25 * edges + 0.05 * latent_penalty(mean)
        return loss, square.detach()


def sizes_at(progress: float) -> tuple[int, int, float]:
    """Returns (picture size, batch, share of plain scenes): small crops first, whole pictures last."""
    if progress < 0.55:
        return 64, 16, 0.2
    if progress < 0.8:
        return scenes.SIZE, 6, 0.3
    return scenes.SIZE, 6, 0.6


def train_vae(work: str, seed: int, minutes: float, lr: float = 0.02, adam_lr: float = 2e-3) -> None:
    """Trains for a wall-clock budget; a stopped run continues from its last checkpoint."""
    path = os.path.join(work, "vae.pt")
    torch.manual_seed(seed)
    pool = picture_pool(work, seed)
    held = scene_pictures(seed + 2, 32, True)
    vae = build_vae()
    torch.nn.init.zeros_(vae.quant_conv.bias)
    use_fast_norms(vae)
    vae.to(memory_format=torch.channels_last)
    ema = Ema(vae, 0.998)
    matrices = [p for n, p in vae.named_parameters()
                if p.ndim == 4 and "conv_in" not in n and "decoder.conv_out" not in n]
    chosen = {id(p) for p in matrices}
    rest = [p for p in vae.parameters() if id(p) not in chosen]
    muon = Muon(matrices, lr=lr)
    adam = torch.optim.AdamW(rest, lr=adam_lr, betas=(0.9, 0.99), weight_decay=0.0)
    step, spent = 0, 0.0
    if os.path.exists(path):
        state = torch.load(path)
        vae.load_state_dict(state["vae"])
        ema.module.load_state_dict(state["ema"])
        muon.load_state_dict(state["muon"])
        adam.load_state_dict(state["adam"])
        step, spent = state["step"], state["spent"]
    rng = np.random.default_rng([seed, step])
    train = TrainStep(vae)
    log = open(os.path.join(work, "vae.csv"), "a", encoding="utf-8")
    if log.tell() == 0:
        log.write("step,seconds,mse,psnr_held_out\n")
    last, mark, squares = time.time(), spent, []
    while spent < 60 * minutes:
        progress = spent / (60 * minutes)
        size, batch, plain_share = sizes_at(progress)
        factor = cosine(progress)
        for optimiser, rate in ((muon, lr), (adam, adam_lr)):
            for group in optimiser.param_groups:
                group["lr"] = rate * factor
        x = draw_batch(pool, rng, size, batch, plain_share)
        x = x.to(memory_format=torch.channels_last)
        noise = torch.randn(batch, LATENT_CHANNELS, size // 8, size // 8)
        loss, square = train(x, noise)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(rest, 1.0)
        muon.step()
        adam.step()
        muon.zero_grad()
        adam.zero_grad()
        step += 1
        ema.update(vae, step)
        squares.append(square.item())
        spent, last = spent + time.time() - last, time.time()
        if spent - mark >= 60 or spent >= 60 * minutes:
            mark = spent
            decibel = psnr(ema.module, held)
            print(f"vae step {step} {spent:.0f} s mse {np.mean(squares):.5f} held-out {decibel:.2f} dB",
                  flush=True)
            log.write(f"{step},{spent:.0f},{np.mean(squares):.6f},{decibel:.3f}\n")
            log.flush()
            squares = []
            torch.save({"vae": vae.state_dict(), "ema": ema.module.state_dict(),
                        "muon": muon.state_dict(), "adam": adam.state_dict(),
                        "step": step, "spent": spent}, path + ".new")
            os.replace(path + ".new", path)


def normalised_vae(work: str, seed: int) -> AutoencoderKL:
    """Returns the averaged VAE with latents of zero mean and unit covariance on training scenes.

    The affine map goes into the 1x1 convolutions on either side of the latents, so pictures
    stay the same.  The log-variance rows, which training never used, are set to the fixed noise.
    """
    vae = build_vae()
    vae.load_state_dict(torch.load(os.path.join(work, "vae.pt"))["ema"])
    vae.eval()
    x = to_tensor(scene_pictures(seed + 3, 1000, False))
    with torch.no_grad():
        z = torch.cat([vae.encode(part).latent_dist.mean for part in x.split(50)])
        flat = z.double().permute(1, 0, 2, 3).flatten(1)
        mean = flat.mean(1)
        values, vectors = torch.linalg.eigh(torch.cov(flat))
        whiten = vectors @ torch.diag(values.rsqrt()) @ vectors.T
        colour = vectors @ torch.diag(values.sqrt()) @ vectors.T
        n = LATENT_CHANNELS
        inner, outer = vae.quant_conv, vae.post_quant_conv
        weight = inner.weight[:n, :, 0, 0].double()
        inner.weight[:n] = (whiten @ weight)[:, :, None, None].float()
        inner.bias[:n] = (whiten @ (inner.bias[:n].double() - mean)).float()
        inner.weight[n:] = 0
        inner.bias[n:] = 2 * math.log(NOISE)
        weight = outer.weight[:, :, 0, 0].double()
        outer.bias += (weight @ mean).float()
        outer.weight.copy_((weight @ colour)[:, :, None, None].float())
    print("latents before: mean", [round(v, 3) for v in mean.tolist()],
          "variances", [round(v, 3) for v in values.tolist()])
    return vae
