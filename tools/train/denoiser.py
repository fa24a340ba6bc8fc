"""The demo models' denoisers: training on cached latents, and sampling.  The denoiser's network and its
conditions come from its form: demo_pixart or demo_unet."""

from __future__ import annotations

import glob
import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL

from tools.score import check_demo
from tools.train import scenes
from tools.train import text as demo_text
from tools.train.optim import Ema, Muon, trapezoid

CAPTION_DROPOUT = 0.1
# Single objects vary more in size, so their shapes converge later: the last sixth of the training
# draws them more often than the scenes do by themselves.
LATE_SINGLE_SHARE = 0.6
LATE = 5 / 6


class LatentCache:
    """Latents of training scenes in shards on disk; shards may be added while training runs."""

    def __init__(self, work: str):
        self.pattern = os.path.join(work, "latents-*.npz")
        self.files: list[str] = []
        self.latents = torch.empty(0)
        self.scenes: list[scenes.Scene] = []
        self.single = self.double = np.empty(0, np.int64)

    def refresh(self) -> None:
        new = [f for f in sorted(glob.glob(self.pattern)) if f not in self.files]
        parts = [self.latents] if len(self.latents) else []
        for name in new:
            shard = np.load(name)
            parts.append(torch.from_numpy(shard["latents"]))
            self.scenes += [demo_text.scene_of(row) for row in shard["attributes"]]
            self.files.append(name)
        if new:
            self.latents = torch.cat(parts)
            lone = np.array([s.second is None for s in self.scenes])
            self.single, self.double = np.flatnonzero(lone), np.flatnonzero(~lone)


def write_latents(work: str, vae: AutoencoderKL, seed: int, shards: int, each: int = 2048) -> None:
    """Adds shards up to the given number; each is seeded by its index."""
    vae = vae.eval().to(memory_format=torch.channels_last)
    for index in range(shards):
        path = os.path.join(work, f"latents-{index:04d}.npz")
        if os.path.exists(path):
            continue
        rng = np.random.default_rng([seed, 77, index])
        drawn = [scenes.sample_scene(rng) for _ in range(each)]
        latents = []
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            for start in range(0, each, 32):
                pictures = np.stack([scenes.render(s, rng) for s in drawn[start : start + 32]])
                x = torch.from_numpy(pictures).permute(0, 3, 1, 2).float().div(127.5).sub(1)
                x = x.contiguous(memory_format=torch.channels_last)
                moments = vae.encoder(x).float()
                with torch.autocast("cpu", enabled=False):
                    latents.append(vae.quant_conv(moments)[:, :4].half().contiguous())
        attributes = np.array([demo_text.attribute_targets(s) for s in drawn], np.uint8)
        np.savez(path + ".new.npz", latents=torch.cat(latents).numpy(), attributes=attributes)
        os.replace(path + ".new.npz", path)
        print(f"latents: shard {index + 1} of {shards}", flush=True)


@torch.no_grad()
def generate(form, denoiser, vae, text, captions, seed: int, guidance: float | None = None,
             batch: int = 32) -> np.ndarray:
    """Returns pictures, uint8 [count, size, size, 3], with the same arithmetic as diffusers' pipeline."""
    guidance = form.GUIDANCE if guidance is None else guidance
    generator = torch.Generator().manual_seed(seed)
    pictures = []
    for start in range(0, len(captions), batch):
        part = captions[start : start + batch]
        count = len(part)
        conditions = form.conditions(text, [None] * count + part)
        scheduler = form.build_scheduler()
        scheduler.set_timesteps(form.SAMPLER_STEPS)
        latents = torch.randn(count, 4, 16, 16, generator=generator) * scheduler.init_noise_sigma
        for t in scheduler.timesteps:
            both = scheduler.scale_model_input(torch.cat([latents, latents]), t)
            unconditional, conditional = form.predict(denoiser, both, t.expand(2 * count), *conditions).chunk(2)
            guided = unconditional + guidance * (conditional - unconditional)
            latents = scheduler.step(guided, t, latents).prev_sample
        images = vae.decode(latents / vae.config.scaling_factor).sample
        images = (images.clamp(-1, 1) + 1) * 127.5
        pictures.append(images.permute(0, 2, 3, 1).round().byte().numpy())
    return np.concatenate(pictures)


def score(form, denoiser, vae, text, seed: int, each: int, guidance: float | None = None):
    """Returns (captions, pictures, counts) for held-out captions."""
    captions = check_demo.held_out_captions(1000, each)
    pictures = generate(form, denoiser, vae, text, captions, seed, guidance)
    verdicts = [check_demo.check(p, c) for p, c in zip(pictures, captions)]
    return captions, pictures, check_demo.summary(verdicts)


class TrainStep(torch.nn.Module):
    """Computes the error of the predicted v. It is one module so that it compiles as a whole."""

    def __init__(self, form, denoiser):
        super().__init__()
        self.form, self.denoiser = form, denoiser
        betas = torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)
        alphas = torch.cumprod(1 - betas, 0)
        self.register_buffer("signal", alphas.sqrt().float())
        self.register_buffer("noise", (1 - alphas).sqrt().float())

    def forward(self, latents, noise, t, *conditions):
        a, s = self.signal[t].view(-1, 1, 1, 1), self.noise[t].view(-1, 1, 1, 1)
        with torch.autocast("cpu", torch.bfloat16):
            v = self.form.predict(self.denoiser, a * latents + s * noise, t, *conditions)
        return F.mse_loss(v.float(), a * noise - s * latents, reduction="none").mean((1, 2, 3))


def optimisers_of(form, denoiser, muon_lr: float, adam_lr: float):
    """Returns Muon for the blocks' matrices and AdamW for everything else."""
    matrices = [p for n, p in denoiser.named_parameters() if form.is_matrix(n, p)]
    chosen = {id(p) for p in matrices}
    rest = [p for p in denoiser.parameters() if id(p) not in chosen]
    return [(Muon(matrices, lr=muon_lr, weight_decay=0.01), muon_lr),
            (torch.optim.AdamW(rest, lr=adam_lr, betas=(0.9, 0.99), weight_decay=0.0), adam_lr)]


def train_denoiser(form, work: str, vae, seed: int, minutes: float, batch: int = 64,
                   muon_lr: float | None = None, single_share: float = scenes.SINGLE_SHARE,
                   score_minutes: float = 10, compiled: bool = True) -> None:
    """Trains for a budget of processor time; a stopped run continues from its last checkpoint."""
    muon_lr = form.MUON_LR if muon_lr is None else muon_lr
    path = os.path.join(work, "denoiser.pt")
    torch.manual_seed(seed)
    text = form.load_text(work)
    cache = LatentCache(work)
    denoiser = form.build()
    ema = Ema(denoiser, 0.9995)
    optimisers = optimisers_of(form, denoiser, muon_lr, muon_lr / 20)
    step, spent = 0, 0.0
    if os.path.exists(path):
        state = torch.load(path)
        denoiser.load_state_dict(state["denoiser"])
        ema.module.load_state_dict(state["ema"])
        for (optimiser, _), saved in zip(optimisers, state["optimisers"]):
            optimiser.load_state_dict(saved)
        step, spent = state["step"], state["spent"]
    rng = np.random.default_rng([seed, step])
    torch.manual_seed(seed + step)
    train = TrainStep(form, denoiser)
    run = torch.compile(train, dynamic=False) if compiled else train
    log = open(os.path.join(work, "denoiser.csv"), "a", encoding="utf-8")
    if log.tell() == 0:
        log.write("step,samples,seconds,loss,loss_low,loss_mid,loss_high,single,two,of\n")

    def save():
        torch.save({"denoiser": denoiser.state_dict(), "ema": ema.module.state_dict(),
                    "optimisers": [o.state_dict() for o, _ in optimisers],
                    "step": step, "spent": spent}, path + ".new")
        os.replace(path + ".new", path)

    def draw():
        share = LATE_SINGLE_SHARE if spent > LATE * 60 * minutes else single_share
        rows = torch.from_numpy(np.where(rng.random(batch) < share, rng.choice(cache.single, batch),
                                         rng.choice(cache.double, batch)))
        captions = ["" if rng.random() < CAPTION_DROPOUT
                    else scenes.caption(cache.scenes[i], rng) for i in rows.tolist()]
        # Timesteps are stratified, so that each batch covers the whole range.
        t = (torch.arange(batch) + torch.rand(batch)) * (1000 / batch)
        latents = cache.latents[rows].float()
        conditions = form.training_conditions(text, captions, rng)
        return latents, torch.randn_like(latents), t.long(), *conditions

    cache.refresh()
    last, mark, scored, losses, times = time.process_time(), spent, spent, [], []
    while spent < 60 * minutes:
        factor = trapezoid(spent / (60 * minutes))
        for optimiser, rate in optimisers:
            for group in optimiser.param_groups:
                group["lr"] = rate * factor
        inputs = draw()
        loss = run(*inputs)
        loss.mean().backward()
        torch.nn.utils.clip_grad_norm_(denoiser.parameters(), 1.0)
        for optimiser, _ in optimisers:
            optimiser.step()
            optimiser.zero_grad()
        step += 1
        ema.update(denoiser, step)
        losses.append(loss.detach())
        times.append(inputs[2])
        now = time.process_time()
        spent, last = spent + now - last, now
        done = spent >= 60 * minutes
        if spent - mark >= 60 or done:
            mark = spent
            cache.refresh()
            all_loss, all_time = torch.cat(losses), torch.cat(times)
            parts = [all_loss[(all_time >= low) & (all_time < high)].mean().item()
                     for low, high in ((0, 333), (333, 666), (666, 1000))]
            losses, times = [], []
            result = ["", "", ""]
            if spent - scored >= 60 * score_minutes or done:
                scored = spent
                _, _, counts = score(form, ema.module, vae, text, seed, 32)
                check_demo.print_summary(counts)
                result = [counts["single"]["right"], counts["two"]["right"], 32]
            row = [step, step * batch, round(spent), *(round(v, 5) for v in
                                                       (all_loss.mean().item(), *parts)), *result]
            print("denoiser", dict(zip(("step", "samples", "seconds", "loss", "low", "mid", "high"),
                                       row)), f"of {len(cache.scenes)} pictures", flush=True)
            log.write(",".join(map(str, row)) + "\n")
            log.flush()
            save()
            last = time.process_time()


def load_denoiser(form, work: str):
    """Returns the denoiser with the averaged weights of the last checkpoint."""
    denoiser = form.build()
    denoiser.load_state_dict(torch.load(os.path.join(work, "denoiser.pt"))["ema"])
    return denoiser.eval()
