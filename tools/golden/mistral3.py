"""Writes tests/golden/mistral_tokenizer, a small tokenizer like those of Mistral with a tekken vocabulary: the ids of difficult
prompts as diffusers' FLUX.2 dev takes them, and the pieces into which its pattern splits texts; and tests/golden/mistral3: a tiny
random Mistral 3 with its hidden states in transformers and what the pipeline makes of prompts."""
import pathlib
import shutil
import sys
import types

import torch
from diffusers import Flux2Pipeline
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoTokenizer, Mistral3Config, Mistral3ForConditionalGeneration
from transformers.processing_utils import ProcessorMixin

from tools.golden import bpe_tokenizer as bpe
from tools.golden.qwen3 import DTYPES, LENGTHS, LINES, PADDED, PROMPTS, VALID

ROOT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden"

UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
# Special tokens come first, at the places that they have in published vocabularies.
SPECIAL = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]",
           "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
           "[TOOL_CONTENT]"]
# What Mistral's template says of messages of the system and of users. src/text/chat_template.cc knows this text.
TEMPLATE = ("{{ bos_token }}{% for message in messages %}{% set name = 'SYSTEM_PROMPT' if message['role'] == 'system' else 'INST' %}"
            "{{ '[' + name + ']' }}{% for part in message['content'] %}{{ part['text'] }}{% endfor %}{{ '[/' + name + ']' }}{% endfor %}")

# hidden_size is not num_attention_heads * head_dim. What reads pictures is there, as in published files.
TEXT = {"model_type": "mistral", "vocab_size": 500, "hidden_size": 22, "intermediate_size": 37, "num_hidden_layers": 5, "num_attention_heads": 6,
        "num_key_value_heads": 3, "head_dim": 10, "rms_norm_eps": 1e-5, "sliding_window": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e9}}
VISION = {"model_type": "pixtral", "hidden_size": 2, "intermediate_size": 2, "num_hidden_layers": 1, "num_attention_heads": 1, "head_dim": 2,
          "image_size": 2, "patch_size": 1, "num_channels": 1}
DEV_LAYERS, PROMPT_LENGTH = [1, 3, 4], 128
MORE_LINES = ["a [IMG] b [IM[IMG]G]", "[INST] red [/INST]</s>", "[SYSTEM_PROMPT]be brief[/SYSTEM_PROMPT]", "HTTPServer camelCaseWord XMLs",
              "a/b//c/\n\n/d", "\u01c5\u01c8 \u02b0\u02b1 \u00aa\u00ba"]
# Each category of letters, marks and digits, also in characters that Unicode 15.1 and 16 brought.
LETTERS = "A\u01c5\u02b0\u4e00\u0301a1 \u1c89\ua7cc\U00010d50\u1c8a\ua7cd\U00010d70\U00010d4e\U00016d40\U00010d4a\U0002ebf0\u0897\U00010d69\U00010d40"


class PixtralProcessor(ProcessorMixin):
    """What transformers' class of this name does with texts. The rest of it reads pictures and needs torchvision."""

    def __init__(self, tokenizer=None, chat_template=None, **_):
        super().__init__(tokenizer, chat_template=chat_template)


PixtralProcessor.__module__ = "transformers.models.pixtral.processing_pixtral"
sys.modules["transformers"].PixtralProcessor = PixtralProcessor  # where diffusers looks for it


def save_tekken(folder, tokens, pairs, **config):
    """Saves a tokenizer.json like those that come with published models, and reads the processor."""
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *tokens])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=True, fuse_unk=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(TEKKEN), "isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)])
    bpe.save_json(folder, tokenizer, {
        "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>", "padding_side": "left", "legacy": True,
        "model_max_length": 1000000000000000019884624838656, "tokenizer_class": "LlamaTokenizer", "processor_class": "PixtralProcessor",
        "clean_up_tokenization_spaces": False, **config})
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return PixtralProcessor(tokenizer=AutoTokenizer.from_pretrained(folder), chat_template=TEMPLATE)


class Recorder:
    """In place of a text encoder: keeps what the pipeline gives it."""
    dtype, device = torch.float32, "cpu"

    def __call__(self, input_ids, attention_mask, **_):
        self.ids = [ids[mask.bool()].tolist() for ids, mask in zip(input_ids, attention_mask)]
        return types.SimpleNamespace(hidden_states=[torch.zeros(*input_ids.shape, 1)] * 31)


def write_tokenizer():
    folder = ROOT / "mistral_tokenizer"
    shutil.rmtree(folder, ignore_errors=True)
    processor = save_tekken(folder, *bpe.train(43, 200, TEKKEN, "isolated"))
    recorder, texts = Recorder(), LINES + MORE_LINES + bpe.nasty_lines(44, 40)
    Flux2Pipeline._get_mistral_3_small_prompt_embeds(recorder, processor, texts)
    bpe.write_json(folder / "lines.json", [{"text": text, "ids": ids} for text, ids in zip(texts, recorder.ids)])
    split = pre_tokenizers.Split(Regex(TEKKEN), "isolated", invert=False)
    pairs = [a + b + a + a + b + b for a in LETTERS for b in LETTERS]
    bpe.write_json(folder / "pieces.json", [[text, [piece for piece, _ in split.pre_tokenize_str(text)]] for text in pairs + texts])
    return processor


def states(model, ids, valid):
    mask = (torch.arange(len(ids)) >= len(ids) - valid).long()[None]
    with torch.no_grad():
        hidden = model(input_ids=ids[None], attention_mask=mask, output_hidden_states=True, use_cache=False).hidden_states
    return torch.cat(hidden).float().contiguous()


def write_model(processor):
    torch.manual_seed(8)
    folder = ROOT / "mistral3"
    shutil.rmtree(folder, ignore_errors=True)
    model = Mistral3ForConditionalGeneration(Mistral3Config(text_config=TEXT, vision_config=VISION, spatial_merge_size=1)).eval()
    for parameter in model.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=1.0, std=0.4)
        else:
            torch.nn.init.normal_(parameter, std=1.5 * parameter[0].numel() ** -0.5)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink()

    ids = {str(length): (torch.randint(TEXT["vocab_size"], (length,)), length) for length in LENGTHS}
    ids["padded"] = (torch.cat([torch.full((PADDED - VALID,), 11), ids[str(VALID)][0]]), VALID)
    golden = {f"ids.{key}": tokens for key, (tokens, _) in ids.items()}
    for dtype, suffix in DTYPES:
        model = Mistral3ForConditionalGeneration.from_pretrained(folder, dtype=dtype).eval()
        for key, (tokens, valid) in ids.items():
            golden[f"states.{key}{suffix}"] = states(model, tokens, valid)
        with torch.no_grad():
            made = Flux2Pipeline._get_mistral_3_small_prompt_embeds(model, processor, PROMPTS, max_sequence_length=PROMPT_LENGTH,
                                                                    hidden_states_layers=DEV_LAYERS)
        for position, each in enumerate(made):
            golden[f"dev.{position}{suffix}"] = each.float().contiguous()
    (folder / "golden").mkdir()
    save_file(golden, folder / "golden" / "golden.safetensors")


def main():
    write_model(write_tokenizer())


if __name__ == "__main__":
    main()
