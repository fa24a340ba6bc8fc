"""Trains the small text-to-image models that ship with the project, and exports them: models/shapes in
the form of PixArt, models/shapes-xl in that of SDXL (--form sdxl), which takes its VAE from the first.

The phases are, in order, text, vae, latents, denoiser, export and score; `all` runs them one after
another.  Each phase keeps its state in the work folder and continues where it was stopped.  `import`
makes a work folder from an exported model, so that training can continue after the folder is lost.
The vae and denoiser phases have a time budget over all their restarts; a later run with a larger
budget continues with the learning rate that belongs to that budget.
"""

from __future__ import annotations

from tools import missing_packages  # noqa: F401  (says how to get those that are missing)
import argparse
import csv
import json
import os
import shutil
import tempfile

import matplotlib
import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file

from tools.score import check_demo
from tools.train import clip as demo_clip
from tools.train import denoiser as demo_denoiser
from tools.train import pixart as demo_pixart
from tools.train import scenes as demo_scenes
from tools.train import text as demo_text
from tools.train import unet as demo_unet
from tools.train import vae as demo_vae

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402  (the backend must be chosen before this import)

PHASES = ("text", "vae", "latents", "denoiser", "export", "score")
OTHERS = ("import", "curves")
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def write_index(out: str, **parts: tuple[str, str]) -> None:
    name, parts = parts.pop("pipeline"), {key: list(parts[key]) for key in sorted(parts)}
    index = {"_class_name": name, "_diffusers_version": "0.42.1", **parts}
    with open(os.path.join(out, "model_index.json"), "w", encoding="utf-8") as target:
        json.dump(index, target, indent=2)
        target.write("\n")


class PixArt:
    """Describes models/shapes."""

    denoiser, folder, work, minutes = demo_pixart, "models/shapes", "build/demo", 90

    @staticmethod
    def make_vae(work: str, seed: int, minutes: float) -> None:
        demo_vae.train_vae(work, seed, minutes)

    @staticmethod
    def vae(work: str, seed: int):
        return demo_vae.normalised_vae(work, seed)

    @staticmethod
    def export_text(work: str, out: str, dtype: torch.dtype) -> None:
        _, encoder = demo_text.load_text(work)
        encoder.to(dtype).save_pretrained(os.path.join(out, "text_encoder"))
        demo_text.save_tokenizer(os.path.join(work, "spiece.model"), os.path.join(out, "tokenizer"))
        write_index(out, pipeline="PixArtAlphaPipeline",
                    scheduler=("diffusers", "DPMSolverMultistepScheduler"),
                    text_encoder=("transformers", "T5EncoderModel"),
                    tokenizer=("transformers", "T5Tokenizer"),
                    transformer=("diffusers", "PixArtTransformer2DModel"), vae=("diffusers", "AutoencoderKL"))

    denoiser_folder = "transformer"

    @staticmethod
    def import_text(folder: str, work: str) -> None:
        from transformers import T5EncoderModel

        shutil.copy(os.path.join(folder, "tokenizer", "spiece.model"), work)
        encoder = T5EncoderModel.from_pretrained(os.path.join(folder, "text_encoder"), dtype=torch.float32)
        torch.save(encoder.state_dict(), os.path.join(work, "text.pt"))


class Sdxl:
    """Describes models/shapes-xl."""

    denoiser, folder, work, minutes = demo_unet, "models/shapes-xl", "build/demo-xl", 44

    @staticmethod
    def make_vae(work: str, seed: int, minutes: float) -> None:
        """Does nothing because this form takes the first model's VAE, which is already normalised."""

    @staticmethod
    def vae(work: str, seed: int):
        from diffusers import AutoencoderKL

        return AutoencoderKL.from_pretrained(os.path.join(PixArt.folder, "vae")).eval().float()

    @staticmethod
    def export_text(work: str, out: str, dtype: torch.dtype) -> None:
        _, encoders = demo_clip.load_text(work)
        for name, encoder in zip(("text_encoder", "text_encoder_2"), encoders):
            encoder.to(dtype).save_pretrained(os.path.join(out, name))
        demo_clip.save_tokenizers(out)
        write_index(out, pipeline="StableDiffusionXLPipeline",
                    scheduler=("diffusers", "EulerDiscreteScheduler"),
                    text_encoder=("transformers", "CLIPTextModel"),
                    text_encoder_2=("transformers", "CLIPTextModelWithProjection"),
                    tokenizer=("transformers", "CLIPTokenizer"), tokenizer_2=("transformers", "CLIPTokenizer"),
                    unet=("diffusers", "UNet2DConditionModel"), vae=("diffusers", "AutoencoderKL"))

    denoiser_folder = "unet"

    @staticmethod
    def import_text(folder: str, work: str) -> None:
        from transformers import CLIPTextModel, CLIPTextModelWithProjection

        demo_clip.save_tokenizers(work)
        encoders = torch.nn.ModuleList([
            CLIPTextModel.from_pretrained(os.path.join(folder, "text_encoder"), dtype=torch.float32),
            CLIPTextModelWithProjection.from_pretrained(os.path.join(folder, "text_encoder_2"),
                                                        dtype=torch.float32)])
        torch.save(encoders.state_dict(), os.path.join(work, "clip.pt"))


FORMS = {"pixart": PixArt, "sdxl": Sdxl}


def export(form, work: str, out: str, seed: int, dtype: torch.dtype) -> None:
    """Writes the model in diffusers' layout."""
    os.makedirs(out, exist_ok=True)
    for name, module in (("vae", form.vae(work, seed)),
                         (form.denoiser_folder, demo_denoiser.load_denoiser(form.denoiser, work))):
        module.to(dtype).save_pretrained(os.path.join(out, name))
    form.denoiser.build_scheduler().save_pretrained(os.path.join(out, "scheduler"))
    form.export_text(work, out, dtype)
    total = sum(os.path.getsize(os.path.join(path, name))
                for path, _, names in os.walk(out) for name in names)
    print(f"exported {total / 2**20:.1f} MiB to {out}")


def import_model(form, folder: str, work: str) -> None:
    """Fills a work folder from an exported model for more training; the optimisers' state is lost."""
    from diffusers import AutoencoderKL

    form.import_text(folder, work)
    vae = AutoencoderKL.from_pretrained(os.path.join(folder, "vae"), torch_dtype=torch.float32)
    torch.save({"ema": vae.state_dict()}, os.path.join(work, "vae.pt"))
    denoiser = load_denoiser(form, folder)
    torch.save({"denoiser": denoiser.state_dict(), "ema": denoiser.state_dict(), "optimisers": [],
                "step": 0, "spent": 0.0}, os.path.join(work, "denoiser.pt"))


def load_denoiser(form, folder: str):
    denoiser = form.denoiser.build()
    denoiser.load_state_dict(load_file(os.path.join(folder, form.denoiser_folder,
                                                    "diffusion_pytorch_model.safetensors")))
    return denoiser.eval().float()


def sheet(pictures: np.ndarray, columns: int) -> Image.Image:
    """Arranges pictures in rows with thin gray lines between them."""
    framed = np.pad(pictures, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=90)
    rows = [np.concatenate(list(framed[i : i + columns]), 1)
            for i in range(0, len(framed), columns)]
    return Image.fromarray(np.concatenate(rows))


def score(form, folder: str, work: str, seed: int, each: int, guidance: float | None) -> None:
    """Generates held-out captions with the exported model, and checks and saves the pictures."""
    from diffusers import AutoencoderKL

    with tempfile.TemporaryDirectory() as text:
        form.import_text(folder, text)
        coder_and_encoder = form.denoiser.load_text(text)
    vae = AutoencoderKL.from_pretrained(os.path.join(folder, "vae"), torch_dtype=torch.float32).eval()
    captions, pictures, counts = demo_denoiser.score(
        form.denoiser, load_denoiser(form, folder), vae, coder_and_encoder, seed=seed, each=each,
        guidance=guidance)
    check_demo.print_summary(counts)
    out = os.path.join(work, "pictures")
    os.makedirs(out, exist_ok=True)
    for index, picture in enumerate(pictures):
        Image.fromarray(picture).save(os.path.join(out, f"{index:04d}.png"))
    with open(os.path.join(work, "captions.txt"), "w", encoding="utf-8") as lines:
        lines.write("\n".join(captions) + "\n")
    # A third are single objects, as in training. The sheet takes the first of each kind, not the best.
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
    """Plots the losses of all trainings into one image."""
    has_vae = os.path.exists(os.path.join(work, "vae.csv"))
    figure, axes_of = pyplot.subplots(1, 2 + has_vae, figsize=(4.5 * (2 + has_vae), 3.6))
    left, right = axes_of[0], axes_of[-1]
    log = read_log(os.path.join(work, "text.csv"))
    left.semilogy(log["step"], log["loss"])
    left.set(title="Text encoder", xlabel="step", ylabel="cross-entropy, sum of 12 heads")
    if has_vae:
        log = read_log(os.path.join(work, "vae.csv"))
        axes_of[1].plot([s / 60 for s in log["seconds"]], log["psnr_held_out"])
        axes_of[1].set(title="VAE", xlabel="minutes", ylabel="PSNR on held-out scenes, dB")
    log = read_log(os.path.join(work, "denoiser.csv"))
    minutes = [s / 60 for s in log["seconds"]]
    for key, label in (("loss", "all timesteps"), ("loss_low", "t < 333"),
                       ("loss_mid", "333 to 665"), ("loss_high", "t > 665")):
        right.semilogy(minutes, log[key], label=label)
    right.set(title="Denoiser", xlabel="minutes", ylabel="error of v")
    right.legend(fontsize=8)
    for axes in axes_of:
        axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=80)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", choices=PHASES + OTHERS + ("all",))
    parser.add_argument("--form", choices=FORMS, default="pixart", help="which model (default pixart)")
    parser.add_argument("--work", help="folder of states, logs and caches (default build/demo, build/demo-xl)")
    parser.add_argument("--out", help="folder of the exported model (default models/shapes, models/shapes-xl)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default 1)")
    parser.add_argument("--vae-minutes", type=float, default=18)
    parser.add_argument("--denoiser-minutes", type=float, help="training budget of the denoiser (default 90, sdxl 44)")
    parser.add_argument("--latent-shards", type=int, default=20,
                        help="shards of 2048 training pictures (default 20)")
    parser.add_argument("--muon-lr", type=float,
                        help="denoiser: highest learning rate of the blocks' matrices")
    parser.add_argument("--single-share", type=float, default=demo_scenes.SINGLE_SHARE,
                        help="denoiser: share of single objects before the last sixth")
    parser.add_argument("--eager", action="store_true", help="do not compile the denoiser")
    parser.add_argument("--dtype", choices=DTYPES, default="float16", help="dtype of the exported model (default float16)")
    parser.add_argument("--each", type=int, default=200, help="score: number of captions of each kind (default 200)")
    parser.add_argument("--guidance", type=float, help="score: guidance scale (default 4.5, sdxl 5)")
    args = parser.parse_args()
    form = FORMS[args.form]
    work, out = args.work or form.work, args.out or form.folder
    torch.set_num_threads(args.threads)
    os.makedirs(work, exist_ok=True)
    for phase in PHASES if args.phase == "all" else (args.phase,):
        if phase == "text":
            form.denoiser.train_text(work, args.seed)
        elif phase == "vae":
            form.make_vae(work, args.seed, args.vae_minutes)
        elif phase == "latents":
            demo_denoiser.write_latents(work, form.vae(work, args.seed), args.seed, args.latent_shards)
        elif phase == "denoiser":
            demo_denoiser.train_denoiser(form.denoiser, work, form.vae(work, args.seed), args.seed,
                                         args.denoiser_minutes or form.minutes, muon_lr=args.muon_lr,
                                         single_share=args.single_share, compiled=not args.eager)
        elif phase == "import":
            import_model(form, out, work)
        elif phase == "export":
            export(form, work, out, args.seed, DTYPES[args.dtype])
        elif phase == "score":
            score(form, out, work, args.seed, args.each, args.guidance)
        if phase in ("score", "curves"):
            curves(work, os.path.join(work, "curves.png"))


if __name__ == "__main__":
    main()
