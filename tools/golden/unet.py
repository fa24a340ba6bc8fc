"""Writes tests/golden/unet-*: tiny random U-Nets and their outputs in diffusers."""
import pathlib

import torch
from diffusers import StableDiffusionPipeline, UNet2DConditionModel
from safetensors.torch import save_file

ROOT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden"

# These have the structures of Stable Diffusion 1.5, 2.1 and XL, and of a latent consistency model of 1.5. Sizes are not square, and
# odd on some level.
MODELS = {
    "unet-sd15": dict(block_out_channels=(8, 16), layers_per_block=(1, 2), norm_num_groups=4, attention_head_dim=2,
                      cross_attention_dim=10, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
                      up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), latent=(6, 10)),
    "unet-sd21": dict(block_out_channels=(8, 8, 16), layers_per_block=1, norm_num_groups=4, attention_head_dim=(1, 2, 4),
                      cross_attention_dim=12, use_linear_projection=True, upcast_attention=True,
                      down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
                      up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"), latent=(9, 7)),
    "unet-sdxl": dict(block_out_channels=(8, 16, 16), layers_per_block=2, norm_num_groups=4, attention_head_dim=(1, 2, 4),
                      cross_attention_dim=14, use_linear_projection=True, transformer_layers_per_block=(1, 1, 2),
                      addition_embed_type="text_time", addition_time_embed_dim=4, projection_class_embeddings_input_dim=30,
                      down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
                      up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"), latent=(12, 10)),
    "unet-lcm": dict(block_out_channels=(4, 8), layers_per_block=1, norm_num_groups=2, attention_head_dim=2,
                     cross_attention_dim=6, time_cond_proj_dim=10, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
                     up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), latent=(6, 8)),
}
TOKENS = 5
TIMESTEPS = [999.0, 0.0, 417.5]
GUIDANCE = [8.3, 1.0, 0.4]  # scales, of each sample
SIZES = [96.0, 80.0, 3.0, 5.0, 100.0, 90.0]  # original, crop, target


def main():
    for number, (name, options) in enumerate(MODELS.items()):
        torch.manual_seed(number)
        height, width = options.pop("latent")
        model = UNet2DConditionModel(sample_size=16, **options).eval()
        for parameter in model.parameters():  # including those that start at zero or one
            torch.nn.init.normal_(parameter, std=0.3 if parameter.dim() == 1 else parameter[0].numel() ** -0.5)
        model.save_pretrained(ROOT / name)

        prompt_of = [0, 1, 1]  # three samples share two prompts
        golden = {"latents": torch.randn(3, 4, height, width)}
        prompts = torch.randn(2, TOKENS, options["cross_attention_dim"])
        pooled = torch.randn(2, 6)
        for row in range(2):
            golden[f"prompt.{row}"] = prompts[row].clone()
            golden[f"pooled.{row}"] = pooled[row].clone()
        sizes = torch.tensor([SIZES] * 3)
        condition = None
        if width := options.get("time_cond_proj_dim"):
            golden["guidance_weight"] = torch.tensor([scale - 1 for scale in GUIDANCE])
            condition = StableDiffusionPipeline.get_guidance_scale_embedding(None, golden["guidance_weight"], width)
            golden["guidance_embedding"] = condition
        for dtype, suffix in ((torch.float32, ""), (torch.bfloat16, ".bf16")):
            model = model.to(dtype)
            added = {"text_embeds": pooled[prompt_of].to(dtype), "time_ids": sizes.to(dtype)}
            for timestep in TIMESTEPS:
                with torch.no_grad():
                    out = model(golden["latents"].to(dtype), torch.tensor(timestep), prompts[prompt_of].to(dtype),
                                timestep_cond=None if condition is None else condition.to(dtype),
                                added_cond_kwargs=added).sample
                golden[f"output.{timestep:g}{suffix}"] = out.float().contiguous()
        (ROOT / name / "golden").mkdir(exist_ok=True)
        save_file(golden, ROOT / name / "golden" / "golden.safetensors")


if __name__ == "__main__":
    main()
