#!/usr/bin/env python3
"""Saves random weights with the shapes of real models once, in bf16 under build/bench-models, for both sides of a comparison.

    bench/models.py FAMILY FOLDER LAYERS TEXT_LAYERS

The other tools here run this as a command instead of making weights themselves, because a child's peak memory starts at that of
the parent that forked it.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODELS = ROOT / "build" / "bench-models"
PIXART = dict(num_attention_heads=16, attention_head_dim=72, in_channels=4, out_channels=8,
              cross_attention_dim=1152, caption_channels=4096, sample_size=64, use_additional_conditions=False)
UNET = dict(sample_size=128, in_channels=4, out_channels=4, block_out_channels=(320, 640, 1280), layers_per_block=2,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"), attention_head_dim=(5, 10, 20),
            cross_attention_dim=2048, use_linear_projection=True, addition_embed_type="text_time", addition_time_embed_dim=256,
            projection_class_embeddings_input_dim=2816)
VAE = dict(block_out_channels=(128, 256, 512, 512), layers_per_block=2, latent_channels=4,
           down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
           sample_size=1024, scaling_factor=0.13025)
CLIP = dict(num_attention_heads=12, hidden_size=768, intermediate_size=3072)
CLIP_2 = dict(num_attention_heads=20, hidden_size=1280, intermediate_size=5120, projection_dim=1280, hidden_act="gelu")
STDIT3 = {"model_type": "STDiT3", "hidden_size": 1152, "num_heads": 16, "caption_channels": 4096, "model_max_length": 300,
          "in_channels": 4, "input_sq_size": 512, "mlp_ratio": 4.0, "qk_norm": True, "pred_sigma": True, "patch_size": [1, 2, 2]}
TEMPORAL_VAE = {"filters": 128, "num_res_blocks": 4, "num_groups": 32, "channel_multipliers": [1, 2, 2, 4]}
VIDEO_VAE = {"model_type": "VideoAutoencoderPipeline", "micro_frame_size": 17, "shift": [-0.10, 0.34, 0.27, 0.98],
             "scale": [3.85, 2.32, 2.33, 3.06], "vae_2d": {"type": "VideoAutoencoderKL", "micro_batch_size": 4},
             "vae_temporal": {"type": "VAE_Temporal_SD"}}
Z_IMAGE = dict(dim=3840, n_heads=30, n_kv_heads=30, n_refiner_layers=2, in_channels=16, cap_feat_dim=2560, axes_dims=[32, 48, 48])
FLUX2_KLEIN = dict(num_attention_heads=24, attention_head_dim=128, joint_attention_dim=7680, in_channels=128, guidance_embeds=False)
SINGLE_BLOCKS = 4  # of FLUX.2 klein for each double block
FLUX_VAE = {**VAE, "latent_channels": 16, "scaling_factor": 0.3611, "shift_factor": 0.1159, "use_quant_conv": False,
            "use_post_quant_conv": False}
QWEN3_4B = dict(vocab_size=151936, hidden_size=2560, intermediate_size=9728, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
                tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 1e6})
# Of the real models: for SDXL's U-Net those of the transformers at the coarsest scale, for STDiT3 pairs of blocks, for FLUX.2 klein
# double blocks.
LAYERS = {"pixart": 28, "sdxl": 10, "open-sora": 28, "z-image": 30, "flux2-klein": 5}
TEXT_LAYERS = 4  # of T5-XXL's 24, which take 9.5 GB; of CLIP's 12 and 32; of Qwen3-4B's 36, which take 7.5 GB
LEAST_TEXT_LAYERS = {"flux2-klein": 27}  # it reads the state behind the 27th


def make_pixart(folder, layers, text_layers):
    from diffusers import DPMSolverMultistepScheduler, PixArtTransformer2DModel
    save(folder / "transformer", 0, lambda: PixArtTransformer2DModel(num_layers=layers, **PIXART))
    make_sdxl_vae(folder)
    make_t5(folder, text_layers)
    DPMSolverMultistepScheduler().save_pretrained(folder / "scheduler")
    return "PixArtSigmaPipeline", {
        "scheduler": ["diffusers", "DPMSolverMultistepScheduler"], "text_encoder": ["transformers", "T5EncoderModel"],
        "tokenizer": ["transformers", "T5Tokenizer"], "transformer": ["diffusers", "PixArtTransformer2DModel"],
        "vae": ["diffusers", "AutoencoderKL"]}


def make_open_sora(folder, layers, text_layers):
    sys.path.insert(0, str(ROOT))
    from tools.layout_open_sora import VERSIONS
    from tools.reference.video_vae import SPATIAL, TEMPORAL, spatial_vae
    from tools.train.stdit import STDiT3
    from tools.train.video_vae import TemporalVae
    config = {**STDIT3, "depth": layers}
    save(folder / "transformer", 0, lambda: Published(config, {"": STDiT3(config)}))
    save(folder / "vae", 1, lambda: Published(VIDEO_VAE, {
        SPATIAL: spatial_vae(VAE["block_out_channels"], groups=32), TEMPORAL: TemporalVae(TEMPORAL_VAE)}, ("shift", "scale")))
    make_t5(folder, text_layers)
    index, scheduler = VERSIONS["STDiT3"]
    write_json(folder / "scheduler" / "scheduler_config.json", scheduler)
    return index["_class_name"], index


class Published:
    """Modules whose weights have their published names after a prefix, and lists of the config that are weights too."""

    def __init__(self, config, modules, vectors=()):
        self.config, self.modules, self.vectors = config, modules, vectors

    def save_pretrained(self, folder):
        import torch
        from safetensors.torch import save_file
        write_json(folder / "config.json", self.config)
        weights = {prefix + name: value for prefix, module in self.modules.items() for name, value in module.state_dict().items()}
        weights |= {name: torch.tensor(self.config[name]).view(1, -1, 1, 1, 1) for name in self.vectors}
        save_file({name: value.contiguous() for name, value in weights.items()}, folder / "model.safetensors")


def make_t5(folder, layers):
    """Saves the text encoder and its tokenizer."""
    from transformers import T5Config, T5EncoderModel
    save(folder / "text_encoder", 2, lambda: Repeated(lambda: T5EncoderModel(T5Config(
        d_model=4096, d_ff=10240, d_kv=64, num_heads=64, num_layers=layers, vocab_size=32128, feed_forward_proj="gated-gelu")),
        without="encoder.embed_tokens.weight"))
    shutil.copytree(ROOT / "models" / "shapes" / "tokenizer", folder / "tokenizer", dirs_exist_ok=True)


def make_qwen3(folder, layers, tokenizer):
    """Saves the text encoder, of which all models of as many layers have the same files, and a small tokenizer."""
    from transformers import Qwen3Config, Qwen3ForCausalLM
    shared = folder.parent / f"qwen3-{layers}"
    save(shared, 2, lambda: Repeated(lambda: Qwen3ForCausalLM(Qwen3Config(num_hidden_layers=layers, **QWEN3_4B)), without="lm_head.weight"))
    shutil.copytree(shared, folder / "text_encoder", copy_function=os.link, dirs_exist_ok=True)
    shutil.copytree(ROOT / "tests" / "golden" / tokenizer / "tokenizer", folder / "tokenizer", dirs_exist_ok=True)


class Repeated:
    """A model whose blocks of one kind have equal weights, with a file for each block: to make it takes the memory of one of each."""

    def __init__(self, build, without=None):
        import torch
        with torch.device("meta"):
            self.model = build()
        self.without = without  # a weight that is another one

    def save_pretrained(self, folder):
        from safetensors.torch import save_file
        is_of_diffusers = hasattr(self.model, "save_config")
        if is_of_diffusers:
            self.model.save_config(folder)
        else:
            self.model.config.save_pretrained(folder)
        shards = {}
        for name, value in self.model.state_dict().items():
            if name != self.without:
                block = re.match(r"(.*?\.\d+)\.", name)  # up to the first number
                shards.setdefault(block and block[1], {})[name] = value
        stem, values, index = "diffusion_pytorch_model" if is_of_diffusers else "model", {}, {}
        for number, shard in enumerate(shards.values(), 1):
            file = f"{stem}-{number:05}-of-{len(shards):05}.safetensors"
            save_file({name: self.weight(name, like, values) for name, like in shard.items()}, folder / file, metadata={"format": "pt"})
            index |= {name: file for name in shard}
        write_json(folder / f"{stem}.safetensors.index.json", {"metadata": {}, "weight_map": index})

    @staticmethod
    def weight(name, like, values):
        """A weight, which the same layers of other blocks share."""
        import torch
        key = re.sub(r"\.\d+\.", ".", name, count=1), like.shape
        if key not in values:
            values[key] = (torch.randn(like.shape, dtype=like.dtype).mul_(like.shape[-1] ** -0.5) if like.dim() > 1 else
                           torch.zeros(like.shape, dtype=like.dtype) if name.endswith("bias") else
                           torch.ones(like.shape, dtype=like.dtype))
        return values[key]


def make_sdxl_vae(folder):
    from diffusers import AutoencoderKL
    save(folder / "vae", 1, lambda: AutoencoderKL(**VAE))


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2))


def make_sdxl(folder, layers, text_layers):
    from diffusers import EulerDiscreteScheduler, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection
    small = ROOT / "models" / "shapes-xl"
    make_sdxl_vae(folder)
    save(folder / "unet", 0, lambda: UNet2DConditionModel(transformer_layers_per_block=(1, 2, layers), **UNET))
    tokens = {name: value for name, value in json.loads((small / "text_encoder" / "config.json").read_text()).items()
              if name.endswith("_token_id") or name == "vocab_size"}
    save(folder / "text_encoder", 2, lambda: CLIPTextModel(CLIPTextConfig(num_hidden_layers=text_layers, **tokens, **CLIP)))
    save(folder / "text_encoder_2", 3, lambda: CLIPTextModelWithProjection(
        CLIPTextConfig(num_hidden_layers=text_layers, **tokens, **CLIP_2)))
    for name in ("tokenizer", "tokenizer_2"):
        shutil.copytree(small / name, folder / name, dirs_exist_ok=True)
    EulerDiscreteScheduler(beta_schedule="scaled_linear", timestep_spacing="leading", steps_offset=1).save_pretrained(folder / "scheduler")
    return "StableDiffusionXLPipeline", {
        "scheduler": ["diffusers", "EulerDiscreteScheduler"], "text_encoder": ["transformers", "CLIPTextModel"],
        "text_encoder_2": ["transformers", "CLIPTextModelWithProjection"], "tokenizer": ["transformers", "CLIPTokenizer"],
        "tokenizer_2": ["transformers", "CLIPTokenizer"], "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": ["diffusers", "AutoencoderKL"]}


def make_z_image(folder, layers, text_layers):
    from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, ZImageTransformer2DModel
    save(folder / "transformer", 0, lambda: Repeated(lambda: ZImageTransformer2DModel(n_layers=layers, **Z_IMAGE)))
    save(folder / "vae", 1, lambda: AutoencoderKL(**FLUX_VAE))
    make_qwen3(folder, text_layers, "tiny-z-image")
    FlowMatchEulerDiscreteScheduler(shift=3.0).save_pretrained(folder / "scheduler")
    return "ZImagePipeline", {
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"], "text_encoder": ["transformers", "Qwen3ForCausalLM"],
        "tokenizer": ["transformers", "Qwen2Tokenizer"], "transformer": ["diffusers", "ZImageTransformer2DModel"],
        "vae": ["diffusers", "AutoencoderKL"]}


def make_flux2_klein(folder, layers, text_layers):
    from diffusers import AutoencoderKLFlux2, FlowMatchEulerDiscreteScheduler, Flux2Transformer2DModel
    save(folder / "transformer", 0, lambda: Repeated(lambda: Flux2Transformer2DModel(
        num_layers=layers, num_single_layers=SINGLE_BLOCKS * layers, **FLUX2_KLEIN)))
    save(folder / "vae", 1, AutoencoderKLFlux2)
    make_qwen3(folder, text_layers, "tiny-flux2-klein")
    FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True).save_pretrained(folder / "scheduler")
    return "Flux2KleinPipeline", {
        "is_distilled": False, "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "text_encoder": ["transformers", "Qwen3ForCausalLM"], "tokenizer": ["transformers", "Qwen2Tokenizer"],
        "transformer": ["diffusers", "Flux2Transformer2DModel"], "vae": ["diffusers", "AutoencoderKLFlux2"]}


def request_of(folder):
    """The options with which the model runs here, where those by default are of another model: FLUX.2 klein as it is when distilled,
    without guidance."""
    is_klein = json.loads((folder / "model_index.json").read_text())["_class_name"] == "Flux2KleinPipeline"
    return {"guidance_scale": 1.0} if is_klein else {}


def save(folder, seed, build):
    """Builds the model in bf16 directly, because in fp32 the largest would not fit into memory."""
    import torch
    if folder.exists():
        return
    torch.manual_seed(seed)
    torch.set_default_dtype(torch.bfloat16)
    build().save_pretrained(folder)
    torch.set_default_dtype(torch.float32)


def make(family, folder, layers, text_layers):
    makers = {"pixart": make_pixart, "sdxl": make_sdxl, "open-sora": make_open_sora, "z-image": make_z_image,
              "flux2-klein": make_flux2_klein}
    name, parts = makers[family](folder, layers, text_layers)
    write_json(folder / "model_index.json", {"_class_name": name, "_diffusers_version": "0.42.1", **parts})


def add_options(parser):
    parser.add_argument("--family", choices=LAYERS, default="pixart", help="PixArt-Sigma-XL, Stable Diffusion XL, Open-Sora 1.2, Z-Image, "
                        "or FLUX.2 klein 4B")
    parser.add_argument("--layers", type=int, help="blocks of the transformer (Open-Sora: pairs; Z-Image: without refiners; FLUX.2 klein: "
                        "double ones, with four single ones for each), or of the U-Net's deepest one (default: as in the real model)")
    parser.add_argument("--text-layers", type=int, default=TEXT_LAYERS, help="layers of the text encoder (24 is T5-XXL, 36 is "
                        "Qwen3-4B; FLUX.2 klein: at least 27)")
    parser.add_argument("--models", type=pathlib.Path, default=MODELS)


def folder_of(args):
    """The folder of the model that the options name."""
    return folder_with(args.family, LAYERS[args.family] if args.layers is None else args.layers, args.text_layers, args.models)


def folder_with(family, layers, text_layers, models=MODELS):
    """The folder of such a model; it is made if it does not exist."""
    text_layers = max(text_layers, LEAST_TEXT_LAYERS.get(family, 1))
    folder = models / f"{family}-{layers}-{text_layers}"
    if not (folder / "model_index.json").exists():
        subprocess.run([sys.executable, __file__, family, str(folder), str(layers), str(text_layers)], check=True)
    return folder


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    make(sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
