"""What the references of tools/parity/stablehlo.py make of the inputs of a program: diffusers, transformers and the oracles of Open-Sora."""
import functools
import json

import torch

from tools.reference import stablehlo


def weights_of(folder, dtype=torch.float32):
    return {key: value.to(dtype) for key, value in stablehlo.read_weights(folder).items()}


def padded(texts):
    """Prompts [L, D] of different lengths as a batch, and the mask of their tokens."""
    mask = torch.zeros(len(texts), max(len(text) for text in texts))
    for row, text in zip(mask, texts):
        row[: len(text)] = 1
    return torch.nn.utils.rnn.pad_sequence(texts, batch_first=True), mask


def pixart(folder, latents, texts, given, dtype):
    from diffusers import PixArtTransformer2DModel

    model = PixArtTransformer2DModel.from_pretrained(folder / "transformer").to(dtype).eval()
    hidden, mask = padded(texts)
    y = model(latents.to(dtype), encoder_hidden_states=hidden.to(dtype), encoder_attention_mask=mask.to(dtype),
              timestep=given["timestep"].expand(len(texts)),
              added_cond_kwargs={"resolution": None, "aspect_ratio": None}).sample
    return y[:, : latents.shape[1]]  # the other channels are a variance


def unet(folder, latents, texts, given, dtype):
    from diffusers import StableDiffusionPipeline, UNet2DConditionModel

    model = UNet2DConditionModel.from_pretrained(folder / "unet").to(dtype).eval()
    added = {}
    if "pooled" in given:
        height, width = (8 * size for size in latents.shape[2:])
        ids = torch.tensor([[height, width, 0, 0, height, width]] * len(texts), dtype=torch.float32)
        added = {"text_embeds": torch.stack(given["pooled"]).to(dtype), "time_ids": ids.to(dtype)}
    scale = None
    if "guidance_scale" in given:
        embed = functools.partial(StableDiffusionPipeline.get_guidance_scale_embedding, None)
        scale = embed(given["guidance_scale"] - 1, model.config.time_cond_proj_dim).to(dtype).expand(len(latents), -1)
    return model(latents.to(dtype), given["timestep"], torch.stack(texts).to(dtype), timestep_cond=scale, added_cond_kwargs=added).sample


def stdit3(folder, latents, texts, given, dtype):
    from tools.reference.stdit3 import STDiT3

    model = STDiT3(weights_of(folder / "transformer", dtype), json.loads((folder / "transformer" / "config.json").read_text()))
    count = len(latents)
    texts = [model.text(text.to(dtype) if text is not None else model.null_text(given["null"])) for text in texts]
    return model(latents, given["timestep"].expand(count), texts, given["fps"].expand(count), given["height"].item(),
                 given["width"].item())[:, : latents.shape[1]]


def stdit2(folder, latents, texts, given, dtype=None):
    from tools.reference.stdit2 import STDiT2

    model = STDiT2(weights_of(folder / "transformer"), json.loads((folder / "transformer" / "config.json").read_text()))
    count = len(latents)
    texts = [model.text(text if text is not None else model.null_text(given["null"])) for text in texts]
    numbers = {name: given[name].expand(count) for name in ("fps", "num_frames", "ar", "height", "width")}
    return model(latents, given["timestep"].expand(count), texts, numbers)


def z_image(folder, latents, texts, given, dtype):
    from diffusers import ZImageTransformer2DModel

    model = ZImageTransformer2DModel.from_pretrained(folder / "transformer").to(dtype).eval()
    time = (1000 - given["timestep"].expand(len(texts))) / 1000
    return -torch.stack(model(list(latents.unsqueeze(2).to(dtype)), time, [text.to(dtype) for text in texts]).sample).squeeze(2)


def flux2(folder, latents, texts, given, dtype):
    from diffusers import Flux2KleinPipeline, Flux2Transformer2DModel

    model = Flux2Transformer2DModel.from_pretrained(folder / "transformer").to(dtype).eval()
    texts = torch.stack(texts).to(dtype)
    pictures = [given[name] for name in sorted(given) if name.startswith("reference.")]
    ids = Flux2KleinPipeline._prepare_latent_ids(latents)
    if pictures:
        ids = torch.cat([ids, Flux2KleinPipeline._prepare_image_ids(pictures).expand(len(ids), -1, -1)], 1)
    tokens = torch.cat([x.expand(len(texts), *x.shape[1:]).flatten(2) for x in (latents, *pictures)], 2).transpose(1, 2)
    made = model(hidden_states=tokens.to(dtype), encoder_hidden_states=texts, timestep=given["timestep"].expand(len(texts)).to(dtype) / 1000,
                 img_ids=ids, txt_ids=Flux2KleinPipeline._prepare_text_ids(texts), guidance=None).sample
    return made[:, : latents[0, 0].numel()].transpose(1, 2).reshape(latents.shape)


def t5(folder, inputs, dtype):
    from transformers import T5EncoderModel

    model = T5EncoderModel.from_pretrained(folder / "text_encoder", dtype=dtype).eval()
    return {"states": model(inputs["tokens"][None]).last_hidden_state[0]}


def clip(folder, inputs, dtype, part="text_encoder", layer=None):
    """The states before the last layers, or after the last norm, and the pooled vector where there is one."""
    from transformers import CLIPTextModel, CLIPTextModelWithProjection

    has_projection = json.loads((folder / "model_index.json").read_text())[part][1].endswith("WithProjection")
    model = (CLIPTextModelWithProjection if has_projection else CLIPTextModel).from_pretrained(folder / part).to(dtype).eval()
    made = model(inputs["tokens"][None], output_hidden_states=True)
    results = {"states": (made.last_hidden_state if layer is None else made.hidden_states[layer])[0]}
    if has_projection:
        results["pooled"] = made.text_embeds[0]
    return results


def qwen3(folder, inputs, dtype):
    from transformers import Qwen3Model

    model = Qwen3Model.from_pretrained(folder / "text_encoder", dtype=dtype).eval()
    return {"states": model(inputs["tokens"][None], output_hidden_states=True).hidden_states[-2][0]}


def autoencoder(folder, inputs, dtype):
    from diffusers import AutoencoderKL

    model = AutoencoderKL.from_pretrained(folder / "vae").to(dtype).eval()
    return {"frames": model.decode(inputs["latents"].to(dtype) / model.config.scaling_factor).sample}


def flux2_autoencoder(folder, inputs, dtype):
    from diffusers import AutoencoderKLFlux2, Flux2KleinPipeline

    model = AutoencoderKLFlux2.from_pretrained(folder / "vae").to(dtype).eval()
    mean, variance = (numbers.view(-1, 1, 1) for numbers in (model.bn.running_mean, model.bn.running_var))
    latents = inputs["latents"].to(dtype) * torch.sqrt(variance + model.config.batch_norm_eps) + mean
    return {"frames": model.decode(Flux2KleinPipeline._unpatchify_latents(latents)).sample}


def video_vae(folder, inputs, dtype=None):
    from tools.reference.open_sora import OpenSora

    return {"frames": OpenSora(folder).vae.decode(inputs["latents"].transpose(0, 1)[None], 17)}
