"""Compares Tessera with diffusers on whole pipelines of tiny random Z-Image models, by the rules of tools/parity/pixart.py. Rows with
flags of parallel methods run on many ranks and have the same limits: there they are exact."""
import dataclasses
import json
import pathlib
import shutil
import tempfile

import diffusers
import torch
import transformers
from diffusers.loaders import single_file_utils
from gguf import GGMLQuantizationType as Type
from safetensors.torch import save_file

from tools.golden import bpe_tokenizer as bpe
from tools.golden import original_names
from tools.golden.qwen3 import TEMPLATE
from tools.parity import pixart as parity
from tools.parity.pixart import CIRCLE, FLOW, LONG, THREE

WORDS = 1000  # merges of the tokenizer
SHIFT = (FLOW, {"shift": 3.0})  # as released
SPECIAL = ["a <|im_end|> b <|endoftext|>", "<|im_start|>system\nred<|im_end|>"]
EACH = ["blurry, a Cat", "", CIRCLE]


BLOCKS = {"Q8_0": {"small": [Type.Q8_0], "large": {}}, "Q4_K": {"small": [], "large": {Type.Q4_K: original_names.LARGE[Type.Q4_K]}}}
FILES = {"original names": "single.safetensors", "fp8 with factors": "single.safetensors", **dict.fromkeys(BLOCKS, "single.gguf")}


def save_alone(pipeline, saved, folder):
    """Writes the transformer alone, in one of FILES, and gives the pipeline, which lies in the folder, the numbers that the file stands
    for. diffusers reads original names itself."""
    model, path = pipeline.transformer, folder / FILES[saved]
    is_z_image = isinstance(model, diffusers.ZImageTransformer2DModel)
    rename = original_names.z_image_original if is_z_image else original_names.flux2_original
    original = {name: tensor.contiguous() for name, tensor in rename(original_names.numbers_of(model)).items()}
    if saved == "original names":
        save_file(original, path)
        pipeline.transformer = type(model).from_single_file(str(path), config=str(folder), subfolder="transformer", torch_dtype=torch.float32)
        return
    if saved in BLOCKS:
        numbers = original_names.quantised(original, path, "lumina2" if is_z_image else "flux2", **BLOCKS[saved])
    else:
        tensors, numbers = original_names.scaled(original, (".weight_scale", ".input_scale"), by_row=not is_z_image)
        save_file(tensors, path)
    convert = "z_image" if is_z_image else "flux2"
    model.load_state_dict(getattr(single_file_utils, f"convert_{convert}_transformer_checkpoint_to_diffusers")(numbers))


@dataclasses.dataclass(frozen=True)
class Row(parity.Row):
    heads: tuple = (3, 12)
    channels: int = 4  # of latents
    causal: bool = False  # the text encoder's class has a head for words
    scheduler: tuple = SHIFT
    size: tuple | None = (64, 96)
    steps: int | None = 6
    guidance: float | None = 5.0
    cfg_normalization: float | None = None
    cfg_truncation: float | None = None

    def tokenizer_of(self, folder, pieces):
        """A tokenizer in the files of published models, and what transformers reads of them."""
        bpe.save_qwen2(folder, *pieces)
        path = folder / "tokenizer_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": TEMPLATE, **self.tokenizer}))
        return transformers.Qwen2Tokenizer.from_pretrained(folder)

    def text_encoder_of(self, tokenizer, layers):
        encoder = transformers.Qwen3ForCausalLM if self.causal else transformers.Qwen3Model
        return encoder(transformers.Qwen3Config(**{
            "vocab_size": len(tokenizer) + 3, "hidden_size": 20, "intermediate_size": 28, "num_hidden_layers": layers,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "tie_word_embeddings": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, **self.text}))

    def build(self, folder, pieces):
        tokenizer = self.tokenizer_of(folder, pieces)
        text_encoder = self.text_encoder_of(tokenizer, 3)
        count, size = self.heads
        third = size // 6 * 2
        transformer = diffusers.ZImageTransformer2DModel(**{
            "dim": count * size, "n_heads": count, "n_kv_heads": count, "n_layers": self.layers, "n_refiner_layers": 2,
            "in_channels": self.channels, "cap_feat_dim": text_encoder.config.hidden_size,
            "axes_dims": [size - 2 * third, third, third], "axes_lens": [640, 128, 128], **self.transformer})
        options = {"block_out_channels": (4, 4, 8, 8), "layers_per_block": 1, "norm_num_groups": 4, "latent_channels": self.channels,
                   "scaling_factor": 0.3611, "shift_factor": 0.1159, "use_quant_conv": False, "use_post_quant_conv": False, **self.vae}
        blocks = len(options["block_out_channels"])
        vae = diffusers.AutoencoderKL(down_block_types=["DownEncoderBlock2D"] * blocks,
                                      up_block_types=["UpDecoderBlock2D"] * blocks, **options)
        parity.randomize(transformer)
        for token in (transformer.x_pad_token, transformer.cap_pad_token):  # all tokens see them
            torch.nn.init.normal_(token)
        for block in [*transformer.noise_refiner, *transformer.layers, *transformer.context_refiner]:
            block.attention.to_q.weight.data *= self.sharpness
        name, scheduler = self.scheduler
        return diffusers.ZImagePipeline(tokenizer=tokenizer, text_encoder=parity.randomize(text_encoder), vae=parity.randomize(vae),
                                        transformer=transformer, scheduler=getattr(diffusers, name)(**scheduler))

    def save(self, folder, pieces):
        with tempfile.TemporaryDirectory() as published:
            pipeline = self.build(pathlib.Path(published), pieces)
            variant = "fp16" if "variant" in self.saved else None
            if variant or self.saved in ("fp16", "bf16"):
                pipeline.to(torch.bfloat16 if self.saved == "bf16" else torch.float16)
            pipeline.save_pretrained(folder, variant=variant, max_shard_size="20KB" if "sharded" in self.saved else "10GB")
            if self.saved.startswith("published tokenizer"):  # vocab.json and merges.txt, with the template in tokenizer_config.json
                shutil.rmtree(folder / "tokenizer")
                shutil.copytree(published, folder / "tokenizer")
            if self.saved in FILES:
                save_alone(pipeline, self.saved, folder)
                pipeline.save_pretrained(folder)
        return {"variant": variant}

    def model(self, folder):
        if self.saved not in FILES:
            return super().model(folder)
        configs = folder / "configs"  # whose own transformer is absent
        if not configs.exists():
            shutil.copytree(folder, configs, ignore=shutil.ignore_patterns("diffusion_pytorch_model.safetensors", *FILES.values()))
            shutil.copytree(folder / "vae", configs / "vae", dirs_exist_ok=True)
        return ["--model", folder / FILES[self.saved], "--config", configs]

    def request(self):
        limits = {name: getattr(self, name) for name in ("cfg_normalization", "cfg_truncation")}
        return {**super().request(), **{key: value for key, value in limits.items() if value is not None}}

    def negatives(self):
        """One for each prompt."""
        return [self.negative] * len(self.prompts) if isinstance(self.negative, str) else list(self.negative)

    def call(self, pipeline, **options):
        options.pop("latents", None)  # the pipeline draws noise in fp32, whatever its dtype
        request = self.request()
        if self.negative is not None:
            request["negative_prompt"] = self.negatives()
        # The pipeline writes into the lists of prompts.
        return pipeline(list(self.prompts), num_images_per_prompt=self.images, **request, **options).images

    def call_and_watch(self, pipeline, **options):
        after_steps = []

        def watch(_, step, timestep, values):
            after_steps.append(values["latents"])
            return {}

        return self.call(pipeline, callback_on_step_end=watch, **options), after_steps

    def words(self):
        words = []
        for name, value in self.request().items():
            values = value if isinstance(value, list) else [value]
            words += [f"--{name.replace('_', '-')}={float(each) if isinstance(each, bool) else each}" for each in values]
        return [*words, f"--scheduler={self.override}"] if self.override else words


def z(name, **options):
    return Row("Z-Image, " + name, **options)


def bf16(name, **options):
    return Row("bf16 Z-Image, " + name, dtype="bf16", **{"prompts": THREE, "images": 2, **options})


def ranks(flags, name="", **options):
    return z(f"{flags} {name}".strip(), flags=flags, **{"prompts": ["a cat", CIRCLE], "negative": "blurry", "steps": 4, **options})


def files(make, make_ranks, make_bf16):
    wide = {"heads": (4, 64), "layers": 1, "steps": 4}
    return [make("a file of original names", saved="original names"), make("a file of fp8 with factors", saved="fp8 with factors"),
            make("a file of Q8_0", saved="Q8_0", heads=(4, 32)), make("a file of Q4_K", saved="Q4_K", **wide),
            make_ranks("--tensor-parallel-degree 2", "a file of fp8 with factors", saved="fp8 with factors"),
            make_ranks(f"{PIPELINE} 2 --num-pipeline-patch 2 --warmup-steps 4", "a file of Q8_0", saved="Q8_0", heads=(4, 32)),
            make_ranks("--tensor-parallel-degree 4 --split-scheme 2d", "a file of Q4_K", saved="Q4_K", **wide),
            make_bf16("a file of Q4_K", saved="Q4_K", **{**wide, "images": 1})]


PIPELINE = "--pipefusion-parallel-degree"
FULL, SLIDING = ["full_attention"], ["sliding_attention"]
WINDOWS = {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}
BIASED = {"attention_bias": True, "hidden_act": "gelu_pytorch_tanh"}
YARN = {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}}
LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 128, "short_factor": [1, 1.5, 2, 3],
            "long_factor": [2, 4, 6, 8]}
TEXTS = [("biases of a text encoder", BIASED, {}), ("windows", WINDOWS, {}), ("a window of one token", {**WINDOWS, "sliding_window": 1}, {}),
         ("windows, padded at the left", WINDOWS, {"tokenizer": {"padding_side": "left"}}), ("YaRN", YARN, {}),
         ("linear scaling", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}}, {}),
         ("the scaling of Llama 3", {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
                                                         "high_freq_factor": 4.0, "original_max_position_embeddings": 64}}, {}),
         ("dynamic scaling", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}, "max_position_embeddings": 100}, {}),
         ("LongRoPE, short", {"rope_parameters": LONGROPE}, {"tokens": 128}), ("LongRoPE, long", {"rope_parameters": LONGROPE}, {}),
         *[(name, {"hidden_act": name}, {}) for name in ("relu", "gelu", "quick_gelu", "relu2", "mish", "tanh", "linear")]]
LIMITED = {"cfg_normalization": 1, "cfg_truncation": 0.6}
ROWS = [
    # These resemble the released models, at the program's defaults.
    z("defaults", steps=None, guidance=None, saved="published tokenizer"),
    z("the size by default", size=None, steps=2, layers=1, heads=(1, 12), vae={"mid_block_add_attention": False}),
    z("turbo", guidance=0.0, steps=8, prompts=THREE),
    # These vary the prompts.
    z("three prompts, negatives", prompts=THREE, negative=EACH),
    z("three prompts, one negative", prompts=THREE, negative="blurry, a Cat"),
    z("two pictures each of two prompts", prompts=["cat", CIRCLE], images=2),
    z("an empty prompt", prompts=[""], negative=CIRCLE),
    z("special tokens in prompts", prompts=SPECIAL, negative=SPECIAL[::-1]),
    z("prompt beyond 512 tokens", prompts=[LONG * 3, "a dog"], negative=LONG * 3, steps=3),
    z("7 tokens", prompts=[CIRCLE, "a cat"], tokens=7),
    z("one token", tokens=1),
    z("31 tokens", prompts=[LONG, "a"], tokens=31), z("32 tokens", prompts=[LONG, "a"], tokens=32), z("33 tokens", prompts=[LONG, "a"], tokens=33),
    z("prompt cut at the left", prompts=[LONG, "a dog"], tokens=40, tokenizer={"truncation_side": "left"}),
    z("prompts padded at the left", prompts=THREE, tokenizer={"padding_side": "left"}),
    # These vary the sizes.
    z("one token of an image", size=(16, 16)), z("one row", size=(16, 272)), z("one column", size=(272, 16)),
    z("odd rows and columns", size=(80, 112)), z("a full number of tokens", size=(64, 128)),
    # These vary guidance.
    z("guidance 0, negative unused", guidance=0.0, negative="unused", cfg_normalization=1, cfg_truncation=0.5),
    z("guidance below 1", guidance=0.4, negative="blurry"), z("guidance 1", guidance=1.0, negative="blurry"),
    z("guidance 12", guidance=12.0),
    z("norms limited", cfg_normalization=True, prompts=THREE, images=2), z("norms limited more", cfg_normalization=0.6),
    z("norms limited by nothing", cfg_normalization=100), z("norms without a limit", cfg_normalization=0),
    z("guidance ends", cfg_truncation=0.3, prompts=THREE), z("guidance ends at once", cfg_truncation=0.0),
    z("guidance does not end", cfg_truncation=1.0),
    z("norms limited, guidance ends", prompts=THREE, negative=EACH, **LIMITED),
    # These vary the transformer.
    z("heads 5 x 8", heads=(5, 8)), z("heads 1 x 20", heads=(1, 20), layers=3), z("heads 7 x 6", heads=(7, 6), layers=1),
    z("wide", heads=(4, 72), steps=4), z("sharp", sharpness=4.0),
    z("no norms of queries and keys", transformer={"qk_norm": False}),
    z("no refiners", transformer={"n_refiner_layers": 0}), z("three refiners", transformer={"n_refiner_layers": 3}),
    z("fewer heads of keys, which diffusers ignores", transformer={"n_kv_heads": 1}),
    z("norm_eps", transformer={"norm_eps": 1e-2}), z("rope_theta", transformer={"rope_theta": 10000.0}),
    z("t_scale", transformer={"t_scale": 300.0}),
    z("uneven axes", transformer={"axes_dims": [2, 8, 2]}), z("an axis without features", transformer={"axes_dims": [0, 4, 8]}),
    z("positions that just suffice", transformer={"axes_lens": [34, 4, 6]}, prompts=["a"]),
    z("several patches", transformer={"all_patch_size": (4, 2), "all_f_patch_size": (1, 1)}),
    z("16 channels", channels=16), z("3 channels", channels=3),
    # These vary the text encoder.
    z("one layer of text", text={"num_hidden_layers": 1}), z("five layers of text", text={"num_hidden_layers": 5}),
    z("a text encoder with a head for words", causal=True), z("with a shared table of words", causal=True, text={"tie_word_embeddings": True}),
    z("one key for all queries", text={"num_key_value_heads": 1}), z("a key for each query", text={"num_key_value_heads": 4}),
    z("other numbers of the text encoder", text={"rms_norm_eps": 1e-3, "head_dim": 6, "intermediate_size": 44, "hidden_size": 30,
                                                 "rope_parameters": {"rope_type": "default", "rope_theta": 300.0}}),
    # These vary the VAE.
    z("VAE with quant convs", vae={"use_quant_conv": True, "use_post_quant_conv": True}),
    z("VAE with a shift of 0", vae={"shift_factor": 0.0}), z("VAE with another shift", vae={"shift_factor": -0.7, "scaling_factor": 1.3}),
    z("VAE with latent statistics", vae={"latents_mean": [0.5, -0.5, 0.2, 1], "latents_std": [2, 0.5, 3, 1]}),
    z("VAE of 4 x 4", vae={"block_out_channels": (4, 8, 12)}, size=(40, 56)),
    z("VAE of 2 layers, wider", vae={"block_out_channels": (12, 24, 24, 36), "layers_per_block": 2, "norm_num_groups": 6}),
    # These vary the sampler.
    *[z(name, scheduler=(FLOW, options)) for name, options in (
        ("no shift", {}), ("shift 6", {"shift": 6.0}), ("dynamic shift", {"use_dynamic_shifting": True, "shift": 3.0}),
        ("linear shift", {"use_dynamic_shifting": True, "time_shift_type": "linear", "base_shift": 0.7, "max_shift": 2.0,
                          "base_image_seq_len": 100, "max_image_seq_len": 2000}),
        ("a terminal noise level", {"shift": 3.0, "shift_terminal": 0.1}), ("levels of Karras", {"shift": 3.0, "use_karras_sigmas": True}),
        ("exponential levels", {"use_exponential_sigmas": True}), ("levels of a beta distribution", {"use_beta_sigmas": True}),
        ("500 timesteps", {"num_train_timesteps": 500}), ("inverted levels", {"invert_sigmas": True}))],
    z("one step", steps=1), z("--scheduler flow-euler", override="flow-euler"),
    # These vary how the folder was saved.
    z("sharded", saved="sharded"), z("variant", saved="variant"), z("sharded variant", saved="sharded variant"),
    z("saved in fp16", saved="fp16"), z("saved in bf16", saved="bf16", guidance=0.0),
    z("all cores", size=(160, 208), threads=None),
    # These run on many ranks, which rarely divide the sizes.
    ranks("--ulysses-degree 2", **LIMITED), ranks("--ulysses-degree 3", heads=(5, 8), size=(112, 64), layers=3),
    ranks("--ring-degree 2", size=(80, 96), prompts=THREE, negative=EACH), ranks("--ring-degree 3", size=(112, 48), **LIMITED),
    ranks("--kv-gather-degree 2", size=(80, 96)), ranks("--kv-gather-degree 3", size=(112, 48), prompts=THREE, guidance=0.0, negative=None),
    ranks("--tensor-parallel-degree 2", prompts=["a cat", LONG], **LIMITED), ranks("--tensor-parallel-degree 3", heads=(5, 8)),
    ranks("--use-cfg-parallel", prompts=THREE, negative=EACH, **LIMITED), ranks("--use-cfg-parallel", "guidance below 1", guidance=0.4),
    ranks("--data-parallel-degree 2", prompts=THREE), ranks("--data-parallel-degree 3", prompts=THREE, images=2, **LIMITED),
    ranks("--use-cfg-parallel --ulysses-degree 2", **LIMITED), ranks("--ulysses-degree 2 --ring-degree 2", size=(112, 80), heads=(5, 12)),
    ranks("--tensor-parallel-degree 4 --split-scheme 2d", heads=(5, 8)),
    ranks(f"{PIPELINE} 2 --num-pipeline-patch 2 --warmup-steps 4"), ranks(f"{PIPELINE} 3 --num-pipeline-patch 1 --warmup-steps 0", layers=3),
    ranks(f"{PIPELINE} 2 --num-pipeline-patch 3 --warmup-steps 4 --use-cfg-parallel", size=(112, 48), cfg_truncation=0.6),
    ranks("--displaced-patch-degree 2 --displaced-mode full_sync", **LIMITED), ranks("--displaced-patch-degree 3 --warmup-steps 9"),
    ranks("--ulysses-degree 2 --rank-shares 3,2"), ranks("--ring-degree 2 --no-vae-parallel --no-text-encoder-parallel"),
    # bf16.
    bf16("guided"), bf16("turbo", guidance=0.0, steps=8), bf16("norms limited, guidance ends", **LIMITED), bf16("wide", heads=(4, 72), layers=4),
    bf16("saved in bf16", saved="bf16", guidance=2.0), bf16("--ulysses-degree 2", flags="--ulysses-degree 2"),
    # The transformer in a file of its own.
    *files(z, ranks, bf16),
    # Options that published files leave as they are by default.
    z("more steps than timesteps of training", scheduler=(FLOW, {"num_train_timesteps": 4})),
    z("no layers, which leaves out the text", transformer={"n_layers": 0}),
    *[z(name, text=options, prompts=THREE, **more) for name, options, more in TEXTS],
    *[z(f"VAE with {name}", vae={"act_fn": name}) for name in ("gelu", "relu", "mish")],
    z("a window in the layer behind the state", text={**WINDOWS, "sliding_window": 1, "layer_types": 2 * FULL + SLIDING}),
    ranks("--ring-degree 3", "VAE with mish", vae={"act_fn": "mish"}, size=(112, 48)),
    *[ranks(flags, "options of the text encoder", text={**BIASED, **WINDOWS, **YARN}) for flags in
      ("--tensor-parallel-degree 2", "--ulysses-degree 3", f"{PIPELINE} 2 --num-pipeline-patch 2 --warmup-steps 4")],
    bf16("options of the text encoder", text={**BIASED, **WINDOWS, **YARN}),
]


def train():
    return bpe.train(41, WORDS, bpe.QWEN2, "isolated")


if __name__ == "__main__":
    parity.main(ROWS, parity.compare, __doc__, "diffusers", parity.BF16_RATIO, train)
