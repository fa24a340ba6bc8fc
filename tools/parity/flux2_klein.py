"""Compares Tessera with diffusers on whole pipelines of tiny random models like FLUX.2 klein, by the rules of tools/parity/pixart.py, as
tools/parity/z_image.py does. Negative prompts go to diffusers as what its pipeline makes of a prompt."""
import dataclasses
import pathlib
import tempfile
import typing

import diffusers
import numpy as np
import torch
from PIL import Image

from tools.parity import pixart as parity
from tools.parity import z_image as parity_z_image
from tools.parity.pixart import CIRCLE, FLOW, LONG, THREE
from tools.parity.z_image import BIASED, EACH, PIPELINE, SPECIAL, WINDOWS, YARN

SHIFT = (FLOW, {"shift": 3.0, "use_dynamic_shifting": True})  # as released
LAYERS = 28  # of text, of which the denoiser takes the states behind 9, 18 and 27
PICTURES = tempfile.TemporaryDirectory()


def picture(height, width, suffix=".png"):
    """The file of a picture to refer to: smooth colours, and edges."""
    path = pathlib.Path(PICTURES.name) / f"{height}x{width}{suffix}"
    if not path.exists():
        y, x = np.mgrid[0:1:height * 1j, 0:1:width * 1j]
        edges = (4 * x).astype(int) + (3 * y).astype(int) & 1
        colours = np.stack([255 * x, 127 + 120 * np.sin(7 * x + 5 * y), 255 * edges], -1)
        Image.fromarray(colours.round().astype(np.uint8)).save(path)
    return path


@dataclasses.dataclass(frozen=True)
class Row(parity_z_image.Row):
    heads: tuple = (3, 8)
    layers: int = 1
    singles: int = 2  # blocks over both sequences
    channels: int = 16  # of packed latents
    causal: bool = True
    distilled: bool = False
    scheduler: tuple = SHIFT
    guidance: float | None = 4.0
    tokens: int | None = 48
    references: tuple = ()  # sizes of pictures, height and width, and how the name ends if not .png
    takes_guidance: typing.ClassVar[bool] = False  # as an input of the transformer

    def request(self):
        return {**super().request(), **({"image": [str(picture(*size)) for size in self.references]} if self.references else {})}

    def build(self, folder, pieces):
        tokenizer = self.tokenizer_of(folder, pieces)
        text_encoder = self.text_encoder_of(tokenizer, LAYERS)
        count, size = self.heads
        transformer = diffusers.Flux2Transformer2DModel(**{
            "num_attention_heads": count, "attention_head_dim": size, "axes_dims_rope": [size // 4] * 4, "num_layers": self.layers,
            "num_single_layers": self.singles, "in_channels": self.channels, "timestep_guidance_channels": 16, "guidance_embeds": self.takes_guidance,
            "joint_attention_dim": 3 * text_encoder.config.get_text_config().hidden_size, **self.transformer})
        options = {"block_out_channels": (4, 4, 8, 8), "layers_per_block": 1, "norm_num_groups": 4,
                   "latent_channels": self.channels // 4, **self.vae}
        blocks = len(options["block_out_channels"])
        vae = diffusers.AutoencoderKLFlux2(down_block_types=["DownEncoderBlock2D"] * blocks,
                                           up_block_types=["UpDecoderBlock2D"] * blocks, **options)
        for part in (transformer, text_encoder, vae):
            parity.randomize(part)
        for block in [*transformer.transformer_blocks, *transformer.single_transformer_blocks]:
            attention = block.attn
            fused = getattr(attention, "to_qkv_mlp_proj", None)
            queries = attention.to_q.weight if fused is None else fused.weight[:count * size]
            queries.data *= self.sharpness
        torch.nn.init.normal_(vae.bn.running_mean)
        torch.nn.init.uniform_(vae.bn.running_var, 0.2, 3)
        name, scheduler = self.scheduler
        return self.pipeline_of(tokenizer=tokenizer, text_encoder=text_encoder, vae=vae, transformer=transformer,
                                scheduler=getattr(diffusers, name).from_config(scheduler))

    def pipeline_of(self, **parts):
        return diffusers.Flux2KleinPipeline(**parts, is_distilled=self.distilled)

    def call(self, pipeline, latents=None, **options):
        request = self.request()
        request.pop("negative_prompt", None)
        if self.references:
            request["image"] = [Image.open(path) for path in request["image"]]
        if latents is not None:  # they come in the shape of the result
            count, channels, height, width = latents.shape
            options["latents"] = latents.reshape(count, 4 * channels, height // 2, width // 2)
        if self.negative is not None:
            with torch.no_grad():
                options["negative_prompt_embeds"] = pipeline.encode_prompt(self.negatives(), max_sequence_length=self.tokens or 512)[0]
        return pipeline(prompt=list(self.prompts), num_images_per_prompt=self.images, **request, **options).images

    def call_and_watch(self, pipeline, **options):
        """The latents are those that the decoder gets, which the pipeline returns without it."""
        decoded, decode = [], pipeline.vae.decode

        def watch(latents, **options):
            decoded.append(latents)
            return decode(latents, **options)

        pipeline.vae.decode = watch
        return self.call(pipeline, **options), decoded


def klein(name, **options):
    return Row("klein, " + name, **options)


def bf16(name, **options):
    return Row("bf16 klein, " + name, dtype="bf16", **{"prompts": THREE, "images": 2, **options})


def ranks(flags, name="", **options):
    return klein(f"{flags} {name}".strip(), flags=flags, **{"prompts": ["a cat", CIRCLE], "negative": "blurry", "steps": 4, **options})


DISTILLED = {"distilled": True, "steps": 4}
ROWS = [
    # These resemble the released models, at the program's defaults.
    klein("defaults", steps=None, guidance=None, tokens=None, saved="published tokenizer"),
    klein("the size by default", size=None, steps=2, heads=(1, 8), vae={"mid_block_add_attention": False}),
    klein("distilled", **DISTILLED, guidance=1.0, prompts=THREE),
    klein("distilled, a scale without effect", **DISTILLED, guidance=4.0, negative="unused"),
    klein("distilled, no scale", **DISTILLED, guidance=None),
    # These vary the prompts.
    klein("three prompts, negatives", prompts=THREE, negative=EACH),
    klein("three prompts, one negative", prompts=THREE, negative="blurry, a Cat"),
    klein("three prompts, no negative", prompts=THREE),
    klein("two pictures each of two prompts", prompts=["cat", CIRCLE], images=2, negative="blurry"),
    klein("an empty prompt", prompts=[""], negative=CIRCLE),
    klein("special tokens in prompts", prompts=SPECIAL, negative=SPECIAL[::-1]),
    klein("prompt beyond 512 tokens", prompts=[LONG * 3, "a dog"], negative=LONG * 3, steps=3, tokens=None),
    klein("7 tokens", prompts=[CIRCLE, "a cat"], tokens=7), klein("one token", tokens=1),
    klein("600 tokens", prompts=[LONG * 2, ""], tokens=600, steps=2),
    klein("prompt cut at the left", prompts=[LONG, "a dog"], tokens=40, tokenizer={"truncation_side": "left"}),
    # These vary the sizes.
    klein("one token of an image", size=(16, 16)), klein("one row", size=(16, 272)), klein("one column", size=(272, 16)),
    klein("odd rows and columns", size=(80, 112)),
    # Above 4300 tokens noise levels are shifted by another rule.
    klein("4356 tokens", size=(1056, 1056), steps=2, heads=(1, 8), vae={"mid_block_add_attention": False}),
    # These vary guidance.
    klein("no guidance, negative unused", guidance=1.0, negative="unused"), klein("guidance below 1", guidance=0.4, negative="unused"),
    klein("guidance just above 1", guidance=1.1, negative="blurry"), klein("guidance 12", guidance=12.0),
    # These vary the transformer.
    klein("heads 5 x 8", heads=(5, 8)), klein("heads 1 x 24", heads=(1, 24), layers=3), klein("heads 7 x 16", heads=(7, 16), singles=1),
    klein("wide", heads=(4, 72), steps=4), klein("sharp", sharpness=4.0),
    klein("three double blocks, one single", layers=3, singles=1), klein("one double block, four single", layers=1, singles=4),
    klein("mlp_ratio", transformer={"mlp_ratio": 1.7}), klein("eps", transformer={"eps": 1e-2}),
    klein("rope_theta", transformer={"rope_theta": 100}), klein("more sinusoids", transformer={"timestep_guidance_channels": 38}),
    klein("uneven axes", transformer={"axes_dims_rope": [0, 4, 2, 2]}),
    klein("axes of frames, which have one position", heads=(2, 16), transformer={"axes_dims_rope": [8, 2, 4, 2]}),
    klein("32 channels", channels=32), klein("4 channels", channels=4),
    # These vary the text encoder.
    klein("27 layers of text, the last state normed", text={"num_hidden_layers": 27}), klein("31 layers of text", text={"num_hidden_layers": 31}),
    klein("a text encoder without a head for words", causal=False), klein("with a shared table of words", text={"tie_word_embeddings": True}),
    klein("one key for all queries", text={"num_key_value_heads": 1}), klein("a key for each query", text={"num_key_value_heads": 4}),
    klein("other numbers of the text encoder", text={"rms_norm_eps": 1e-3, "head_dim": 6, "intermediate_size": 44, "hidden_size": 30,
                                                     "rope_parameters": {"rope_type": "default", "rope_theta": 300.0}}),
    # These vary the VAE.
    klein("VAE without quant convs", vae={"use_quant_conv": False, "use_post_quant_conv": False}),
    klein("VAE with another batch norm", vae={"batch_norm_eps": 0.3, "batch_norm_momentum": 0.5}),
    klein("VAE with a narrow decoder", vae={"decoder_block_out_channels": (4, 8, 4, 12)}),
    klein("VAE of 3 blocks", vae={"block_out_channels": (4, 8, 12)}, size=(40, 56)),
    klein("VAE of 3 blocks, the size by default", vae={"block_out_channels": (4, 8, 12), "mid_block_add_attention": False}, size=None, steps=2),
    klein("VAE of 2 layers, wider", vae={"block_out_channels": (12, 24, 24, 36), "layers_per_block": 2, "norm_num_groups": 6}),
    # These vary the sampler.
    *[klein(name, scheduler=(FLOW, options)) for name, options in (
        ("no shift", {}), ("shift 6, not dynamic", {"shift": 6.0}),
        ("linear shift", {"use_dynamic_shifting": True, "time_shift_type": "linear", "base_shift": 0.7, "max_shift": 2.0}),
        ("a terminal noise level", {**SHIFT[1], "shift_terminal": 0.1}), ("levels of Karras", {**SHIFT[1], "use_karras_sigmas": True}),
        ("exponential levels", {**SHIFT[1], "use_exponential_sigmas": True}), ("levels of a beta distribution", {"use_beta_sigmas": True}),
        ("500 timesteps", {**SHIFT[1], "num_train_timesteps": 500}), ("inverted levels", {**SHIFT[1], "invert_sigmas": True}),
        ("levels of the file", {**SHIFT[1], "use_flow_sigmas": True}), ("levels of the file, not dynamic", {"shift": 3.0, "use_flow_sigmas": True}))],
    klein("one step", steps=1), klein("--scheduler flow-euler", override="flow-euler"),
    # These vary how the folder was saved.
    klein("sharded", saved="sharded"), klein("variant", saved="variant"), klein("sharded variant", saved="sharded variant"),
    klein("saved in fp16", saved="fp16"), klein("saved in bf16", saved="bf16", **DISTILLED),
    klein("all cores", size=(160, 208), threads=None),
    # These run on many ranks, which rarely divide the sizes.
    ranks("--ulysses-degree 2"), ranks("--ulysses-degree 3", heads=(5, 8), size=(112, 64), layers=2),
    ranks("--ring-degree 2", size=(80, 96), prompts=THREE, negative=EACH), ranks("--ring-degree 3", size=(112, 48), tokens=20),
    ranks("--kv-gather-degree 2", size=(80, 96)), ranks("--kv-gather-degree 3", size=(112, 48), prompts=THREE, guidance=1.0, negative=None),
    ranks("--tensor-parallel-degree 2", prompts=["a cat", LONG]), ranks("--tensor-parallel-degree 3", heads=(5, 8)),
    ranks("--use-cfg-parallel", prompts=THREE, negative=EACH), ranks("--use-cfg-parallel", "no negative", negative=None),
    ranks("--data-parallel-degree 2", prompts=THREE), ranks("--data-parallel-degree 3", prompts=THREE, images=2, **{**DISTILLED, "negative": None}),
    ranks("--use-cfg-parallel --ulysses-degree 2"), ranks("--ulysses-degree 2 --ring-degree 2", size=(112, 80), heads=(5, 16)),
    ranks("--tensor-parallel-degree 4 --split-scheme 2d", heads=(5, 8)),
    ranks(f"{PIPELINE} 2 --num-pipeline-patch 2 --warmup-steps 4"), ranks(f"{PIPELINE} 3 --num-pipeline-patch 1 --warmup-steps 0"),
    ranks(f"{PIPELINE} 2 --num-pipeline-patch 3 --warmup-steps 4 --use-cfg-parallel", size=(112, 48)),
    ranks("--displaced-patch-degree 2 --displaced-mode full_sync"), ranks("--displaced-patch-degree 3 --warmup-steps 9"),
    ranks("--ulysses-degree 2 --rank-shares 3,2"), ranks("--ring-degree 2 --no-vae-parallel --no-text-encoder-parallel"),
    # bf16.
    bf16("guided"), bf16("distilled", **DISTILLED), bf16("wide", heads=(4, 72), singles=4), bf16("saved in bf16", saved="bf16", guidance=2.0),
    bf16("--ulysses-degree 2", flags="--ulysses-degree 2"),
    # These refer to pictures.
    klein("a picture", references=((80, 112),)), klein("a picture that says the size", references=((70, 101),), size=None),
    klein("three pictures, three prompts", references=((64, 64), (100, 75), (64, 200)), prompts=THREE, negative=EACH, images=2),
    klein("a large picture", references=((1100, 1300),), size=(32, 48), heads=(1, 8), vae={"mid_block_add_attention": False}, steps=2),
    klein("a tall picture, distilled", references=((512, 64),), size=(48, 48), **DISTILLED),
    klein("a picture of one column of latents", references=((64, 64),), vae={"block_out_channels": (4, 4, 4, 4, 4, 8)}, size=(64, 128)),
    bf16("a picture", references=((96, 64),)),
    *[ranks(flags, "pictures", references=((64, 80), (100, 64)), heads=(5, 8), **options) for flags, options in (
        ("--ulysses-degree 2", {}), ("--ring-degree 3", {"size": (112, 48)}), ("--kv-gather-degree 2", {"size": (80, 96)}),
        ("--tensor-parallel-degree 2", {}), ("--data-parallel-degree 2 --use-cfg-parallel", {"prompts": THREE}),
        ("--ulysses-degree 2 --ring-degree 2", {"size": (112, 80)}), (f"{PIPELINE} 2 --num-pipeline-patch 2 --warmup-steps 4", {}),
        ("--displaced-patch-degree 2 --displaced-mode full_sync", {}), ("--ulysses-degree 2 --rank-shares 3,2", {}))],
    # The transformer in a file of its own.
    *parity_z_image.files(klein, ranks, bf16),
    # All ranks encode pictures, or rank 0 alone.
    ranks("--ring-degree 3", "a large picture", references=((300, 400),), heads=(1, 8), size=(48, 48)),
    ranks("--ulysses-degree 2 --no-vae-parallel", "a picture", references=((112, 80),)),
    klein("pictures in other formats", references=((83, 101, ".webp"), (64, 75, ".bmp"))),
    klein("pictures in JPEG", references=((83, 101, ".jpg"), (75, 64, ".jpeg"))),
    klein("prompts padded at the left", prompts=THREE, negative=EACH, tokenizer={"padding_side": "left"}),
    # Options that published files leave as they are by default.
    klein("more steps than timesteps of training", scheduler=(FLOW, {**SHIFT[1], "num_train_timesteps": 3})),
    klein("two axes", transformer={"axes_dims_rope": [4, 4]}), klein("one axis", heads=(2, 12), transformer={"axes_dims_rope": [12]}),
    klein("three axes, pictures", heads=(2, 16), transformer={"axes_dims_rope": [4, 8, 4]}, references=((64, 80), (100, 64))),
    klein("no double blocks", layers=0), klein("no single blocks", singles=0, layers=2),
    klein("a transformer that takes the guidance scale", transformer={"guidance_embeds": True}),
    klein("VAE with GELU, a picture", vae={"act_fn": "gelu"}, references=((80, 112),)),
    klein("VAE with patches of 1 x 4", vae={"patch_size": (1, 4)}),
    *[klein(name, text=options, prompts=THREE, negative=EACH, **more) for name, options, more in parity_z_image.TEXTS
      if name.split()[0] not in ("LongRoPE,", "dynamic")],
    klein("dynamic scaling", text={"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}, "max_position_embeddings": 40}),
    klein("a window behind the states", text={**WINDOWS, "max_window_layers": 27}),
    *[ranks(flags, "two axes, options of the text encoder", transformer={"axes_dims_rope": [4, 4]}, text={**BIASED, **WINDOWS, **YARN})
      for flags in ("--tensor-parallel-degree 2", "--ring-degree 3", f"{PIPELINE} 2 --num-pipeline-patch 2 --warmup-steps 4")],
    *[ranks(f"{PIPELINE} 2 --num-pipeline-patch 2 --warmup-steps 4", name, **options) for name, options in
      (("no double blocks", {"layers": 0}), ("no single blocks", {"layers": 2, "singles": 0}))],
    bf16("options of the text encoder", text={**BIASED, **WINDOWS, **YARN}),
]


if __name__ == "__main__":
    parity.main(ROWS, parity.compare, __doc__, "diffusers", parity.BF16_RATIO, parity_z_image.train)
