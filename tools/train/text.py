"""The demo model's text side: SentencePiece vocabulary and T5 encoder.

The encoder is trained alone to predict the caption's attributes, from every token as well as from
the mean, and then frozen.  Learning text and pictures together is far slower: a denoiser cannot
use a text encoder that does not yet encode which colour belongs to which object.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import sentencepiece
import torch
import torch.nn.functional as F
from transformers import T5Config, T5EncoderModel, T5Tokenizer

from tools.train import scenes

MAX_TOKENS = 24
ATTRIBUTES = {
    "first colour": ("none",) + scenes.COLOURS,
    "first shape": ("none",) + scenes.SHAPES,
    "relation": ("none",) + scenes.RELATIONS,
    "second colour": ("none",) + scenes.COLOURS,
    "second shape": ("none",) + scenes.SHAPES,
    "background": ("none",) + scenes.BACKGROUNDS,
}


@dataclass(frozen=True)
class Corpus:
    """Says what the captions of a model consist of and what they state."""
    words: list[str]
    attributes: dict[str, tuple[str, ...]]
    # (rng, count, held_out) -> captions, and the index of each attribute's value [count, attributes]
    draw: Callable[..., tuple[list[str], torch.Tensor]]
    max_tokens: int = MAX_TOKENS
    layers: int = 2  # of the encoder


def vocabulary_words() -> list[str]:
    words = {"a", "an", "the", "on", "background"} | set(scenes.SHAPES)
    for name in scenes.COLOURS:
        words |= set(scenes.COLOUR_WORDS.get(name, (name,)))
    for options in scenes.RELATION_WORDS.values():
        for option in options:
            words |= set(option.split())
    return sorted(words)


def train_vocabulary(work: str, seed: int, words: list[str]) -> str:
    """Trains spiece.model so that each of the words is one piece.

    The trainer only considers pieces that occur in at least two different words, so from captions
    alone it would learn letters.  The corpus has each word often, a few times with random letters
    behind it, and random words so that it also learns the single letters.
    """
    rng = np.random.default_rng(seed)
    letters = list("abcdefghijklmnopqrstuvwxyz0123456789,.'-")

    def noise(low, high):
        return "".join(rng.choice(letters, size=int(rng.integers(low, high))))

    lines = [noise(2, 9) for _ in range(300)]
    for word in words:
        lines += [word] * 400 + [word + noise(1, 4) for _ in range(10)]
    rng.shuffle(lines)
    corpus = os.path.join(work, "corpus.txt")
    with open(corpus, "w", encoding="utf-8") as out:
        out.write("\n".join(lines) + "\n")
    prefix = os.path.join(work, "spiece")
    sentencepiece.SentencePieceTrainer.train(
        input=corpus, model_prefix=prefix, vocab_size=200, model_type="unigram",
        character_coverage=1.0, hard_vocab_limit=False, pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
        pad_piece="<pad>", eos_piece="</s>", unk_piece="<unk>", minloglevel=2, num_threads=1,
    )
    model = sentencepiece.SentencePieceProcessor(model_file=prefix + ".model")
    split = [w for w in words if len(model.encode(w)) != 1]
    if split:
        raise RuntimeError(f"not single pieces: {split}")
    return prefix + ".model"


def save_tokenizer(spiece: str, folder: str) -> T5Tokenizer:
    """Writes the tokenizer as transformers does, plus spiece.model, which its newer versions
    read but no longer write."""
    os.makedirs(folder, exist_ok=True)
    target = os.path.join(folder, "spiece.model")
    shutil.copyfile(spiece, target)
    tokenizer = T5Tokenizer.from_pretrained(folder, extra_ids=0)
    tokenizer.save_pretrained(folder)
    shutil.copyfile(spiece, target)
    return tokenizer


def build_encoder(vocabulary: int, layers: int = 2) -> T5EncoderModel:
    return T5EncoderModel(T5Config(
        vocab_size=vocabulary, d_model=128, d_kv=32, d_ff=256, num_layers=layers, num_heads=4,
        feed_forward_proj="gated-gelu", dropout_rate=0.0, relative_attention_num_buckets=32,
        relative_attention_max_distance=128, tie_word_embeddings=False,
        pad_token_id=0, eos_token_id=1, decoder_start_token_id=0,
    ))


def attribute_targets(scene: scenes.Scene | None) -> list[int]:
    """Returns the index of each attribute's value; a missing caption has none of the values."""
    if scene is None:
        return [0] * len(ATTRIBUTES)
    second = scene.second or scenes.Item("none", "none")
    values = (scene.first.colour, scene.first.shape, scene.relation or "none",
              second.colour, second.shape, scene.background)
    return [options.index(v) for options, v in zip(ATTRIBUTES.values(), values)]


def scene_of(targets) -> scenes.Scene:
    """Returns the scene that the indices of attribute_targets describe."""
    values = [options[int(i)] for options, i in zip(ATTRIBUTES.values(), targets)]
    if values[2] == "none":
        return scenes.Scene(scenes.Item(values[0], values[1]), values[5])
    return scenes.Scene(scenes.Item(values[0], values[1]), values[5], values[2],
                        scenes.Item(values[3], values[4]))


class CaptionCoder:
    """Returns token ids and mask of captions, padded to the longest of the batch."""

    def __init__(self, spiece: str, max_tokens: int = MAX_TOKENS):
        self.max_tokens = max_tokens
        self.model = sentencepiece.SentencePieceProcessor(model_file=spiece)

    def __call__(self, captions: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        rows = [self.model.encode(c) + [self.model.eos_id()] for c in captions]
        width = max(len(r) for r in rows)
        if width > self.max_tokens:
            raise ValueError(f"caption of {width} tokens, more than {self.max_tokens}")
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        mask = torch.zeros(len(rows), width, dtype=torch.long)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row)
            mask[i, : len(row)] = 1
        return ids, mask


def draw_captions(rng, count: int, held_out: bool = False):
    drawn = [None if rng.random() < 0.05 else scenes.sample_scene(rng, held_out)
             for _ in range(count)]
    captions = ["" if s is None else scenes.caption(s, rng) for s in drawn]
    return captions, torch.tensor([attribute_targets(s) for s in drawn])


PICTURES = Corpus(vocabulary_words(), ATTRIBUTES, draw_captions)


def fit(params, score, rng, work: str, steps: int, batch: int, lr: float, draw=draw_captions) -> None:
    """Trains with AdamW.  score(captions, targets) gives the loss and the share of captions with no error."""
    optimiser = torch.optim.AdamW(params, lr=lr, betas=(0.9, 0.99), weight_decay=0.01)
    start = time.time()
    with open(os.path.join(work, "text.csv"), "w", encoding="utf-8") as log:
        log.write("step,seconds,loss,all_attributes_right_held_out\n")
        for step in range(1, steps + 1):
            factor = min(1.0, step / 100) * min(1.0, 2.5 * (steps - step) / steps)
            for group in optimiser.param_groups:
                group["lr"] = lr * factor
            loss, _ = score(*draw(rng, batch))
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(params, 1.0)
            optimiser.step()
            if step % 250 == 0:
                with torch.no_grad():
                    _, right = score(*draw(rng, 300, True))
                seconds = time.time() - start
                print(f"text step {step} {seconds:.0f} s loss {loss.item():.4f} right {right:.3f}",
                      flush=True)
                log.write(f"{step},{seconds:.0f},{loss.item():.5f},{right:.4f}\n")


def train_text(work: str, seed: int, steps: int = 2500, batch: int = 48, lr: float = 2e-3,
               corpus: Corpus = PICTURES) -> None:
    """Trains vocabulary and encoder; writes spiece.model and text.pt into the work folder."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    spiece = train_vocabulary(work, seed, corpus.words)
    coder = CaptionCoder(spiece, corpus.max_tokens)
    encoder = build_encoder(coder.model.get_piece_size(), corpus.layers)
    heads = torch.nn.ModuleList(torch.nn.Linear(128, len(v)) for v in corpus.attributes.values())
    params = list(encoder.parameters()) + list(heads.parameters())

    def score(captions, targets):
        ids, mask = coder(captions)
        hidden = encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        keep = mask.unsqueeze(-1).float()
        pooled = (hidden * keep).sum(1) / keep.sum(1)
        loss, right = 0.0, torch.ones(len(ids), dtype=torch.bool)
        for k, head in enumerate(heads):
            token = F.cross_entropy(head(hidden).transpose(1, 2),
                                    targets[:, k : k + 1].expand_as(ids), reduction="none")
            loss = loss + (token * mask).sum() / mask.sum()
            loss = loss + F.cross_entropy(head(pooled), targets[:, k])
            right &= head(pooled).argmax(-1) == targets[:, k]
        return loss, right.float().mean().item()

    fit(params, score, rng, work, steps, batch, lr, corpus.draw)
    torch.save(encoder.state_dict(), os.path.join(work, "text.pt"))


def load_text(work: str, corpus: Corpus = PICTURES) -> tuple[CaptionCoder, T5EncoderModel]:
    coder = CaptionCoder(os.path.join(work, "spiece.model"), corpus.max_tokens)
    encoder = build_encoder(coder.model.get_piece_size(), corpus.layers)
    encoder.load_state_dict(torch.load(os.path.join(work, "text.pt")))
    return coder, encoder.eval().requires_grad_(False)
