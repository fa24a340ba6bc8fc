"""Compares Tessera's T5 tokenizer and prompt cleaning with transformers and Python. It sends 10,000 random lines of difficult
text through each kind of tokenizer folder, and every code point through the cleaning. It needs build/tests/tokenize_lines."""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import unicodedata

from transformers import T5Tokenizer

from tools.golden import tokenizer as lines


def run(words, texts):
    """Returns the program's output for each text."""
    return json.loads(subprocess.run(words, input=json.dumps(texts), capture_output=True, text=True, check=True).stdout)


def read_options(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--binary", default="build/tests/tokenize_lines")
    parser.add_argument("--count", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=7)
    return parser.parse_args()


def folders(root):
    """Creates and returns a folder of each kind that is in use; the report shows their names."""
    model = lines.train(11, 900, normalization_rule_name="nmt_nfkc")
    plain = lines.train(12, 800, normalization_rule_name="identity")
    pieces = 900
    sentinels = [f"<extra_id_{i}>" for i in range(100)]
    flags = {"lstrip": True, "normalized": False, "rstrip": True, "single_word": False, "special": True}
    decoder = {str(pieces + 99 - i): {"content": token, **flags} for i, token in enumerate(sentinels)}
    published = {"added_tokens_decoder": decoder, "additional_special_tokens": sentinels, "eos_token": "</s>",
                 "extra_ids": 100, "pad_token": "<pad>", "unk_token": "<unk>"}
    lines.save_spiece(root / "spiece", model)
    lines.save_spiece(root / "spiece, no rules", plain)
    lines.save_spiece(root / "spiece, no sentinels", model, {"extra_ids": 0})
    lines.save_spiece(root / "spiece, as published with PixArt", model, published)
    lines.save_json(root / "json", model)
    lines.save_json(root / "json, no rules", plain)
    lines.save_json(root / "json, no sentinels", model, {"extra_ids": 0})
    (root / "json, no config").mkdir()
    (root / "json, no config" / "tokenizer.json").write_bytes((root / "json" / "tokenizer.json").read_bytes())
    lines.save_spiece(root / "words added, normalised, single or neither", model, {"added_tokens_decoder": {
        "1000": {"content": "\uff43\uff41\uff54", "normalized": True, "special": False},
        "1001": {"content": "circle", "normalized": False, "special": False},
        "1002": {"content": "hat", "normalized": True, "single_word": True, "special": False}}})
    both = {"extra_special_tokens": ["circle"], "additional_special_tokens": ["hat"]}
    lines.save_spiece(root / "spiece, both lists", model, both)
    lines.save_spiece(root / "spiece, the older list alone", model, {"additional_special_tokens": ["circle", "hat"]})
    lines.save_json(root / "json, both lists", model, both)
    old = root / "spiece, added_tokens.json"
    lines.save_spiece(old, model)
    (old / "added_tokens.json").write_text(json.dumps({"<extra_id_0>": 999, "white": 1000, "ka": 1001}))
    (old / "special_tokens_map.json").write_text(json.dumps(
        {"additional_special_tokens": [*sentinels, "white"], "eos_token": {"content": "</s>", "normalized": True}}))
    return sorted(root.iterdir())


def compare_tokenizers(binary, count, seed):
    texts = lines.nasty_lines(seed, count)
    wrong = 0
    with tempfile.TemporaryDirectory() as root:
        for folder in folders(pathlib.Path(root)):
            expected = T5Tokenizer.from_pretrained(folder)(texts).input_ids
            differ = [(text, want, row[1]) for text, want, row in zip(texts, expected, run([binary, folder], texts))
                      if want != row[1]]
            print(f"{folder.name}: {count - len(differ)} of {count} lines equal")
            for text, want, got in differ[:3]:
                print(f"  {text[:100]!r}\n    transformers {want[:40]}\n    tessera      {got[:40]}")
            wrong += len(differ)
    return wrong


def compare_cleaning(binary, count, seed):
    # Characters that Python's version of Unicode lacks are left out, because ICU may know them.
    everything = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cs", "Cn")]
    texts = lines.nasty_lines(seed, count)
    texts += [f"{c}a{c}" for c in everything if c.isspace()]
    texts += ["|".join(everything[i:i + 100]) for i in range(0, len(everything), 100)]
    for form in ["a{}\u03a3", "A\u03a3{}b", "A\u03a3{}"]:  # sigma is final or not depending on what stands around it
        texts += [form.format(c) for c in everything if not 0x3400 <= ord(c) < 0xd7b0 and ord(c) < 0x20000]
    if count < 10000:  # a short run: every tenth
        texts = texts[::10]
    with tempfile.TemporaryDirectory() as root:
        lines.save_spiece(pathlib.Path(root), lines.train(11, 900, normalization_rule_name="nmt_nfkc"))
        rows = run([binary, root], texts)
    differ = [(text, row[0]) for text, row in zip(texts, rows) if lines.cleaned(text) != row[0]]
    print(f"lower and strip: {len(texts) - len(differ)} of {len(texts)} texts equal")
    for text, got in differ[:5]:
        want = lines.cleaned(text)
        at = next((i for i, (a, b) in enumerate(zip(want, got)) if a != b), min(len(want), len(got)))
        print(f"  at {at}: python {want[at:at + 4]!a}, tessera {got[at:at + 4]!a}")
    return len(differ)


def main():
    options = read_options(__doc__)
    wrong = compare_tokenizers(options.binary, options.count, options.seed)
    wrong += compare_cleaning(options.binary, options.count, options.seed)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
