"""Training of the video model's denoiser on cached latents, and its videos."""

from __future__ import annotations

import glob
import os

import numpy as np
import torch
import torch._inductor.config
import torch._inductor.exc
import torch.nn.functional as F
from PIL import Image

from tools.score import check_video
from tools.train import stdit as demo_stdit
from tools.train import video_scenes as scenes
from tools.train import video_text as demo_video_text
from tools.train import video_vae as demo_video_vae
from tools.train.optim import Muon, trapezoid
from tools.train.run import TrainingRun, autocast, device, is_first, process_rank

CAPTION_DROPOUT = 0.1
# Of the rows of a batch so many have their first latents given, as the pipeline's reference images do.
GIVEN_SHARE = 0.08
# So many timesteps are the logistic function of normal numbers (arXiv:2403.03206), the others are uniform. Of true videos
# of two shapes with noise up to 0.3, 0.5 and 1, the model of 69 right captions in 100 made 20, 16 and 11 of 24 right again.
MIDDLE_SHARE = 0.8
# Latent frames of a batch: so many per video, videos in the batch, share of the batches.
LENGTHS = {"short": (5, 32, 0.8), "long": (10, 16, 0.16), "image": (1, 96, 0.04)}
# A GPU's batches have so many times as many, and so many processes draw them.
GPU_BATCHES, GPU_DRAWERS = 8, 12
# The number of the first shard of latents of videos backwards.
BACKWARDS = 5000
FPS, IMAGE_FPS = 24, 120
# More guidance makes colours run over where shapes cross: of 24 captions of two shapes 1 was right at 6, 6 at 4, 13 at 2, 11 at 1.5.
# Of 50, with the decoders before they were trained on: 33 at 2.5, 36 at 2, 33 at 1.5, 25 at 1.
STEPS, GUIDANCE = 30, 2.0
BANDS = (0, 250, 500, 750, 900, 1001)


class LatentCache:
    """Latents of training videos in shards on disk; shards may be added while training runs."""

    def __init__(self, work: str):
        self.pattern = os.path.join(work, "latents-????.npz")
        self.files: list[str] = []
        self.latents = {name: torch.empty(0, device=device()) for name in ("short", "long")}
        self.scenes = {name: [] for name in self.latents}
        self.pairs = {name: np.empty(0, bool) for name in self.latents}

    def refresh(self) -> None:
        for path in sorted(set(glob.glob(self.pattern)) - set(self.files)):
            shard = np.load(path)
            for name in self.latents:
                self.latents[name] = torch.cat([self.latents[name], torch.from_numpy(shard[name]).to(device())])
                self.scenes[name] += [demo_video_text.scene_of(row) for row in shard[name + "_attributes"]]
                self.pairs[name] = np.append(self.pairs[name], demo_video_text.are_pairs(shard[name + "_attributes"]))
            self.files.append(path)


def write_latents(work: str, processes: int = 1) -> None:
    """Makes two shards of normalised latents from each shard of frames that has none yet: of the videos, and of the same
    videos backwards. Processes of one torch.distributed group divide the shards."""
    vae, (shift, scale) = demo_video_vae.load_vae(work), demo_video_vae.statistics(work)
    for index, path in list(enumerate(demo_video_vae.frame_shards(work)))[process_rank() :: processes]:
        for is_backwards in (False, True):
            target = os.path.join(work, f"latents-{BACKWARDS * is_backwards + index:04d}.npz")
            if os.path.exists(target):
                continue
            shard, arrays = np.load(path), {}
            for name in ("short", "long"):
                frames, attributes = shard[name], shard[name + "_attributes"]
                if is_backwards:
                    rows, attributes = demo_video_text.backwards(attributes)
                    frames = frames[rows][:, :, ::-1].copy()
                parts = torch.from_numpy(frames).to(device()).split(16 if device().type == "cpu" else 128)
                z = torch.cat([demo_video_vae.encode(vae, part.float()) for part in parts])
                arrays[name], arrays[name + "_attributes"] = ((z - shift) / scale).half().contiguous().cpu().numpy(), attributes
            np.savez(target + ".new.npz", **arrays)
            os.replace(target + ".new.npz", target)
            print(f"latents: {os.path.basename(target)}", flush=True)


def encode_tokens(encoder, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns states [B, L, C] and mask [B, L]. All batches have one L, because each other one would be compiled anew."""
    ids, mask = ids.to(device()), mask.to(device())
    with torch.no_grad():
        hidden = encoder(input_ids=ids, attention_mask=mask).last_hidden_state
    short = demo_video_text.MAX_TOKENS - mask.shape[1]
    return F.pad(hidden, (0, 0, 0, short)), F.pad(mask, (0, short))


class TrainStep(torch.nn.Module):
    """Computes the error of the predicted velocity of each video. It is one module so that it compiles as a whole."""

    def __init__(self, denoiser):
        super().__init__()
        self.denoiser = denoiser

    def forward(self, latents, noise, t, given, hidden, mask, is_null, fps):
        """t [B] in (0, 1]; given [B, T] says which latents are not noised."""
        noised = torch.lerp(latents, noise, t[:, None, None, None, None])
        z = torch.where(given[:, None, :, None, None], latents, noised)
        times = torch.where(given, 0.0, t[:, None] * demo_stdit.NUM_TIMESTEPS)
        with autocast():
            v = self.denoiser(z, times, hidden, mask, is_null, fps, scenes.SIZE, scenes.SIZE)
        error = (v.float() - (latents - noise)).square().mean((1, 3, 4))  # [B, T]
        return (error * ~given).sum(1) / (~given).sum(1)


def draw_choices(cache: LatentCache, coder, rng, kind: str):
    """Draws what makes a batch, on the host: rows of the cache, tokens of captions, timesteps and conditions."""
    frames, batch, _ = LENGTHS[kind]
    if device().type == "cuda":
        batch *= GPU_BATCHES
    source = "short" if kind == "image" else kind
    rows = scenes.draw_rows(cache.pairs[source], batch, rng)
    captions = [demo_video_text.with_scores(scenes.caption(cache.scenes[source][i], rng), rng) for i in rows]
    is_null = torch.from_numpy(rng.random(batch) < CAPTION_DROPOUT)
    # Timesteps are stratified, so that each batch covers the whole range.
    u = torch.from_numpy((np.arange(batch) + rng.random(batch)) / batch).float()
    t = torch.where(torch.from_numpy(rng.random(batch) < MIDDLE_SHARE), torch.special.ndtri(u.clamp(min=1e-4)).sigmoid(), u)
    given = torch.zeros(batch, frames, dtype=torch.bool)
    if kind != "image":
        given[:, 0] = torch.from_numpy(rng.random(batch) < GIVEN_SHARE)
    fps = torch.full((batch,), float(IMAGE_FPS if kind == "image" else FPS))
    if kind != "image":
        # Motions do not depend on the rate.
        others = torch.from_numpy(rng.choice([8.0, 12.0, 16.0, 30.0], batch)).float()
        fps = torch.where(torch.from_numpy(rng.random(batch) < 0.15), others, fps)
    return torch.from_numpy(rows), t, given, *coder(captions), is_null, fps


class Choices(torch.utils.data.IterableDataset):
    """Yields the kind of each batch and its choices. Processes that share steps draw the same kinds, each with rows of its own."""

    def __init__(self, cache: LatentCache, coder, seed: int, step: int):
        self.cache, self.coder, self.seed = cache, coder, [seed, step]

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        seed = [*self.seed, info.id if info else 0]
        kinds, rng = np.random.default_rng(seed), np.random.default_rng([*seed, process_rank()])
        shares = [share for _, _, share in LENGTHS.values()]
        while True:
            kind = str(kinds.choice(list(LENGTHS), p=shares))
            yield kind, draw_choices(self.cache, self.coder, rng, kind)


def make_batch(cache: LatentCache, encoder, kind: str, choices) -> tuple[torch.Tensor, ...]:
    """Returns the arguments of TrainStep on the device."""
    rows, t, given, ids, mask, is_null, fps = (x.to(device(), non_blocking=True) for x in choices)
    latents = cache.latents["short" if kind == "image" else kind][rows][:, :, : LENGTHS[kind][0]].float()
    return latents, torch.randn_like(latents), t, given, *encode_tokens(encoder, ids, mask), is_null, fps


def is_matrix(name: str, parameter: torch.nn.Parameter) -> bool:
    """Returns whether Muon trains the parameter: it is a matrix of a block."""
    return parameter.ndim == 2 and "_blocks." in name and "table" not in name


def optimisers_of(denoiser, muon_lr: float, adam_lr: float):
    matrices = [p for n, p in denoiser.named_parameters() if is_matrix(n, p)]
    chosen = {id(p) for p in matrices}
    rest = [p for p in denoiser.parameters() if id(p) not in chosen]
    return [(Muon(matrices, lr=muon_lr, weight_decay=0.01), muon_lr),
            (torch.optim.AdamW(rest, lr=adam_lr, betas=(0.9, 0.99), weight_decay=0.0), adam_lr)]


class VideoMaker:
    """Turns captions into videos by the trained parts."""

    def __init__(self, work: str, text):
        self.text, self.spatial, self.vae = text, demo_video_vae.load_spatial(work), demo_video_vae.load_vae(work)
        self.shift, self.scale = demo_video_vae.statistics(work)

    def decode(self, z: torch.Tensor, frames: int) -> np.ndarray:
        latents = demo_video_vae.decode(self.vae, z * self.scale + self.shift, frames)
        return np.stack([demo_video_vae.decode_frames(self.spatial, one) for one in latents])

    def __call__(self, denoiser, captions: list[str], seed: int, frames: int = scenes.FRAMES, steps: int = STEPS,
                 guidance: float = GUIDANCE, batch: int = 16, fast: bool = True) -> np.ndarray:
        """Returns videos, uint8 [count, frames, size, size, 3]. `fast` computes the denoiser in bfloat16."""
        generator = torch.Generator().manual_seed(seed)
        videos = []
        for start in range(0, len(captions), batch):
            part = [demo_video_text.with_scores(caption) for caption in captions[start : start + batch]]
            side, latent_frames = scenes.SIZE // 8, frames // 17 * 5 + (frames % 17 + 3) // 4
            noise = torch.randn(len(part), 4, latent_frames, side, side, generator=generator).to(device())
            coder, encoder = self.text
            hidden, mask = encode_tokens(encoder, *coder(part))
            with autocast(fast):
                z = demo_stdit.sample(denoiser, noise, hidden, mask, frames, FPS, steps, guidance)
            videos.append(self.decode(z.float(), frames))
        return np.concatenate(videos)


def draw_strips(videos, path: str) -> None:
    Image.fromarray(np.concatenate([scenes.strip(video) for video in videos])).save(path)


def write_captions(path: str, captions, verdicts) -> None:
    with open(path, "w", encoding="utf-8") as lines:
        for caption, verdict in zip(captions, verdicts):
            wrong = [part for part in check_video.PARTS if not getattr(verdict, part)]
            lines.write(f"{caption}: {'right' if verdict.right else 'not ' + ', '.join(wrong)}; {'; '.join(verdict.seen)}\n")


def evaluate(maker: VideoMaker, denoiser, work: str, name: str, each: int, seed: int, **options) -> dict:
    """Judges videos of held-out captions, and draws the first of each kind as strips."""
    captions = check_video.held_out_captions(1000, each)
    videos = maker(denoiser, captions, seed, **options)
    verdicts = [check_video.check(video, caption) for video, caption in zip(videos, captions)]
    shown = [*range(min(each, 6)), *range(each, each + min(each, 6))]
    draw_strips([videos[i] for i in shown], os.path.join(work, f"strips-{name}.png"))
    write_captions(os.path.join(work, f"strips-{name}.txt"), captions, verdicts)
    counts = check_video.summary(verdicts)
    check_video.print_summary(counts)
    return counts


def loss_by_time(losses, times) -> list[float]:
    """Returns the mean loss, and those of the bands of timesteps."""
    loss, time = torch.cat(losses).cpu(), torch.cat(times).cpu() * demo_stdit.NUM_TIMESTEPS
    bands = [loss[(time >= low) & (time < high)].mean().item() for low, high in zip(BANDS, BANDS[1:])]
    return [round(value, 5) for value in (loss.mean().item(), *bands)]


def compile_blocks(denoiser) -> None:
    """Compiles blocks, of which there are two kinds, instead of the whole: for GPUs that takes minutes otherwise."""
    torch._dynamo.config.recompile_limit = 32  # one for each kind of block and of batch, with and without gradients
    for block in (*denoiser.spatial_blocks, *denoiser.temporal_blocks):
        block.compile(dynamic=False)


def compile_steps(train: TrainStep, cache: LatentCache, text) -> dict:
    """Returns the training step for each kind of batch: compiled, or as it is where the compiler makes code that its own
    C++ compiler refuses, which depends on the processor and on the number of threads."""
    if device().type == "cuda":
        compile_blocks(train.denoiser)
        return dict.fromkeys(LENGTHS, train)
    steps, (coder, encoder), rng = {}, text, np.random.default_rng(0)
    for kind in LENGTHS:
        compiled = torch.compile(train, dynamic=False)
        try:
            compiled(*make_batch(cache, encoder, kind, draw_choices(cache, coder, rng, kind))).mean().backward()
            steps[kind] = compiled
        except torch._inductor.exc.InductorError as error:
            print(f"denoiser: batches of kind {kind} are not compiled: {str(error).splitlines()[0]}", flush=True)
            steps[kind] = train
    train.zero_grad()
    return steps


def train_denoiser(work: str, seed: int, minutes: float, muon_lr: float = 0.02, score_minutes: float = 15,
                   compiled: bool = True) -> None:
    """Trains for a budget of processor time; a stopped run continues from its last checkpoint."""
    torch.manual_seed(seed)
    torch._inductor.config.cpp.enable_unsafe_math_opt_flag = True  # a seventh faster
    text = demo_video_text.load_text(work)
    cache, maker = LatentCache(work), VideoMaker(work, text)
    denoiser = demo_stdit.STDiT3().to(device())
    optimisers = optimisers_of(denoiser, muon_lr, muon_lr / 20)
    run = TrainingRun(os.path.join(work, "denoiser.pt"), denoiser, 0.9995, optimisers, minutes)
    torch.manual_seed(seed + run.step + 1000003 * process_rank())
    train = TrainStep(denoiser)
    log = open(os.path.join(work, "denoiser.csv"), "a", encoding="utf-8")
    if log.tell() == 0:
        log.write("step,seconds,loss," + ",".join(f"loss_{low}" for low in BANDS[:-1]) + ",single,two,of\n")
    cache.refresh()
    coder, encoder = text
    drawers = 0 if device().type == "cpu" else GPU_DRAWERS
    choices = torch.utils.data.DataLoader(Choices(cache, coder, seed, run.step), batch_size=None, num_workers=drawers,
                                          prefetch_factor=8 if drawers else None, pin_memory=drawers > 0)
    choices = iter(choices)  # its processes begin before this one compiles
    steps = compile_steps(train, cache, text) if compiled else dict.fromkeys(LENGTHS, train)
    run.skip_time()
    pause = 120 if device().type == "cpu" else 15
    mark, scored, losses, times = run.spent, run.spent, [], []
    while not run.done:
        kind, chosen = next(choices)
        inputs = make_batch(cache, encoder, kind, chosen)
        loss = steps[kind](*inputs)
        run.update(loss.mean(), trapezoid(run.progress))
        losses.append(loss.detach())
        times.append(inputs[2])
        if run.spent - mark < pause and not run.done:
            continue
        means, rate = loss_by_time(losses, times), sum(map(len, losses)) / (run.spent - mark)
        mark, losses, times, result = run.spent, [], [], ["", "", ""]
        cache.refresh()
        if not is_first():
            run.skip_time()
            continue
        run.save()
        if run.spent - scored >= 60 * score_minutes or run.done:
            scored = run.spent
            counts = evaluate(maker, run.ema.module, work, f"{run.step:06d}", 12, seed)
            result = [counts["single"]["right"], counts["two"]["right"], 12]
        print(f"denoiser step {run.step} {mark:.0f} s, {rate:.1f} videos/s, loss {means[0]}, by time",
              dict(zip(BANDS, means[1:])), flush=True)
        log.write(",".join(map(str, [run.step, round(mark), *means, *result])) + "\n")
        log.flush()
        run.skip_time()


def load_denoiser(work: str):
    """Returns the denoiser with the averaged weights of the last checkpoint."""
    denoiser = demo_stdit.STDiT3()
    denoiser.load_state_dict(torch.load(os.path.join(work, "denoiser.pt"), map_location="cpu")["ema"])
    return denoiser.eval().requires_grad_(False)
