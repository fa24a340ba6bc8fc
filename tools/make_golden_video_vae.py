#!/usr/bin/env python3
"""Makes tests/golden/opensora/video_vae.*: videos through the whole autoencoder of Open-Sora 1.2 and back, from diffusers' VAE for
the frames and, for the clips, a plain temporal VAE that is first compared with the goldens of the public code."""
import json
import pathlib

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL
from safetensors.torch import load_file, save_file

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "opensora"
WEIGHTS = load_file(FOLDER / "vae12.weights.safetensors")
TEMPORAL = {key.removeprefix("temporal_vae."): value for key, value in WEIGHTS.items() if key.startswith("temporal_vae.")}
CHANNELS, GROUPS, SCALING, CLIP, LATENT_CLIP = [4, 8, 16, 16], 2, 0.18215, 17, 5
SIZES = {1: (40, 56), 5: (16, 24), 17: (16, 24), 22: (19, 30)}  # frames: height, width


def conv(x, name, stride=1):
    weight, bias = TEMPORAL[name + ".conv.weight"], TEMPORAL.get(name + ".conv.bias")
    kernel = weight.shape[2]
    before = kernel - 1 + 1 - stride if kernel > 1 else 0
    return F.conv3d(F.pad(x, (kernel // 2,) * 4 + (before, 0)), weight, bias, stride=(stride, 1, 1))


def norm(x, name):
    return F.silu(F.group_norm(x, GROUPS, TEMPORAL[name + ".weight"], TEMPORAL[name + ".bias"], 1e-5))


def blocks(x, name):
    for i in range(4):
        one = f"{name}.{i}"
        y = conv(norm(conv(norm(x, one + ".norm1"), one + ".conv1"), one + ".norm2"), one + ".conv2")
        x = y + (conv(x, one + ".conv3") if one + ".conv3.conv.weight" in TEMPORAL else x)
    return x


def encode_clip(x):
    x = conv(F.pad(x, (0, 0, 0, 0, -x.shape[2] % 4, 0)), "encoder.conv_in")
    for i in range(4):
        x = blocks(x, f"encoder.block_res_blocks.{i}")
        if i in (1, 2):
            x = conv(x, f"encoder.conv_blocks.{i}", stride=2)
    x = norm(blocks(x, "encoder.res_blocks"), "encoder.norm1")
    mean, logvar = conv(conv(x, "encoder.conv2"), "quant_conv").chunk(2, 1)
    return mean, logvar.clamp(-30, 20)


def decode_clip(z, frames):
    x = blocks(conv(conv(z, "post_quant_conv"), "decoder.conv1"), "decoder.res_blocks")
    for i in (3, 2, 1, 0):
        x = blocks(x, f"decoder.block_res_blocks.{i}")
        if i in (3, 2):
            x = conv(x, f"decoder.conv_blocks.{i - 1}")
            x = x.unflatten(1, (-1, 2)).transpose(2, 3).flatten(2, 3)  # every second channel is the later frame
    x = conv(norm(x, "decoder.norm1"), "decoder.conv_out")
    return x[:, :, x.shape[2] - frames:]


def check_against_the_public_code():
    golden = load_file(FOLDER / "vae_temporal.io.safetensors")
    for frames in SIZES:
        pairs = [(encode_clip(golden[f"in.{frames}.x"])[0], golden[f"out.{frames}.mean"]),
                 (decode_clip(golden[f"in.{frames}.z"], frames), golden[f"out.{frames}.x"])]
        for got, expected in pairs:
            assert (got - expected).abs().max() <= 1e-6 * expected.abs().max(), frames


@torch.no_grad()
def main():
    check_against_the_public_code()
    torch.manual_seed(0)
    spatial = AutoencoderKL(down_block_types=["DownEncoderBlock2D"] * 4, up_block_types=["UpDecoderBlock2D"] * 4,
                            block_out_channels=CHANNELS, layers_per_block=2, norm_num_groups=GROUPS).eval()
    prefix = "spatial_vae.module."
    spatial.load_state_dict({key.removeprefix(prefix): value for key, value in WEIGHTS.items() if key.startswith(prefix)})
    shift, scale = WEIGHTS["shift"], WEIGHTS["scale"]
    tensors = {}
    for frames, (height, width) in SIZES.items():
        latent_frames = LATENT_CLIP * (frames // CLIP) + -(-(frames % CLIP) // 4)
        x = torch.rand(1, 3, frames, height, width) * 2 - 1
        z, of_clips = torch.randn(2, 1, 4, latent_frames, height // 8, width // 8)
        of_frames = torch.randn(frames, 4, height // 8, width // 8)
        found = spatial.encode(x[0].transpose(0, 1)).latent_dist
        for name, latents in (("mean", found.mean), ("sample", found.mean + found.std * of_frames)):
            latents = (latents * SCALING).transpose(0, 1)[None]
            if name == "mean":
                tensors[f"mid.{frames}.spatial_mean"] = latents
            clips = [encode_clip(clip) for clip in latents.split(CLIP, 2)]
            mean, logvar = (torch.cat(parts, 2) for parts in zip(*clips))
            coded = mean if name == "mean" else mean + torch.exp(0.5 * logvar) * of_clips
            tensors[f"out.{frames}.latent_{name}"] = (coded - shift) / scale
        clips = [decode_clip(clip, min(CLIP, frames - i * CLIP)) for i, clip in enumerate((z * scale + shift).split(LATENT_CLIP, 2))]
        pixels = spatial.decode(torch.cat(clips, 2)[0].transpose(0, 1) / SCALING).sample
        tensors |= {f"in.{frames}.x": x, f"in.{frames}.z": z, f"in.{frames}.noise_spatial": of_frames,
                    f"in.{frames}.noise_temporal": of_clips, f"out.{frames}.x": pixels.transpose(0, 1)[None]}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, FOLDER / "video_vae.io.safetensors")
    case = {"kind": "vae.wrapper12", "weights": "vae12.weights.safetensors", "io": "video_vae.io.safetensors",
            "config": {"spatial": {"block_out_channels": CHANNELS, "norm_num_groups": GROUPS},
                       "temporal": {"filters": 4, "num_groups": GROUPS}}}
    (FOLDER / "video_vae.json").write_text(json.dumps(case, indent=1) + "\n")


if __name__ == "__main__":
    main()
