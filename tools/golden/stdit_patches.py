"""Makes tests/golden/opensora/stdit3_pipefusion.safetensors and stdit3_displaced.safetensors: the sampling of rflow_plain with
PipeFusion's patches of rows and of frames, and with displaced patches of rows, from tools/reference/stdit3.py, which is first compared with
the goldens of the public code."""
import copy
import json
import pathlib

import torch
from safetensors.torch import load_file, save_file

from tools.reference.stdit3 import STDiT3

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "opensora"
CASES = [("h", 2, 1), ("h", 3, 2), ("h", 5, 0), ("t", 2, 1), ("t", 5, 2), ("t", 3, 0)]  # axis, patches, steps of warm-up
DISPLACED = [(2, 1), (3, 2)]  # patches of rows, steps of warm-up


def parts(count, patches):
    """Slices of almost equal length, the longer ones first."""
    least, longer, begin, slices = count // patches, count % patches, 0, []
    for i in range(patches):
        end = begin + least + (i < longer)
        slices.append(slice(begin, end))
        begin = end
    return slices


def merged(caches, rows):
    """What each layer holds after a step in which every cache has seen its own rows."""
    whole = caches[0]
    for own, part in zip(caches[1:], rows[1:]):
        for name in whole.keys() - {"grid"}:
            whole[name].k[:, :, part], whole[name].v[:, :, part] = own[name].k[:, :, part], own[name].v[:, :, part]
    return whole


def sample(model, case, io, axis=0, patches=1, warmup=0, displaced=False):
    """A patch of PipeFusion sees what those before it computed in this step; a displaced one sees all others of the step before."""
    z, timesteps = io["in.z"].clone(), io["out.timesteps"]
    lengths = io["in.mask"].sum(1).tolist()
    texts = [model.text(y[0, :length]) for y, length in zip(io["in.y"], lengths)]
    texts += [model.text(model.null_text(length)) for length in lengths]
    fps = io["in.fps"].repeat(2)
    lines = (z.shape[2], (z.shape[3] + 1) // 2)[axis]
    cache = {}
    for step in range(len(timesteps)):
        later = timesteps[step + 1] if step + 1 < len(timesteps) else torch.zeros(len(z))
        dt = ((timesteps[step] - later) / 1000)[:, None, None, None, None]
        now = [slice(0, lines)] if step < warmup or patches == 1 else parts(lines, patches)
        caches = [copy.deepcopy(cache) if displaced else cache for _ in now]
        for part, cache in zip(now, caches):
            v = model(torch.cat([z, z]), timesteps[step].repeat(2), texts, fps, io["in.height"][0].item(), io["in.width"][0].item(),
                      cache, axis, part)[:, :4]
            positive, negative = v.chunk(2)
            v = negative + case["config"]["cfg_scale"] * (positive - negative)
            if axis == 0:
                z[:, :, part] += v * dt
            else:
                z[:, :, :, 2 * part.start:2 * part.stop] += v * dt
        cache = merged(caches, now) if displaced else cache
    return z


def check_against_the_public_code(model, case, io):
    one = json.loads((FOLDER / "stdit3_b.json").read_text())
    given = load_file(FOLDER / "stdit3_b.io.safetensors")
    other = STDiT3(load_file(FOLDER / one["weights"]), one["config"])
    length = given["in.mask"].sum().item()
    y = other(given["in.x"], given["in.timestep"], [other.text(y[0, :length]) for y in given["in.y"]],
              given["in.fps"].expand(2), given["in.height"][0].item(), given["in.width"][0].item())
    for name, own, expected in (("stdit3_b", y, given["out.x"]), ("rflow_plain", sample(model, case, io), io["out.z"])):
        error = ((own - expected).abs().max() / expected.abs().max()).item()
        print(f"{name}: {error:.1e} of the largest value")
        assert error < 2e-6, name


@torch.inference_mode()
def main():
    case = json.loads((FOLDER / "rflow_plain.json").read_text())
    io = load_file(FOLDER / "rflow_plain.io.safetensors")
    model = STDiT3(load_file(FOLDER / case["weights"]), case["model_config"])
    check_against_the_public_code(model, case, io)

    def made(title, **patches):
        z = sample(model, case, io, **patches)
        moved = ((z - io["out.z"]).abs().max() / io["out.z"].abs().max()).item()
        print(f"{title}: {moved:.2g} from whole videos")
        assert moved > 50 * 2e-5
        return z.contiguous()

    save_file({f"out.z.{axis}.{patches}.{warmup}": made(f"{patches} patches along {axis}, warm-up {warmup}", axis="th".index(axis),
                                                       patches=patches, warmup=warmup) for axis, patches, warmup in CASES},
              FOLDER / "stdit3_pipefusion.safetensors")
    save_file({f"out.z.{patches}.{warmup}": made(f"{patches} displaced patches, warm-up {warmup}", axis=1, patches=patches,
                                                 warmup=warmup, displaced=True) for patches, warmup in DISPLACED},
              FOLDER / "stdit3_displaced.safetensors")


if __name__ == "__main__":
    main()
