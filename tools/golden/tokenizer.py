"""Makes tests/golden/t5_tokenizer/ and t5_tokenizer_json/: two small T5 vocabularies, one as `spiece.model` and one as
`tokenizer.json`, each with lines of difficult text, their ids by transformers, and the cleaned (lower-cased, stripped)
text that diffusers' PixArt pipelines tokenize."""
import io
import json
import pathlib
import random
import shutil
import tempfile

import sentencepiece
from transformers import T5Tokenizer

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden"

SYLLABLES = "ka to ri shi mo ne el an or ing ed the st pre con tion ly qu ox ber".split()
CAPTION = "a red circle above blue square on white background photo of cat dog wearing hat style 4k 8k detailed".split()
FOREIGN = "красный круг été naïve Straße ΟΔΥΣΣΕΥΣ İstanbul 日本語 漢字 かな カタカナ 한국어 हिन्दी ไทย עברית مرحبا".split()
MARKS = ["!!!", "???", "...", "aaa", "1234", "-", '"x"', "(y)", "a,b;c:d", "'s", "//", "--ar 16:9"]
SPECIAL = ["</s>", "<pad>", "<unk>", "<extra_id_0>", "<extra_id_99>", "<extra_id_100>", "<extra_id_9", "< /s>",
           "＜/s＞", "＜extra_id_7＞", "</S>", "<0x41>"]
# Normalisers, splitters or case mappings treat each of these characters specially.
CURIOUS = (
    "\t\n\r\v\f\0\x01\x1b\x1c\x1f\x7f\x85\xa0\xad\u1680\u180e\u2000\u2003\u2009\u200b\u200c\u200d\u200e\u2028"
    "\u2029\u202f\u205f\u2060\u3000\ufeff\ufffd\u2581\uff3f\ufb01\ufb00\u2460\xb2\xbd\u2122\u2026\u2019\u201c"
    "\u2013\u2014\xab\xbb\xbf\xa7\xaa\xba\u309b\u3099\u309a\u0327\u0301\u0308\u0345\u304b\u3099\uff76\uff9e"
    "\uff21\uff5a\uff10\uff01\uff45\u0301e\u0301\xe9\u212b\u2126\ud55c\uac01\u1112\u1161\u11ab\u1e9b\u0323"
    "\xdf\u1e9e\u0130\u0131I\u0307\u03a3\u03c3\u03c2\u0391\u03a3.\u01c5D\u017e\u023a\u2c65\u0531\u0582\u2c00"
    "\ua640\U00010400\U0001f600\U0001f44d\U0001f3fd\U0001f468\u200d\U0001f469\U0001f1e9\U0001f1ea\u2764\ufe0f"
    "1\ufe0f\u20e3\U0001d49c\U0001d538\U0001d7d8\U000e0041\ue000\ufdd0\uf900\ufdfa\u0915\u094d\u0937\u093f"
    "\u0e33\u0600")


def nasty_line(rng, marks=MARKS, special=SPECIAL):
    def word():
        kind = rng.random()
        if kind < 0.25:
            return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(1, 4)))
        if kind < 0.45:
            return rng.choice(CAPTION)
        if kind < 0.55:
            return rng.choice(FOREIGN)
        if kind < 0.62:
            return rng.choice(marks)
        if kind < 0.68:
            return rng.choice(special)
        if kind < 0.78:
            return "".join(rng.choice(CURIOUS) for _ in range(rng.randint(1, 6)))
        if kind < 0.84:  # any code point but surrogates
            ranges = [(0, 0x80), (0x80, 0xd800), (0xe000, 0x110000)]
            return "".join(chr(rng.randrange(*rng.choice(ranges))) for _ in range(rng.randint(1, 5)))
        if kind < 0.89:  # a base with combining marks
            base = rng.choice("aeonuAc\xc5\u044f\u304b\u3131 \uff45\uff11")
            return base + "".join(chr(rng.randrange(0x300, 0x370)) for _ in range(rng.randint(1, 3)))
        if kind < 0.93:  # one character or pair over and over: many segmentations of equal score
            return rng.choice(["a", "!", "ka", "e", ".", "st", "1", "红", "-"]) * rng.randint(2, 60)
        if kind < 0.97:
            return chr(rng.choice([0x4e00, 0x3042, 0xac00, 0x1f600]) + rng.randrange(0x40)) * rng.randint(1, 3)
        return rng.choice(CAPTION).upper() + rng.choice(["Σ", "Σ.", "'Σ", "Σ́", ""])

    words = [word() for _ in range(rng.choice([0, 1, 2, 3, 5, 8, 13]))]
    space = rng.choice([" ", " ", " ", "  ", "", "\u3000", " \t", "\r\n"])
    line = space.join(words)
    if rng.random() < 0.2:
        line = rng.choice([" ", "   ", "\n", "\u3000"]) + line + rng.choice([" ", "   ", "\n", "\u2003", "\x1f"])
    return line


def nasty_lines(seed, count, **kinds):
    rng = random.Random(seed)
    fixed = ["", " ", "a", "</s>", "a</s>b", " <extra_id_0> ", "<extra_id_0><extra_id_1>", "x" * 300, "ka" * 150,
             "!" * 199, "\0", "a\0b", "\u2581", "a\u2581b \u2581 \u2581\u2581c", "\u200b", "\uff45\u0301", "e\u0301", "\r\n",
             "a photo of a cat", "<extra_id_0>\u0301", " \u0301", "\U0010ffff"]
    return (fixed + [nasty_line(rng, **kinds) for _ in range(count)])[:count]


def train(seed, vocab_size, **normalization):
    """Trains a Unigram model with T5's layout: <pad> 0, </s> 1, <unk> 2, no byte fallback."""
    rng = random.Random(seed)
    names = ["".join(rng.choice(SYLLABLES) for _ in range(rng.randint(1, 4))) for _ in range(600)] + CAPTION * 5
    ideographs = [chr(c) for c in [*range(0x4e00, 0x4e40), *range(0x3042, 0x3090)]]

    def line():
        words = [rng.choice(names) for _ in range(rng.randint(3, 12))]
        if rng.random() < 0.2:
            words.append("".join(rng.choice(ideographs) for _ in range(5)))
        if rng.random() < 0.3:
            words.append(rng.choice(FOREIGN[:4] + MARKS))
        return " ".join(words)

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(line() for _ in range(4000)), model_writer=model, vocab_size=vocab_size, model_type="unigram",
        character_coverage=1.0, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, num_threads=1, minloglevel=2, **normalization)
    return model.getvalue()


def save_spiece(folder, model, config=None):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spiece.model").write_bytes(model)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "T5Tokenizer", **(config or {})}))


def save_json(folder, model, config=None):
    """Saves what transformers 5 would: tokenizer.json and tokenizer_config.json."""
    with tempfile.TemporaryDirectory() as source:
        save_spiece(pathlib.Path(source), model, config)
        T5Tokenizer.from_pretrained(source).save_pretrained(folder)


def cleaned(text):
    return text.lower().strip()


def write_lines(folder, lines):
    tokenizer = T5Tokenizer.from_pretrained(folder)
    rows = [{"text": text, "cleaned": cleaned(text), "ids": tokenizer(text).input_ids} for text in lines]
    (folder / "lines.json").write_text(json.dumps(rows, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def small_rules():
    """Returns a normaliser of a few rules, which keeps the base64 text of tokenizer.json small."""
    rules = {chr(c): chr(c - 0xfee0) for c in range(0xff01, 0xff5f)}
    rules.update({"\t": " ", "\n": " ", "\r": " ", "\u3000": " ", "\ufb01": "fi", "\u2460": "1", "e\u0301": "\xe9",
                  "\u212b": "\xc5"})
    return "".join("{}\t{}\n".format(" ".join(f"{ord(c):X}" for c in key), " ".join(f"{ord(c):X}" for c in value))
                   for key, value in sorted(rules.items()))


def main():
    for name in ["t5_tokenizer", "t5_tokenizer_json"]:
        shutil.rmtree(GOLDEN / name, ignore_errors=True)
    folder = GOLDEN / "t5_tokenizer"
    save_spiece(folder, train(1, 700, normalization_rule_name="nmt_nfkc"))
    write_lines(folder, nasty_lines(2, 150))

    folder = GOLDEN / "t5_tokenizer_json"
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as rules:
        rules.write(small_rules())
        rules.flush()
        save_json(folder, train(3, 600, normalization_rule_tsv=rules.name))
    write_lines(folder, nasty_lines(4, 320))


if __name__ == "__main__":
    main()
