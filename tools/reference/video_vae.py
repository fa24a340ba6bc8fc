"""The autoencoder of Open-Sora 1.2 in plain PyTorch: diffusers' VAE for the frames, and a temporal VAE for clips of 17 frames."""
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL

SCALING, CLIP, LATENT_CLIP = 0.18215, 17, 5
SPATIAL, TEMPORAL = "spatial_vae.module.", "temporal_vae."


def part(weights, prefix):
    return {key.removeprefix(prefix): value for key, value in weights.items() if key.startswith(prefix)}


class TemporalVae:
    """Takes weights without their prefix."""

    def __init__(self, weights, groups):
        self.weights, self.groups = weights, groups

    def conv(self, x, name, stride=1):
        weight, bias = self.weights[name + ".conv.weight"], self.weights.get(name + ".conv.bias")
        kernel = weight.shape[2]
        before = kernel - 1 + 1 - stride if kernel > 1 else 0
        return F.conv3d(F.pad(x, (kernel // 2,) * 4 + (before, 0)), weight, bias, stride=(stride, 1, 1))

    def norm(self, x, name):
        return F.silu(F.group_norm(x, self.groups, self.weights[name + ".weight"], self.weights[name + ".bias"], 1e-5))

    def blocks(self, x, name):
        for i in range(4):
            one = f"{name}.{i}"
            y = self.conv(self.norm(x, one + ".norm1"), one + ".conv1")
            y = self.conv(self.norm(y, one + ".norm2"), one + ".conv2")
            x = y + (self.conv(x, one + ".conv3") if one + ".conv3.conv.weight" in self.weights else x)
        return x

    def encode(self, x):
        """A clip [B, 4, F, h, w] -> mean and logarithm of the variance [B, 4, T, h, w]."""
        x = self.conv(F.pad(x, (0, 0, 0, 0, -x.shape[2] % 4, 0)), "encoder.conv_in")
        for i in range(4):
            x = self.blocks(x, f"encoder.block_res_blocks.{i}")
            if i in (1, 2):
                x = self.conv(x, f"encoder.conv_blocks.{i}", stride=2)
        x = self.norm(self.blocks(x, "encoder.res_blocks"), "encoder.norm1")
        mean, logvar = self.conv(self.conv(x, "encoder.conv2"), "quant_conv").chunk(2, 1)
        return mean, logvar.clamp(-30, 20)

    def decode(self, z, frames):
        x = self.blocks(self.conv(self.conv(z, "post_quant_conv"), "decoder.conv1"), "decoder.res_blocks")
        for i in (3, 2, 1, 0):
            x = self.blocks(x, f"decoder.block_res_blocks.{i}")
            if i in (3, 2):
                x = self.conv(x, f"decoder.conv_blocks.{i - 1}")
                x = x.unflatten(1, (-1, 2)).transpose(2, 3).flatten(2, 3)  # every second channel is the later frame
        x = self.conv(self.norm(x, "decoder.norm1"), "decoder.conv_out")
        return x[:, :, x.shape[2] - frames:]


def spatial_vae(channels, groups):
    """The VAE of the frames with random weights."""
    return AutoencoderKL(down_block_types=["DownEncoderBlock2D"] * 4, up_block_types=["UpDecoderBlock2D"] * 4,
                         block_out_channels=channels, layers_per_block=2, norm_num_groups=groups).eval()


class VideoVae:
    """`channels` and `groups` are those of the VAE of the frames."""

    def __init__(self, weights, channels, groups, temporal_groups):
        self.spatial = spatial_vae(channels, groups)
        self.spatial.load_state_dict(part(weights, SPATIAL))
        self.temporal = TemporalVae(part(weights, TEMPORAL), temporal_groups)
        self.shift, self.scale = weights["shift"], weights["scale"]

    def encode_frames(self, x, noise=None):
        """Frames [F, 3, H, W] in [-1, 1] -> scaled latents [F, 4, h, w]: means, or the samples that `noise` chooses."""
        found = self.spatial.encode(x).latent_dist
        return (found.mean if noise is None else found.mean + found.std * noise) * SCALING

    def encode(self, x, noise_spatial=None, noise_temporal=None):
        """Frames [F, 3, H, W] in [-1, 1] -> latents [1, 4, T, h, w] as the model takes them: means, or the samples that the noise of
        frames [F, 4, h, w] and of clips [1, 4, T, h, w] chooses."""
        latents = self.encode_frames(x, noise_spatial).transpose(0, 1)[None]
        clips = [self.temporal.encode(clip) for clip in latents.split(CLIP, 2)]
        mean, logvar = (torch.cat(parts, 2) for parts in zip(*clips))
        coded = mean if noise_temporal is None else mean + torch.exp(0.5 * logvar) * noise_temporal
        return (coded - self.shift) / self.scale

    def decode(self, z, frames):
        """Latents [1, 4, T, h, w] -> frames [F, 3, H, W], of which some values may be beyond [-1, 1]."""
        clips = [self.temporal.decode(clip, min(CLIP, frames - i * CLIP))
                 for i, clip in enumerate((z * self.scale + self.shift).split(LATENT_CLIP, 2))]
        return self.spatial.decode(torch.cat(clips, 2)[0].transpose(0, 1) / SCALING).sample
