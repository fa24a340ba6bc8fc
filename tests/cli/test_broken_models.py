"""More broken models of Z-Image and FLUX.2 klein, each a case with a name: files that are missing, cut off or of another part, numbers that cannot be
meant, and pictures that cannot be read. The program ends with one line and code 3 and leaves nothing behind, and `tessera models` says the same."""
import json
import os
import shutil
import struct
import zlib

import pytest

from files import change_json, read_safetensors, write_safetensors
from test_broken_files import (CONFIG, ENCODER, FOUR, JPEG, KLEIN, LFS, ONE, TEXT, VAE, WEIGHTS, Z_IMAGE, Shards, changed_index, copied, cut, gguf_of,
                               keys, part_of, png, text, words)
from test_denoiser_files import original_tensors_of_flux2, write_gguf

DECODER, INDEX, SCHEDULER = "vae/diffusion_pytorch_model.safetensors", "model_index.json", "scheduler/scheduler_config.json"
TOKENS, TOKENIZER, TEMPLATE = "tokenizer/tokenizer.json", "tokenizer/tokenizer_config.json", "tokenizer/chat_template.jinja"
FIRST, SECOND = "00001-of-00002.safetensors]", "00002-of-00002.safetensors]"


def steps(*changes):
    def run(model):
        for change in changes:
            change(model)
    return run


def without(*paths):
    """Takes files or folders away."""
    def run(model):
        for path in paths:
            shutil.rmtree(model / path) if (model / path).is_dir() else (model / path).unlink()
    return run


def in_json(file, change):
    def run(model):
        document = json.loads((model / file).read_text())
        change(document)
        (model / file).write_text(json.dumps(document))
    return run


def in_tensors(file, change):
    def run(model):
        tensors = dict(read_safetensors(model / file)[0])
        change(tensors)
        write_safetensors(model / file, tensors)
    return run


def in_header(file, key, **changes):
    """Changes what the header of a safetensors file says of a tensor, and none of the data."""
    def run(model):
        data = (model / file).read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8:8 + size])
        header[key].update(changes)
        changed = json.dumps(header).encode()
        (model / file).write_bytes(struct.pack("<Q", len(changed)) + changed + data[8 + size:])
    return run


def in_bytes(file, at, new):
    def run(model):
        data = bytearray((model / file).read_bytes())
        data[at:at + len(new)] = new
        (model / file).write_bytes(data)
    return run


def only(*names):
    """Tensors of these names alone in the place of the transformer's."""
    return lambda model: write_safetensors(model / WEIGHTS, dict.fromkeys(names, FOUR))


def shards(change, file=WEIGHTS):
    """Two shards, changed by a function of the folder and their names."""
    return Shards(file, lambda folder, _, first, second: change(folder, first, second))


def renamed_in_index(change):
    """Two shards and an index in which the first tensor has another file."""
    return Shards(WEIGHTS, changed_index(lambda weight_map, *_: weight_map.update({next(iter(weight_map)): change})))


def swapped(folder, first, second):
    (folder / first).rename(folder / "third")
    (folder / second).rename(folder / first)
    (folder / "third").rename(folder / second)


def replaced(place):
    """Something else in the place of the first shard."""
    def change(folder, first, _):
        (folder / first).unlink()
        place(folder / first)
    return change


def floats(*numbers):
    return "F32", [len(numbers)], struct.pack(f"<{len(numbers)}f", *numbers)


def of_kohya(*keys_of_lora):
    return [f"lora_unet_double_blocks_0_img_attn_proj.{key}" for key in keys_of_lora]


IS_LORA = "safetensors] is a LoRA, which cannot be added to a model yet; name a whole model"
PAIR = ("lora_A.weight", "lora_B.weight")
CAPTION, CONTEXT = "cap_embedder.1.weight", "context_embedder.weight"
MERGES = steps(without(TOKENS), lambda model: (model / "tokenizer/vocab.json").write_text(
    json.dumps(json.loads((KLEIN.folder / TOKENS).read_text())["model"]["vocab"])))
TWO_NAMED = [{"name": "tool_use", "template": "x"}, {"name": "rag", "template": "x"}]


def in_bpe(change):
    return in_json(TOKENS, lambda document: change(document["model"]))


MODELS = {
    # Shards and their index.
    "index names a number": (KLEIN, renamed_in_index(7), "'weight_map' must be an object of file names"),
    "index names another folder": (KLEIN, renamed_in_index("/etc/passwd"), f"'{CONTEXT}' must name a file in the same folder"),
    "index names an absent shard": (KLEIN, renamed_in_index("diffusion_pytorch_model-00003-of-00003.safetensors"),
     "00003-of-00003.safetensors] no such file"),
    "index names a pickle": (Z_IMAGE, renamed_in_index("diffusion_pytorch_model.bin"), "diffusion_pytorch_model.bin] no such file"),
    "index is a list": (KLEIN, Shards(WEIGHTS, lambda _, index, *names: index.write_text("[]")), "index.json] expected a JSON object"),
    "shards swapped": (Z_IMAGE, shards(swapped), "should be in diffusion_pytorch_model-00001-of-00002.safetensors, but is not"),
    "shard is a folder": (KLEIN, shards(replaced(lambda path: path.mkdir())), f"{FIRST} not a regular file"),
    "shard is a link to nowhere": (KLEIN, shards(replaced(lambda path: path.symlink_to("../blobs/abc")), TEXT),
     f"{FIRST} is a link to ../blobs/abc, which does not exist"),
    "shard of another part": (KLEIN, shards(lambda folder, first, _: shutil.copyfile(KLEIN.folder / TEXT, folder / first)),
     f"'{CONTEXT}' should be in"),
    "shard without its last byte": (Z_IMAGE, shards(lambda folder, _, second: cut(second, -1)(folder)),
     "the file holds only 680487: it is cut off or damaged"),
    "shard with a byte more": (Z_IMAGE, shards(lambda folder, _, second: (folder / second).open("ab").write(b"\0")),
     f"{SECOND} the tensors end at byte 680488"),
    # Headers of safetensors.
    "header too long": (Z_IMAGE, in_bytes(WEIGHTS, 0, struct.pack("<Q", 2 ** 60)), "over the limit of 100000000: not a safetensors file"),
    "header not JSON": (Z_IMAGE, in_bytes(WEIGHTS, 8, b"xx"), "not valid JSON: line 1, column 1"),
    "dtype of four bits": (KLEIN, in_header(WEIGHTS, CONTEXT, dtype="F4"), f"'{CONTEXT}': dtype \"F4\" cannot be read"),
    "negative size": (KLEIN, in_header(WEIGHTS, CONTEXT, shape=[-4, 4]), f"'{CONTEXT}': shape must hold non-negative integers"),
    "size of 2^62": (KLEIN, in_header(WEIGHTS, CONTEXT, shape=[2 ** 62, 16]), f"'{CONTEXT}': shape is too large to address"),
    "offsets backwards": (KLEIN, in_header(WEIGHTS, CONTEXT, data_offsets=[8, 0]), f"'{CONTEXT}': data_offsets run backwards"),
    "web page": (KLEIN, text(WEIGHTS, "<!DOCTYPE html><html></html>"), "safetensors] is a web page in the place of the file; get the file again"),
    # Tensors.
    "tensor transposed": (KLEIN, in_header(WEIGHTS, CONTEXT, shape=[24, 32]), f"weight '{CONTEXT}' has shape [24, 32], expected [32, 24]"),
    "tensor of integers": (Z_IMAGE, in_tensors(WEIGHTS, lambda each: each.update({CAPTION: ("I8", [24, 12], bytes(288))})),
     f"'{CAPTION}' has dtype Char"),
    "tensor of bytes": (KLEIN, in_tensors(WEIGHTS, lambda each: each.update({CONTEXT: ("U8", [32, 24], bytes(768))})), f"'{CONTEXT}' has dtype Byte"),
    "variance missing": (KLEIN, in_tensors(DECODER, lambda each: each.pop("bn.running_var")), "vae] weight 'bn.running_var' is missing"),
    "mean of four channels": (KLEIN, in_tensors(DECODER, lambda each: each.update({"bn.running_mean": floats(0, 0, 0, 0)})),
     "'bn.running_mean' has shape [4], expected [16]"),
    "decoder missing": (KLEIN, in_tensors(DECODER, lambda each: [each.pop(key) for key in list(each) if key.startswith("decoder.")]),
     "vae] weight 'decoder."),
    "pickle alone": (Z_IMAGE, steps(without(WEIGHTS), text("transformer/diffusion_pytorch_model.bin", "PK")),
     "holds weights only in a pickle format; save them as safetensors"),
    # LoRAs in the place of the transformer.
    "LoRA of kohya": (KLEIN, only(*of_kohya("lora_down.weight", "lora_up.weight", "alpha")), IS_LORA),
    "LoRA of PEFT": (KLEIN, only(*[f"base_model.model.transformer_blocks.0.attn.to_q.{each}" for each in PAIR]), IS_LORA),
    "LoRA of ComfyUI": (Z_IMAGE, only(*[f"diffusion_model.layers.0.attention.to_q.{each}" for each in PAIR]), IS_LORA),
    "LoKr": (Z_IMAGE, only(*[f"lycoris_layers_0_attention_to_q.{each}" for each in ("lokr_w1", "lokr_w2")]), IS_LORA),
    "LoHa": (KLEIN, only(*of_kohya("hada_w1_a", "hada_w1_b")), IS_LORA),
    # Parts that are missing or of another model.
    "no transformer": (KLEIN, without("transformer"), "transformer/config.json] no such file"),
    "no text encoder": (KLEIN, without("text_encoder"), "text_encoder/config.json] no such file"),
    "no tokenizer": (Z_IMAGE, without("tokenizer"), "tokenizer] no such folder"), "no VAE": (KLEIN, without("vae"), "vae/config.json] no such file"),
    "no scheduler": (Z_IMAGE, without("scheduler"), "scheduler_config.json] no such file"),
    "VAE not named": (KLEIN, keys(INDEX, vae=[None, None]), "'vae' must be a library and a class, got [null,null]"),
    "VAE of Z-Image": (KLEIN, part_of("vae", "tiny-z-image/vae"), "'_class_name' must be \"AutoencoderKLFlux2\", got \"AutoencoderKL\""),
    "VAE of klein": (Z_IMAGE, part_of("vae", "tiny-flux2-klein/vae"), "'_class_name' must be \"AutoencoderKL\", got \"AutoencoderKLFlux2\""),
    "transformer of Z-Image": (KLEIN, part_of("transformer", "tiny-z-image/transformer"), "'_class_name' must be \"Flux2Transformer2DModel\", got \"ZImageTransformer2DModel\""),
    "transformer of FLUX.1": (KLEIN, keys(CONFIG, _class_name="FluxTransformer2DModel"),
                              "'_class_name' must be \"Flux2Transformer2DModel\", got \"FluxTransformer2DModel\""),
    "transformer of klein": (Z_IMAGE, part_of("transformer", "tiny-flux2-klein/transformer"),
                             "'_class_name' must be \"ZImageTransformer2DModel\", got \"Flux2Transformer2DModel\""),
    "text encoder in the VAE": (KLEIN, copied(TEXT, DECODER),
     "vae] weight 'bn.running_mean' is missing; by its names diffusion_pytorch_model.safetensors is of a text encoder"),
    "transformer in the text encoder": (Z_IMAGE, copied(WEIGHTS, TEXT),
     "'model.embed_tokens.weight' is missing; by its names model.safetensors is of Z-Image"),
    "pipeline of another class": (Z_IMAGE, keys(INDEX, _class_name="ZImageImg2ImgPipeline"),
     "pipelines of class 'ZImageImg2ImgPipeline' cannot run here; these can:"),
    # Schedulers.
    "scheduler of no class": (Z_IMAGE, keys(INDEX, scheduler=["diffusers", "MagicScheduler"]),
     "the model's sampler, MagicScheduler, cannot run yet; give --scheduler flow-euler"),
    "shift in quotes": (Z_IMAGE, keys(SCHEDULER, shift="3"), "'shift' must be a number, got \"3\""),
    "no timesteps": (KLEIN, keys(SCHEDULER, num_train_timesteps=0), "'num_train_timesteps' must be from 1 to 1000000, got 0"),
    # Numbers of the transformer.
    "width in quotes": (Z_IMAGE, keys(CONFIG, dim="24"), "'dim' must be an integer, got \"24\""),
    "width of a billion": (Z_IMAGE, keys(CONFIG, dim=10 ** 9), "'dim' must be an integer from 1 to 65536, got 1000000000"),
    "heads that do not divide": (Z_IMAGE, keys(CONFIG, n_heads=5), "'n_heads' must be a divisor of dim (24), got 5"),
    "a layer more": (Z_IMAGE, keys(CONFIG, n_layers=3), "transformer] weight 'layers.2.attention.to_q.weight' is missing"),
    "layers with a point": (Z_IMAGE, keys(CONFIG, n_layers=2.5), "'n_layers' must be an integer, got 2.5"),
    "refiners below zero": (Z_IMAGE, keys(CONFIG, n_refiner_layers=-1), "'n_refiner_layers' must be from 0 to 65536, got -1"),
    "latents of 8 channels": (Z_IMAGE, keys(CONFIG, in_channels=8), "'latent_channels' must be 8, as in_channels of the denoiser, got 4"),
    "axes that do not add up": (KLEIN, keys(CONFIG, attention_head_dim=16),
     "'axes_dims_rope' must be one to four even numbers with the sum 16 (attention_head_dim)"),
    "feed-forward below zero": (KLEIN, keys(CONFIG, mlp_ratio=-3), "'mlp_ratio' must be such that the feed-forward has a width, got -3"),
    "feed-forward of another width": (KLEIN, keys(CONFIG, mlp_ratio=4),
     "'transformer_blocks.0.ff.linear_in.weight' has shape [192, 32], expected [256, 32]"),
    "other channels out": (KLEIN, keys(CONFIG, out_channels=8), "'out_channels' must be 16, as in_channels, or null, got 8"),
    "odd width of times": (KLEIN, keys(CONFIG, timestep_guidance_channels=17), "linear_1.weight' has shape [32, 16], expected [32, 17]"),
    "a single block more": (KLEIN, keys(CONFIG, num_single_layers=3), "weight 'single_transformer_blocks.2.attn.to_qkv_mlp_proj.weight' is missing"),
    # Numbers of the text encoder.
    "hidden size of another encoder": (KLEIN, keys(ENCODER, hidden_size=9), "'model.embed_tokens.weight' has shape [323, 8], expected [323, 9]"),
    "heads of another encoder": (KLEIN, keys(ENCODER, num_attention_heads=8),
     "'model.layers.0.self_attn.q_proj.weight' has shape [16, 8], expected [32, 8]"),
    "a layer more of the encoder": (Z_IMAGE, keys(ENCODER, num_hidden_layers=5, layer_types=None), "text_encoder] weight '"),
    "layers with a window of no size": (KLEIN, keys(ENCODER, layer_types=28 * ["sliding_attention"]),
     "blocks of sliding_attention need a sliding_window that is used"),
    "another activation": (KLEIN, keys(ENCODER, hidden_act="prelu"), "'hidden_act' must be one of gelu, gelu_10, "),
    "biases": (KLEIN, keys(ENCODER, attention_bias=True), "self_attn.q_proj.bias' is missing"),
    "encoder of experts": (KLEIN, keys(ENCODER, model_type="qwen3_moe"), "'model_type' must be \"qwen3\", got \"qwen3_moe\""),
    # Numbers of the VAE.
    "latents of as many channels": (KLEIN, keys(VAE, latent_channels=16),
                                   "'latent_channels' must be a quarter of the 16 in_channels of the denoiser, got 16"),
    "groups that do not divide": (KLEIN, keys(VAE, norm_num_groups=3), "'block_out_channels' must be multiples of norm_num_groups (3)"),
    "blocks of another class": (KLEIN, keys(VAE, up_block_types=4 * ["AttnUpDecoderBlock2D"]),
     "'up_block_types' must be 4 times \"UpDecoderBlock2D\""),
    "a layer more of the VAE": (KLEIN, keys(VAE, layers_per_block=2), "vae] weight 'decoder.up_blocks.0.resnets.2.norm1.bias' is missing"),
    "latents scaled by zero": (Z_IMAGE, keys(VAE, scaling_factor=0), "'scaling_factor' must be a number other than 0, got 0"),
    # Tokenizers.
    "merge of an unknown token": (KLEIN, in_bpe(lambda bpe: bpe["merges"].insert(0, ["zzqq", "qq"])), "is not in the vocabulary"),
    "merge of three": (KLEIN, in_bpe(lambda bpe: bpe["merges"].insert(0, ["a", "b", "c"])), "'merges' row 0 must be \"a b\" or [\"a\", \"b\"]"),
    "no merges": (KLEIN, in_bpe(lambda bpe: bpe.pop("merges")), "'merges' must be an array"),
    "an id twice": (KLEIN, in_bpe(lambda bpe: bpe["vocab"].update(zz=0)), "two tokens have the id 0; one is 'zz'"),
    "unigrams": (Z_IMAGE, in_bpe(lambda bpe: bpe.update(type="Unigram")), "a tokenizer of type Unigram; BPE is needed"),
    "no merges.txt": (KLEIN, MERGES, "merges.txt] no such file"),
    "no padding": (KLEIN, keys(TOKENIZER, pad_token=None), "'pad_token' must be a token: the model takes padded prompts"),
    "tokenizer not UTF-8": (Z_IMAGE, lambda model: (model / TOKENS).write_bytes(b'{"model": "\xff"}'), "ill-formed UTF-8 byte; last read: '\"?'"),
    "model of a tokenizer is a number": (KLEIN, in_json(TOKENS, lambda document: document.update(model=5)),
                                         "tokenizer.json] 'model' must be an object, got 5"),
    "padding token is a number": (KLEIN, keys(TOKENIZER, pad_token=5), "tokenizer_config.json] a token must be a string or an object, got 5"),
    "padding in the middle": (KLEIN, keys(TOKENIZER, padding_side="middle"), "'padding_side' must be left or right, got \"middle\""),
    # Chat templates.
    "template with a macro": (Z_IMAGE, text(TEMPLATE, "{% macro x() %}{% endmacro %}{{ x() }}"),
     "chat_template.jinja] the chat template (of 38 bytes, with the hash d71c8219821e34d8)"),
    "template of Llama": (Z_IMAGE, text(TEMPLATE, "{% for m in messages %}[INST] {{ m['content'] }} [/INST]{% endfor %}"),
     "is not one of those that are known, which are those of Qwen3"),
    "template is a number": (KLEIN, steps(without(TEMPLATE), keys(TOKENIZER, chat_template=5)), "'chat_template' must be a string, got 5"),
    "no template by default": (KLEIN, steps(without(TEMPLATE), keys(TOKENIZER, chat_template=TWO_NAMED)),
                               "'chat_template' must be a string, or a list in which one is named \"default\", got [{"),
    # JSON.
    "config nested too deep": (Z_IMAGE, text(CONFIG, 100000 * "["), "transformer/config.json] not valid JSON: nested deeper than 100 levels"),
    "config is a folder": (KLEIN, steps(without(ENCODER), lambda model: (model / ENCODER).mkdir()), "text_encoder/config.json] not a regular file"),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_broken_model(box, name):
    family, change, needle = MODELS[name]
    model = family.copy(box)
    change(model)
    # Ranks that are forks are told by the process that starts them, so that these say it once too.
    family.refuse(box, 3, needle, *(["--ulysses-degree", "2"] if len(name) % 4 == 0 else []), model=model)
    outcome = box.run("models", model)
    assert outcome.code == 3 and needle in outcome.out, outcome


@pytest.mark.parametrize("file, change, needle", [
    (DECODER, {"bn.running_mean": floats(*16 * [float("nan")])},
     "vae] the weight bn.running_mean holds numbers that are not finite; get the file again"),
    (DECODER, {"bn.running_var": floats(*16 * [-1.0])},
     "all numbers of an image overflowed in the decoder, in fp32; is the decoder of another model?"),
    (TEXT, {"model.norm.weight": floats(*8 * [float("inf")])}, "")], ids=["mean that is no number", "negative variance", "unused"])
def test_numbers_that_only_a_run_meets(box, file, change, needle):
    model = KLEIN.copy(box)
    in_tensors(file, lambda each: each.update(change))(model)
    if needle:
        KLEIN.refuse(box, 3, needle, "--dtype", "fp32", model=model)  # in bf16 fp32 is proposed first
    else:  # klein takes states from before that norm
        KLEIN.generate(box, "a cat", *KLEIN.SMALL, model=model)


def whole_gguf(folder):
    write_gguf(folder / "whole.gguf", original_tensors_of_flux2())
    return (folder / "whole.gguf").read_bytes()


KEY = len("general.architecture")
CUTS = {"magic": 4, "version": 8, "count of tensors": 16, "count of values": 24, "length of a key": 32,
        "half a key": 40, "key": 32 + KEY, "length of a text": 44 + KEY, "length of a name": 59 + KEY,
        "half a name": 63 + KEY, "half of the tensors": 1000}
IS_CUT = "cut.gguf] the header ends at byte {}, before all of it was there: it is cut off or damaged; get the file again"


@pytest.mark.parametrize("name", CUTS)
def test_a_gguf_cut_behind(box, name):
    (box.folder / "cut.gguf").write_bytes(whole_gguf(box.folder)[:CUTS[name]])
    box.refuse(3, IS_CUT.format(CUTS[name]), "generate", "a cat", "--model", "cut.gguf", "--config", KLEIN.folder, *KLEIN.SMALL)


@pytest.mark.parametrize("missing", (1, 32, 100000))
def test_a_gguf_cut_in_its_data(box, missing):
    (box.folder / "cut.gguf").write_bytes(whole_gguf(box.folder)[:-missing])
    box.refuse(3, "of the data, but the file holds only", "generate", "a cat", "--model", "cut.gguf", "--config", KLEIN.folder, *KLEIN.SMALL)


def at(place, *numbers):
    """Other bytes in a whole file."""
    def make(whole):
        return whole[:place] + b"".join(numbers) + whole[place + sum(map(len, numbers)):]
    return make


def value(key, *parts):
    return lambda _: gguf_of(pairs=2, more=words(key) + b"".join(parts))


def one(**options):
    return lambda _: gguf_of(**options)


def u32(*numbers):
    return struct.pack(f"<{len(numbers)}I", *numbers)


def u64(*numbers):
    return struct.pack(f"<{len(numbers)}Q", *numbers)


GGUF = {
    "another magic": (at(0, b"GGML"), "not a safetensors file"), "version 4": (at(4, u32(4)), "version 4 of GGUF cannot be read"),
    "no tensors": (at(8, u64(0)), "one.gguf] holds no tensors; get the file again"),
    "fewer tensors": (at(8, u64(3)), "which is 'time_in.in_layer.weight' in the names of this file"),
    "more tensors": (at(8, u64(10 ** 6)), "cannot be read"),
    "no values": (at(16, u64(0)), "'general.architecture': 8 dimensions are more than 4"),
    "an endless key": (at(24, u64(2 ** 64 - 1)), "a name of 18446744073709551615 bytes is over the limit of 65535"),
    "an endless text": (at(36 + KEY, u64(2 ** 63)), "before all of it was there"),
    "value of type 13": (at(32 + KEY, u32(13)), "values of type 13 cannot be read"),
    "endless array": (value("x", u32(9, 4), u64(2 ** 62)), "before all of it was there"),
    "arrays in arrays": (value("x", u32(9), *20 * [u32(9) + u64(1)]), "arrays in arrays, 9 deep, cannot be read"),
    "alignment of 0": (value("general.alignment", u32(4, 0)), "'general.alignment' must be a power of two"),

    "tensor of another shape": (value("comfy.gguf.orig_shape.img_in.weight", u32(9, 4), u64(2), u32(4, 8)),
                                "says that a tensor was given another shape"),
    "five dimensions": (one(shape=5 * [2]), "'img_in.weight': 5 dimensions are more than 4"),
    "endless dimension": (one(shape=[2 ** 64 - 1]), "shape is too large to address"),
    "data elsewhere": (one(offset=2 ** 64 - 32), "the file holds only 512: it is cut off or damaged"),
    "newline in a name": (one(name="a\nb"), "a name has characters that cannot be shown"),
    "Q8_K": (one(kind=15, shape=[256]), "weights of type Q8_K cannot be read; take a file of Q8_0, Q6_K, Q5_K or Q4_K"),
    "IQ4_XS": (one(kind=23, shape=[256]), "weights of type IQ4_XS cannot be read"),
    "a type that is gone": (one(kind=31), "weights of type 31 cannot be read"),
    "text encoder": (one(architecture="qwen3", name="token_embd.weight"), "has no weights of FLUX.2 klein"),
    "Z-Image": (one(architecture="lumina2", name="x_pad_token"), "is of Z-Image, but"),
    "Wan": (one(architecture="wan", name="blocks.0.self_attn.q.weight"), "is of Wan, but"),
    "LoRA": (one(name="double_blocks.0.img_attn.proj.weight.lora_a"), "is a LoRA, which cannot be added to a model yet"),
    "zeros": (lambda _: bytes(1000), "one.gguf]"),
    "git-lfs": (lambda _: LFS.encode(), "is a git-lfs pointer in the place of the file"),
}


@pytest.mark.parametrize("name", GGUF)
def test_a_broken_gguf(box, name):
    make, needle = GGUF[name]
    (box.folder / "one.gguf").write_bytes(make(whole_gguf(box.folder)))
    box.refuse(3, needle, "generate", "a cat", "--model", "one.gguf", "--config", KLEIN.folder, *KLEIN.SMALL)


def png_of(*, width=80, height=80, depth=8, colors=2, data=b"", chunk=None):
    def part(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
    image = part(b"IDAT", zlib.compress(data)) if chunk is None else chunk and part(b"IDAT", chunk)
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colors, 0, 0, 0)) + image + part(b"IEND", b"")


def jpeg_of(height, width):
    at_size = JPEG.index(b"\xff\xc0") + 5
    return JPEG[:at_size] + struct.pack(">HH", height, width) + JPEG[at_size + 4:]


def bmp_of(width, height):
    return struct.pack("<2sIIIIiiHHIIiiII", b"BM", 200, 0, 54, 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0) + bytes(146)


BAD = "one.png] cannot be read as an image or video: "
WRONG_CHECK = bytearray(png(80, 80))
WRONG_CHECK[40] ^= 0xFF
PICTURES = {
    "PNG of a wrong check": (bytes(WRONG_CHECK), BAD), "PNG of 100000 x 100000": (png_of(width=100000, height=100000), BAD + "Invalid image size"),
    "PNG without data": (png_of(chunk=b""), BAD), "PNG of other data": (png_of(chunk=b"junkjunk"), BAD),
    "PNG of 3 bits": (png_of(depth=3), BAD),
    "PNG of no colours": (png_of(colors=5), BAD),
    "PNG that only begins": (b"\x89PNG\r\n\x1a\n", "the file is cut off: it has 8 bytes"),
    "JPEG of 65535 x 65535": (jpeg_of(65535, 65535), "cannot be read as a JPEG: "), "JPEG of no size": (jpeg_of(0, 0), "cannot be read as a JPEG: "),
    "JPEG without a picture": (b"\xff\xd8\xff\xd9", "cannot be read as a JPEG: JPEG datastream contains no image"),
    "BMP of a negative width": (bmp_of(-80, 80), BAD),
    "BMP of 2^30 x 2^30": (bmp_of(2 ** 30, 2 ** 30), BAD),
    "WebP that only begins": (b"RIFF\x10\0\0\0WEBPVP8 " + bytes(8), BAD),
    "HEIC": (b"\0\0\0\x18ftypheic" + bytes(200), "one.png] a HEIC, which is not read; convert it to a PNG"),
    "video that only begins": (b"\0\0\0\x18ftypisom" + bytes(200), BAD),
    "web page": (b"<!DOCTYPE html><html></html>", "one.png] not an image or video"),
    "git-lfs": (LFS.encode(), "one.png] is a git-lfs pointer"), "weights": ((KLEIN.folder / DECODER).read_bytes(), "one.png] not an image or video"),
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_broken_picture(box, name):
    content, needle = PICTURES[name]
    (box.folder / "one.png").write_bytes(content)
    KLEIN.refuse(box, 3, needle, "--image", "one.png")


@pytest.mark.parametrize("path, needle", [
    ("pipe", "pipe] not a regular file"), ("/dev/zero", "/dev/zero] not a regular file"),
    ("loop.png", "loop.png] cannot open: Too many levels of symbolic links"),
    ("gone.png", "gone.png] is a link to nowhere.png, which does not exist"), ("good.png/x", "good.png/x] no such file"),
    ("https://example.org/a.png", "URLs are not fetched; download the file, and name that")])
def test_a_path_of_no_picture(box, path, needle):
    os.mkfifo(box.folder / "pipe")
    (box.folder / "loop.png").symlink_to("loop.png")
    (box.folder / "gone.png").symlink_to("nowhere.png")
    (box.folder / "good.png").write_bytes(png(80, 80))
    KLEIN.refuse(box, 3, needle, "--image", "good.png", "--image", path)
