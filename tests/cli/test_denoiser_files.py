"""Tests files that hold a denoiser alone, with the names of its own code: safetensors and GGUF."""
import json
import shutil
import struct

from files import assert_near, read_latents, read_safetensors, write_safetensors
from harness import ROOT

GOLDEN = ROOT / "tests" / "golden"
MODEL, KLEIN = GOLDEN / "tiny-z-image", GOLDEN / "tiny-flux2-klein"
WEIGHTS = MODEL / "transformer" / "diffusion_pytorch_model.safetensors"
NAMES = {"all_x_embedder.2-1.": "x_embedder.", "all_final_layer.2-1.": "final_layer.", ".to_out.0.": ".out.", ".norm_q.": ".q_norm.", ".norm_k.": ".k_norm."}
NAMES_OF_FLUX2 = {
    "time_guidance_embed.timestep_embedder.linear_1": "time_in.in_layer", "time_guidance_embed.timestep_embedder.linear_2": "time_in.out_layer",
    "modulation_img.linear": "modulation_img.lin", "modulation_txt.linear": "modulation_txt.lin", "modulation.linear": "modulation.lin",
    "x_embedder": "img_in", "context_embedder": "txt_in", "proj_out.w": "final_layer.linear.w", "norm_out.linear": "final_layer.adaLN_modulation.1"}
OF_DOUBLE = {"attn.to_out.0": "img_attn.proj", "attn.norm_q.weight": "img_attn.norm.query_norm.scale", "attn.norm_k.weight": "img_attn.norm.key_norm.scale",
             "attn.to_add_out": "txt_attn.proj", "attn.norm_added_q.weight": "txt_attn.norm.query_norm.scale",
             "attn.norm_added_k.weight": "txt_attn.norm.key_norm.scale", "ff.linear_in": "img_mlp.0", "ff.linear_out": "img_mlp.2",
             "ff_context.linear_in": "txt_mlp.0", "ff_context.linear_out": "txt_mlp.2", "attn.to_q": "img_attn.qkv", "attn.add_q_proj": "txt_attn.qkv"}
OF_SINGLE = {"attn.to_qkv_mlp_proj": "linear1", "attn.to_out": "linear2", "attn.norm_q.weight": "norm.query_norm.scale", "attn.norm_k.weight": "norm.key_norm.scale"}
SMALL = ["--height", "32", "--width", "48", "--num-inference-steps", "2", "--seed", "1"]


def original_tensors():
    """The tensors of the tiny Z-Image under the names of its own code."""
    tensors, result = read_safetensors(WEIGHTS)[0], {}
    for name, (dtype, shape, data) in tensors.items():
        if ".to_k." in name or ".to_v." in name:
            continue
        if ".to_q." in name:
            data = b"".join(tensors[name.replace(".to_q.", f".to_{part}.")][2] for part in "qkv")
            name, shape = name.replace(".to_q.", ".qkv."), [3 * shape[0], *shape[1:]]
        for new, old in NAMES.items():
            name = name.replace(new, old)
        result[name] = dtype, shape, data
    return result | {"norm_final.weight": ("F32", [4], bytes(16))}


def original_tensors_of_flux2():
    tensors, result = read_safetensors(KLEIN / "transformer" / WEIGHTS.name)[0], {}
    for name, (dtype, shape, data) in tensors.items():
        if any(part in name for part in ("to_k.", "to_v.", "add_k_proj.", "add_v_proj.")):
            continue
        for first in ("to_q.", "add_q_proj."):
            if first in name:
                data, shape = b"".join(tensors[name.replace(first, first.replace("q", part))][2] for part in "qkv"), [3 * shape[0], *shape[1:]]
        if name == "norm_out.linear.weight":
            data = data[len(data) // 2:] + data[:len(data) // 2]
        kind = "single_" if name.startswith("single_transformer_blocks.") else "double_" if name.startswith("transformer_blocks.") else ""
        table = {"": NAMES_OF_FLUX2, "single_": OF_SINGLE, "double_": OF_DOUBLE}[kind]
        for new, old in table.items():
            name = name.replace(new, old)
        result[name.replace("single_transformer_blocks.", "single_blocks.") if kind == "single_" else name.replace("transformer_blocks.", "double_blocks.")] = dtype, shape, data
    return result


def write_gguf(path, tensors, version=3):
    types = {"F32": 0, "F16": 1, "BF16": 30}
    text = lambda words: struct.pack("<Q", len(words)) + words.encode()
    header, data = struct.pack("<4sIQQ", b"GGUF", version, len(tensors), 1) + text("general.architecture") + struct.pack("<I", 8) + text("lumina2"), b""
    for name, (dtype, shape, numbers) in tensors.items():
        header += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], types[dtype], len(data))
        data += numbers + bytes(-len(numbers) % 32)
    path.write_bytes(header + bytes(-len(header) % 32) + data)


def latents(box, model, *words):
    outcome = box.run("generate", "a cat", *model, *SMALL, "--dtype", "fp32", *words, "--output-type", "latent", "-o", "out.safetensors")
    assert outcome.code == 0, outcome
    return read_latents(box.folder / "out.safetensors"), outcome.err


def inputs(box):
    folder = box.folder / "in"
    folder.mkdir()
    configs = box.folder / "configs"
    shutil.copytree(MODEL, configs, ignore=shutil.ignore_patterns("golden"))
    (configs / "transformer" / WEIGHTS.name).unlink()
    return folder, configs


def test_z_image_from_single_files(box):
    folder, configs = inputs(box)
    expected, _ = latents(box, ["--model", MODEL])
    tensors = original_tensors()
    write_safetensors(folder / "plain.safetensors", tensors)
    write_safetensors(folder / "comfy.safetensors", {f"model.diffusion_model.{name}": tensor for name, tensor in tensors.items()})
    write_gguf(folder / "model.gguf", tensors)
    shutil.copyfile(folder / "model.gguf", folder / "0123abcd")
    shutil.copyfile(WEIGHTS, folder / "diffusers.safetensors")
    for file in sorted(folder.iterdir()):
        model = ["--model", file, "--config", configs]
        got, errors = latents(box, model)
        assert_near(got, expected, 0)
        assert "not used" not in errors, errors
        outcome = box.run("models", file, "--config", configs)
        assert outcome.code == 0 and f"can run: tessera generate \"PROMPT\" --model {file} --config {configs}\n" in outcome.out, outcome
        assert "warning" not in outcome.out, outcome
    model = ["--model", folder / "model.gguf", "--config", configs]
    for flags in ("--tensor-parallel-degree 2", "--pipefusion-parallel-degree 2 --warmup-steps 2"):
        assert_near(latents(box, model, *flags.split())[0], expected, 1e-3)
    write_safetensors(folder / "more.safetensors", tensors | {"vae.x": ("F32", [1], bytes(4)), "layers.0.attention.qkv.bias": ("F32", [72], bytes(288))})
    got, errors = latents(box, ["--model", folder / "more.safetensors", "--config", configs])
    assert_near(got, expected, 0)
    assert "more.safetensors] 4 weights are not used, from 'layers.0.attention.to_k.bias' to 'vae.x'" in errors, errors


def test_flux2_klein_from_single_files(box):
    (box.folder / "in").mkdir()
    expected, _ = latents(box, ["--model", KLEIN])
    tensors = original_tensors_of_flux2()
    write_safetensors(box.folder / "in" / "comfy.safetensors", {f"model.diffusion_model.{name}": tensor for name, tensor in tensors.items()})
    write_gguf(box.folder / "in" / "model.gguf", tensors)
    for name in ("comfy.safetensors", "model.gguf"):
        got, errors = latents(box, ["--model", box.folder / "in" / name, "--config", KLEIN])
        assert_near(got, expected, 0)
        assert "not used" not in errors, errors
    box.refuse(3, f"is of FLUX.2, but '{MODEL}' is of Z-Image; name a folder of the file's model with --config", "generate", "a cat", "--model",
               box.folder / "in" / "model.gguf", "--config", MODEL, *SMALL)


def test_quantised_z_image(box):
    """`tessera models` says what the numbers are, of files in eight bits and in blocks."""
    folder, configs = inputs(box)
    files = GOLDEN / "z-image-files"
    for file, form in (("scaled.safetensors", "Float8_e4m3fn"), ("quantised.gguf", "Q6_K")):
        outcome = box.run("models", files / file, "--config", configs, "--json")
        part = json.loads(outcome.out)["parts"]["transformer"]
        assert part["dtype"] == form and part["files"] == 1, part
        assert "has shape" in json.loads(outcome.out)["reason"], outcome


def test_invalid_denoiser_files(box):
    folder, configs = inputs(box)
    tensors = original_tensors()

    def refuse(needle, file, config=configs, code=3):
        box.refuse(code, needle, "generate", "a cat", "--model", folder / file, *(["--config", config] if config else []), *SMALL)

    write_gguf(folder / "whole.gguf", tensors)
    refuse(f"[--config] '{folder / 'whole.gguf'}' holds only weights: name a folder", "whole.gguf", config=None, code=2)
    data = (folder / "whole.gguf").read_bytes()
    for size in (10, 3000, len(data) - 40):
        (folder / "cut.gguf").write_bytes(data[:size])
        refuse("it is cut off or damaged; get the file again", "cut.gguf")
    write_gguf(folder / "old.gguf", tensors, version=1)
    refuse("old.gguf] version 1 of GGUF cannot be read", "old.gguf")
    (folder / "not.gguf").write_bytes(b"x" * 100)
    refuse("not.gguf]", "not.gguf")
    refuse("none.gguf] no such file", "none.gguf")
    refuse(f"is of Z-Image, but '{GOLDEN / 'tiny-sd'}' is of Stable Diffusion; name a folder of the file's model with --config", "whole.gguf",
           config=GOLDEN / "tiny-sd")
    refuse("is of PixArt-Sigma, but models that can be read from a single file are those of Stable Diffusion, Stable Diffusion XL", "whole.gguf",
           config=GOLDEN / "tiny-pixart")
    one = "F32", [1], bytes(4)
    for key, title in (("double_blocks.0.img_mod.lin.weight", "FLUX.1"), ("double_stream_modulation_img.lin.weight", "FLUX.2"),
                       ("model.embed_tokens.weight", "a text encoder"), ("model.diffusion_model.input_blocks.0.0.weight", "Stable Diffusion")):
        write_safetensors(folder / "other.safetensors", {key: one})
        refuse(f"other.safetensors] is of {title}, but '{configs}' is of Z-Image; name a folder of the file's model with --config", "other.safetensors")
    write_safetensors(folder / "other.safetensors", {"x": one})
    refuse("other.safetensors] has no weights of Z-Image, under the names of its own code or of diffusers", "other.safetensors")
    for key in ("layers.1.attention.qkv.weight", "cap_embedder.0.weight"):
        write_safetensors(folder / "part.safetensors", {name: tensor for name, tensor in tensors.items() if name != key})
        refuse("' is missing", "part.safetensors")
    write_safetensors(folder / "part.safetensors", tensors | {"layers.0.attention.qkv.weight_scale_2": one})
    refuse("part.safetensors] 'layers.0.attention.qkv.weight_scale_2' says that 'layers.0.attention.qkv.weight' is quantised in a form that cannot be read",
           "part.safetensors")
    shutil.rmtree(configs / "vae")
    refuse(str(configs / "vae"), "whole.gguf")
