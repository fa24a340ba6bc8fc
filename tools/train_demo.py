"""Trains the small text-to-image model that ships with the project, and exports it.

Phases, in order: text, vae, latents, denoiser, export; `all` runs them one after another.  Each
phase keeps its state in the work folder and goes on where it was stopped; `import` makes a work
folder out of an exported model, so that a lost one does not mean starting from nothing.  The training phases
have a wall-clock budget over their whole life, restarts included; a larger one given later
continues the run with the learning rate that belongs to it.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil

import matplotlib
import numpy as np
import torch
from PIL import Image

import check_demo
import demo_denoiser
import demo_scenes
import demo_text
import demo_vae

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402  (needs the backend chosen first)

PHASES = ("text", "vae", "latents", "denoiser", "export", "score")
OTHERS = ("import", "curves")
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def export(work: str, out: str, seed: int, dtype: torch.dtype) -> None:
    """Writes the model in diffusers' layout."""
    for folder in ("scheduler", "text_encoder", "tokenizer", "transformer", "vae"):
        os.makedirs(os.path.join(out, folder), exist_ok=True)
    vae = demo_vae.normalised_vae(work, seed)
    _, encoder = demo_text.load_text(work)
    denoiser = demo_denoiser.load_denoiser(work)
    for name, module in (("vae", vae), ("text_encoder", encoder), ("transformer", denoiser)):
        module.to(dtype).save_pretrained(os.path.join(out, name))
    demo_text.save_tokenizer(os.path.join(work, "spiece.model"), os.path.join(out, "tokenizer"))
    demo_denoiser.build_scheduler().save_pretrained(os.path.join(out, "scheduler"))
    index = {
        "_class_name": "PixArtAlphaPipeline",
        "_diffusers_version": "0.42.1",
        "scheduler": ["diffusers", "DPMSolverMultistepScheduler"],
        "text_encoder": ["transformers", "T5EncoderModel"],
        "tokenizer": ["transformers", "T5Tokenizer"],
        "transformer": ["diffusers", "PixArtTransformer2DModel"],
        "vae": ["diffusers", "AutoencoderKL"],
    }
    with open(os.path.join(out, "model_index.json"), "w", encoding="utf-8") as target:
        json.dump(index, target, indent=2)
        target.write("\n")
    total = sum(os.path.getsize(os.path.join(path, name))
                for path, _, names in os.walk(out) for name in names)
    print(f"exported {total / 2**20:.1f} MiB to {out}")


def import_model(folder: str, work: str) -> None:
    """Fills a work folder from an exported model, for more training; optimisers start afresh."""
    shutil.copy(os.path.join(folder, "tokenizer", "spiece.model"), work)
    denoiser, vae, (_, encoder) = load_exported(folder)
    torch.save(encoder.state_dict(), os.path.join(work, "text.pt"))
    torch.save({"ema": vae.state_dict()}, os.path.join(work, "vae.pt"))
    torch.save({"denoiser": denoiser.state_dict(), "ema": denoiser.state_dict(), "optimisers": [],
                "heads": denoiser.config.num_attention_heads,
                "layers": denoiser.config.num_layers, "step": 0, "spent": 0.0},
               os.path.join(work, "denoiser.pt"))


def load_exported(folder: str):
    """Denoiser, VAE and text side of an exported model, as single precision for the CPU."""
    from diffusers import AutoencoderKL, PixArtTransformer2DModel
    from transformers import T5EncoderModel

    denoiser = PixArtTransformer2DModel.from_pretrained(os.path.join(folder, "transformer"))
    vae = AutoencoderKL.from_pretrained(os.path.join(folder, "vae"))
    encoder = T5EncoderModel.from_pretrained(os.path.join(folder, "text_encoder"),
                                             dtype=torch.float32)
    coder = demo_text.CaptionCoder(os.path.join(folder, "tokenizer", "spiece.model"))
    return denoiser.eval().float(), vae.eval().float(), (coder, encoder.eval())


def sheet(pictures: np.ndarray, columns: int) -> Image.Image:
    """Pictures side by side with thin gray lines between."""
    framed = np.pad(pictures, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=90)
    rows = [np.concatenate(list(framed[i : i + columns]), 1)
            for i in range(0, len(framed), columns)]
    return Image.fromarray(np.concatenate(rows))


def score(folder: str, work: str, seed: int, each: int, guidance: float) -> None:
    """Draws held-out captions with the exported model, checks and saves the pictures."""
    captions, pictures, counts = demo_denoiser.score(
        *load_exported(folder), seed=seed, each=each, guidance=guidance)
    check_demo.print_summary(counts)
    out = os.path.join(work, "pictures")
    os.makedirs(out, exist_ok=True)
    for index, picture in enumerate(pictures):
        Image.fromarray(picture).save(os.path.join(out, f"{index:04d}.png"))
    with open(os.path.join(work, "captions.txt"), "w", encoding="utf-8") as lines:
        lines.write("\n".join(captions) + "\n")
    # A third single objects, as in training; the first of each kind, not chosen.
    chosen = list(range(5)) + list(range(each, each + 11))
    sheet(pictures[chosen], 4).save(os.path.join(work, "sheet.png"))
    with open(os.path.join(work, "sheet.txt"), "w", encoding="utf-8") as lines:
        lines.write("\n".join(captions[i] for i in chosen) + "\n")
    with open(os.path.join(work, "scores.json"), "w", encoding="utf-8") as target:
        json.dump(counts, target, indent=2)


def read_log(path: str) -> dict[str, list[float]]:
    with open(path, encoding="utf-8") as source:
        rows = list(csv.DictReader(source))
    return {key: [float(r[key] or "nan") for r in rows] for key in rows[0]}


def curves(work: str, path: str) -> None:
    """One picture with the course of the three trainings."""
    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(13, 3.6))
    log = read_log(os.path.join(work, "text.csv"))
    left.semilogy(log["step"], log["loss"])
    left.set(title="Text encoder", xlabel="step", ylabel="cross-entropy, sum of 12 heads")
    log = read_log(os.path.join(work, "vae.csv"))
    middle.plot([s / 60 for s in log["seconds"]], log["psnr_held_out"])
    middle.set(title="VAE", xlabel="minutes", ylabel="PSNR on held-out scenes, dB")
    log = read_log(os.path.join(work, "denoiser.csv"))
    minutes = [s / 60 for s in log["seconds"]]
    for key, label in (("loss", "all timesteps"), ("loss_low", "t < 333"),
                       ("loss_mid", "333 to 665"), ("loss_high", "t > 665")):
        right.semilogy(minutes, log[key], label=label)
    right.set(title="Denoiser", xlabel="minutes", ylabel="error of v")
    right.legend(fontsize=8)
    for axes in (left, middle, right):
        axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=80)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", choices=PHASES + OTHERS + ("all",))
    parser.add_argument("--work", default="build/demo",
                        help="folder of states, logs and caches (default build/demo)")
    parser.add_argument("--out", default="models/shapes",
                        help="folder of the exported model (default models/shapes)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default 1)")
    parser.add_argument("--vae-minutes", type=float, default=18)
    parser.add_argument("--denoiser-minutes", type=float, default=90)
    parser.add_argument("--latent-shards", type=int, default=20,
                        help="shards of 2048 training pictures (default 20)")
    parser.add_argument("--heads", type=int, default=3, help="denoiser: heads of 64 channels")
    parser.add_argument("--layers", type=int, default=6, help="denoiser: layers")
    parser.add_argument("--muon-lr", type=float, default=0.02,
                        help="denoiser: highest learning rate of the blocks' matrices")
    parser.add_argument("--single-share", type=float, default=demo_scenes.SINGLE_SHARE,
                        help="denoiser: share of single objects before the last sixth")
    parser.add_argument("--eager", action="store_true", help="do not compile the denoiser")
    parser.add_argument("--dtype", choices=DTYPES, default="float16", help="of the exported model")
    parser.add_argument("--each", type=int, default=200, help="score: captions of each kind")
    parser.add_argument("--guidance", type=float, default=demo_denoiser.GUIDANCE,
                        help="score: guidance scale")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    os.makedirs(args.work, exist_ok=True)
    for phase in PHASES if args.phase == "all" else (args.phase,):
        if phase == "text":
            demo_text.train_text(args.work, args.seed)
        elif phase == "vae":
            demo_vae.train_vae(args.work, args.seed, args.vae_minutes)
        elif phase == "latents":
            vae = demo_vae.normalised_vae(args.work, args.seed)
            demo_denoiser.write_latents(args.work, vae, args.seed, args.latent_shards)
        elif phase == "denoiser":
            vae = demo_vae.normalised_vae(args.work, args.seed)
            demo_denoiser.train_denoiser(args.work, vae, args.seed, args.denoiser_minutes,
                                         args.heads, args.layers, muon_lr=args.muon_lr,
                                         single_share=args.single_share, compiled=not args.eager)
        elif phase == "import":
            import_model(args.out, args.work)
        elif phase == "export":
            export(args.work, args.out, args.seed, DTYPES[args.dtype])
        elif phase == "score":
            score(args.out, args.work, args.seed, args.each, args.guidance)
        if phase in ("score", "curves"):
            curves(args.work, os.path.join(args.work, "curves.png"))


if __name__ == "__main__":
    main()
