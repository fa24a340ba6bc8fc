"""Compares Tessera's byte-level BPE tokenizer with transformers. It sends 10,000 random lines of difficult text, whole and padded
or cut to the model's length, and every code point through each kind of tokenizer folder. It needs build/tests/tokenize_lines."""
import json
import pathlib
import shutil
import sys
import tempfile

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from transformers import CLIPTokenizer, PreTrainedTokenizerFast, Qwen2Tokenizer
from transformers.utils import logging

from tools.golden import bpe_tokenizer as lines
from tools.golden import mistral3
from tools.parity import tokenizer as parity_tokenizer

CLASSES = {"clip": CLIPTokenizer, "qwen2": Qwen2Tokenizer, "file": PreTrainedTokenizerFast}


def flagged(content, normalized=False, special=False, **flags):
    return {"content": content, "lstrip": False, "rstrip": False, "single_word": False, "normalized": normalized, "special": special,
            **flags}


def rewrite(path, change):
    value = json.loads(path.read_text())
    change(value)
    lines.write_json(path, value)


def clip_folders(root):
    tokens, pairs = lines.train_clip(31, 1500)
    size = len(tokens)
    published = root / "clip, as published with Stable Diffusion 1.5"
    lines.save_clip(published, tokens, pairs)
    lines.save_clip(root / "clip, padded with ! as SDXL's second", tokens, pairs, pad="!")
    lines.save_clip_json(root / "clip, tokenizer.json", tokens, pairs)
    lines.save_clip_json(root / "clip, tokenizer.json, padded with !", tokens, pairs, pad="!")
    CLIPTokenizer.from_pretrained(published).save_pretrained(root / "clip, as transformers 5 saves it")
    lines.save_vocabulary(root / "clip, no config", [*tokens, lines.BOS, lines.EOS], pairs)
    listed = root / "clip, added tokens in the config, as FLUX"
    lines.save_vocabulary(listed, [*tokens, lines.BOS, lines.EOS], pairs)
    decoder = {str(size): flagged(lines.BOS, normalized=True, special=True), str(size + 1): flagged(lines.EOS, special=True)}
    names = {"bos_token": lines.BOS, "eos_token": lines.EOS, "pad_token": lines.EOS, "unk_token": lines.EOS}
    lines.write_json(listed / "tokenizer_config.json", {"added_tokens_decoder": decoder, "model_max_length": 77, **names})
    words = root / "clip, words added with every flag"
    shutil.copytree(listed, words)
    more = [flagged("wordy", normalized=True, single_word=True), flagged("<tool>", lstrip=True), flagged("</w>", rstrip=True),
            flagged("<mask>", lstrip=True, rstrip=True, special=True), flagged("Stretch\u0301", normalized=True), flagged("circle")]
    decoder.update({str(size + 2 + i): token for i, token in enumerate(more)})
    lines.write_json(words / "tokenizer_config.json", {"added_tokens_decoder": decoder, "model_max_length": 77, **names})
    old = root / "clip, added_tokens.json"
    lines.save_clip(old, tokens, pairs)
    lines.write_json(old / "added_tokens.json", {"white": size + 2, "<tool>": size + 3})
    rewrite(old / "special_tokens_map.json", lambda value: value.update(additional_special_tokens=["<tool>", "Wordy"]))
    # Half of the alphabet is unknown.
    kept = {token for token in tokens if not any(ord(c) % 2 and ord(c) > 127 for c in token)}
    lines.save_clip(root / "clip, bytes left out", [token for token in tokens if token in kept],
                    [pair for pair in pairs if "".join(pair) in kept])
    return "clip"


def qwen2_folders(root):
    tokens, pairs = lines.train(32, 1500, lines.QWEN2, "isolated")
    published = root / "qwen2, as published with Qwen-Image"
    lines.save_qwen2(published, tokens, pairs)
    Qwen2Tokenizer.from_pretrained(published).save_pretrained(root / "qwen2, as transformers 5 saves it")
    plain = root / "qwen2, older files"
    lines.save_vocabulary(plain, [*tokens, lines.EOS], pairs)
    lines.write_json(plain / "special_tokens_map.json", {"eos_token": flagged(lines.EOS, normalized=True)})
    lines.write_json(plain / "tokenizer_config.json", {"add_bos_token": True, "add_eos_token": True, "bos_token": "<|im_start|>",
                                                       "image_token": "<tool>"})
    return "qwen2"


def file_folders(root):
    tokens, pairs = lines.train(33, 1500, lines.LLAMA3, "isolated")
    lines.save_llama3(root / "file, as Llama 3", tokens, pairs, ["stretched", "\u0120circle", "123"])
    merges_twice = [*pairs, *pairs[:200]]
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "!", "model_max_length": 30, "padding_side": "left"}

    def save(name, pre_tokenizer, normalizer=None, **options):
        model = models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges_twice, **options)
        tokenizer = Tokenizer(model)
        tokenizer.pre_tokenizer = pre_tokenizer
        if normalizer is not None:
            tokenizer.normalizer = normalizer
        lines.save_json(root / name, tokenizer, config, legacy_merges=True)

    save("file, as GPT-2", pre_tokenizers.ByteLevel(add_prefix_space=False))
    save("file, a space before", pre_tokenizers.ByteLevel(add_prefix_space=True), normalizers.Lowercase())
    for behavior in ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]:
        for invert in [False, True]:
            save(f"file, {behavior}{', inverted' if invert else ''}", pre_tokenizers.Sequence([
                pre_tokenizers.Split("a", behavior, invert=invert), pre_tokenizers.Split(Regex(r"[^\s\p{L}]+|\p{M}"), behavior),
                pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)]))
    # This splits into characters instead of bytes, most of which are unknown.
    save("file, unknown characters fused", pre_tokenizers.Split(Regex(r"\s+"), "removed"),
         normalizers.Sequence([normalizers.Replace("...", "\u2026"), normalizers.NFC()]), unk_token="~", fuse_unk=True)
    mistral3.save_tekken(root / "file, as Mistral", *lines.train(34, 1500, mistral3.TEKKEN, "isolated"))
    save("file, a character for each of Mistral's pieces", pre_tokenizers.Split(Regex(mistral3.TEKKEN), "isolated"), unk_token="~", fuse_unk=True)
    return "file"


def texts_of_every_character():
    """Returns texts that put each code point where letters, digits, marks, white space, contractions and case matter. Planes
    without characters are left out."""
    points = [c for c in [*range(0x40000), *range(0xe0000, 0xe0200), 0xf0000, 0x10fffd] if not 0xd800 <= c < 0xe000]
    forms = ["a{0}b", "1{0}2", "{0}{0}", "'{0} ", "e{0}\u0301", "\u0301\u0316{0}"]
    for i in range(0, len(points), 40):
        for form in forms:
            yield " ".join(form.format(chr(c)) for c in points[i:i + 40])


def compare(binary, folder, kind, texts, padded=True):
    tokenizer = CLASSES[kind].from_pretrained(folder)
    rows = parity_tokenizer.run([binary, folder, type(tokenizer).__name__], texts)
    expected = lines.encode(tokenizer, texts)
    differ = [row for row in zip(texts, expected, rows) if row[1][:1 + padded] != row[2][:1 + padded]]
    print(f"{folder.name}: {len(texts) - len(differ)} of {len(texts)} lines equal")
    for text, want, got in differ[:3]:
        print(f"  {text[:100]!a}\n    transformers {want[0][:40]}\n    tessera      {got[0][:40]}")
    return len(differ)


def main():
    options = parity_tokenizer.read_options(__doc__)
    logging.set_verbosity_error()
    texts = lines.nasty_lines(options.seed, options.count)
    everything = list(texts_of_every_character())
    if options.count < 10000:  # a short run: every tenth
        everything = everything[::10]
    wrong = 0
    for make in [clip_folders, qwen2_folders, file_folders]:
        with tempfile.TemporaryDirectory() as root:
            kind = make(pathlib.Path(root))
            folders = sorted(pathlib.Path(root).iterdir())
            wrong += sum(compare(options.binary, folder, kind, texts) for folder in folders)
            print("every character, ", end="")
            wrong += compare(options.binary, folders[0], kind, everything)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
