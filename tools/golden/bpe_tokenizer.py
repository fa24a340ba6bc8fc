"""Makes tests/golden/clip_tokenizer/, clip_tokenizer_json/, qwen2_tokenizer/ and llama3_tokenizer/: small byte-level BPE
vocabularies in the file formats of CLIP, Qwen2 and Llama 3, each with lines of difficult text and their ids by transformers,
both whole and padded to the model's length."""
import json
import pathlib
import random
import shutil

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import CLIPTokenizer, PreTrainedTokenizerFast, Qwen2Tokenizer

from tools.golden import tokenizer as lines

BOS, EOS = "<|startoftext|>", "<|endoftext|>"
MARKS = lines.MARKS + ["'S", "'re", "'LL", "''s", "\u2019s", "'\u017f", "don't", "WE'VE", "'d'd", "x' s", "!", "!!", "a!b",
                       "\x85", "\u180e", "\u200b", " \x85 ", "\n\n", "\r\n \n", "\t ", "   ", "1,234.56", "\u0967\u0968", "\xb2\xbd"]
SPECIAL = [BOS, EOS, BOS.upper(), EOS.upper(), "<|StartOfText|>", "<|startoftext|", "<|endoftext|>!", "<| endoftext|>", "?<|endoftext|>",
           "<|startoftext|><|endoftext|>", "<|im_start|>", "<|im_end|>", "<|IM_END|>", "<|begin_of_text|>", "<|eot_id|>",
           "<tool>", "<pad>", "</s>", "</w>", "a</w>", "#version", "wordy", "a wordy b", "Stretch\u0301", "  <mask>  "]
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")


def nasty_lines(seed, count):
    fixed = ["word" * 60, "\u00e9" * 60, "a" * 400, "'" * 99, " " * 99, "1" * 99, "\U0001f600" * 40, "a photo of a cat " * 16]
    return (fixed + lines.nasty_lines(seed, count, marks=MARKS, special=SPECIAL))[:count]


def alphabet():
    """Returns the characters that stand for bytes, in the order in which GPT-2's and CLIP's vocabularies begin with them."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(b) for b in plain] + [chr(256 + i) for i in range(256 - len(plain))]


def train(seed, merges, pattern, behavior, suffix=""):
    """Trains a vocabulary; returns its tokens (the alphabet, with and without suffix, and merged tokens) and its merges in order."""
    rng = random.Random(seed)
    names = ["".join(rng.choice(lines.SYLLABLES) for _ in range(rng.randint(1, 4))) for _ in range(600)] + lines.CAPTION * 5

    def line():
        words = [rng.choice(names) for _ in range(rng.randint(3, 12))]
        words += rng.choices(lines.FOREIGN + MARKS, k=3)
        return " ".join(words)

    # The trainer orders pairs of equal counts by the ids of their parts, so the characters with a suffix get fixed ids.
    suffixed = {"end_of_word_suffix": suffix} if suffix else {}
    endings = [c + suffix for c in alphabet()] if suffix else []
    tokenizer = Tokenizer(models.BPE(**suffixed))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), behavior, invert=behavior == "removed"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    trainer = trainers.BpeTrainer(vocab_size=2 * 256 + merges, show_progress=False, initial_alphabet=alphabet(),
                                  special_tokens=endings, **suffixed)
    tokenizer.train_from_iterator((line() for _ in range(4000)), trainer)
    pairs = [tuple(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]][:merges]
    return alphabet() + endings + list(dict.fromkeys(a + b for a, b in pairs)), pairs


def train_clip(seed, merges):
    return train(seed, merges, r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+", "removed", "</w>")


def write_json(path, value, indent=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    separators = (",", ":") if indent is None else None
    path.write_text(json.dumps(value, ensure_ascii=False, indent=indent, separators=separators) + "\n", encoding="utf-8")


def save_vocabulary(folder, tokens, pairs):
    write_json(folder / "vocab.json", {token: i for i, token in enumerate(tokens)})
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in pairs), encoding="utf-8")


def added(content, **flags):
    return {"__type": "AddedToken", "content": content, "lstrip": False, "normalized": True, "rstrip": False, "single_word": False,
            **flags}


def save_clip(folder, tokens, pairs, pad=EOS):
    """Saves a tokenizer like Stable Diffusion 1.5's or, with pad="!", like SDXL's second one."""
    save_vocabulary(folder, [*tokens, BOS, EOS], pairs)
    names = {"bos_token": added(BOS), "eos_token": added(EOS), "unk_token": added(EOS), "pad_token": pad}
    write_json(folder / "tokenizer_config.json", {"add_prefix_space": False, "do_lower_case": True, "errors": "replace",
                                                  "model_max_length": 77, "tokenizer_class": "CLIPTokenizer", **names})
    plain = {key: {k: v for k, v in value.items() if k != "__type"} if isinstance(value, dict) else value
             for key, value in names.items()}
    write_json(folder / "special_tokens_map.json", plain)


def save_json(folder, tokenizer, config, legacy_merges=False):
    """Saves only tokenizer.json and tokenizer_config.json."""
    document = json.loads(tokenizer.to_str())
    if legacy_merges:
        document["model"]["merges"] = [" ".join(pair) for pair in document["model"]["merges"]]
    write_json(folder / "tokenizer.json", document)
    write_json(folder / "tokenizer_config.json", config)


def save_clip_json(folder, tokens, pairs, pad=EOS):
    """Saves a file like that of openai/clip-vit-large-patch14, whose pattern differs from that of transformers' class."""
    model = models.BPE(vocab={token: i for i, token in enumerate([*tokens, BOS, EOS])}, merges=pairs, unk_token=EOS,
                       continuing_subword_prefix="", end_of_word_suffix="</w>", fuse_unk=False)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"), "removed", invert=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    ids = {token: tokenizer.token_to_id(token) for token in (BOS, EOS)}
    tokenizer.post_processor = processors.RobertaProcessing((EOS, ids[EOS]), (BOS, ids[BOS]), trim_offsets=False,
                                                            add_prefix_space=False)
    tokenizer.add_tokens([AddedToken(BOS, normalized=True, special=True), AddedToken(EOS, normalized=False, special=True)])
    save_json(folder, tokenizer, {"bos_token": BOS, "eos_token": EOS, "unk_token": EOS, "pad_token": pad, "model_max_length": 77,
                                  "tokenizer_class": "CLIPTokenizer"}, legacy_merges=True)


def save_qwen2(folder, tokens, pairs):
    """Saves a tokenizer like Qwen-Image's: vocabulary and merges, with the added tokens in tokenizer_config.json."""
    save_vocabulary(folder, tokens, pairs)
    names = [EOS, "<|im_start|>", "<|im_end|>", "<tool>"]
    decoder = {str(len(tokens) + i): {"content": name, "lstrip": False, "normalized": False, "rstrip": False,
                                      "single_word": False, "special": name != "<tool>"} for i, name in enumerate(names)}
    write_json(folder / "added_tokens.json", {name: len(tokens) + i for i, name in enumerate(names)})
    write_json(folder / "tokenizer_config.json", {
        "add_bos_token": False, "add_prefix_space": False, "added_tokens_decoder": decoder, "bos_token": None,
        "additional_special_tokens": names[1:3], "eos_token": "<|im_end|>", "errors": "replace", "model_max_length": 131072,
        "pad_token": EOS, "split_special_tokens": False, "tokenizer_class": "Qwen2Tokenizer", "unk_token": None})


def save_llama3(folder, tokens, pairs, whole_words=()):
    """Saves a tokenizer.json like Llama 3's, whose tokens include words that no merge produces."""
    tokens = [*tokens, *(word for word in whole_words if word not in tokens)]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=pairs, ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3), "isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]
    tokenizer.add_special_tokens(names)
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single=f"{names[0]} $A", pair=f"{names[0]} $A {names[0]}:1 $B:1",
                                      special_tokens=[(names[0], tokenizer.token_to_id(names[0]))])])
    save_json(folder, tokenizer, {"bos_token": names[0], "eos_token": names[2], "clean_up_tokenization_spaces": True,
                                  "model_max_length": 131072, "tokenizer_class": "PreTrainedTokenizerFast"})


def encode(tokenizer, texts):
    """Returns each text's ids, whole and padded or cut as for a text encoder."""
    whole = tokenizer(texts).input_ids
    length = min(tokenizer.model_max_length, 512)
    padding = "max_length" if tokenizer.pad_token is not None else False
    padded = tokenizer(texts, padding=padding, max_length=length, truncation=True).input_ids
    return [list(pair) for pair in zip(whole, padded)]


def write_lines(folder, tokenizer, texts):
    # Only some rows get padded ids, to keep the file small.
    rows = [{"text": text, "ids": ids, **({"padded": padded} if len(padded) == 77 and i % 16 == 0 else {})}
            for i, (text, (ids, padded)) in enumerate(zip(texts, encode(tokenizer, texts)))]
    write_json(folder / "lines.json", rows)


def main():
    golden = lines.GOLDEN
    for name in ["clip_tokenizer", "clip_tokenizer_json", "qwen2_tokenizer", "llama3_tokenizer"]:
        shutil.rmtree(golden / name, ignore_errors=True)
    folder = golden / "clip_tokenizer"
    save_clip(folder, *train_clip(21, 600))
    write_lines(folder, CLIPTokenizer.from_pretrained(folder), nasty_lines(22, 200))
    folder = golden / "clip_tokenizer_json"
    save_clip_json(folder, *train_clip(23, 300), pad="!")
    write_lines(folder, CLIPTokenizer.from_pretrained(folder), nasty_lines(24, 80))
    folder = golden / "qwen2_tokenizer"
    save_qwen2(folder, *train(25, 250, QWEN2, "isolated"))
    write_lines(folder, Qwen2Tokenizer.from_pretrained(folder), nasty_lines(26, 60))
    folder = golden / "llama3_tokenizer"
    save_llama3(folder, *train(27, 250, LLAMA3, "isolated"), whole_words=["stretched", "\u0120circle", "123"])
    write_lines(folder, PreTrainedTokenizerFast.from_pretrained(folder), nasty_lines(28, 60))


if __name__ == "__main__":
    main()
