"""Writes tests/golden/flux2*: tiny random transformers of FLUX.2, their outputs in diffusers, and latents of the pipeline of
FLUX.2 klein after the whole loop, also with pictures to which it refers; an autoencoder, the pictures of packed latents, and
packed latents of pictures."""
import pathlib

import PIL.Image
import torch
import torch.nn.functional as F
from diffusers import (AutoencoderKLFlux2, FlowMatchEulerDiscreteScheduler, Flux2KleinPipeline,
                       Flux2Transformer2DModel)
from diffusers.models.embeddings import apply_rotary_emb
from diffusers.pipelines.flux2.pipeline_flux2_klein import compute_empirical_mu
from safetensors.torch import save_file

ROOT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden"

# Latents are not square. The width of the feed-forward is rounded down in the second model.
MODELS = {
    "flux2": dict(num_attention_heads=5, attention_head_dim=8, axes_dims_rope=(2, 2, 2, 2), num_layers=2,
                  num_single_layers=3, in_channels=8, joint_attention_dim=14, mlp_ratio=1.5,
                  timestep_guidance_channels=16, guidance_embeds=False, latent=(4, 7)),
    "flux2-guidance": dict(num_attention_heads=3, attention_head_dim=12, axes_dims_rope=(2, 0, 4, 6), num_layers=1,
                           num_single_layers=1, in_channels=4, out_channels=4, joint_attention_dim=10, mlp_ratio=2.3,
                           timestep_guidance_channels=10, rope_theta=100, eps=1e-4, latent=(5, 3)),
}
TEXT = 7  # tokens of a prompt
REFERENCES = ((3, 3), (2, 5))  # sizes of latents of pictures to which a run refers
TIMESTEPS = [999.0, 0.0, 417.5]
SCALES = [1.0, 3.5, 4.0]  # for the model that takes them
STEPS = 4
GUIDANCE = 2.5
SCHEDULER = dict(shift=3.0, use_dynamic_shifting=True)


def randomise(model):
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=1.0, std=0.3)
        else:  # queries and keys are sharp, so that a wrong key shows
            sharp = 2.0 if any(part in name for part in ("to_q.", "to_k.", "add_q_proj", "add_k_proj")) else 1.0
            torch.nn.init.normal_(parameter, std=sharp * parameter[0].numel() ** -0.5)


def pack(z):
    return z.flatten(2).transpose(1, 2)


def unpack(tokens, like):
    return tokens.transpose(1, 2).reshape(like.shape)


def evaluate(model, latents, prompts, timestep):
    dtype = model.dtype
    ids = Flux2KleinPipeline._prepare_latent_ids(latents), Flux2KleinPipeline._prepare_text_ids(prompts)
    time = torch.full((len(latents),), timestep).to(dtype) / 1000
    guidance = torch.tensor(SCALES) if model.config.guidance_embeds else None
    out = model(pack(latents).to(dtype), prompts.to(dtype), time, *ids, guidance).sample
    return unpack(out, latents).float().contiguous()


def run_pipeline(model, prompts, noise, guidance, references=()):
    """Latents after all steps of diffusers' pipeline, which gets the latents of `references` from its autoencoder."""
    vae = AutoencoderKLFlux2(block_out_channels=(2,) * 4, norm_num_groups=1, layers_per_block=1,
                             latent_channels=model.config.in_channels // 4)
    pipeline = Flux2KleinPipeline(FlowMatchEulerDiscreteScheduler(**SCHEDULER), vae, None, None, model)
    pipeline.set_progress_bar_config(disable=True)
    encoded = iter(references)
    pipeline._encode_vae_image = lambda image, generator: next(encoded)
    steps = []

    def keep(_pipeline, _step, _timestep, kwargs):
        steps.append(kwargs["latents"].clone())
        return {}

    images = [PIL.Image.new("RGB", (64, 64)) for _ in references] or None
    pipeline(image=images, prompt=None, height=noise.shape[2] * 16, width=noise.shape[3] * 16, num_inference_steps=STEPS,
             guidance_scale=guidance, latents=noise, prompt_embeds=prompts[[1, 2, 1]],
             negative_prompt_embeds=prompts[[0, 0, 0]], output_type="latent", callback_on_step_end=keep)
    assert len(steps) == STEPS
    return unpack(steps[-1], noise).contiguous()


class Stale:
    """Attention of some tokens of a sequence, `local`, to the keys and values that were last seen of all, own ones fresh."""

    def __init__(self, count):
        self.count, self.kept = count, {}  # by layer: keys, values, and which there are

    def attend(self, layer, q, k, v, local, keep):
        if layer not in self.kept:
            empty = torch.zeros(1, self.count, *k.shape[2:])
            self.kept[layer] = [empty, empty.clone(), torch.zeros(self.count, dtype=torch.bool)]
        read = [x.clone() for x in self.kept[layer]]
        for to in (read, keep.setdefault(layer, [x.clone() for x in read])):
            to[0][:, local], to[1][:, local], to[2][local] = k, v, True
        keys, values, there = read
        out = F.scaled_dot_product_attention(q.transpose(1, 2), keys[:, there].transpose(1, 2),
                                             values[:, there].transpose(1, 2))
        return out.transpose(1, 2).flatten(2)


def split(count, parts):
    """Numbers from 0 to count in consecutive parts, the first of which are larger."""
    return list(torch.arange(count).tensor_split(parts))


class Sample:
    """One picture, its prompt and what it refers to, evaluated for some of the tokens at a time. Those of references come
    behind the picture, and those of the text behind them."""

    def __init__(self, model, prompt, z, references):
        self.model, self.prompt = model, prompt.unsqueeze(0)
        self.image, self.length = z[0].numel(), len(prompt)
        self.references = torch.cat([pack(z.unsqueeze(0))[:, :0], *map(pack, references)], 1)
        self.referred = self.references.shape[1]
        self.memory = Stale(self.image + self.referred + self.length)
        ids = [Flux2KleinPipeline._prepare_latent_ids(z.unsqueeze(0))[0],
               *(Flux2KleinPipeline._prepare_image_ids(list(references)) if references else []),
               Flux2KleinPipeline._prepare_text_ids(self.prompt)[0]]
        self.angles = [torch.cat(all_of) for all_of in zip(*map(model.pos_embed, ids))]

    def heads(self, attn, q, k, v, norm_q, norm_k):
        q, k, v = (x.unflatten(-1, (-1, attn.head_dim)) for x in (q, k, v))
        return norm_q(q), norm_k(k), v

    def attend(self, layer, parts, local, keep):
        q, k, v = (torch.cat(part, 1) for part in zip(*parts))
        angles = [x[local] for x in self.angles]
        q, k = (apply_rotary_emb(x, angles, sequence_dim=1) for x in (q, k))
        return self.memory.attend(layer, q, k, v, local, keep)

    def predict(self, z, t, image, references, text, keep):
        """The prediction for the tokens `image` of the picture, where `references` and `text` of the others take part."""
        model, count = self.model, len(image) + len(references)
        local = torch.cat([image, self.image + references, self.image + self.referred + text])
        vector = model.time_guidance_embed(t.view(1) / 1000 * 1000, None)
        x = model.x_embedder(torch.cat([pack(z.unsqueeze(0))[:, image], self.references[:, references]], 1))
        y = model.context_embedder(self.prompt[:, text])
        of_image = model.double_stream_modulation_img(vector).chunk(6, -1)
        of_text = model.double_stream_modulation_txt(vector).chunk(6, -1)
        shift, scale, gate = model.single_stream_modulation(vector).chunk(3, -1)
        for i, block in enumerate(model.transformer_blocks):
            attn = block.attn
            a = block.norm1(x) * (1 + of_image[1]) + of_image[0]
            b = block.norm1_context(y) * (1 + of_text[1]) + of_text[0]
            parts = (self.heads(attn, attn.to_q(a), attn.to_k(a), attn.to_v(a), attn.norm_q, attn.norm_k),
                     self.heads(attn, attn.add_q_proj(b), attn.add_k_proj(b), attn.add_v_proj(b), attn.norm_added_q,
                                attn.norm_added_k))
            out = self.attend(("double", i), parts, local, keep)
            x = x + of_image[2] * attn.to_out[0](out[:, :count])
            y = y + of_text[2] * attn.to_add_out(out[:, count:])
            x = x + of_image[5] * block.ff(block.norm2(x) * (1 + of_image[4]) + of_image[3])
            y = y + of_text[5] * block.ff_context(block.norm2_context(y) * (1 + of_text[4]) + of_text[3])
        x = torch.cat([x, y], 1)
        for i, block in enumerate(model.single_transformer_blocks):
            attn = block.attn
            qkv, inner = attn.to_qkv_mlp_proj(block.norm(x) * (1 + scale) + shift).split(
                [3 * attn.inner_dim, 2 * attn.mlp_hidden_dim], -1)
            parts = (self.heads(attn, *qkv.chunk(3, -1), attn.norm_q, attn.norm_k),)
            out = self.attend(("single", i), parts, local, keep)
            x = x + gate * attn.to_out(torch.cat([out, attn.mlp_act_fn(inner)], -1))
        return model.proj_out(model.norm_out(x[:, :len(image)], vector))[0]


def run_stale(model, prompt, z, parts, displaced, references=(), warmup=1):
    """Latents after all steps, unguided. In steps after the warm-up, picture, references and text come in parts: one after the
    other (PipeFusion), or at once, each with the keys and values that the others had a step before (displaced patches)."""
    scheduler = FlowMatchEulerDiscreteScheduler(**SCHEDULER)
    sample = Sample(model, prompt, z, references)
    scheduler.set_timesteps(sigmas=torch.linspace(1, 1 / STEPS, STEPS).tolist(),
                            mu=compute_empirical_mu(sample.image, STEPS))
    rows, columns = z.shape[1:]
    whole = [torch.arange(count) for count in (sample.image, sample.referred, sample.length)]
    images = [(part.unsqueeze(1) * columns + torch.arange(columns)).flatten() for part in split(rows, parts)]
    patches = list(zip(images, split(sample.referred, parts), split(sample.length, parts)))
    for step, t in enumerate(scheduler.timesteps):
        out = torch.empty(sample.image, len(z))
        fresh = {}
        for call in [whole] if step < warmup else patches:
            keep = fresh if displaced else {}
            out[call[0]] = sample.predict(z, t, *call, keep)
            if not displaced:
                sample.memory.kept = keep
        if displaced:
            sample.memory.kept = fresh
        z = scheduler.step(unpack(out.unsqueeze(0), z.unsqueeze(0))[0], t, z, return_dict=False)[0]
    return z


def make_transformers():
    for number, (name, options) in enumerate(MODELS.items()):
        torch.manual_seed(number)
        height, width = options.pop("latent")
        model = Flux2Transformer2DModel(**options).eval()
        randomise(model)
        model.save_pretrained(ROOT / name)

        latents = torch.randn(3, model.config.in_channels, height, width)
        prompts = torch.randn(3, TEXT, model.config.joint_attention_dim)
        golden = {"latents": latents, "prompts": prompts, "scales": torch.tensor(SCALES)}
        if name == "flux2":
            generator = torch.Generator().manual_seed(9)
            references = [torch.randn(1, model.config.in_channels, *size, generator=generator) for size in REFERENCES]
            golden |= {f"reference.{i}": z for i, z in enumerate(references)}
            for loop, given in (("loop", []), ("loop.references", references)):
                for name_of, guidance in (("unguided", 1.0), ("guided", GUIDANCE)):
                    golden[f"{loop}.{name_of}"] = run_pipeline(model, prompts, latents, guidance, given)
                for parts in (2, 3):
                    for way in ("displaced", "pipefusion"):
                        golden[f"{loop}.{way}.{parts}"] = torch.stack([
                            run_stale(model, prompts[prompt], z, parts, way == "displaced", given)
                            for prompt, z in zip((1, 2, 1), latents)])
                        print(loop, way, parts, (golden[f"{loop}.{way}.{parts}"] - golden[f"{loop}.unguided"]).abs().max())
                print(loop, "whole", (run_stale(model, prompts[1], latents[0], 2, True, given, STEPS)
                                      - golden[f"{loop}.unguided"][0]).abs().max())
        for dtype, suffix in ((torch.float32, ""), (torch.bfloat16, ".bf16")):
            model = model.to(dtype)
            for timestep in TIMESTEPS:
                golden[f"output.{timestep:g}{suffix}"] = evaluate(model, latents, prompts, timestep)
        for tokens, steps in ((1, 1), (28, 4), (4096, 50), (4300, 4), (4301, 4), (16384, 28)):
            golden[f"mu.{tokens}.{steps}"] = torch.tensor(compute_empirical_mu(tokens, steps), dtype=torch.float64)
        (ROOT / name / "golden").mkdir(exist_ok=True)
        save_file(golden, ROOT / name / "golden" / "golden.safetensors")


def make_autoencoder():
    torch.manual_seed(9)
    vae = AutoencoderKLFlux2(block_out_channels=(8, 8, 8), decoder_block_out_channels=(4, 12, 8), norm_num_groups=4,
                             down_block_types=["DownEncoderBlock2D"] * 3, up_block_types=["UpDecoderBlock2D"] * 3,
                             layers_per_block=1, latent_channels=3, sample_size=32, batch_norm_eps=0.1).eval()
    for key, parameter in vae.named_parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=1.0 if "norm" in key and key.endswith("weight") else 0.0, std=0.3)
        else:
            torch.nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
    torch.nn.init.normal_(vae.bn.running_mean)
    torch.nn.init.uniform_(vae.bn.running_var, 0.01, 4)
    vae.save_pretrained(ROOT / "flux2-vae" / "vae")

    latents = torch.randn(2, 4 * vae.config.latent_channels, 3, 5)
    pictures = torch.rand(2, 3, 24, 40, generator=torch.Generator().manual_seed(7)) * 2 - 1
    golden = {"latents": latents, "pictures": pictures}
    model = Flux2Transformer2DModel(in_channels=latents.shape[1], num_layers=1, num_single_layers=1,
                                    attention_head_dim=8, num_attention_heads=1, joint_attention_dim=8,
                                    axes_dims_rope=(2,) * 4, guidance_embeds=False).eval()
    torch.nn.init.zeros_(model.proj_out.weight)  # the pipeline hands its latents on as they are
    for dtype, suffix in ((torch.float32, ""), (torch.bfloat16, ".bf16")):
        pipeline = Flux2KleinPipeline(FlowMatchEulerDiscreteScheduler(**SCHEDULER), vae.to(dtype), None, None,
                                      model.to(dtype))
        pipeline.set_progress_bar_config(disable=True)
        for name, output_type in (("unpacked", "latent"), ("image", "pt")):
            golden[name + suffix] = pipeline(
                prompt=None, height=latents.shape[2] * 8, width=latents.shape[3] * 8, num_inference_steps=1,
                guidance_scale=1.0, latents=latents.to(dtype), prompt_embeds=torch.randn(2, 2, 8).to(dtype),
                output_type=output_type).images.float().contiguous()
        golden["encoded" + suffix] = pipeline._encode_vae_image(pictures.to(dtype), None).float().contiguous()
        golden["decoded" + suffix] = vae.decode(golden["unpacked" + suffix].to(dtype)).sample.float().contiguous()
    (ROOT / "flux2-vae" / "golden").mkdir(exist_ok=True)
    save_file(golden, ROOT / "flux2-vae" / "golden" / "golden.safetensors")


@torch.no_grad()
def main():
    make_transformers()
    make_autoencoder()


if __name__ == "__main__":
    main()
