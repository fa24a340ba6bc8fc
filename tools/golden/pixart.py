"""Writes tests/golden/pixart-*: tiny random PixArt transformers and their outputs in diffusers."""
import pathlib

import torch
from diffusers import PixArtTransformer2DModel
from safetensors.torch import save_file

ROOT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden"

# Head counts, widths and sizes are not powers of two, and latents are not square.
MODELS = {
    "pixart-alpha": dict(num_attention_heads=3, attention_head_dim=12, num_layers=2, sample_size=128,
                         caption_channels=10, cross_attention_dim=36, latent=(6, 10)),
    "pixart-sigma": dict(num_attention_heads=2, attention_head_dim=10, num_layers=3, sample_size=20,
                         caption_channels=14, cross_attention_dim=20, interpolation_scale=2,
                         use_additional_conditions=False, latent=(20, 20)),
    "pixart-plain": dict(num_attention_heads=1, attention_head_dim=16, num_layers=1, sample_size=9, patch_size=3,
                         in_channels=3, out_channels=3, caption_channels=None, cross_attention_dim=11,
                         use_additional_conditions=False, attention_bias=False, latent=(9, 6)),
}
LENGTHS = [1, 7]  # prompts of two lengths, padded to 9
TIMESTEPS = [999.0, 0.0, 417.5]


def main():
    for number, (name, options) in enumerate(MODELS.items()):
        torch.manual_seed(number)
        height, width = options.pop("latent")
        model = PixArtTransformer2DModel(**options).eval()
        for parameter in model.parameters():  # including those that start at zero
            torch.nn.init.normal_(parameter, std=0.3 if parameter.dim() == 1 else parameter[0].numel() ** -0.5)
        model.save_pretrained(ROOT / name)

        latents = torch.randn(3, model.config.in_channels, height, width)
        prompts = torch.randn(2, 9, options["caption_channels"] or options["cross_attention_dim"])
        mask = torch.zeros(2, 9)
        for row, length in enumerate(LENGTHS):
            mask[row, :length] = 1
        prompt_of = [0, 1, 1]  # three samples share two prompts
        sizes = {"resolution": None, "aspect_ratio": None}
        if model.use_additional_conditions:
            sizes = {"resolution": torch.tensor([[height * 8.0, width * 8.0]] * 3),
                     "aspect_ratio": torch.tensor([[height / width]] * 3)}
        golden = {"latents": latents}
        for row, length in enumerate(LENGTHS):
            golden[f"prompt.{row}"] = prompts[row, :length].clone()
        for dtype, suffix in ((torch.float32, ""), (torch.bfloat16, ".bf16")):
            model = model.to(dtype)
            for timestep in TIMESTEPS:
                with torch.no_grad():
                    out = model(latents.to(dtype), prompts[prompt_of].to(dtype),
                                timestep=torch.full((3,), timestep),
                                added_cond_kwargs={k: v if v is None else v.to(dtype) for k, v in sizes.items()},
                                encoder_attention_mask=mask[prompt_of]).sample
                golden[f"output.{timestep:g}{suffix}"] = out[:, :model.config.in_channels].float().contiguous()
        (ROOT / name / "golden").mkdir(exist_ok=True)
        save_file(golden, ROOT / name / "golden" / "golden.safetensors")


if __name__ == "__main__":
    main()
