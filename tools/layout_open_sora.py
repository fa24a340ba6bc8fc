"""Lays the published parts of Open-Sora 1.2 or 1.1 out as a model folder, with links and no copies. The transformer says of which
version the model is. A part is a folder with a config.json beside its weights in safetensors, or the file of weights in such a
folder:

    hpcai-tech/OpenSora-STDiT-v3 (1.1: OpenSora-STDiT-v2-stage3)      --transformer
    hpcai-tech/OpenSora-VAE-v1.2 (1.1: stabilityai/sd-vae-ft-ema)      --vae
    DeepFloyd/t5-v1_1-xxl, or the text_encoder of PixArt-alpha/pixart_sigma_sdxlvae_T5_diffusers      --text-encoder
    its tokenizer      --tokenizer; by default in the text encoder's folder, or in `tokenizer` beside it"""
from tools import missing_packages  # noqa: F401  (says how to get those that are missing)
import argparse
import json
import os
import pathlib
import shutil
import struct
import sys
import tempfile

TEXT = {"text_encoder": ["transformers", "T5EncoderModel"], "tokenizer": ["transformers", "T5Tokenizer"]}
# By the transformer's class: the index, and the options of the scheduler.
VERSIONS = {
    "STDiT3": ({"_class_name": "OpenSoraPipeline", "scheduler": ["opensora", "RFLOW"], **TEXT, "transformer": ["opensora", "STDiT3"],
                "vae": ["opensora", "OpenSoraVAE_V1_2"]},
               {"_class_name": "RFLOW", "cfg_scale": 7.0, "num_sampling_steps": 30, "num_timesteps": 1000,
                "use_discrete_timesteps": False, "use_timestep_transform": True}),
    "STDiT2": ({"_class_name": "OpenSoraV1_1Pipeline", "scheduler": ["opensora", "IDDPM"], **TEXT, "transformer": ["opensora", "STDiT2"],
                "vae": ["diffusers", "AutoencoderKL"]},
               {"_class_name": "IDDPM", "cfg_channel": 3, "cfg_scale": 7.0, "num_sampling_steps": 100}),
}
# How the libraries name weights. Tessera reads a part under the name that its library gives.
TRANSFORMERS, DIFFUSERS = "model", "diffusion_pytorch_model"
TOKENIZER_FILES = ("spiece.model", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")


class Refused(Exception):
    """A part is not what it should be; the text is for the user."""


def read_json(path):
    try:
        value = json.loads(path.read_text())
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}") from None
    except ValueError:
        raise Refused(f"{path}: no JSON") from None
    if not isinstance(value, dict):
        raise Refused(f"{path}: no JSON object")
    return value


def shapes_of(path):
    """Name -> shape of the tensors in a file."""
    try:
        with path.open("rb") as file:
            size = struct.unpack("<Q", file.read(8))[0]
            if size > path.stat().st_size:
                raise ValueError
            header = json.loads(file.read(size))
        return {name: tensor["shape"] for name, tensor in header.items() if name != "__metadata__"}
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}") from None
    except (ValueError, struct.error, TypeError, KeyError, AttributeError):
        raise Refused(f"{path}: no safetensors file, or not all of it") from None


class Part:
    """`files`: name in the model folder -> file. Weights are taken under either library's name, and get that of `library`."""

    def __init__(self, path, what, library=TRANSFORMERS):
        self.path, self.what = path, what
        if not path.exists():
            raise Refused(f"{path}: there is no {what}")
        folder = path if path.is_dir() else path.parent
        self.config = read_json(folder / "config.json")
        self.files = {"config.json": folder / "config.json"}
        weights = self.add_weights(path, folder, library + ".safetensors")
        self.shapes = {name: shape for file in weights for name, shape in shapes_of(file).items()}

    def add_weights(self, path, folder, own):
        """Adds the weights as the file `own`, or as shards with their list; returns the files that hold tensors."""
        ones = [path] if path.is_file() else [folder / f"{name}.safetensors" for name in (TRANSFORMERS, DIFFUSERS)]
        for one in ones:
            if one.is_file():
                self.files[own] = one
                return [one]
            many = one.with_name(one.name + ".index.json")
            if not many.is_file():
                continue
            shards = read_json(many).get("weight_map")
            if not isinstance(shards, dict) or not all(isinstance(name, str) and "/" not in name for name in shards.values()):
                raise Refused(f"{many}: no list of shards")
            files = [folder / name for name in sorted(set(shards.values()))]
            self.files |= {own + ".index.json": many} | {file.name: file for file in files}
            return files
        others = sorted(file.name for file in folder.iterdir() if file.suffix in (".bin", ".pt", ".pth", ".safetensors"))
        held = f", only {', '.join(others)}; save it as safetensors under that name" if others else ""
        raise Refused(f"{folder}: the {self.what} has no {own}{held}")

    def expect(self, key, *values):
        """An absent key has the first value."""
        value = self.config.get(key, values[0])
        if value not in values:
            wanted = " or ".join(repr(each) for each in values if each is not None)
            raise Refused(f"{self.files['config.json']}: {key} of the {self.what} is {value!r}, not {wanted}")

    def number(self, key, default):
        value = self.config.get(key, default)
        if not isinstance(value, int) or value < 1:
            raise Refused(f"{self.files['config.json']}: {key} has to be a whole number from 1")
        return value

    def expect_weights(self, **shapes):
        """Names and shapes; None stands for any size."""
        for name, shape in shapes.items():
            found = self.shapes.get(name)
            if found is None:
                raise Refused(f"{self.path}: the {self.what} has no weight {name}")
            if len(found) != len(shape) or any(size not in (None, own) for own, size in zip(found, shape)):
                wanted = ", ".join("any" if size is None else str(size) for size in shape)
                raise Refused(f"{self.path}: {name} has the shape {found}, but the config.json says [{wanted}]")


def class_key(transformer):
    """The key of the class, which diffusers and transformers name differently."""
    return "_class_name" if "_class_name" in transformer.config and "model_type" not in transformer.config else "model_type"


def version_of(transformer):
    return transformer.config.get(class_key(transformer), "STDiT3")


def check_transformer(part):
    part.expect(class_key(part), *VERSIONS)
    width, depth = part.number("hidden_size", 1152), part.number("depth", 28)
    names = ("blocks.{}.attn", "blocks.{}.attn_temp") if version_of(part) == "STDiT2" else ("spatial_blocks.{}.attn", "temporal_blocks.{}.attn")
    last = {name.format(depth - 1) + ".qkv.weight": (3 * width, width) for name in names}
    text = part.number("caption_channels", 4096)
    part.expect_weights(**{"x_embedder.proj.weight": (width, None, None, None, None), "y_embedder.y_embedding": (None, text)}, **last)


def check_frame_vae(part):
    if part.config.get("_class_name") != "AutoencoderKL":
        raise Refused(f"{part.files['config.json']}: the VAE of Open-Sora 1.1 has the _class_name 'AutoencoderKL'")
    part.expect_weights(**{"decoder.conv_in.weight": (None, part.number("latent_channels", 4), None, None)})


def check_vae(part):
    part.expect("model_type", "VideoAutoencoderPipeline")
    part.expect("micro_frame_size", 17, None)
    # The public code sets these options itself, so a config.json may lack them.
    for name, kind in (("vae_2d", "VideoAutoencoderKL"), ("vae_temporal", "VAE_Temporal_SD")):
        options = part.config.get(name, {"type": kind})
        if not isinstance(options, dict) or options.get("type") != kind:
            raise Refused(f"{part.files['config.json']}: {name} of the VAE has no type {kind!r}")
    part.expect_weights(**{"spatial_vae.module.decoder.conv_in.weight": (None,) * 4, "temporal_vae.decoder.conv1.conv.weight": (None,) * 5,
                           "shift": (1, None, 1, 1, 1), "scale": (1, None, 1, 1, 1)})


def check_text_encoder(part, transformer):
    part.expect("model_type", "t5")
    width, wanted = part.number("d_model", 512), transformer.number("caption_channels", 4096)
    if width != wanted:
        raise Refused(f"{part.path}: the text encoder gives {width} channels, but the transformer takes {wanted}")
    layers = part.number("num_layers", 6)
    part.expect_weights(**{f"encoder.block.{layers - 1}.layer.1.layer_norm.weight": (width,), "encoder.final_layer_norm.weight": (width,)})


def tokenizer_files(given, text_encoder):
    folder = text_encoder.files["config.json"].parent
    places = [given] if given else [folder, folder.parent / "tokenizer"]
    for place in places:
        files = {name: place / name for name in TOKENIZER_FILES if (place / name).is_file()}
        if "spiece.model" in files or "tokenizer.json" in files:
            return files
    raise Refused(f"{' and '.join(map(str, places))}: no spiece.model or tokenizer.json")


def write(out, parts, index, scheduler):
    """Puts everything into a new folder beside `out`, which then gets its name."""
    if os.path.lexists(out):
        raise Refused(f"{out}: exists; it is not overwritten")
    if not out.parent.is_dir():
        raise Refused(f"{out.parent}: no folder")
    made = pathlib.Path(tempfile.mkdtemp(prefix=out.name + ".", dir=out.parent))
    try:
        for name, files in parts.items():
            (made / name).mkdir()
            for link, file in files.items():
                (made / name / link).symlink_to(file.resolve())
        (made / "scheduler").mkdir()
        (made / "scheduler" / "scheduler_config.json").write_text(json.dumps(scheduler, indent=2) + "\n")
        (made / "model_index.json").write_text(json.dumps(index, indent=2) + "\n")
        made.chmod(0o755)
        made.rename(out)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def lay_out(transformer, vae, text_encoder, tokenizer, out):
    transformer = Part(transformer, "transformer")
    check_transformer(transformer)
    is_1_1 = version_of(transformer) == "STDiT2"
    vae = Part(vae, "VAE", DIFFUSERS if is_1_1 else TRANSFORMERS)
    text_encoder = Part(text_encoder, "text encoder")
    check_frame_vae(vae) if is_1_1 else check_vae(vae)
    check_text_encoder(text_encoder, transformer)
    write(out, {"transformer": transformer.files, "vae": vae.files, "text_encoder": text_encoder.files,
                "tokenizer": tokenizer_files(tokenizer, text_encoder)}, *VERSIONS[version_of(transformer)])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("transformer", "vae", "text-encoder", "tokenizer"):
        parser.add_argument(f"--{name}", type=pathlib.Path, required=name != "tokenizer", metavar="DIR")
    parser.add_argument("out", type=pathlib.Path, metavar="OUT")
    options = parser.parse_args()
    try:
        lay_out(options.transformer, options.vae, options.text_encoder, options.tokenizer, options.out)
    except Refused as error:
        sys.exit(f"layout: {error}")
    except OSError as error:
        sys.exit(f"layout: {options.out}: {error.strerror}")


if __name__ == "__main__":
    main()
