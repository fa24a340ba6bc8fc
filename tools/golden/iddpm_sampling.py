"""Makes tests/golden/opensora/iddpm_masked.json and its tensors: Open-Sora 1.1's sampling with guidance and given frames, from
tools/reference/stdit2.py, which is first compared with the golden of the public code, and diffusers' DDPMScheduler."""
import json
import pathlib

import torch
from safetensors.torch import load_file, save_file

from tools.reference.open_sora_1_1 import guided, sample
from tools.reference.stdit2 import STDiT2

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "opensora"
STEPS, SCALE = 4, 7.0
MASK = [[0, 1, 0.5, 1], [1, 1, 1, 0]]


def check_against_the_public_code(model, io):
    texts = [model.text(y[0, :length]) for y, length in zip(io["in.y"], io["in.mask"].sum(1).tolist())]
    numbers = {name: io[f"in.{name}"] for name in ("fps", "num_frames", "ar", "height", "width")}
    for name, mask in (("out.x", io["in.x_mask"]), ("out.x_without_x_mask", None)):
        y = model(io["in.x"], io["in.timestep"], texts, numbers, mask)
        error = ((y - io[name]).abs().max() / io[name].abs().max()).item()
        print(f"{name}: {error:.1e} of the largest value")
        assert error < 2e-6, name


def run(model, io):
    """Returns the result, and what the model gets in each step."""
    texts = [model.text(y[0, :length]) for y, length in zip(io["in.y"], io["in.mask"].sum(1).tolist())]
    numbers = {name: io[f"in.{name}"] for name in ("fps", "num_frames", "ar", "height", "width")}
    generator, inputs = torch.Generator().manual_seed(0), []
    z = sample(lambda z, timestep, denoised: guided(model, z, timestep, texts, numbers, denoised, SCALE), io["in.z"],
               io["in.frame_mask"], STEPS, io["in.step_noise"].__getitem__, lambda: torch.randn(io["in.z"].shape, generator=generator),
               inputs)
    return z, inputs


@torch.inference_mode()
def main():
    one = json.loads((FOLDER / "stdit2_a.json").read_text())
    given = load_file(FOLDER / "stdit2_a.io.safetensors")
    model = STDiT2(load_file(FOLDER / one["weights"]), one["config"])
    check_against_the_public_code(model, given)
    generator = torch.Generator().manual_seed(7)
    shape = given["in.x"].shape
    io = {name: given[f"in.{name}"] for name in ("y", "mask", "fps", "num_frames", "ar", "height", "width")}
    io = {f"in.{name}": value for name, value in io.items()}
    io |= {"in.z": torch.randn(shape, generator=generator), "in.step_noise": torch.randn(STEPS, *shape, generator=generator),
           "in.frame_mask": torch.tensor(MASK)}
    z, inputs = run(model, io)
    print("largest values:", *(f"{x.abs().max().item():.1f}" for x in [*inputs, z]))
    outputs = {f"out.model_input.{step}": x for step, x in enumerate(inputs)} | {"out.z": z}
    save_file(io | {name: x.clone() for name, x in outputs.items()}, FOLDER / "iddpm_masked.io.safetensors")
    case = {"kind": "iddpm.sample", "weights": one["weights"], "io": "iddpm_masked.io.safetensors", "model_config": one["config"],
            "config": {"num_sampling_steps": STEPS, "cfg_scale": SCALE}}
    (FOLDER / "iddpm_masked.json").write_text(json.dumps(case, indent=1) + "\n")


if __name__ == "__main__":
    main()
