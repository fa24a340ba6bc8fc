"""Files of Z-Image and FLUX.2 klein that are broken, in another's place or of other models: each ends the program with one line that says
what is wrong and where, and the exit code, and leaves nothing behind; `tessera models` says the same of a folder."""
import dataclasses
import json
import shutil
import struct
import zlib

from files import change_json, read_safetensors, write_safetensors
from harness import ROOT
from test_denoiser_files import original_tensors_of_flux2, write_gguf
from tiny_pipeline import TinyPipeline

Z_IMAGE, KLEIN = TinyPipeline("tiny-z-image"), TinyPipeline("tiny-flux2-klein")
WEIGHTS, TEXT = "transformer/diffusion_pytorch_model.safetensors", "text_encoder/model.safetensors"
CONFIG, VAE, ENCODER = "transformer/config.json", "vae/config.json", "text_encoder/config.json"
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n"
ONE, FOUR = ("F32", [1], bytes(4)), ("F32", [2, 2], bytes(16))


@dataclasses.dataclass
class Shards:
    """Divides a file of weights into two, of which the first has `first` of the tensors, and changes them."""
    file: str
    change: object  # takes the folder and the names of the shards
    first: int = 5

    def __call__(self, model):
        path = model / self.file
        tensors = read_safetensors(path)[0]
        path.unlink()
        names = [f"{path.stem}-0000{number}-of-00002.safetensors" for number in (1, 2)]
        keys = sorted(tensors)
        parts = {names[0]: keys[:self.first], names[1]: keys[self.first:]}
        for name, part in parts.items():
            write_safetensors(path.parent / name, {key: tensors[key] for key in part})
        index = path.parent / f"{path.name}.index.json"
        index.write_text(json.dumps({"weight_map": {key: name for name, part in parts.items() for key in part}}))
        self.change(path.parent, index, *names)


def changed_index(change):
    def run(_, index, *names):
        weight_map = json.loads(index.read_text())["weight_map"]
        change(weight_map, *names)
        index.write_text(json.dumps({"weight_map": weight_map}))
    return run


def cut(file, length):
    return lambda model: (model / file).write_bytes((model / file).read_bytes()[:length])


def text(file, content):
    return lambda model: (model / file).write_text(content)


def keys(file, **changes):
    return lambda model: change_json(model / file, **changes)


def add(file, name, tensor=ONE):
    """One tensor more."""
    return lambda model: write_safetensors(model / file, read_safetensors(model / file)[0] | {name: tensor})


def part_of(part, other):
    """A part of another model in the place of this one's."""
    def run(model):
        shutil.rmtree(model / part)
        shutil.copytree(ROOT / "tests" / "golden" / other, model / part, ignore=shutil.ignore_patterns("golden"))
    return run


def copied(source, target):
    return lambda model: shutil.copyfile(model / source, model / target)


def lora(model):
    write_safetensors(model / WEIGHTS, {f"transformer.single_transformer_blocks.0.attn.to_out.{name}.weight": FOUR for name in ("lora_A", "lora_B")})


def lora_alone(model):
    (model / WEIGHTS).unlink()
    write_safetensors(model / "transformer" / "pytorch_lora_weights.safetensors", {"single_blocks.0.linear1.lora_down.weight": FOUR})


def double_key(folder, _, first, second):
    tensors = read_safetensors(folder / first)[0]
    name = sorted(tensors)[0]
    write_safetensors(folder / second, read_safetensors(folder / second)[0] | {name: tensors[name]})


# A folder: the model, what is changed in it, what the line says.
FOLDERS = [
    # Shards.
    (KLEIN, Shards(WEIGHTS, lambda folder, index, *_: index.unlink()),
     "but no diffusion_pytorch_model.safetensors.index.json, which says what the parts hold; get that file too"),
    (KLEIN, Shards(TEXT, lambda folder, index, *_: index.unlink()), "but no model.safetensors.index.json, which says what the parts hold"),
    (KLEIN, Shards(WEIGHTS, lambda folder, _, first, second: (folder / second).unlink()), "00002-of-00002.safetensors] no such file"),
    (KLEIN, Shards(TEXT, lambda folder, _, first, second: (folder / first).unlink()), "model-00001-of-00002.safetensors] no such file"),
    (KLEIN, Shards(WEIGHTS, lambda folder, _, first, second: cut(second, 100)(folder)), "00002-of-00002.safetensors] the header should have"),
    (KLEIN, Shards(WEIGHTS, lambda folder, _, first, second: text(first, LFS)(folder)), "00001-of-00002.safetensors] is a git-lfs pointer"),
    (KLEIN, Shards(WEIGHTS, double_key), "' is also in diffusion_pytorch_model-00001-of-00002.safetensors"),
    (KLEIN, Shards(WEIGHTS, changed_index(lambda each, first, second: each.update(gone=first))), "'gone' should be in diffusion_pytorch_model-00001"),
    (KLEIN, Shards(WEIGHTS, changed_index(lambda each, first, second: each.update(away="../x"))), "'away' must name a file in the same folder"),
    (KLEIN, Shards(WEIGHTS, lambda folder, index, *_: index.write_text("{")), "index.json]"),
    (KLEIN, Shards(WEIGHTS, lambda folder, index, *_: index.write_text("{}")), "'weight_map' must be an object"),
    (KLEIN, Shards(WEIGHTS, changed_index(lambda each, first, second: [each.pop(key) for key, name in list(each.items()) if name == second])),
     "' is missing"),
    # Files of weights.
    (KLEIN, cut(WEIGHTS, 0), "is empty; get the file again"), (KLEIN, text(WEIGHTS, LFS), "is a git-lfs pointer"),
    (KLEIN, cut("vae/diffusion_pytorch_model.safetensors", 2000), "vae/diffusion_pytorch_model.safetensors]"),
    (KLEIN, lambda model: (model / WEIGHTS).unlink(), "transformer] no diffusion_pytorch_model.safetensors in this folder"),
    (KLEIN, lora, "is a LoRA, which cannot be added to a model yet"),
    (KLEIN, lora_alone, "pytorch_lora_weights.safetensors] is a LoRA, which cannot be added to a model yet"),
    (KLEIN, copied(TEXT, WEIGHTS), "' is missing; by its names diffusion_pytorch_model.safetensors is of a text encoder"),
    (KLEIN, lambda model: write_gguf(model / WEIGHTS, original_tensors_of_flux2()), "is a GGUF file, which holds a transformer alone; name it as --model, and this folder as --config"),
    (KLEIN, lambda model: shutil.copyfile(Z_IMAGE.folder / WEIGHTS, model / WEIGHTS), "' is missing; by its names diffusion_pytorch_model.safetensors is of Z-Image"),
    # Weights that are quantised in other forms.
    (KLEIN, add(WEIGHTS, "x_embedder.weight_scale_2"), "'x_embedder.weight_scale_2' says that 'x_embedder.weight' is quantised in a form that cannot"),
    (KLEIN, add(WEIGHTS, "x_embedder.weight.absmax"), "'x_embedder.weight.absmax' says that 'x_embedder.weight' is quantised in a form that cannot"),
    (KLEIN, add(WEIGHTS, "x_embedder.weight_scale"), "'x_embedder.weight_scale', Float of shape [1], says that 'x_embedder.weight', BFloat16, is quantised"),
    (KLEIN, add(WEIGHTS, "x_embedder.comfy_quant", ("U8", [19], b'{"format": "nvfp4"}')), "'x_embedder.comfy_quant' says that 'x_embedder' is quantised"),
    (KLEIN, add(WEIGHTS, "gone.weight_scale"), "'gone.weight_scale' is a factor of 'gone.weight', which is missing"),
    (Z_IMAGE, keys(CONFIG, quantization_config={"quant_method": "bitsandbytes"}), "a part whose weights are quantised cannot run yet"),
    (Z_IMAGE, keys(ENCODER, quantization_config={"quant_method": "gptq"}), "a part whose weights are quantised cannot run yet"),
    # Text encoders of other models and sizes.
    (KLEIN, part_of("text_encoder", "tiny-z-image/text_encoder"), "'num_hidden_layers'"),
    (KLEIN, part_of("text_encoder", "tiny-pixart/text_encoder"), "'model_type' must be \"qwen3\""),
    (Z_IMAGE, part_of("text_encoder", "tiny-flux2-klein/text_encoder"), "the text encoder gives tokens of width"),
    (KLEIN, part_of("tokenizer", "tiny-pixart/tokenizer"), "tokenizer"), (KLEIN, keys(ENCODER, vocab_size=400), "has shape"),
    (KLEIN, keys(ENCODER, num_key_value_heads=3), "'num_key_value_heads' must be"), (KLEIN, keys(ENCODER, head_dim=5), "'head_dim' must be even"),
    (KLEIN, keys(ENCODER, rope_parameters={"rope_type": "axial", "rope_theta": 1e6}), "angles can have the scalings linear, "),
    # Chat templates and tokenizers.
    (KLEIN, text("tokenizer/chat_template.jinja", "{{ messages }}"), "chat_template.jinja] the chat template"),
    (KLEIN, text("tokenizer/chat_template.jinja", ""), "chat template"),
    (KLEIN, lambda model: (model / "tokenizer" / "tokenizer.json").unlink(), "tokenizer] holds neither tokenizer.json nor vocab.json with merges.txt"),
    (KLEIN, text("tokenizer/tokenizer.json", "{}"), "tokenizer.json]"), (KLEIN, cut("tokenizer/tokenizer.json", 500), "tokenizer.json]"),
    # Configs.
    (KLEIN, keys(CONFIG, patch_size=2), "'patch_size' is 2: the model would predict more channels than its latents have"),
    (KLEIN, keys(CONFIG, guidance_embeds="no"), "'guidance_embeds' must be"), (KLEIN, keys(CONFIG, num_layers=-1), "'num_layers' must be"),
    (KLEIN, keys(CONFIG, axes_dims_rope=[2, 2, 2, 4]), "'axes_dims_rope' must be"), (KLEIN, keys(CONFIG, in_channels=12), "in_channels of the denoiser"),
    (KLEIN, keys(CONFIG, num_attention_heads=3), "has shape"), (KLEIN, keys(CONFIG, mlp_ratio=0), "'mlp_ratio' must be"),
    (KLEIN, keys(VAE, patch_size=[4, 4]), "'patch_size' is [4,4]: the pipelines pack latents by 2 x 2"),
    (KLEIN, keys(VAE, decoder_block_out_channels=[4, 8]), "'decoder_block_out_channels' must be 4 numbers"),
    (KLEIN, keys("model_index.json", transformer=["diffusers", "FluxTransformer2DModel"]), "this class cannot run here; of diffusers these can: Flux2"),
    (KLEIN, keys("model_index.json", _class_name="Flux2Pipeline"), "this class cannot run here; of transformers these can: PixtralProcessor"),
    (KLEIN, keys("scheduler/scheduler_config.json", time_shift_type="cubic"), "'time_shift_type'"),
    (Z_IMAGE, keys(CONFIG, all_f_patch_size=[2]), "only patches of 2 x 2 latents and 1 frame can be had here"),
    (Z_IMAGE, keys(CONFIG, axes_dims=[2, 2, 4]), "'axes_dims' must be three even numbers"),
    (Z_IMAGE, keys(CONFIG, siglip_feat_dim=4), "'siglip_feat_dim' is 4: pictures as a part of the prompt (Omni) are not supported"),
    (Z_IMAGE, cut(CONFIG, 40), "config.json]"), (Z_IMAGE, keys(CONFIG, n_layers="two"), "'n_layers' must be"),
]


def test_broken_folders(box):
    failures = []
    for number, (family, change, needle) in enumerate(FOLDERS):
        model = family.copy(box)
        change(model)
        try:
            family.refuse(box, 3, needle, *(["--ulysses-degree", "2"] if number % 4 == 0 else []), model=model)
            outcome = box.run("models", model)
            assert outcome.code == 3 and needle in outcome.out, outcome
        except AssertionError as error:
            failures.append(f"{number}: {needle}: {error}")
    assert not failures, "\n".join(failures)


# A file of the transformer alone, under the names of its own code.
FILES = [
    ("lora_unet_double_blocks_0.lora_down.weight", "is a LoRA, which cannot be added to a model yet; name a whole model"),
    ("diffusion_model.double_blocks.0.img_attn.proj.lora_A.weight", "is a LoRA, which cannot be added to a model yet; name a whole model"),
    ("control_model.input_blocks.0.0.weight", "is a ControlNet, which cannot be used yet; name a whole model"),
    ("decoder.conv_in.weight", "is a VAE alone; name a whole model"), ("emb_params", "is an embedding of textual inversion"),
    ("token_embd.weight", "has no weights of FLUX.2 klein, under the names of its own code or of diffusers"),
    ("cap_embedder.1.weight", "is of Lumina"), ("joint_blocks.0.x_block.attn.qkv.weight", "is of Stable Diffusion 3"),
    ("blocks.0.self_attn.q.weight", "is of Wan"), ("transformer_blocks.0.img_mod.1.weight", "is of Qwen-Image"),
]


def words(string):
    return struct.pack("<Q", len(string)) + string.encode()


def gguf_of(*, version=3, architecture="flux2", kind=0, shape=(32,), offset=0, name="img_in.weight", more=b"", pairs=1, data=bytes(512), count=1):
    """A GGUF file of one tensor."""
    header = struct.pack("<4sIQQ", b"GGUF", version, count, pairs) + words("general.architecture") + struct.pack("<I", 8) + words(architecture) + more
    header += count * (words(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset))
    return header + bytes(-len(header) % 32) + data


GGUF = [
    (gguf_of(version=1), "version 1 of GGUF cannot be read"), (gguf_of(version=0x03000000), "big-endian files of GGUF cannot be read"),
    (gguf_of(kind=20), "'img_in.weight': weights of type IQ4_NL cannot be read; take a file of Q8_0, Q6_K, Q5_K or Q4_K"),
    (gguf_of(kind=34, shape=(256,)), "weights of type TQ1_0 cannot be read"), (gguf_of(kind=39), "weights of type MXFP4 cannot be read"),
    (gguf_of(kind=777), "weights of type 777 cannot be read"), (gguf_of(kind=8, shape=(40,)), "rows of 40 numbers are no whole blocks of Q8_0"),
    (gguf_of(kind=12, shape=(32,)), "rows of 32 numbers are no whole blocks of Q4_K"), (gguf_of(offset=8), "begins at byte 8 of the data"),
    (gguf_of(shape=(4096,)), "ends at byte 16384 of the data, but the file holds only 512"), (gguf_of(count=2), "'img_in.weight' is there twice"),
    (gguf_of(pairs=2, more=words("general.alignment") + struct.pack("<II", 4, 3)), "'general.alignment' must be a power of two"),
    (gguf_of(pairs=2, more=words("split.count") + struct.pack("<IH", 2, 3)), "is one of 3 parts of a file; join them first"),
    (gguf_of(architecture="llama", name="token_embd.weight"), "has no weights of FLUX.2 klein"),
    (gguf_of(architecture="flux", name="double_blocks.0.img_mod.lin.weight"), "is of FLUX.1"),
]


def test_broken_files_of_a_transformer(box):
    inputs = box.folder / "in"
    inputs.mkdir()
    failures = []

    def refuse(file, needle):
        try:
            box.refuse(3, needle, "generate", "a cat", "--model", file, "--config", KLEIN.folder, *KLEIN.SMALL)
        except AssertionError as error:
            failures.append(f"{file.name}: {needle}: {error}")

    for key, needle in FILES:
        write_safetensors(inputs / "one.safetensors", {key: ONE})
        refuse(inputs / "one.safetensors", f"one.safetensors] {needle}")
    for content, needle in GGUF:
        (inputs / "one.gguf").write_bytes(content)
        refuse(inputs / "one.gguf", needle)
    write_gguf(inputs / "whole.gguf", original_tensors_of_flux2())
    whole = (inputs / "whole.gguf").read_bytes()
    for length in (0, 3, 4, 7, 20, 30, 60, 500, len(whole) // 2, len(whole) - 33):
        (inputs / "cut.gguf").write_bytes(whole[:length])
        refuse(inputs / "cut.gguf", "cut.gguf] a file of 3 bytes is too short for GGUF" if length == 3 else "cut.gguf]")
    tensors = original_tensors_of_flux2()
    for key, missing in (("double_blocks.0.img_attn.qkv.weight", "transformer_blocks.0.attn.to_q.weight"), ("img_in.weight", "x_embedder.weight")):
        write_gguf(inputs / "part.gguf", {name: tensor for name, tensor in tensors.items() if name != key})
        refuse(inputs / "part.gguf", f"part.gguf] weight '{missing}' is missing, which is '{key}' in the names of this file")
    assert not failures, "\n".join(failures)


def png(width, height):
    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
    rows = (b"\0" + bytes(3 * width)) * height
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows))
            + chunk(b"IEND", b""))


def gif(width, height):
    """One black frame, of codes of eight bits, which 128 sets back."""
    pixels = width * height
    codes = b"".join(b"\x80" + bytes(min(100, pixels - at)) for at in range(0, pixels, 100)) + b"\x81"
    blocks = b"".join(bytes([len(codes[at:at + 255])]) + codes[at:at + 255] for at in range(0, len(codes), 255))
    return (struct.pack("<6sHHBBB", b"GIF89a", width, height, 0x86, 0, 0) + bytes(3 * 128) + struct.pack("<BHHHHB", 0x2C, 0, 0, width, height, 0)
            + b"\x07" + blocks + b"\0;")


def bmp_of_16_bits(width, height):
    size = 2 * width * height
    return struct.pack("<2sIIIIiiHHIIiiII", b"BM", 54 + size, 0, 54, 40, width, height, 1, 16, 0, size, 0, 0, 0, 0) + bytes(size)


JPEG = (ROOT / "tests" / "golden" / "media" / "full.jpg").read_bytes()
PICTURES = [
    (png(1, 1), "one.png] 1 x 1 pixels: sides must be at least 64 pixels"), (png(64, 63), "one.png] 63 x 64 pixels: sides must be at least 64 pixels"),
    (png(64, 513), "one.png] 513 x 64 pixels: a side may be at most 8 times as long as the other"), (b"", "one.png]"), 
    (png(80, 80)[:60], "one.png] the file is cut off: it has 60 bytes and needs at least"),
    (png(80, 80)[:-12], "one.png] the file is cut off"), (JPEG[:len(JPEG) // 2], "one.png] the file is cut off"),
    (JPEG[:-2], "one.png] the file is cut off"), (JPEG[:-99] + JPEG[-2:], "one.png] cannot be read as a JPEG: Corrupt JPEG data: premature end"),
    (gif(64, 80), "one.png] a GIF, an AVIF, an animation or a video, and --image takes pictures"),
    (bmp_of_16_bits(64, 64), "one.png] a BMP of 16 bits a pixel, which is not read; convert it to a PNG"),
    (b"II*\0" + bytes(100), "one.png] a TIFF, which is not read"), (b"MM\0*" + bytes(100), "one.png] a TIFF, which is not read"),
    (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "one.png] not an image or video"), (png(0, 64), "one.png]"),
]


def test_broken_pictures_to_edit(box):
    failures = []
    for number, (content, needle) in enumerate(PICTURES):
        (box.folder / "one.png").write_bytes(content)
        try:
            KLEIN.refuse(box, 3, needle, "--image", "one.png", *(["--ulysses-degree", "2"] if number % 2 else []))
        except AssertionError as error:
            failures.append(f"{number}: {needle}: {error}")
    try:
        KLEIN.refuse(box, 3, "not a regular file", "--image", ".")
    except AssertionError as error:
        failures.append(str(error))
    assert not failures, "\n".join(failures)
