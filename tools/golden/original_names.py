"""Writes tests/golden/z-image-files and flux2-files: files of tiny random transformers with the names of their own code, as they are
downloaded (eight bits with factors, GGUF), and what diffusers' models give with the numbers of each, which the reference's own code
decodes and diffusers' own code renames; and tests/golden/blocks.safetensors: blocks of each format of GGUF, decoded."""
import json
import pathlib

import gguf
import numpy as np
import torch
from diffusers import Flux2Transformer2DModel, ZImageTransformer2DModel
from diffusers.loaders.single_file_utils import (convert_flux2_transformer_checkpoint_to_diffusers,
                                                 convert_z_image_transformer_checkpoint_to_diffusers)
from diffusers.quantizers.gguf.utils import dequantize_functions
from gguf import GGMLQuantizationType as Type
from safetensors.torch import save_file

from tools.golden import flux2, z_image

ROOT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden"
TIMESTEP = 417.5
# Where blocks have their factors, as fp16.
FACTORS = {Type.Q4_0: [0], Type.Q4_1: [0, 2], Type.Q5_0: [0], Type.Q5_1: [0, 2], Type.Q8_0: [0], Type.Q2_K: [80, 82],
           Type.Q3_K: [108], Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208]}
SMALL = [Type.Q8_0, Type.Q4_0, Type.Q5_1, Type.Q4_1, Type.Q5_0]  # whose blocks are of 32 numbers, and can be made from numbers
LARGE = {Type.Q4_K: (1 / 300, 1 / 300 * 7.5), Type.Q6_K: (1 / 1500,)}  # of 256, with factors of numbers of about 1


def random_blocks(kind, rows, count, random, factors):
    size = gguf.GGML_QUANT_SIZES[kind][1]
    blocks = random.integers(0, 256, (rows * count, size), dtype=np.uint8)
    for at, factor in zip(FACTORS[kind], factors):
        numbers = (factor * random.uniform(0.8, 1.2, rows * count)).astype(np.float16)
        blocks[:, at:at + 2] = numbers.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(rows, count * size)


def decoded(data, kind):
    numbers = torch.from_numpy(gguf.quants.dequantize(data, kind).astype(np.float32))
    if kind in FACTORS:  # diffusers' own formulas say the same
        block, size = gguf.GGML_QUANT_SIZES[kind]
        theirs = dequantize_functions[kind](torch.from_numpy(data.reshape(-1, size)), block, size, dtype=torch.float32)
        assert torch.equal(theirs.reshape(numbers.shape), numbers), kind
    return numbers


def make_blocks():
    random = np.random.default_rng(1)
    golden = {}
    for kind in FACTORS:
        data = random_blocks(kind, 3, 2, random, (0.7, 0.3))
        golden[f"{kind.name}.bytes"] = torch.from_numpy(data)
        golden[f"{kind.name}.numbers"] = decoded(data, kind)
    save_file(golden, ROOT / "blocks.safetensors")


def replaced(name, table):
    for old, new in table.items():
        name = name.replace(old, new)
    return name


def z_image_original(state):
    """The tensors of diffusers' model under the names of its own code."""
    table = {"all_x_embedder.2-1.": "x_embedder.", "all_final_layer.2-1.": "final_layer.", "attention.to_out.0.": "attention.out.",
             "attention.norm_q.": "attention.q_norm.", "attention.norm_k.": "attention.k_norm."}
    original = {}
    for name, tensor in state.items():
        if ".to_q." in name:
            tensor = torch.cat([state[name.replace(".to_q.", f".to_{part}.")] for part in "qkv"])
            name = name.replace(".to_q.", ".qkv.")
        if ".to_k." not in name and ".to_v." not in name:
            original[replaced(name, table)] = tensor
    return original | {"norm_final.weight": torch.ones(4)}


def flux2_original(state):
    table = {"time_guidance_embed.timestep_embedder.linear_1": "time_in.in_layer", "time_guidance_embed.timestep_embedder.linear_2": "time_in.out_layer",
             "time_guidance_embed.guidance_embedder.linear_1": "guidance_in.in_layer", "time_guidance_embed.guidance_embedder.linear_2": "guidance_in.out_layer",
             "modulation_img.linear": "modulation_img.lin", "modulation_txt.linear": "modulation_txt.lin", "modulation.linear": "modulation.lin",
             "x_embedder": "img_in", "context_embedder": "txt_in", "proj_out": "final_layer.linear", "norm_out.linear": "final_layer.adaLN_modulation.1"}
    of_double = {"attn.to_out.0": "img_attn.proj", "attn.norm_q.weight": "img_attn.norm.query_norm.scale",
                 "attn.norm_k.weight": "img_attn.norm.key_norm.scale", "attn.to_add_out": "txt_attn.proj",
                 "attn.norm_added_q.weight": "txt_attn.norm.query_norm.scale", "attn.norm_added_k.weight": "txt_attn.norm.key_norm.scale",
                 "ff.linear_in": "img_mlp.0", "ff.linear_out": "img_mlp.2", "ff_context.linear_in": "txt_mlp.0",
                 "ff_context.linear_out": "txt_mlp.2", "attn.to_q": "img_attn.qkv", "attn.add_q_proj": "txt_attn.qkv"}
    of_single = {"attn.to_qkv_mlp_proj": "linear1", "attn.to_out": "linear2", "attn.norm_q.weight": "norm.query_norm.scale",
                 "attn.norm_k.weight": "norm.key_norm.scale"}
    original = {}
    for name, tensor in state.items():
        if any(part in name for part in ("to_k.", "to_v.", "add_k_proj.", "add_v_proj.")):
            continue
        for first in ("to_q.", "add_q_proj."):
            if first in name:
                tensor = torch.cat([state[name.replace(first, first.replace("q", part))] for part in "qkv"])
        if name.startswith("single_transformer_blocks."):
            name = replaced(name, {"single_transformer_blocks.": "single_blocks."} | of_single)
        elif name.startswith("transformer_blocks."):
            name = replaced(name, {"transformer_blocks.": "double_blocks."} | of_double)
        elif name == "norm_out.linear.weight":
            tensor = torch.cat(tensor.chunk(2)[::-1])
        original[replaced(name, table)] = tensor
    return original


def scaled(original, names, by_row):
    """Weights of eight bits with factors, the others in bf16; and what they stand for."""
    file, numbers = {}, {}
    for count, (name, tensor) in enumerate(original.items()):
        layer = name.removesuffix(".weight")
        if tensor.dim() < 2 or layer == name:
            file[name] = tensor.bfloat16()
            numbers[name] = file[name].float()
            continue
        rows = by_row and count % 2 == 0
        factor = (tensor.abs().amax(1, keepdim=True) if rows else tensor.abs().max()) / 448
        file[name] = (tensor / factor).to(torch.float8_e4m3fn)
        file[layer + names[0]], file[layer + names[1]] = factor, torch.tensor(0.5)
        numbers[name] = file[name].float() * factor
    return file, numbers


def quantised(original, path, architecture, small=SMALL, large=LARGE):
    """Writes a GGUF file, and returns the numbers that it stands for."""
    random = np.random.default_rng(2)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_array("a.list.of.texts", ["one", "two"])
    writer.add_bool("a.truth", True)
    numbers, count = {}, 0
    for name, tensor in original.items():
        kind = Type.F32 if tensor.dim() < 2 else Type.BF16
        data = tensor.numpy()
        if large and tensor.dim() == 2 and tensor.shape[1] % 256 == 0:
            kind = list(large)[count % len(large)]
            spread = tensor.std().item()
            data = random_blocks(kind, len(tensor), tensor.shape[1] // 256, random, [spread * factor for factor in large[kind]])
            count += 1
        elif small and tensor.dim() == 2 and tensor.shape[1] % 32 == 0 and "pad_token" not in name:
            kind = small[count % len(small)]
            data = gguf.quants.quantize(data, kind)
            count += 1
        elif kind == Type.BF16:
            data = gguf.quants.quantize(data, kind)
        writer.add_tensor(name, data, raw_dtype=None if kind == Type.F32 else kind)
        numbers[name] = tensor if kind == Type.F32 else decoded(data, kind).view(tensor.shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return numbers


def numbers_of(model):
    """They stay when the model loads others."""
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def outputs_of(model, convert, files, evaluate):
    golden = {}
    for name, numbers in files.items():
        model.load_state_dict(convert({key: tensor.clone() for key, tensor in numbers.items()}), strict=True)
        golden[f"output.{name}"] = evaluate(model).contiguous()
        print(name, golden[f"output.{name}"].std())
    return golden


def write(folder, model, golden):
    (folder / "golden").mkdir(parents=True, exist_ok=True)
    model.save_config(folder / "transformer")
    save_file(golden, folder / "golden" / "golden.safetensors")


def make_z_image():
    torch.manual_seed(0)
    folder = ROOT / "z-image-files"
    folder.mkdir(exist_ok=True)
    model = ZImageTransformer2DModel(dim=32, n_heads=4, n_layers=1, n_refiner_layers=1, in_channels=4, cap_feat_dim=14, axes_dims=[4, 2, 2],
                                     axes_lens=[128, 64, 64]).eval()
    z_image.randomise(model)
    original = z_image_original(numbers_of(model))
    latents, prompts = torch.randn(2, 4, 6, 8), [torch.randn(length, 14) for length in (5, 33)]
    comfy, of_comfy = scaled(original, (".scale_weight", ".scale_input"), by_row=False)
    prefix = "model.diffusion_model."
    comfy = {prefix + name: tensor for name, tensor in comfy.items()} | {prefix + "scaled_fp8": torch.empty(0).to(torch.float8_e4m3fn)}
    save_file(comfy, folder / "scaled.safetensors")
    files = {"scaled": {prefix + name: tensor for name, tensor in of_comfy.items()},
             "quantised": quantised(original, folder / "quantised.gguf", "lumina2")}
    golden = outputs_of(model, convert_z_image_transformer_checkpoint_to_diffusers, files,
                        lambda model: z_image.evaluate(model, latents, prompts, TIMESTEP))
    write(folder, model, golden | {"latents": latents, "prompt.0": prompts[0], "prompt.1": prompts[1]})


def make_flux2():
    torch.manual_seed(1)
    folder = ROOT / "flux2-files"
    folder.mkdir(exist_ok=True)
    model = Flux2Transformer2DModel(num_attention_heads=2, attention_head_dim=16, axes_dims_rope=(4,) * 4, num_layers=1, num_single_layers=1,
                                    in_channels=8, joint_attention_dim=14, mlp_ratio=3.0, timestep_guidance_channels=32,
                                    guidance_embeds=False).eval()
    flux2.randomise(model)
    original = flux2_original(numbers_of(model))
    latents, prompts = torch.randn(2, 8, 3, 4), torch.randn(2, 7, 14)
    plain = {name: tensor.contiguous() for name, tensor in original.items()}
    save_file(plain, folder / "original.safetensors")
    eight, of_eight = scaled(original, (".weight_scale", ".input_scale"), by_row=True)
    layers = {name.removesuffix(".weight"): {"format": "float8_e4m3fn"} for name, tensor in eight.items() if tensor.dtype == torch.float8_e4m3fn}
    save_file(eight, folder / "scaled.safetensors", {"_quantization_metadata": json.dumps({"format_version": "1.0", "layers": layers})})
    files = {"original": plain, "scaled": of_eight, "quantised": quantised(original, folder / "quantised.gguf", "flux2")}
    golden = outputs_of(model, convert_flux2_transformer_checkpoint_to_diffusers, files,
                        lambda model: flux2.evaluate(model, latents, prompts, TIMESTEP))
    write(folder, model, golden | {"latents": latents, "prompts": prompts})


@torch.no_grad()
def main():
    make_blocks()
    make_z_image()
    make_flux2()


if __name__ == "__main__":
    main()
