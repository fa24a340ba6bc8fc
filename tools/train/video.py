"""Trains the small text-to-video model that ships with the project, models/shapes-video, in the form of Open-Sora 1.2.

The phases are, in order, text, frames, vae, latents, denoiser, remade, decoders, export and score; `all` runs them one after
another.
`frames` codes training videos with the image model's VAE, frame by frame; `vae` trains the temporal VAE on them;
`latents` makes the denoiser's data; `remade` lets the denoiser remove noise from latents, and `decoders` trains both decoders on
the result.  Each phase keeps its state in the work folder and continues where it was stopped.
The vae, denoiser and decoders phases have a budget of processor time over all their restarts; a later run with a larger budget
continues with the learning rate that belongs to that budget.
"""

from __future__ import annotations

from tools import missing_packages  # noqa: F401  (says how to get those that are missing)
import argparse
import json
import os
import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing
from safetensors.torch import load_file, save_file

from tools.train import stdit as demo_stdit
from tools.train import text as demo_text
from tools.train import video_decoder as demo_video_decoder
from tools.train import video_denoiser as denoising
from tools.train import video_scenes as scenes
from tools.train import video_text as demo_video_text
from tools.train import video_vae as demo_video_vae
from tools.train.demo import DTYPES, write_index
from tools.train.run import device, save_weights, use_device

PHASES = ("text", "frames", "vae", "latents", "denoiser", "remade", "decoders", "export", "score")


def write_json(path: str, value) -> None:
    with open(path, "w", encoding="utf-8") as target:
        json.dump(value, target, indent=2)
        target.write("\n")


def save_part(out: str, name: str, config: dict, weights: dict[str, torch.Tensor], dtype: torch.dtype) -> None:
    folder = os.path.join(out, name)
    os.makedirs(folder, exist_ok=True)
    write_json(os.path.join(folder, "config.json"), config)
    weights = {key: value.detach().to(dtype).contiguous() for key, value in weights.items()}
    save_file(weights, os.path.join(folder, "model.safetensors"), {"format": "pt"})


def export(work: str, out: str, dtype: torch.dtype) -> None:
    """Writes the model with the published names of weights."""
    os.makedirs(out, exist_ok=True)
    _, encoder = demo_video_text.load_text(work)
    encoder.cpu().to(dtype).save_pretrained(os.path.join(out, "text_encoder"))
    demo_text.save_tokenizer(os.path.join(work, "spiece.model"), os.path.join(out, "tokenizer"))
    denoiser = denoising.load_denoiser(work)
    # The size of the latents of the videos for which the model was trained.
    size = [demo_video_vae.LATENT_CLIP, scenes.SIZE // 8, scenes.SIZE // 8]
    save_part(out, "transformer", {"_class_name": "STDiT3", "model_type": "STDiT3", "input_size": size, **denoiser.config},
              denoiser.state_dict(), dtype)
    save_part(out, "vae", demo_video_vae.published_config(), demo_video_vae.published_weights(work), dtype)
    os.makedirs(os.path.join(out, "scheduler"), exist_ok=True)
    write_json(os.path.join(out, "scheduler", "scheduler_config.json"),
               {"_class_name": "RFLOW", "num_sampling_steps": denoising.STEPS, "use_timestep_transform": True,
                "cfg_scale": denoising.GUIDANCE})
    write_index(out, pipeline="OpenSoraPipeline", scheduler=("opensora", "RFLOW"),
                text_encoder=("transformers", "T5EncoderModel"), tokenizer=("transformers", "T5Tokenizer"),
                transformer=("opensora", "STDiT3"), vae=("opensora", "OpenSoraVAE_V1_2"))
    total = sum(os.path.getsize(os.path.join(path, name)) for path, _, names in os.walk(out) for name in names)
    print(f"exported {total / 2**20:.1f} MiB to {out}")


def import_model(out: str, work: str) -> None:
    """Fills a work folder from an exported model for more training; the optimisers' state is lost."""
    from transformers import T5EncoderModel

    shutil.copy(os.path.join(out, "tokenizer", "spiece.model"), work)
    encoder = T5EncoderModel.from_pretrained(os.path.join(out, "text_encoder"), dtype=torch.float32)
    torch.save(encoder.state_dict(), os.path.join(work, "text.pt"))
    weights = {key: value.float() for key, value in load_file(os.path.join(out, "vae", "model.safetensors")).items()}
    temporal = {key.removeprefix("temporal_vae."): value for key, value in weights.items() if key.startswith("temporal_vae.")}
    save_weights(os.path.join(work, "vae.pt"), temporal)
    torch.save((weights["shift"], weights["scale"]), os.path.join(work, "statistics.pt"))
    spatial = demo_video_vae.spatial_weights(weights)
    torch.save(spatial, os.path.join(work, demo_video_vae.SPATIAL_STATE))
    weights = {key: value.float() for key, value in load_file(os.path.join(out, "transformer", "model.safetensors")).items()}
    save_weights(os.path.join(work, "denoiser.pt"), weights)


def write_frames(args) -> None:
    demo_video_vae.write_frames(args.work, args.seed, args.shards, args.processes)


def train_vae(args) -> None:
    demo_video_vae.train_vae(args.work, args.seed, args.vae_minutes, args.vae_lr, args.vae_lr / 10)


def write_latents(args) -> None:
    denoising.write_latents(args.work, args.processes)


def train_denoiser(args) -> None:
    denoising.train_denoiser(args.work, args.seed, args.denoiser_minutes, args.muon_lr, compiled=not args.eager)


def write_remade(args) -> None:
    demo_video_decoder.write_remade(args.work, args.seed, args.remade_shards, args.processes)


def train_decoders(args) -> None:
    demo_video_decoder.train_decoders(args.work, args.seed, args.decoder_minutes, args.decoder_lr)


def train_process(rank: int, store: str, train, args) -> None:
    torch.set_num_threads(args.threads)
    use_device(args.device)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=args.processes)
    train(args)
    dist.barrier()
    dist.destroy_process_group()


def train_together(train, args) -> None:
    if args.processes == 1:
        train(args)
        return
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(train_process, (os.path.join(folder, "store"), train, args), nprocs=args.processes)


def score(work: str, seed: int, each: int, frames: int, guidance: float, steps: int) -> None:
    """Judges the videos of held-out captions and writes strips of them, strips-score-FRAMES.png."""
    maker = denoising.VideoMaker(work, demo_video_text.load_text(work))
    counts = denoising.evaluate(maker, denoising.load_denoiser(work).to(device()), work, f"score-{frames}", each, seed,
                                frames=frames, guidance=guidance, steps=steps)
    write_json(os.path.join(work, f"scores-{frames}.json"), counts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", choices=PHASES + ("import", "all"))
    parser.add_argument("--work", default="build/demo-video", help="folder of states, logs and caches")
    parser.add_argument("--out", default="models/shapes-video", help="folder of the exported model")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda, where batches are larger and time is the clock's")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default 1)")
    parser.add_argument("--shards", type=int, default=12, help="frames: shards of 1024 videos of 17 frames and 128 of 34")
    parser.add_argument("--vae-minutes", type=float, default=40)
    parser.add_argument("--vae-lr", type=float, default=0.02, help="vae: highest learning rate of the kernels")
    parser.add_argument("--denoiser-minutes", type=float, default=360)
    parser.add_argument("--muon-lr", type=float, default=0.02, help="denoiser: highest learning rate of the blocks' matrices")
    parser.add_argument("--remade-shards", type=int, default=8, help="remade: shards of 128 videos")
    parser.add_argument("--decoder-minutes", type=float, default=31)
    parser.add_argument("--decoder-lr", type=float, default=0.004, help="decoders: highest learning rate of the kernels")
    parser.add_argument("--processes", type=int, default=1,
                        help="processes with --threads threads each (default 1): frames, latents and remade: they divide the "
                        "shards; vae, denoiser and decoders, on a CPU: they share each step")
    parser.add_argument("--eager", action="store_true", help="do not compile the denoiser")
    parser.add_argument("--dtype", choices=DTYPES, default="float16", help="dtype of the exported model (default float16)")
    parser.add_argument("--each", type=int, default=50, help="score: number of captions of each kind (default 50)")
    parser.add_argument("--frames", type=int, default=scenes.FRAMES, help="score: frames of each video")
    parser.add_argument("--guidance", type=float, default=denoising.GUIDANCE, help="score: guidance scale")
    parser.add_argument("--steps", type=int, default=denoising.STEPS, help="score: steps of the sampler")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    use_device(args.device)
    os.makedirs(args.work, exist_ok=True)
    for phase in PHASES if args.phase == "all" else (args.phase,):
        if phase == "text":
            if not os.path.exists(os.path.join(args.work, "text.pt")):
                demo_video_text.train_text(args.work, args.seed)
        elif phase == "frames":
            train_together(write_frames, args)
        elif phase == "vae":
            train_together(train_vae, args)
        elif phase == "latents":
            train_together(write_latents, args)
        elif phase == "denoiser":
            train_together(train_denoiser, args)
        elif phase == "import":
            import_model(args.out, args.work)
        elif phase == "remade":
            train_together(write_remade, args)
        elif phase == "decoders":
            train_together(train_decoders, args)
        elif phase == "export":
            export(args.work, args.out, DTYPES[args.dtype])
        elif phase == "score":
            score(args.work, args.seed, args.each, args.frames, args.guidance, args.steps)


if __name__ == "__main__":
    main()
