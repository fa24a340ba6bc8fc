"""The demo model's denoiser in the form of PixArt."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from diffusers import DPMSolverMultistepScheduler, PixArtTransformer2DModel
from diffusers.models.attention_processor import AttnProcessor

from tools.train import text as demo_text

GUIDANCE = 4.5
SAMPLER_STEPS = 20
MUON_LR = 0.02
HEADS, LAYERS = 3, 6
load_text, train_text = demo_text.load_text, demo_text.train_text


def build_scheduler() -> DPMSolverMultistepScheduler:
    return DPMSolverMultistepScheduler(
        num_train_timesteps=1000, beta_schedule="linear", beta_start=1e-4, beta_end=0.02,
        prediction_type="v_prediction", algorithm_type="dpmsolver++", solver_order=2,
    )


def build() -> PixArtTransformer2DModel:
    model = PixArtTransformer2DModel(
        num_attention_heads=HEADS, attention_head_dim=64, num_layers=LAYERS, in_channels=4,
        out_channels=4, cross_attention_dim=64 * HEADS, caption_channels=128, sample_size=16,
        patch_size=2, use_additional_conditions=False, attention_bias=True,
    )
    # diffusers lacks the reference initialisation, in which the output starts at zero and the
    # layers that read the timestep start small.
    torch.nn.init.zeros_(model.proj_out.weight)
    torch.nn.init.zeros_(model.proj_out.bias)
    torch.nn.init.normal_(model.adaln_single.linear.weight, std=0.02)
    embedder = model.adaln_single.emb.timestep_embedder
    for layer in (embedder.linear_1, embedder.linear_2):
        torch.nn.init.normal_(layer.weight, std=0.02)
    for layer in (model.caption_projection.linear_1, model.caption_projection.linear_2):
        torch.nn.init.xavier_uniform_(layer.weight)
    # Attention uses plain matrix products and softmax because the fused kernel's backward is slow on CPU.
    model.set_attn_processor(AttnProcessor())
    return model


def is_matrix(name: str, parameter: torch.nn.Parameter) -> bool:
    """Returns whether Muon trains the parameter: it is a matrix of a block."""
    return parameter.ndim == 2 and name.startswith("transformer_blocks") and "table" not in name


def conditions(text, captions: list[str | None]) -> tuple[torch.Tensor, ...]:
    """Returns states and mask. A missing caption counts as an empty one."""
    coder, encoder = text
    ids, mask = coder([caption or "" for caption in captions])
    with torch.no_grad():
        hidden = encoder(input_ids=ids, attention_mask=mask).last_hidden_state
    # All batches have one width, because each further width would be compiled anew.
    short = 16 - mask.shape[1]
    return F.pad(hidden, (0, 0, 0, short)), F.pad(mask, (0, short))


def training_conditions(text, captions: list[str], rng) -> tuple[torch.Tensor, ...]:
    return conditions(text, captions)


def predict(denoiser, x, t, hidden, mask):
    return denoiser(x, encoder_hidden_states=hidden, encoder_attention_mask=mask, timestep=t,
                    added_cond_kwargs={"resolution": None, "aspect_ratio": None}, return_dict=False)[0]
