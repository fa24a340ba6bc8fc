"""Compares Tessera with diffusers on whole pipelines of tiny random models like FLUX.2 dev, by the rules of tools/parity/pixart.py, as
tools/parity/flux2_klein.py does."""
import dataclasses
import json
import typing

import diffusers
import transformers

from tools.golden import bpe_tokenizer as bpe
from tools.golden import mistral3
from tools.parity import flux2_klein as klein
from tools.parity import pixart as parity
from tools.parity import z_image as parity_z_image
from tools.parity.flux2_klein import SHIFT
from tools.parity.pixart import CIRCLE, FLOW, LONG, THREE
from tools.parity.z_image import PIPELINE, WORDS

LAYERS = 31  # of text, of which the denoiser takes the states behind 10, 20 and 30
SPECIAL = ["a [IMG] b [INST] red [/INST]</s>", "[SYSTEM_PROMPT]be brief[/SYSTEM_PROMPT] camelCaseWord a/b//c"]


@dataclasses.dataclass(frozen=True)
class Row(klein.Row):
    tokens: int | None = 160  # more than the message of the system has
    takes_guidance: typing.ClassVar[bool] = True

    def tokenizer_of(self, folder, pieces):
        processor = mistral3.save_tekken(folder, *pieces, **self.tokenizer)
        if "chat_template.json" in self.saved:
            (folder / "chat_template.jinja").unlink()
            (folder / "chat_template.json").write_text(json.dumps({"chat_template": mistral3.TEMPLATE}))
        return processor

    def text_encoder_of(self, tokenizer, _):
        text = {"model_type": "mistral", "vocab_size": len(tokenizer.tokenizer) + 3, "hidden_size": 20, "intermediate_size": 28,
                "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-5,
                "sliding_window": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1e9}, **self.text}
        return transformers.Mistral3ForConditionalGeneration(transformers.Mistral3Config(
            text_config=text, vision_config=mistral3.VISION, spatial_merge_size=1))

    def pipeline_of(self, **parts):
        return diffusers.Flux2Pipeline(**parts)

    def call(self, pipeline, latents=None, **options):
        if latents is not None:  # they come as tokens, as in the result
            latents = latents.reshape(len(latents), -1, *(side // 8 for side in self.size))
        row = dataclasses.replace(self, negative=None)
        return klein.Row.call(row, pipeline, latents, **options)

    def call_and_watch(self, pipeline, **options):
        """The latents are those after each step: the pipeline returns the last as they are."""
        return parity_z_image.Row.call_and_watch(self, pipeline, **options)


def dev(name, **options):
    return Row("dev, " + name, **options)


def bf16(name, **options):
    return Row("bf16 dev, " + name, dtype="bf16", **{"prompts": THREE, "images": 2, **options})


def ranks(flags, name="", **options):
    return dev(f"{flags} {name}".strip(), flags=flags, **{"prompts": ["a cat", CIRCLE], "steps": 4, **options})


ROWS = [
    # These resemble the released model, at the program's defaults.
    dev("defaults", steps=None, guidance=None, tokens=None, saved="published tokenizer"),
    dev("the size by default", size=None, steps=2, heads=(1, 8), vae={"mid_block_add_attention": False}),
    dev("28 steps, three prompts", steps=28, guidance=2.5, prompts=THREE),
    # These vary the prompts.
    dev("two pictures each of two prompts", prompts=["cat", CIRCLE], images=2), dev("an empty prompt", prompts=[""]),
    dev("a negative prompt without effect", negative="unused"), dev("special tokens in prompts", prompts=SPECIAL),
    dev("prompt beyond 512 tokens", prompts=[LONG * 3, "a dog"], steps=3, tokens=None), dev("7 tokens", prompts=[CIRCLE, "a cat"], tokens=7),
    dev("one token", tokens=1), dev("700 tokens", prompts=[LONG * 2, ""], tokens=700, steps=2),
    dev("prompt cut at the left", prompts=[LONG, "a dog"], tokens=40, tokenizer={"truncation_side": "left"}),
    dev("prompts padded at the right", prompts=THREE, tokenizer={"padding_side": "right"}),
    dev("a template in chat_template.json", prompts=THREE, saved="published tokenizer, chat_template.json"),
    # These vary the sizes.
    dev("one token of an image", size=(16, 16)), dev("one row", size=(16, 272)), dev("odd rows and columns", size=(80, 112)),
    # These vary guidance.
    dev("guidance 0", guidance=0.0), dev("guidance below 1", guidance=0.4), dev("guidance 1", guidance=1.0), dev("guidance 12", guidance=12.0),
    # These vary the transformer.
    dev("heads 5 x 8", heads=(5, 8)), dev("wide", heads=(4, 72), steps=4), dev("sharp", sharpness=4.0),
    dev("three double blocks, one single", layers=3, singles=1), dev("more sinusoids", transformer={"timestep_guidance_channels": 38}),
    dev("32 channels", channels=32),
    # These vary the text encoder.
    dev("30 layers of text, the last state normed", text={"num_hidden_layers": 30}), dev("40 layers of text", text={"num_hidden_layers": 40}),
    dev("one key for all queries", text={"num_key_value_heads": 1}), dev("a key for each query", text={"num_key_value_heads": 4}),
    dev("a window that holds all tokens", text={"sliding_window": 160}, prompts=THREE),
    dev("other numbers of the text encoder", text={"rms_norm_eps": 1e-3, "head_dim": None, "intermediate_size": 44, "hidden_size": 32,
                                                   "rope_parameters": {"rope_type": "default", "rope_theta": 300.0}}),
    # These vary the VAE and the sampler.
    dev("VAE of 3 blocks", vae={"block_out_channels": (4, 8, 12)}, size=(40, 56)),
    *[dev(name, scheduler=(FLOW, options)) for name, options in (
        ("no shift", {}), ("a terminal noise level", {**SHIFT[1], "shift_terminal": 0.1}), ("levels of the file", {**SHIFT[1], "use_flow_sigmas": True}))],
    # These vary how the folder was saved.
    dev("sharded", saved="sharded"), dev("variant", saved="variant"), dev("saved in bf16", saved="bf16"),
    # These run on many ranks, which rarely divide the sizes.
    ranks("--ulysses-degree 2"), ranks("--ulysses-degree 3", heads=(5, 8), size=(112, 64), layers=2),
    ranks("--ring-degree 2", size=(80, 96), prompts=THREE), ranks("--kv-gather-degree 3", size=(112, 48), guidance=1.0),
    ranks("--tensor-parallel-degree 2", prompts=["a cat", LONG]), ranks("--tensor-parallel-degree 3", heads=(5, 8)),
    ranks("--data-parallel-degree 2", prompts=THREE), ranks("--ulysses-degree 2 --ring-degree 2", size=(112, 80), heads=(5, 16)),
    ranks(f"{PIPELINE} 2 --num-pipeline-patch 2 --warmup-steps 4"), ranks(f"{PIPELINE} 3 --num-pipeline-patch 1 --warmup-steps 0"),
    ranks("--displaced-patch-degree 2 --displaced-mode full_sync"), ranks("--ring-degree 2 --no-vae-parallel --no-text-encoder-parallel"),
    # bf16.
    bf16("guided"), bf16("wide", heads=(4, 72), singles=4), bf16("saved in bf16", saved="bf16", guidance=2.0),
    bf16("--ulysses-degree 2", flags="--ulysses-degree 2"),
    # These refer to pictures.
    dev("a picture that says the size", references=((70, 101),), size=None),
    dev("three pictures, three prompts", references=((64, 64), (100, 75), (64, 200)), prompts=THREE, images=2),
    ranks("--ulysses-degree 2", "pictures", references=((64, 80), (100, 64)), heads=(5, 8)),
    ranks(f"{PIPELINE} 2 --num-pipeline-patch 2 --warmup-steps 4", "pictures", references=((64, 80), (100, 64)), heads=(5, 8)),
    bf16("a picture", references=((96, 64),)),
    # The transformer in a file of its own.
    *parity_z_image.files(dev, ranks, bf16),
]


def train():
    return bpe.train(43, WORDS, mistral3.TEKKEN, "isolated")


if __name__ == "__main__":
    parity.main(ROWS, parity.compare, __doc__, "diffusers", parity.BF16_RATIO, train)
