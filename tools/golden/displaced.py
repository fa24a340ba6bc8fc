"""Writes tests/golden/displaced: the outputs of ranks that see each other's rows of the step before, on diffusers' U-Net."""
import pathlib

import torch
from diffusers import UNet2DConditionModel
from safetensors.torch import load_file, save_file

from tools.reference.displaced_oracle import MODES, Oracle

ROOT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden"

# model, size of the latents (an odd number of rows in one), ranks
CASES = [("unet-sd15", (15, 6), [2, 3, 4, 8]), ("unet-sdxl", (12, 10), [2, 3])]
TIMESTEPS = [900.0, 700.0, 450.0, 200.0]
WARMUP = [0, 1, 2]


def main():
    golden = {}
    for name, (height, width), ranks in CASES:
        unet = UNet2DConditionModel.from_pretrained(ROOT / name).eval()
        inputs = load_file(ROOT / name / "golden" / "golden.safetensors")
        torch.manual_seed(11)
        drift = torch.randn(1, 4, height, width)
        latents = [drift + 0.3 * step * torch.randn(1, 4, height, width) for step in range(len(TIMESTEPS))]
        golden[f"{name}.latents"] = torch.cat(latents)
        sizes = torch.tensor([[96.0, 80.0, 3.0, 5.0, 100.0, 90.0]])
        for count in ranks:
            for mode in MODES:
                for warmup in WARMUP:
                    oracle = Oracle(unet, height, width, count, mode, warmup)
                    outputs = []
                    for timestep, z in zip(TIMESTEPS, latents):
                        outputs.append(oracle.step(z, lambda rows, t=timestep: unet(
                            rows, torch.tensor(t), inputs["prompt.0"].unsqueeze(0),
                            added_cond_kwargs={"text_embeds": inputs["pooled.0"].unsqueeze(0), "time_ids": sizes}).sample))
                    golden[f"{name}.{count}.{mode}.{warmup}"] = outputs[-1].contiguous()
                    if warmup == 1 and mode == "full_sync":
                        with torch.no_grad():
                            whole = unet(latents[-1], torch.tensor(TIMESTEPS[-1]), inputs["prompt.0"].unsqueeze(0),
                                         added_cond_kwargs={"text_embeds": inputs["pooled.0"].unsqueeze(0),
                                                            "time_ids": sizes}).sample
                        assert (whole - outputs[-1]).abs().max() < 1e-5 * whole.abs().max(), (name, count)
    (ROOT / "displaced").mkdir(exist_ok=True)
    save_file(golden, ROOT / "displaced" / "golden.safetensors")


if __name__ == "__main__":
    main()
