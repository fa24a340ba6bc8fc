"""Compares Tessera with diffusers on whole pipelines of tiny random Stable Diffusion models (1.x, 2.x and XL), by the rules of
tools/parity/pixart.py. Rows with flags of exact parallel methods run on many ranks and have the same limits."""
import dataclasses
import json
import shutil
import types

import diffusers
import torch
import transformers
from safetensors.torch import save_file

from tools.golden import bpe_tokenizer as tokenizers
from tools.parity import pixart as parity
from tools.parity.pixart import ANCESTRAL, CIRCLE, DDIM, DPM, EULER, LONG, MILD, PNDM, SCALED, THREE, UNICODE, UNIPC, V

LCM = "LCMScheduler"
WORDS = 1500  # merges of the tokenizer
# These are the released options but for the noise, which ends at a signal of 1/15 there: an untrained model's latents would
# grow fifteenfold.
RELEASED_PNDM = (PNDM, {**MILD, "skip_prk_steps": True, "set_alpha_to_one": False, "steps_offset": 1})
RELEASED_XL = (EULER, {**SCALED, "steps_offset": 1, "timestep_spacing": "leading", "interpolation_type": "linear"})
RELEASED_V = (DDIM, {**SCALED, **V, "clip_sample": False, "set_alpha_to_one": False, "steps_offset": 1})
MORE_FIELDS = ("prompt_2", "negative_prompt_2", "clip_skip", "guidance_rescale", "original_size", "target_size", "crops_coords_top_left")

UNETS = {
    "1.5": {"block_out_channels": (16, 32, 32), "attention_head_dim": 4, "cross_attention_dim": 24, "use_linear_projection": False,
            "down_block_types": ("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
            "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D")},
    "2.1": {"block_out_channels": (16, 32, 32), "attention_head_dim": (2, 4, 4), "cross_attention_dim": 24,
            "use_linear_projection": True, "down_block_types": ("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
            "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D")},
    "XL": {"block_out_channels": (16, 32, 48), "attention_head_dim": (2, 4, 6), "transformer_layers_per_block": (1, 2, 3),
           "cross_attention_dim": 56, "use_linear_projection": True, "addition_embed_type": "text_time",
           "addition_time_embed_dim": 8, "projection_class_embeddings_input_dim": 20 + 6 * 8,
           "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
           "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D")}}


def clip(tokens, seconds=False, **options):
    config = transformers.CLIPTextConfig(**{
        "vocab_size": tokens + 2, "bos_token_id": tokens, "eos_token_id": tokens + 1, "hidden_size": 24, "intermediate_size": 40,
        "num_attention_heads": 3, "num_hidden_layers": 5, "hidden_act": "quick_gelu", "projection_dim": 24, **options})
    return parity.randomize((transformers.CLIPTextModelWithProjection if seconds else transformers.CLIPTextModel)(config))


def original_resnet(name, state, prefix):
    """Renames a residual block of diffusers' U-Net as in the code that trained it."""
    parts = {"norm1": "in_layers.0", "conv1": "in_layers.2", "time_emb_proj": "emb_layers.1", "norm2": "out_layers.0",
             "conv2": "out_layers.3", "conv_shortcut": "skip_connection"}
    return {f"{prefix}.{parts[key.split('.')[0]]}.{key.split('.', 1)[1]}": value
            for key, value in under(state, name).items()}


def under(state, prefix):
    return {key[len(prefix) + 1:]: value for key, value in state.items() if key.startswith(prefix + ".")}


def put(result, prefix, tensors):
    result.update({f"{prefix}.{key}": value for key, value in tensors.items()})


def original_unet(unet):
    state, result = unet.state_dict(), {}
    put(result, "input_blocks.0.0", under(state, "conv_in"))
    put(result, "out.0", under(state, "conv_norm_out"))
    put(result, "out.2", under(state, "conv_out"))
    for name, place in (("time_embedding", "time_embed.{}"), ("add_embedding", "label_emb.0.{}")):
        for index, layer in ((0, "linear_1"), (2, "linear_2")):
            put(result, place.format(index), under(state, f"{name}.{layer}"))
    put(result, "time_embed.cond_proj", under(state, "time_embedding.cond_proj"))
    for index, name in ((0, "resnets.0"), (2, "resnets.1")):
        result.update(original_resnet(f"mid_block.{name}", state, f"middle_block.{index}"))
    put(result, "middle_block.1", under(state, "mid_block.attentions.0"))
    count = 1
    for b, block in enumerate(unet.down_blocks):
        for i in range(len(block.resnets)):
            result.update(original_resnet(f"down_blocks.{b}.resnets.{i}", state, f"input_blocks.{count}.0"))
            put(result, f"input_blocks.{count}.1", under(state, f"down_blocks.{b}.attentions.{i}"))
            count += 1
        if block.downsamplers:
            put(result, f"input_blocks.{count}.0.op", under(state, f"down_blocks.{b}.downsamplers.0.conv"))
            count += 1
    count = 0
    for b, block in enumerate(unet.up_blocks):
        for i in range(len(block.resnets)):
            place = f"output_blocks.{count}"
            result.update(original_resnet(f"up_blocks.{b}.resnets.{i}", state, f"{place}.0"))
            attention = under(state, f"up_blocks.{b}.attentions.{i}")
            put(result, f"{place}.1", attention)
            if block.upsamplers and i == len(block.resnets) - 1:
                put(result, f"{place}.{2 if attention else 1}.conv", under(state, f"up_blocks.{b}.upsamplers.0.conv"))
            count += 1
    return {f"model.diffusion_model.{key}": value for key, value in result.items()}


def original_vae(vae):
    levels = len(vae.config.block_out_channels)

    def name(key):
        key = key.replace("conv_shortcut", "nin_shortcut").replace("conv_norm_out", "norm_out")
        key = key.replace("mid_block.resnets.0", "mid.block_1").replace("mid_block.resnets.1", "mid.block_2")
        key = key.replace("mid_block.attentions.0", "mid.attn_1").replace("group_norm", "norm").replace("to_out.0", "proj_out")
        for long, short in (("to_q", "q"), ("to_k", "k"), ("to_v", "v")):
            key = key.replace(f"attn_1.{long}", f"attn_1.{short}")
        for i in range(levels):
            key = key.replace(f"down_blocks.{i}.", f"down.{i}.").replace(f"up_blocks.{i}.", f"up.{levels - 1 - i}.")
        return key.replace("resnets", "block").replace("downsamplers.0", "downsample").replace("upsamplers.0", "upsample")

    def value(key, tensor):
        is_convolution = "attentions" in key and "group_norm" not in key and tensor.dim() == 2
        return tensor[:, :, None, None] if is_convolution else tensor

    return {f"first_stage_model.{name(key)}": value(key, tensor) for key, tensor in vae.state_dict().items()}


def original_open_clip(encoder, root):
    state = {key.removeprefix("text_model."): value for key, value in encoder.state_dict().items()}
    result = {"token_embedding.weight": state["embeddings.token_embedding.weight"],
              "positional_embedding": state["embeddings.position_embedding.weight"], "logit_scale": torch.ones(())}
    put(result, "ln_final", under(state, "final_layer_norm"))
    if "text_projection.weight" in state:
        result["text_projection"] = state["text_projection.weight"].T
    for i in range(encoder.config.num_hidden_layers):
        layer, place = under(state, f"encoder.layers.{i}"), f"transformer.resblocks.{i}"
        for kind in ("weight", "bias"):
            result[f"{place}.attn.in_proj_{kind}"] = torch.cat([layer[f"self_attn.{x}_proj.{kind}"] for x in "qkv"])
        for name, original in (("self_attn.out_proj", "attn.out_proj"), ("mlp.fc1", "mlp.c_fc"), ("mlp.fc2", "mlp.c_proj"),
                               ("layer_norm1", "ln_1"), ("layer_norm2", "ln_2")):
            put(result, f"{place}.{original}", under(layer, name))
    return {f"{root}.{key}": value for key, value in result.items()}


def save_single_file(pipeline, family, path):
    """Saves all weights of a pipeline in one file under the names under which such files are published."""
    tensors = {**original_unet(pipeline.unet), **original_vae(pipeline.vae), "betas": torch.zeros(1000)}
    if family == "2.1":
        tensors.update(original_open_clip(pipeline.text_encoder, "cond_stage_model.model"))
    else:
        root = "conditioner.embedders.0.transformer" if family == "XL" else "cond_stage_model.transformer"
        state = {f"text_model.{key.removeprefix('text_model.')}": value
                 for key, value in pipeline.text_encoder.state_dict().items()}
        put(tensors, root, state)
        tensors[f"{root}.text_model.embeddings.position_ids"] = torch.arange(77)[None]
    if family == "XL":
        tensors.update(original_open_clip(pipeline.text_encoder_2, "conditioner.embedders.1.model"))
    save_file({key: value.contiguous() for key, value in tensors.items()}, path)


def show_last_norm(pipeline):
    """diffusers reads CLIP's last norm at another place than this version of transformers has it."""
    pipeline.text_encoder.text_model = types.SimpleNamespace(final_layer_norm=pipeline.text_encoder.final_layer_norm)


@dataclasses.dataclass(frozen=True)
class Row(parity.Row):
    family: str = "XL"  # or 1.5, 2.1
    unet: dict = dataclasses.field(default_factory=dict)  # options of UNet2DConditionModel
    inversion: tuple = ()  # tokens that textual inversion added to the tokenizers
    index: dict = dataclasses.field(default_factory=dict)  # options of the pipeline
    size: tuple | None = (64, 96)
    # the request
    prompt_2: str | list | None = None
    negative_prompt_2: str | list | None = None
    clip_skip: int | None = None
    guidance_rescale: float | None = None
    original_size: tuple | None = None
    target_size: tuple | None = None
    crops_coords_top_left: tuple | None = None
    vae_tiling: bool = False

    def build(self, folder, pieces):
        tokens, pairs = pieces
        count = len(tokens)
        tokenizers.save_clip(folder / "tokenizer", tokens, pairs, **({} if self.family != "2.1" else {"pad": "!"}))
        self.change_tokenizer(folder / "tokenizer", count + 2)
        more = {"vocab_size": count + 2 + len(self.inversion)}
        parts = {"tokenizer": transformers.CLIPTokenizer.from_pretrained(folder / "tokenizer"),
                 "unet": parity.randomize(diffusers.UNet2DConditionModel(**{
                     "sample_size": self.sample_size, "layers_per_block": 1, "norm_num_groups": 8, **UNETS[self.family],
                     **self.unet})),
                 "vae": parity.randomize(diffusers.AutoencoderKL(**{
                     "block_out_channels": (4, 4, 8, 8), "layers_per_block": 1, "norm_num_groups": 4, "latent_channels": 4,
                     "down_block_types": ["DownEncoderBlock2D"] * 4, "up_block_types": ["UpDecoderBlock2D"] * 4,
                     "scaling_factor": 0.13025, **self.vae})),
                 "scheduler": getattr(diffusers, self.scheduler[0])(**self.scheduler[1])}
        if self.family != "XL":
            gelu = {"hidden_act": "gelu"} if self.family == "2.1" else {}
            return diffusers.StableDiffusionPipeline(text_encoder=clip(count, **gelu, **more, **self.text), safety_checker=None,
                                                     feature_extractor=None, requires_safety_checker=False, **parts)
        tokenizers.save_clip(folder / "tokenizer_2", tokens, pairs, pad="!")
        self.change_tokenizer(folder / "tokenizer_2", count + 2)
        return diffusers.StableDiffusionXLPipeline(
            text_encoder=clip(count, **more, **self.text),
            text_encoder_2=clip(count, seconds=True, **more, hidden_size=32, num_attention_heads=4, hidden_act="gelu", projection_dim=20),
            tokenizer_2=transformers.CLIPTokenizer.from_pretrained(folder / "tokenizer_2"), add_watermarker=False, **parts,
            **self.index)

    def change_tokenizer(self, folder, first_id):
        if self.inversion:
            (folder / "added_tokens.json").write_text(json.dumps({token: first_id + i for i, token in enumerate(self.inversion)}))
        path = folder / "tokenizer_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **self.tokenizer}))

    def save(self, folder, pieces):
        pipeline = self.build(folder, pieces)
        files = {name: (folder / name).rename(folder / f"published {name}") for name in ("tokenizer", "tokenizer_2")
                 if (folder / name).exists()}
        pipeline.save_pretrained(folder)
        if self.saved == "single file":
            save_single_file(pipeline, self.family, folder / "model.safetensors")
        if self.saved != "as transformers":
            for name, published in files.items():  # with vocab.json and merges.txt
                for path in (folder / name).iterdir():
                    path.unlink()
                for path in published.iterdir():
                    path.rename(folder / name / path.name)
        return {}

    def model(self, folder):
        """Returns the options that name the model."""
        if self.saved != "single file":
            return super().model(folder)
        configs = folder / "configs"  # without weights
        if not configs.exists():
            shutil.copytree(folder, configs, ignore=shutil.ignore_patterns("*.safetensors"))
        return ["--model", folder / "model.safetensors", "--config", configs]

    def request(self):
        more = {name: getattr(self, name) for name in MORE_FIELDS}
        return {**super().request(), **{key: value for key, value in more.items() if value is not None}}

    def call(self, pipeline, **options):
        request = self.request()
        request.pop("max_sequence_length", None)
        for name in ("negative_prompt", "negative_prompt_2", "prompt_2"):  # one value is repeated for all prompts
            value = request.get(name)
            if value is not None and (value or name == "negative_prompt"):  # an empty second text is none
                values = [value] if isinstance(value, str) else value
                request[name] = values * len(self.prompts) if len(values) == 1 else values
        if self.vae_tiling:
            pipeline.vae.enable_tiling()
        if self.family != "XL":
            show_last_norm(pipeline)
        return pipeline(self.prompts, num_images_per_prompt=self.images, **request, **options).images

    def call_and_watch(self, pipeline, **options):
        after_steps = []

        def watch(_, step, timestep, values):
            after_steps.append(values["latents"])
            return {}

        return self.call(pipeline, callback_on_step_end=watch, **options), after_steps

    def words(self):
        words = []
        for name, value in self.request().items():
            option = f"--{name.replace('_', '-')}"
            if isinstance(value, list):
                words += [f"{option}={prompt}" for prompt in value]
            elif isinstance(value, tuple):
                words.append(f"{option}={value[0]}x{value[1]}")
            else:
                words.append(f"{option}={value}")
        if self.vae_tiling:
            words.append("--vae-tiling")
        return [*words, f"--scheduler={self.override}"] if self.override else words


def xl(name, **options):
    return Row("XL, " + name, family="XL", **{"scheduler": (EULER, MILD), "steps": 6, "guidance": 5.0, **options})


def one(name, **options):
    return Row("1.5, " + name, family="1.5", **{"scheduler": RELEASED_PNDM, "steps": 6, "guidance": 7.5, **options})


def two(name, **options):
    return Row("2.1, " + name, family="2.1", **{"scheduler": RELEASED_V, "steps": 6, "guidance": 7.5, **options})


def bf16(row):
    return dataclasses.replace(row, name="bf16 " + row.name, dtype="bf16", prompts=THREE, images=2)


TOYS = ("<cat-toy>", "<cat-toy>_1", "<cat-toy>_2", "<dog>")
SIZES = {"original_size": (100, 90), "target_size": (72, 80), "crops_coords_top_left": (5, 3)}
ROWS = [
    # These resemble the released models, at the program's defaults.
    xl("defaults", scheduler=RELEASED_XL, size=None, steps=None, guidance=None, sample_size=16),
    one("defaults", size=None, steps=None, guidance=None, sample_size=16),
    two("defaults", size=None, steps=None, guidance=None, sample_size=16),
    # These vary the prompts.
    xl("three prompts", prompts=THREE),
    xl("second prompts", prompts=THREE, prompt_2=["a dog", "", CIRCLE]),
    xl("one second prompt", prompts=THREE, prompt_2=[UNICODE]),
    xl("negative", prompts=THREE, negative="blurry, a Cat"),
    xl("an empty second prompt and negative", prompts=THREE, prompt_2="", negative="blurry", negative_prompt_2=""),
    xl("negative and its second", negative="blurry", negative_prompt_2="a square"),
    xl("empty negative", negative=""),
    xl("absent negative, not zeroed", index={"force_zeros_for_empty_prompt": False}),
    xl("second negative alone", negative_prompt_2="a square"),
    xl("prompt beyond 77 tokens", prompts=[LONG], negative=LONG),
    xl("clip skip", clip_skip=2, prompt_2=["a dog"], negative="blurry"),
    xl("one branch", guidance=1.0, prompts=["a cat", CIRCLE], images=2),
    one("three prompts, negative", prompts=THREE, negative="blurry, a Cat"),
    one("clip skip", clip_skip=1, negative="blurry"),
    one("legacy end of text", text={"eos_token_id": 2}),
    two("three prompts", prompts=THREE, clip_skip=2),
    # Textual inversion: one vector, several, and more than one that look alike; and what is no such token.
    *[make(f"textual inversion{saved and ', ' + saved}", inversion=TOYS, saved=saved or "fp32", steps=4, prompts=prompts,
           negative=["a <dog>, <cat-toy>", "<cat-toy>_1"], **more) for make, more in (
               (one, {}), (two, {}), (xl, {"prompt_2": ["a <cat-toy>", "<dog>"], "negative_prompt_2": ["a cat", "<cat-toy>"]}))
      for saved in ("", "as transformers")
      for prompts in [["a <cat-toy> on a <dog>, <CAT-TOY>", "<cat-toy> and <cat-toy>_2, a cat-toy"]]],
    xl("negative prompts for each", prompts=THREE, negative=["blurry", "a Cat", ""], negative_prompt_2=["a dog", "", CIRCLE]),
    one("prompt cut at the left", prompts=[LONG], negative=LONG, tokenizer={"truncation_side": "left"}, steps=4),
    # These vary the sizes.
    xl("sizes", **SIZES),
    xl("odd latents", size=(72, 104), steps=4),
    xl("latents odd on every level", size=(104, 136), prompts=["a cat", CIRCLE], steps=4),
    one("odd latents", size=(88, 72), steps=4),
    two("wide", size=(64, 208), steps=4),
    # These vary the networks.
    xl("four levels, two layers", unet={
        "block_out_channels": (8, 16, 24, 32), "layers_per_block": (1, 2, 1, 2), "attention_head_dim": (1, 2, 3, 4),
        "transformer_layers_per_block": (1, 1, 2, 1),
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D")}, size=(128, 64), steps=4),
    xl("one level", unet={"block_out_channels": (16,), "attention_head_dim": 2, "transformer_layers_per_block": 1,
                          "down_block_types": ("CrossAttnDownBlock2D",), "up_block_types": ("CrossAttnUpBlock2D",)}, steps=4),
    one("wide enough for minimal filtering", unet={"block_out_channels": (64, 64, 128), "norm_num_groups": 32}, steps=4),
    # Latent consistency models, which take the guidance scale as an input and have no negative branch.
    one("latent consistency, the default guidance", unet={"time_cond_proj_dim": 16}, scheduler=(LCM, SCALED), steps=4, guidance=None,
        prompts=THREE, negative="blurry", guidance_rescale=0.5),
    one("latent consistency, guidance below 1", unet={"time_cond_proj_dim": 256}, guidance=0.3, images=2),
    two("latent consistency, no guidance, an odd width", unet={"time_cond_proj_dim": 9}, guidance=1.0, negative="blurry"),
    xl("latent consistency", unet={"time_cond_proj_dim": 256}, scheduler=(LCM, SCALED), steps=4, guidance=8.5, prompts=THREE,
       negative="blurry", negative_prompt_2="a square", guidance_rescale=0.5),
    one("latent consistency, single file", unet={"time_cond_proj_dim": 16}, saved="single file", steps=4),
    *[xl("latent consistency, " + flags, unet={"time_cond_proj_dim": 16}, flags=flags, prompts=["a cat", CIRCLE], steps=4) for flags in (
        "--ulysses-degree 2", "--tensor-parallel-degree 3 --data-parallel-degree 2",
        "--displaced-patch-degree 2 --displaced-mode full_sync")],
    xl("VAE with latent statistics", vae={"latents_mean": [0.5, -0.5, 0.2, 1], "latents_std": [2, 0.5, 3, 1]}, steps=4),
    xl("tokenizers as transformers saves them", saved="as transformers", prompts=THREE, steps=4),
    xl("single file", saved="single file", prompts=THREE, steps=4, guidance=3.0),
    one("single file", saved="single file", steps=4), two("single file", saved="single file", steps=4),
    xl("single file on 2 ranks", saved="single file", steps=4, flags="--use-cfg-parallel"),
    xl("VAE in tiles", vae={"sample_size": 32}, vae_tiling=True, size=(104, 64), prompts=["a cat", CIRCLE], steps=4),
    xl("VAE in tiles, on 3 ranks", vae={"sample_size": 64}, vae_tiling=True, size=(72, 136), steps=4, flags="--tensor-parallel-degree 3"),
    xl("VAE in one tile", vae={"sample_size": 128}, vae_tiling=True, size=(104, 64), steps=4),
    # These vary samplers and guidance.
    xl("rescaled guidance", guidance_rescale=0.7, prompts=THREE),
    two("rescaled guidance, zero SNR", guidance_rescale=0.7, scheduler=(DDIM, {
        **SCALED, **V, "rescale_betas_zero_snr": True, "timestep_spacing": "trailing", "clip_sample": True, "steps_offset": 0})),
    one("DDIM, eta, an old file", scheduler=(DDIM, {**MILD, "steps_offset": 0}), eta=0.6, prompts=["a cat", "a dog"]),
    one("Euler, an old file", scheduler=(EULER, {**MILD, "timestep_spacing": "leading"})),
    xl("Euler ancestral", scheduler=(ANCESTRAL, {**MILD, "timestep_spacing": "trailing"}), images=2),
    xl("DPM-Solver++ Karras", scheduler=(DPM, {**MILD, "use_karras_sigmas": True})),
    xl("UniPC", scheduler=(UNIPC, MILD)),
    one("--scheduler dpm++", override="dpm++"),
    one("--scheduler euler-a", override="euler-a"),
    # These run on many ranks.
    *[xl(flags, flags=flags, guidance_rescale=0.5, negative="blurry", prompts=["a cat", CIRCLE],
         size=(104, 64)) for flags in (
        "--use-cfg-parallel", "--ulysses-degree 2", "--ring-degree 3", "--tensor-parallel-degree 2", "--data-parallel-degree 2",
        "--displaced-patch-degree 2 --displaced-mode full_sync", "--displaced-patch-degree 3 --warmup-steps 6",
        "--use-cfg-parallel --displaced-patch-degree 2 --displaced-mode full_sync", "--ulysses-degree 2 --no-vae-parallel",
        "--tensor-parallel-degree 2 --displaced-patch-degree 2 --warmup-steps 100")],
    one("odd rows on 3 ranks", size=(88, 72), flags="--displaced-patch-degree 3 --displaced-mode full_sync"),
    one("euler-a on 2 ranks", override="euler-a", flags="--displaced-patch-degree 2 --displaced-mode full_sync", images=2),
    two("ring of 2", flags="--ring-degree 2"),
    # bf16.
    bf16(one("latent consistency", unet={"time_cond_proj_dim": 16})),
    bf16(xl("sizes", **SIZES)), bf16(one("PNDM")), bf16(two("v")),
    two("gather of 2", flags="--kv-gather-degree 2"),
]


if __name__ == "__main__":
    parity.main(ROWS, parity.compare, __doc__, "diffusers", parity.BF16_RATIO, lambda: tokenizers.train_clip(31, WORDS))
