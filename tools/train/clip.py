"""The text side of the demo model in SDXL's form: a byte-level BPE vocabulary and two CLIP encoders.

Like the T5 encoder of the other form they are trained alone to predict the caption's attributes,
and then frozen.  Training uses exactly what the denoiser will read: the states before the last
layer, from the end mark on (attention is causal, so earlier tokens do not know the whole caption),
and the second encoder's pooled vector.
"""

from __future__ import annotations

import json
import os
import pathlib

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import (CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection,
                          CLIPTokenizer)

from tools.golden.bpe_tokenizer import alphabet, save_clip
from tools.train import text as demo_text

LENGTH = 77
PADS = {"tokenizer": "<|endoftext|>", "tokenizer_2": "!"}  # as SDXL's


def train_vocabulary(seed: int) -> tuple[list[str], list[tuple[str, str]]]:
    """Returns the tokens in order and the merges; each word of the captions is one token."""
    words = demo_text.vocabulary_words()
    endings = [c + "</w>" for c in alphabet()]
    tokenizer = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Whitespace(), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    trainer = trainers.BpeTrainer(vocab_size=4096, show_progress=False, special_tokens=endings,
                                  initial_alphabet=alphabet(), end_of_word_suffix="</w>")
    rng = np.random.default_rng(seed)
    tokenizer.train_from_iterator([" ".join(rng.permutation(words)) for _ in range(50)], trainer)
    pairs = [tuple(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]
    tokens = alphabet() + endings + list(dict.fromkeys(a + b for a, b in pairs))
    missing = [w for w in words if w + "</w>" not in tokens]
    if missing:
        raise RuntimeError(f"not single tokens: {missing}")
    return tokens, pairs


def save_tokenizers(folder: str) -> None:
    """Writes tokenizer/ and tokenizer_2/, which differ in the padding token."""
    tokens, pairs = train_vocabulary(1)
    for name, pad in PADS.items():
        save_clip(pathlib.Path(folder) / name, tokens, pairs, pad=pad)


def load_tokenizers(folder: str) -> list[CLIPTokenizer]:
    return [CLIPTokenizer.from_pretrained(os.path.join(folder, name)) for name in PADS]


def build_encoders(vocabulary: int) -> torch.nn.ModuleList:
    shared = dict(vocab_size=vocabulary, bos_token_id=vocabulary - 2, eos_token_id=vocabulary - 1,
                  pad_token_id=vocabulary - 1, max_position_embeddings=LENGTH, num_hidden_layers=3)
    return torch.nn.ModuleList([
        CLIPTextModel(CLIPTextConfig(hidden_size=96, num_attention_heads=3, intermediate_size=384,
                                     hidden_act="quick_gelu", **shared)),
        CLIPTextModelWithProjection(CLIPTextConfig(
            hidden_size=128, num_attention_heads=4, intermediate_size=512, hidden_act="gelu",
            projection_dim=128, **shared))])


class CaptionCoder:
    """Returns the token ids of captions for both encoders, [count, 77] each, and the end mark's position."""

    def __init__(self, folder: str):
        self.tokenizers = load_tokenizers(folder)

    def __call__(self, captions: list[str]) -> tuple[list[torch.Tensor], torch.Tensor]:
        ids = [tokenizer(captions, padding="max_length", max_length=LENGTH, truncation=True,
                         return_tensors="pt").input_ids for tokenizer in self.tokenizers]
        return ids, (ids[1] == self.tokenizers[1].eos_token_id).int().argmax(1)


def encode(encoders, ids) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns SDXL's conditions: the joined states before the last layers, and the pooled vector."""
    one, two = (encoder(i, output_hidden_states=True) for encoder, i in zip(encoders, ids))
    return torch.cat([one.hidden_states[-2], two.hidden_states[-2]], -1), two.text_embeds


def train_text(work: str, seed: int, steps: int = 1000, batch: int = 32, lr: float = 1e-3) -> None:
    """Trains both encoders; writes the tokenizers' folders and clip.pt into the work folder."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    save_tokenizers(work)
    coder = CaptionCoder(work)
    encoders = build_encoders(len(coder.tokenizers[0]))
    widths = [96, 128, 128]  # states of both, pooled
    heads = torch.nn.ModuleList(
        torch.nn.ModuleList(torch.nn.Linear(width, len(v)) for v in demo_text.ATTRIBUTES.values())
        for width in widths)
    params = list(encoders.parameters()) + list(heads.parameters())

    def score(captions, targets):
        ids, end = coder(captions)
        hidden, pooled = encode(encoders, ids)
        # One state is drawn per caption, from those of the end mark and of the pads after it.
        spread = (torch.rand(len(end)) ** 2 * (LENGTH - end)).long()
        chosen = hidden[torch.arange(len(end)), end + spread]
        loss, right = 0.0, torch.ones(len(end), dtype=torch.bool)
        for part, heads_of_part in zip((*chosen.split(widths[:2], -1), pooled), heads):
            for k, head in enumerate(heads_of_part):
                loss = loss + F.cross_entropy(head(part), targets[:, k])
                right &= head(part).argmax(-1) == targets[:, k]
        return loss, right.float().mean().item()

    demo_text.fit(params, score, rng, work, steps, batch, lr)
    torch.save(encoders.state_dict(), os.path.join(work, "clip.pt"))


def load_text(work: str):
    coder = CaptionCoder(work)
    encoders = build_encoders(len(coder.tokenizers[0]))
    encoders.load_state_dict(torch.load(os.path.join(work, "clip.pt")))
    return coder, encoders.eval().requires_grad_(False)
