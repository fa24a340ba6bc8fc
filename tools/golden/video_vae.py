"""Makes tests/golden/opensora/video_vae.*: videos through the whole autoencoder of Open-Sora 1.2 and back, from tools/reference/video_vae.py,
whose temporal part is first compared with the goldens of the public code."""
import json
import pathlib

import torch
from safetensors.torch import load_file, save_file

from tools.reference.video_vae import CLIP, LATENT_CLIP, VideoVae

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "opensora"
CHANNELS, GROUPS = [4, 8, 16, 16], 2
SIZES = {1: (40, 56), 5: (16, 24), 17: (16, 24), 22: (19, 30)}  # frames: height, width


def check_against_the_public_code(temporal):
    """Returns the largest error, in parts of the largest value."""
    golden = load_file(FOLDER / "vae_temporal.io.safetensors")
    errors = []
    for frames in SIZES:
        mean, logvar = temporal.encode(golden[f"in.{frames}.x"])
        pairs = [(mean, golden[f"out.{frames}.mean"]), (logvar, golden[f"out.{frames}.logvar"]),
                 (temporal.decode(golden[f"in.{frames}.z"], frames), golden[f"out.{frames}.x"])]
        errors += [((got - expected).abs().max() / expected.abs().max()).item() for got, expected in pairs]
    assert max(errors) <= 1e-6, errors
    return max(errors)


@torch.no_grad()
def main():
    torch.manual_seed(0)
    vae = VideoVae(load_file(FOLDER / "vae12.weights.safetensors"), CHANNELS, GROUPS, GROUPS)
    check_against_the_public_code(vae.temporal)
    tensors = {}
    for frames, (height, width) in SIZES.items():
        latent_frames = LATENT_CLIP * (frames // CLIP) + -(-(frames % CLIP) // 4)
        x = torch.rand(1, 3, frames, height, width) * 2 - 1
        z, of_clips = torch.randn(2, 1, 4, latent_frames, height // 8, width // 8)
        of_frames = torch.randn(frames, 4, height // 8, width // 8)
        pixels = x[0].transpose(0, 1)
        tensors[f"mid.{frames}.spatial_mean"] = vae.encode_frames(pixels).transpose(0, 1)[None]
        tensors[f"out.{frames}.latent_mean"] = vae.encode(pixels)
        tensors[f"out.{frames}.latent_sample"] = vae.encode(pixels, of_frames, of_clips)
        tensors |= {f"in.{frames}.x": x, f"in.{frames}.z": z, f"in.{frames}.noise_spatial": of_frames,
                    f"in.{frames}.noise_temporal": of_clips, f"out.{frames}.x": vae.decode(z, frames).transpose(0, 1)[None]}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, FOLDER / "video_vae.io.safetensors")
    case = {"kind": "vae.wrapper12", "weights": "vae12.weights.safetensors", "io": "video_vae.io.safetensors",
            "config": {"spatial": {"block_out_channels": CHANNELS, "norm_num_groups": GROUPS},
                       "temporal": {"filters": 4, "num_groups": GROUPS}}}
    (FOLDER / "video_vae.json").write_text(json.dumps(case, indent=1) + "\n")


if __name__ == "__main__":
    main()
