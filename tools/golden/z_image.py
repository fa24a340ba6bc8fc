"""Writes tests/golden/z-image*: tiny random Z-Image transformers, their outputs in diffusers, and latents of its
pipeline after the whole loop."""
import pathlib

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, ZImagePipeline, ZImageTransformer2DModel
from safetensors.torch import save_file

ROOT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden"

# Latents are not square. Grids have 28 tokens, which are filled up to 32, and 64. The timestep's layers are as large as in
# released models, and most of these files.
MODELS = {
    "z-image": dict(dim=30, n_heads=5, n_layers=3, n_refiner_layers=2, in_channels=4, cap_feat_dim=14,
                    axes_dims=[2, 2, 2], axes_lens=[128, 64, 64], latent=(8, 14)),
    "z-image-plain": dict(dim=40, n_heads=2, n_layers=2, n_refiner_layers=1, in_channels=3, cap_feat_dim=10,
                          axes_dims=[8, 4, 8], axes_lens=[128, 64, 64], norm_eps=1e-4, rope_theta=100.0, qk_norm=False,
                          t_scale=500.0, latent=(16, 16)),
}
LENGTHS = [5, 35, 32]  # of prompts: filled up to 32 and 64, and one that is full
TIMESTEPS = [999.0, 0.0, 417.5]
STEPS = 4
GUIDANCE = 1.5


def randomise(model):
    for name, parameter in model.named_parameters():  # including those that start at zero
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.3)
        elif "pad_token" in name:
            torch.nn.init.normal_(parameter)
        else:  # queries and keys are sharp, so that a wrong key shows
            sharp = 2.0 if "to_q" in name or "to_k" in name else 1.0
            torch.nn.init.normal_(parameter, std=sharp * parameter[0].numel() ** -0.5)


def evaluate(model, latents, prompts, timestep):
    """What samplers take: the noise less the data."""
    time = (1000 - torch.full((len(latents),), timestep)) / 1000
    out = model(list(latents.unsqueeze(2).to(model.dtype)), time, [one.to(model.dtype) for one in prompts]).sample
    return -torch.stack(out).squeeze(2).float()


def run_pipeline(model, prompts, noise, guidance, **options):
    """Latents after each step of diffusers' pipeline, [step, picture, ...]."""
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    vae = AutoencoderKL(block_out_channels=(8,) * 4, norm_num_groups=4, down_block_types=["DownEncoderBlock2D"] * 4,
                        up_block_types=["UpDecoderBlock2D"] * 4, latent_channels=model.config.in_channels)
    pipeline = ZImagePipeline(scheduler, vae, None, None, model)
    pipeline.set_progress_bar_config(disable=True)
    steps = []

    def keep(_pipeline, _step, _timestep, kwargs):
        steps.append(kwargs["latents"].clone())
        return {}

    count = len(noise)
    pipeline(prompt=None, height=noise.shape[2] * 8, width=noise.shape[3] * 8, num_inference_steps=STEPS,
             guidance_scale=guidance, latents=noise, prompt_embeds=[prompts[1], prompts[2], prompts[1]][:count],
             negative_prompt_embeds=[prompts[0]] * count, output_type="latent", callback_on_step_end=keep, **options)
    return torch.stack(steps)


class Stale:
    """Attention of some tokens of a sequence, `local`, to the keys and values that `seen` has of all, own ones fresh."""

    def __init__(self):
        self.kept = {}  # by layer: keys, values, and which there are

    def attend(self, layer, attn, hidden, angles, local, count, keep):
        def heads(x, norm=None):
            x = x.unflatten(-1, (attn.heads, -1))
            if norm is None:
                return x
            pairs = torch.view_as_complex(norm(x).float().unflatten(-1, (-1, 2)))
            return torch.view_as_real(pairs * angles.unsqueeze(2)).flatten(3)

        q, k, v = heads(attn.to_q(hidden), attn.norm_q), heads(attn.to_k(hidden), attn.norm_k), heads(attn.to_v(hidden))
        if layer not in self.kept:
            empty = torch.zeros(1, count, *k.shape[2:])
            self.kept[layer] = [empty, empty.clone(), torch.zeros(count, dtype=torch.bool)]
        read = [x.clone() for x in self.kept[layer]]
        for to in (read, keep.setdefault(layer, [x.clone() for x in read])):
            to[0][:, local], to[1][:, local], to[2][local] = k, v, True
        keys, values, there = read
        out = F.scaled_dot_product_attention(q.transpose(1, 2), keys[:, there].transpose(1, 2),
                                             values[:, there].transpose(1, 2))
        return attn.to_out[0](out.transpose(1, 2).flatten(2))


def split(count, parts):
    """Numbers from 0 to count in consecutive parts, the first of which are larger."""
    return list(torch.arange(count).tensor_split(parts))


class Sample:
    """One picture and its prompt, evaluated for some of the tokens at a time."""

    def __init__(self, model, prompt, z):
        self.model, self.shape, self.memory = model, z.shape, Stale()
        _, text, _, positions, text_positions, filling, text_filling = model.patchify_and_embed(
            [z.unsqueeze(1)], [prompt], 2, 1)
        self.angles = model.rope_embedder(positions[0]).unsqueeze(0)
        self.filling = filling[0]
        text = torch.where(text_filling[0].unsqueeze(-1), model.cap_pad_token, model.cap_embedder(text[0])).unsqueeze(0)
        text_angles = model.rope_embedder(text_positions[0])[: text.shape[1]].unsqueeze(0)
        for layer in model.context_refiner:
            text = layer(text, None, text_angles)
        self.text, self.all_angles = text, torch.cat([self.angles, text_angles], 1)
        self.image = int((~self.filling).sum())
        self.fill, self.length = len(self.filling) - self.image, text.shape[1]

    def predict(self, z, t, image, fill, text, keep):
        """The prediction for the image tokens `image`; fill and text are numbers of such tokens that take part."""
        model = self.model
        time = model.t_embedder((1000 - t).view(1) / 1000 * model.t_scale)
        x = model._patchify_image(z.unsqueeze(1), 2, 1)[0]
        x = torch.cat([model.all_x_embedder["2-1"](x)[image], model.x_pad_token.expand(len(fill), -1)]).unsqueeze(0)
        local = torch.cat([image, self.image + fill])

        def block(name, layer, x, angles, local, count):
            scale, gate, scale_2, gate_2 = layer.adaLN_modulation(time).unsqueeze(1).chunk(4, 2)
            y = self.memory.attend(name, layer.attention, layer.attention_norm1(x) * (1 + scale), angles[:, local],
                                   local, count, keep)
            x = x + gate.tanh() * layer.attention_norm2(y)
            return x + gate_2.tanh() * layer.ffn_norm2(layer.feed_forward(layer.ffn_norm1(x) * (1 + scale_2)))

        for i, layer in enumerate(model.noise_refiner):
            x = block(("refiner", i), layer, x, self.angles, local, self.image + self.fill)
        x = torch.cat([x, self.text[:, text]], 1)
        local = torch.cat([local, self.image + self.fill + text])
        for i, layer in enumerate(model.layers):
            x = block(("layer", i), layer, x, self.all_angles, local, self.image + self.fill + self.length)
        return -model.all_final_layer["2-1"](x, c=time)[0, :len(image)]

    def latents(self, tokens):
        channels, height, width = self.shape
        return (tokens.view(height // 2, width // 2, 2, 2, channels).permute(4, 0, 2, 1, 3)
                .reshape(channels, height, width))


def run_stale(model, prompt, z, parts, displaced, warmup=1):
    """Latents after all steps, unguided. In steps after the warm-up, image and text come in parts: one after the other
    (PipeFusion), or at once, each with the keys and values that the others had a step before (displaced patches)."""
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    scheduler.set_timesteps(sigmas=torch.linspace(1, 1 / STEPS, STEPS).tolist())
    sample = Sample(model, prompt, z)
    columns = z.shape[2] // 2
    whole = torch.arange(sample.image), torch.arange(sample.fill), torch.arange(sample.length)
    images = [(rows.unsqueeze(1) * columns + torch.arange(columns)).flatten() for rows in split(z.shape[1] // 2, parts)]
    patches = list(zip(images, split(sample.fill, parts), split(sample.length, parts)))
    for step, t in enumerate(scheduler.timesteps):
        out = torch.empty(sample.image, model.config.in_channels * 4)
        fresh = {}
        for call in [whole] if step < warmup else patches:
            keep = fresh if displaced else {}
            out[call[0]] = sample.predict(z, t, *call, keep)
            if not displaced:
                sample.memory.kept = keep
        if displaced:
            sample.memory.kept = fresh
        z = scheduler.step(sample.latents(out), t, z, return_dict=False)[0]
    return z


@torch.no_grad()
def main():
    for number, (name, options) in enumerate(MODELS.items()):
        torch.manual_seed(number)
        height, width = options.pop("latent")
        model = ZImageTransformer2DModel(**options).eval()
        randomise(model)
        model.save_pretrained(ROOT / name)

        latents = torch.randn(3, model.config.in_channels, height, width)
        prompts = [torch.randn(length, options["cap_feat_dim"]) for length in LENGTHS]
        golden = {"latents": latents} | {f"prompt.{row}": prompt for row, prompt in enumerate(prompts)}
        for name_of, guidance, extra in (("turbo", 0.0, {}), ("guided", GUIDANCE, {}), ("below_one", 0.5, {}),
                                         ("normalized", GUIDANCE, {"cfg_normalization": True}),
                                         ("truncated", GUIDANCE, {"cfg_truncation": 0.2})):
            if name == "z-image":
                golden[f"loop.{name_of}"] = run_pipeline(model, prompts, latents, guidance, **extra)[-1]
        if name == "z-image":
            for parts in (2, 3):
                for way in ("displaced", "pipefusion"):
                    golden[f"loop.{way}.{parts}"] = torch.stack([
                        run_stale(model, prompts[prompt], z, parts, way == "displaced")
                        for prompt, z in zip((1, 2, 1), latents)])
                    print(way, parts, (golden[f"loop.{way}.{parts}"] - golden["loop.turbo"]).abs().max())
            print("whole", (run_stale(model, prompts[1], latents[0], 2, True, STEPS) - golden["loop.turbo"][0]).abs().max())
        for dtype, suffix in ((torch.float32, ""), (torch.bfloat16, ".bf16")):
            model = model.to(dtype)
            for timestep in TIMESTEPS:
                golden[f"output.{timestep:g}{suffix}"] = evaluate(model, latents, prompts, timestep).contiguous()
        (ROOT / name / "golden").mkdir(exist_ok=True)
        save_file(golden, ROOT / name / "golden" / "golden.safetensors")


if __name__ == "__main__":
    main()
