"""The demo model's denoiser in the form of SDXL: a U-Net with size conditions and pooled text."""

from __future__ import annotations

import torch
from diffusers import EulerDiscreteScheduler, UNet2DConditionModel
from diffusers.models.attention_processor import AttnProcessor

from tools.train import clip as demo_clip
from tools.train import scenes

GUIDANCE = 5.0
SAMPLER_STEPS = 20
MUON_LR = 0.01
WIDTH, POOLED, SIZE_WIDTH = 224, 128, 32
load_text, train_text = demo_clip.load_text, demo_clip.train_text


def build_scheduler() -> EulerDiscreteScheduler:
    return EulerDiscreteScheduler(num_train_timesteps=1000, beta_schedule="linear", beta_start=1e-4,
                                  beta_end=0.02, prediction_type="v_prediction",
                                  timestep_spacing="trailing")


def build() -> UNet2DConditionModel:
    model = UNet2DConditionModel(
        sample_size=16, in_channels=4, out_channels=4, block_out_channels=(64, 160), layers_per_block=2,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"), transformer_layers_per_block=(1, 1),
        attention_head_dim=(2, 5), cross_attention_dim=WIDTH, use_linear_projection=True,
        addition_embed_type="text_time", addition_time_embed_dim=SIZE_WIDTH,
        projection_class_embeddings_input_dim=POOLED + 6 * SIZE_WIDTH, norm_num_groups=16)
    # The output starts at zero, and the outputs of transformers and second convolutions start small.
    torch.nn.init.zeros_(model.conv_out.weight)
    torch.nn.init.zeros_(model.conv_out.bias)
    for name, parameter in model.named_parameters():
        if name.endswith(("conv2.weight", "attentions.0.proj_out.weight")):
            torch.nn.init.normal_(parameter, std=1e-3)
    # Attention uses plain matrix products and softmax because the fused kernel's backward is slow on CPU.
    model.set_attn_processor(AttnProcessor())
    return model.to(memory_format=torch.channels_last)


def is_matrix(name: str, parameter: torch.nn.Parameter) -> bool:
    """Returns whether Muon trains the parameter: it is a matrix or a convolution of a block."""
    return parameter.ndim >= 2 and "_block" in name


def conditions(text, captions: list[str | None], originals=None) -> tuple[torch.Tensor, ...]:
    """Returns states [count, 77, WIDTH], pooled text and sizes [count, 6].  A missing caption gives
    zeros, as a missing negative prompt does."""
    coder, encoders = text
    ids, _ = coder([caption or "" for caption in captions])
    with torch.no_grad():
        hidden, pooled = demo_clip.encode(encoders, ids)
    keep = torch.tensor([caption is not None for caption in captions]).float()
    sizes = torch.tensor([[scenes.SIZE, scenes.SIZE, 0, 0, scenes.SIZE, scenes.SIZE]]).float()
    sizes = sizes.repeat(len(captions), 1)
    if originals is not None:
        sizes[:, :2] = originals
    return hidden * keep[:, None, None], pooled * keep[:, None], sizes


def training_conditions(text, captions: list[str], rng) -> tuple[torch.Tensor, ...]:
    """Half of the empty captions become missing ones.  Three pictures in ten get a random original
    size, so that the model learns to ignore it."""
    chosen = [caption if caption or rng.random() < 0.5 else None for caption in captions]
    any_size = torch.from_numpy(rng.integers(32, 1024, (len(captions), 2))).float()
    is_any = torch.from_numpy(rng.random(len(captions)) < 0.3)[:, None]
    return conditions(text, chosen, torch.where(is_any, any_size, torch.tensor(float(scenes.SIZE))))


def predict(denoiser, x, t, hidden, pooled, sizes):
    return denoiser(x, t, encoder_hidden_states=hidden,
                    added_cond_kwargs={"text_embeds": pooled, "time_ids": sizes}, return_dict=False)[0]
