"""Open-Sora 1.2 from prompts to frames in plain PyTorch and fp32: an oracle for the engine's pipeline. It reads a model folder as
tools/layout_open_sora.py lays it out. What a request may say is in open_sora_request.py.

The noise of a request comes from one torch.Generator of the CPU, seeded with the request's seed. For n videos of latents
[C, T, h, w] these tensors are drawn with torch.randn in fp32, in this order:
  for each loop:
    [n, C, T, h, w]    what the loop starts from
    (only if references are samples of the posterior, not its means:
     in the first loop for each reference, in a later one for the previous clip of each of the n videos,
     [F, C, h, w] for its F frames, then [1, C, T, h, w] for its clips of latents)
    for each step in which frames of any video enter, that is, begin to be denoised from a given state:
    [n, C, T, h, w]    which the entering frames take their part of
So a seed's first noise depends neither on references nor on steps. The public code draws in the same order but for three things:
it encodes the references before the first noise, always with samples; it draws noise in every step, and uses it when frames enter;
and its generators are the global ones of the GPU and of the CPU, which loading the model has used, so none of its seeds can be
reproduced. Means are the default here, because then nothing of a reference depends on the seed."""
import dataclasses
import json
import pathlib

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file
from transformers import T5EncoderModel, T5Tokenizer

from tools.golden.captions import cleaned_for_open_sora
from tools.reference.open_sora_request import CLIP, IMAGE_FPS, LATENT_CLIP, Given, frames_of, latent_size, parse_mask_strategy, schedule
from tools.reference.open_sora_request import text_of_loop, with_scores
from tools.reference.stdit3 import STDiT3
from tools.reference.video_vae import VideoVae

SIDE = 512  # of the images to which videos are compared when timesteps are moved


def timesteps(steps, height, width, num_frames, total=1000, discrete=False, transform=True):
    """In fp32. Larger and longer videos have more of the steps at the noisy end."""
    t = torch.tensor([(1 - i / steps) * total for i in range(steps)], dtype=torch.float32)
    if discrete:
        t = t.round()
    if transform:
        frames = 1 if num_frames == 1 else num_frames // CLIP * LATENT_CLIP  # of whole clips only
        if frames == 0:
            raise ValueError(f"timesteps are moved for one frame, or for {CLIP} or more, not for {num_frames}")
        area, frames = torch.tensor(height * width, dtype=torch.float32), torch.tensor(frames, dtype=torch.float32)
        ratio, u = (area / SIDE ** 2).sqrt() * frames.sqrt(), t / total
        # For ratios below a half, rounding may lift the first one above `total`, and then no mask is as large.
        t = (ratio * u / (1 + (ratio - 1) * u) * total).clamp(max=total)
    return t


def sample(velocity, z, t, mask, draw, total=1000, seen=None):
    """z [n, C, T, h, w] holds noise where mask [n, T] is 1, and given frames elsewhere: 0 keeps them, a value between edits them
    from that noise level on. velocity(z, step, active [n, T]) is the guided prediction; draw(step) is called when frames enter.
    `seen` gets what the model gets in each step: (z, active)."""
    noised = mask == 1
    for step, now in enumerate(t):
        active = mask * total >= now
        entering = active & ~noised
        if entering.any():
            level = now / total
            z = torch.where(of_latents(entering), (1 - level) * z + level * draw(step), z)
        noised = active
        if seen is not None:
            seen.append((z, active))
        later = t[step + 1] if step + 1 < len(t) else 0
        z = torch.where(of_latents(active), z + velocity(z, step, active) * ((now - later) / total), z)
    return z


def of_latents(frames):
    return frames[:, None, :, None, None]


def guided(model, z, t, texts, fps, height, width, guidance, active):
    """The velocity of latents z [n, ..]. `texts`: n projected prompts. The other branch has the learned text at their lengths."""
    branches = 1 if guidance == 1 else 2
    if branches == 2:
        texts = texts + [model.text(model.null_text(len(text))) for text in texts]
    count = branches * len(z)
    prediction = model(z.repeat(branches, 1, 1, 1, 1), t.expand(count), texts, torch.full((count,), float(fps)), height, width,
                       denoised_frames=None if active.all() else active.repeat(branches, 1))[:, :z.shape[1]]
    if branches == 1:
        return prediction
    positive, negative = prediction.chunk(2)
    return negative + guidance * (positive - negative)


def scaled_size(height, width, to_height, to_width):
    """The size at which a picture covers another: (height, width)."""
    if to_height / height > to_width / width:
        return to_height, round(width * (to_height / height))
    return round(height * (to_width / width)), to_width


def fitted_image(picture, height, width):
    """A PIL image as a reference [1, 3, H, W]: scaled to cover the size, and cut to its middle."""
    rows, columns = scaled_size(picture.height, picture.width, height, width)
    array = np.array(picture.convert("RGB").resize((columns, rows), Image.BICUBIC))
    top, left = round((rows - height) / 2), round((columns - width) / 2)
    return as_reference(array[None, top:top + height, left:left + width])


def fitted_video(frames, height, width):
    """Frames [F, H', W', 3] of 8 bits as a reference [F, 3, H, W]. Unlike an image they are scaled bilinearly, without smoothing,
    and half a pixel is rounded down."""
    rows, columns = scaled_size(*frames.shape[1:3], height, width)
    x = torch.as_tensor(frames).permute(0, 3, 1, 2).float() / 255
    x = F.interpolate(x, size=(rows, columns), mode="bilinear", align_corners=False)
    top, left = (rows - height) // 2, (columns - width) // 2
    return (x[:, :, top:top + height, left:left + width] - 0.5) / 0.5


def as_reference(frames):
    """8 bits [F, H, W, 3] -> [F, 3, H, W] in [-1, 1]."""
    return (torch.as_tensor(np.ascontiguousarray(frames)).permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.5


def to_8_bits(pixels):
    """[.., 3, H, W] -> [.., H, W, 3] as they are saved."""
    return ((pixels.clamp(-1, 1) + 1) / 2 * 255 + 0.5).to(torch.uint8).movedim(-3, -1)


@dataclasses.dataclass
class Video:
    latents: list  # of each loop [n, C, T, h, w]
    pixels: torch.Tensor  # of all loops, joined [n, F, 3, H, W]; some values are beyond [-1, 1]

    def frames(self):
        return to_8_bits(self.pixels)


class OpenSora:
    def __init__(self, folder):
        folder = pathlib.Path(folder)

        def config(part, name="config.json"):
            return json.loads((folder / part / name).read_text())

        def weights(part):
            files = sorted((folder / part).glob("*.safetensors"))
            return {key: value.float() for file in files for key, value in load_file(file).items()}

        self.scheduler = config("scheduler", "scheduler_config.json")
        self.load_networks(folder, weights, config)
        self.text_encoder = T5EncoderModel.from_pretrained(folder / "text_encoder", dtype=torch.float32).eval()
        self.tokenizer = T5Tokenizer.from_pretrained(folder / "tokenizer")

    def load_networks(self, folder, weights, config):
        self.transformer = STDiT3(weights("transformer"), config("transformer"))
        spatial, temporal = (config("vae").get(name, {}) for name in ("vae_2d", "vae_temporal"))
        self.vae = VideoVae(weights("vae"), spatial.get("block_out_channels", [128, 256, 512, 512]),
                            spatial.get("norm_num_groups", 32), temporal.get("num_groups", 32))

    def encode_texts(self, texts):
        """Projected tokens [L, C] of each text, without its padding."""
        tokens = self.tokenizer(texts, max_length=self.transformer.config["model_max_length"], padding="max_length", truncation=True,
                                return_tensors="pt")
        hidden = self.text_encoder(input_ids=tokens.input_ids, attention_mask=tokens.attention_mask).last_hidden_state
        return [self.transformer.text(one[:length]) for one, length in zip(hidden, tokens.attention_mask.sum(1).tolist())]

    def encode_frames(self, frames, posterior, draw):
        """A reference [F, 3, H, W] -> latents [1, C, T, h, w]."""
        if posterior == "mean":
            return self.vae.encode(frames)
        latents, *size = latent_size(len(frames), *frames.shape[2:])
        channels = self.transformer.config["in_channels"]
        return self.vae.encode(frames, draw(len(frames), channels, *size), draw(1, channels, latents, *size))

    @torch.inference_mode()
    def __call__(self, prompts, height, width, num_frames, seed, *, fps=24, steps=None, guidance=None, aesthetic=6.5, motion=None,
                 camera_motion=None, references=(), mask_strategy="", loops=1, condition_frames=5, condition_edit=0.0, align=5,
                 videos_per_prompt=1, posterior="mean"):
        """`references` [F, 3, H, W] of the video's size and the mask strategy hold for all prompts. `condition_frames` latents of a
        clip are given to the next. An align of None takes starts as they are. posterior: "mean" or "sample"."""
        if loops > 1 and (condition_frames % LATENT_CLIP != 0 or condition_frames // LATENT_CLIP * CLIP >= num_frames):
            raise ValueError(f"loops share whole clips of {LATENT_CLIP} latents, and not all that a loop makes")
        parts = [[(first, cleaned_for_open_sora(with_scores(text, aesthetic, motion, camera_motion))) for first, text in schedule(prompt)]
                 for prompt in prompts for _ in range(videos_per_prompt)]
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape):
            return torch.randn(shape, generator=generator)

        shape = (len(parts), self.transformer.config["in_channels"], *latent_size(num_frames, height, width))
        options = {"fps": IMAGE_FPS if num_frames == 1 else fps, "height": height, "width": width,
                   "guidance": self.scheduler["cfg_scale"] if guidance is None else guidance}
        t = timesteps(steps or self.scheduler["num_sampling_steps"], height, width, num_frames, self.scheduler["num_timesteps"],
                      self.scheduler["use_discrete_timesteps"], self.scheduler["use_timestep_transform"])
        groups, known, latents, clips = parse_mask_strategy(mask_strategy), [], [], []
        for loop in range(loops):
            z = draw(*shape)
            if loop == 0:
                known = [self.encode_frames(reference, posterior, draw) for reference in references]
            else:
                known.append(torch.cat([self.encode_frames(clip, posterior, draw) for clip in clips[-1]]))
                groups.append(Given(loop, len(known) - 1, -condition_frames, 0, condition_frames, condition_edit))
            mask = place(z, [group for group in groups if group.loop == loop], known, align)
            texts = self.encode_texts([text_of_loop(part, loop) for part in parts])
            latents.append(sample(lambda z, step, active, texts=texts: guided(self.transformer, z, t[step], texts, active=active, **options),
                                  z, t, mask, lambda _: draw(*shape), self.scheduler["num_timesteps"]))
            clips.append(torch.stack([self.vae.decode(one[None], num_frames) for one in latents[-1]]))
        repeated = condition_frames // LATENT_CLIP * CLIP
        return Video(latents, torch.cat([clip[:, repeated if loop > 0 else 0:] for loop, clip in enumerate(clips)], 1))


def place(z, groups, references, align):
    """Puts given frames into z [n, C, T, h, w]; returns the mask [n, T]. Later groups replace what earlier ones put there. A negative
    number of a reference counts from the last one, in later loops from the previous clip."""
    mask = torch.ones(z.shape[0], z.shape[2])
    for given in groups:
        if not -len(references) <= given.reference < len(references):
            raise ValueError(f"mask strategy: reference {given.reference} of {len(references)}")
        reference = references[given.reference]
        start, target, length = frames_of(given, reference.shape[2], z.shape[2], align)
        z[:, :, target:target + length] = reference[:, :, start:start + length]
        mask[:, target:target + length] = given.edit
    return mask
