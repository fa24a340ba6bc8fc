"""Writes tests/golden/vae-*: tiny random AutoencoderKL models and their outputs in diffusers."""
import copy
import json
import pathlib

import torch
from diffusers import AutoencoderKL
from safetensors.torch import load_file, save_file

ROOT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden"

MODELS = {
    "vae-quant": dict(block_out_channels=(8, 12, 4), layers_per_block=1, norm_num_groups=4, latent_channels=4,
                      scaling_factor=0.18215, latent=(3, 5, 9)),
    "vae-shift": dict(block_out_channels=(8, 16), layers_per_block=2, norm_num_groups=8, latent_channels=3,
                      scaling_factor=0.3611, shift_factor=0.1159, use_quant_conv=False, use_post_quant_conv=False,
                      mid_block_add_attention=False, latent=(4, 3, 7)),
    "vae-old-names": dict(block_out_channels=(16,), layers_per_block=1, norm_num_groups=8, latent_channels=4,
                          scaling_factor=0.13025, latent=(3, 7, 6)),
}
OLD_NAMES = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}


def watch(half, stages):
    """Makes the next call of an encoder or decoder store each stage's output for the first sample in `stages`."""
    modules = {"conv_in": half.conv_in, "mid_block": half.mid_block}
    blocks = half.down_blocks if hasattr(half, "down_blocks") else half.up_blocks
    modules |= {f"block.{i}": block for i, block in enumerate(blocks)}
    for name, module in modules.items():
        module.register_forward_hook(lambda _m, _i, out, name=name: stages.__setitem__(name, out[:1].clone()))


def run(model, z, image):
    golden = {}
    for half in ("encoder", "decoder"):
        stages = {}
        watch(getattr(model, half), stages)
        if half == "encoder":
            posterior = model.encode(image).latent_dist
            golden |= {"mean": posterior.mean, "logvar": posterior.logvar}
        else:
            golden["image"] = model.decode(z).sample
        golden |= {f"{half}.{name}": out for name, out in stages.items()}
    return {name: tensor.float().contiguous() for name, tensor in golden.items()}


def use_old_names(folder):
    path = folder / "diffusion_pytorch_model.safetensors"
    weights = load_file(path)
    for name in list(weights):
        for new, old in OLD_NAMES.items():
            if f".attentions.0.{new}." in name:
                weights[name.replace(new, old)] = weights.pop(name)
    save_file(weights, path)


@torch.no_grad()
def main():
    for number, (name, options) in enumerate(MODELS.items()):
        torch.manual_seed(number)
        batch, height, width = options.pop("latent")
        levels = len(options["block_out_channels"])
        model = AutoencoderKL(down_block_types=["DownEncoderBlock2D"] * levels,
                              up_block_types=["UpDecoderBlock2D"] * levels, **options).eval()
        for key, parameter in model.named_parameters():
            if parameter.dim() == 1:
                torch.nn.init.normal_(parameter, mean=1.0 if "norm" in key and key.endswith("weight") else 0.0, std=0.3)
            else:
                torch.nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
        folder = ROOT / name
        model.save_pretrained(folder)
        if name == "vae-old-names":
            use_old_names(folder)
        config = json.loads((folder / "config.json").read_text())
        del config["_diffusers_version"]
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")

        factor = 2 ** (levels - 1)
        latents = torch.randn(batch, model.config.latent_channels, height, width)  # as the denoiser returns them
        z = latents / model.config.scaling_factor + (model.config.shift_factor or 0.0)
        image = torch.rand(batch, 3, height * factor, width * factor) * 2 - 1
        golden = {"latents": latents, "input": image} | run(copy.deepcopy(model), z, image)
        half = run(model.to(torch.bfloat16), z.bfloat16(), image.bfloat16())
        golden |= {f"{key}.bf16": half[key] for key in ("image", "mean", "logvar")}
        (folder / "golden").mkdir(exist_ok=True)
        save_file(golden, folder / "golden" / "golden.safetensors")


if __name__ == "__main__":
    main()
