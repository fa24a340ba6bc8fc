"""Writes tests/golden/qwen3_tokenizer, a small tokenizer with a chat template and the ids of difficult prompts as diffusers'
pipelines take them, and tests/golden/qwen3-*: tiny random Qwen3 models with their hidden states in transformers and what
diffusers' pipelines make of prompts; with qwen3-options also what transformers makes of scalings of rotary angles and of activations."""
import copy
import json
import pathlib
import shutil
import tempfile
import types

import torch
from diffusers import Flux2KleinPipeline, ZImagePipeline
from safetensors.torch import save_file
from transformers import Qwen2Tokenizer, Qwen3Config, Qwen3ForCausalLM, Qwen3Model
from transformers.activations import ACT2FN
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from tools.golden import bpe_tokenizer as bpe

ROOT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden"

# What Qwen3's template says of turns without tools. src/text/chat_template.cc knows this text.
TEMPLATE = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
            "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
            "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}")

# Head counts and widths are not powers of two; hidden_size is not num_attention_heads * head_dim.
MODELS = {
    "qwen3-grouped": dict(vocab_size=520, hidden_size=22, intermediate_size=37, num_hidden_layers=5, num_attention_heads=6,
                          num_key_value_heads=3, head_dim=10, rope_parameters={"rope_type": "default", "rope_theta": 1e6}),
    "qwen3-published": dict(vocab_size=61, hidden_size=24, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4,
                            num_key_value_heads=2, head_dim=8, rms_norm_eps=1e-5, tie_word_embeddings=True,
                            rope_parameters={"rope_type": "default", "rope_theta": 500.0}),
    # What published files leave as it is by default. The window is shorter than texts and than padding.
    "qwen3-options": dict(vocab_size=67, hidden_size=18, intermediate_size=29, num_hidden_layers=5, num_attention_heads=6, num_key_value_heads=2,
                          head_dim=12, hidden_act="gelu_pytorch_tanh", attention_bias=True, use_sliding_window=True, sliding_window=6,
                          layer_types=["full_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"],
                          rope_parameters={"rope_type": "yarn", "rope_theta": 300.0, "factor": 4.0, "original_max_position_embeddings": 16}),
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0}
ROPES = [{"rope_type": "default"}, {"rope_type": "default", "rope_theta": 500.0}, {"rope_type": "linear", "factor": 3.0, "rope_theta": 1e6},
         {"rope_type": "proportional"}, {"rope_type": "proportional", "partial_rotary_factor": 0.4, "factor": 2.0},
         {**LLAMA3, "original_max_position_embeddings": 256}, {**LLAMA3, "rope_theta": 5e5},
         {**YARN, "original_max_position_embeddings": 64}, {**YARN, "factor": None, "original_max_position_embeddings": 512}, YARN,
         {**YARN, "factor": 0.5}, {**YARN, "original_max_position_embeddings": 100, "beta_fast": 8, "beta_slow": 2, "truncate": False},
         {**YARN, "attention_factor": 1.5, "rope_theta": 50.0}, {**YARN, "mscale": 0.7, "mscale_all_dim": 1.2}, {**YARN, "mscale": 0.7}]
LONG = {"rope_type": "longrope", "short_factor": [1 + 0.1 * i for i in range(13)], "long_factor": [2 + 0.5 * i for i in range(13)]}
OF_LENGTH = [({"rope_type": "dynamic", "factor": 3.0}, 2048), ({"rope_type": "dynamic", "factor": 3.0}, 5000),
             (LONG, 40), ({**LONG, "original_max_position_embeddings": 512}, 512), ({**LONG, "original_max_position_embeddings": 512}, 513),
             ({**LONG, "original_max_position_embeddings": 100, "factor": 1.0, "rope_theta": 77.0}, 101)]
ACTIVATIONS = ["silu", "swish", "gelu", "gelu_python", "gelu_10", "gelu_new", "gelu_fast", "gelu_accurate", "gelu_pytorch_tanh", "gelu_python_tanh",
               "quick_gelu", "hardswish", "laplace", "sqrtsoftplus", "relu", "relu2", "relu6", "leaky_relu", "mish", "sigmoid", "tanh", "linear"]
LENGTHS = [1, 7, 40]
PADDED, VALID = 20, 7
DTYPES = ((torch.float32, ""), (torch.bfloat16, ".bf16"), (torch.float16, ".fp16"))
PROMPTS = ["", "A Red circle above a BLUE square", " \u041a\u0440\u0430\u0441\u043d\u044b\u0439 <|im_end|> e\u0301 42\n\n"]
KLEIN_LAYERS, PROMPT_LENGTH = [1, 3, 4], 64
LINES = ["\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 emoji \U0001f1e9\U0001f1ea", "e\u0301 \u1100\u1161\u11a8 A\u030a n\u0303\u0323",
         "12345 3.14 1,000 \u0664\u0662 \u00bd", "a\n\nb\r\nc\n \n  d", "  two  spaces   three\t tab ", "\u4e00\u53ea\u732b\u5750\u5728\u7a97\u53f0\u4e0a\uff0c\u9ec4\u660f",
         "<|im_start|>system\nbe brief<|im_end|>\n", "a <think> b </think> c", "<|endoftext|>", "<tool_response>x</tool_response>",
         "{{ messages }} {% if %}", "the red circle " * 300, "red" * 700]


def write_tokenizer():
    folder = ROOT / "qwen3_tokenizer"
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as published:
        bpe.save_qwen2(pathlib.Path(published), *bpe.train(41, 200, bpe.QWEN2, "isolated"))
        tokenizer = Qwen2Tokenizer.from_pretrained(published)
    tokenizer.add_tokens(["<think>", "</think>"])
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    rows = []
    for text in LINES + bpe.nasty_lines(42, 40):
        row = {"text": text}
        for key, thinking in (("thinking", True), ("plain", False)):
            turn = tokenizer.apply_chat_template([{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True,
                                                 enable_thinking=thinking)
            out = tokenizer([turn], padding="max_length", max_length=512, truncation=True)
            row[key] = out.input_ids[0][:sum(out.attention_mask[0])]
        rows.append(row)
    bpe.write_json(folder / "lines.json", rows)
    return tokenizer


def states(model, ids, valid):
    mask = (torch.arange(len(ids)) < valid).long()[None]
    with torch.no_grad():
        hidden = model(input_ids=ids[None], attention_mask=mask, output_hidden_states=True).hidden_states
    return torch.cat(hidden).float().contiguous()


def write_model(name, options, number, tokenizer):
    torch.manual_seed(number)
    shutil.rmtree(ROOT / name, ignore_errors=True)
    kind = Qwen3ForCausalLM if name == "qwen3-published" else Qwen3Model
    model = kind(Qwen3Config(**options)).eval()
    for parameter in model.parameters():
        if parameter.dim() == 1:  # a norm, or a bias
            torch.nn.init.normal_(parameter, mean=1.0, std=0.4)
        else:
            torch.nn.init.normal_(parameter, std=1.5 * parameter[0].numel() ** -0.5)
    model.save_pretrained(ROOT / name)
    if name == "qwen3-published":  # as transformers 4 writes it
        config = json.loads((ROOT / name / "config.json").read_text())
        config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
        config["torch_dtype"] = config.pop("dtype")
        config.update(rope_scaling=None, sliding_window=None, use_sliding_window=False)
        del config["layer_types"]
        bpe.write_json(ROOT / name / "config.json", config)
        (ROOT / name / "generation_config.json").unlink()

    ids = {str(length): (torch.randint(options["vocab_size"], (length,)), length) for length in LENGTHS}
    ids["padded"] = (torch.cat([ids[str(VALID)][0], torch.full((PADDED - VALID,), 3)]), VALID)
    golden = {f"ids.{key}": tokens for key, (tokens, _) in ids.items()}
    for dtype, suffix in DTYPES:
        model = kind.from_pretrained(ROOT / name, dtype=dtype).eval()
        for key, (tokens, valid) in ids.items():
            golden[f"states.{key}{suffix}"] = states(model, tokens, valid)
        if options["vocab_size"] < len(tokenizer):
            continue
        parts = types.SimpleNamespace(tokenizer=tokenizer, text_encoder=model)
        with torch.no_grad():
            for position, prompt in enumerate(PROMPTS):
                made = ZImagePipeline._encode_prompt(parts, prompt, device="cpu", max_sequence_length=PROMPT_LENGTH)
                golden[f"z_image.{position}{suffix}"] = made[0].float().contiguous()
                made = Flux2KleinPipeline._get_qwen3_prompt_embeds(model, tokenizer, prompt, max_sequence_length=PROMPT_LENGTH,
                                                                   hidden_states_layers=KLEIN_LAYERS)
                golden[f"klein.{position}{suffix}"] = made[0].float().contiguous()
    (ROOT / name / "golden").mkdir()
    save_file(golden, ROOT / name / "golden" / "golden.safetensors")


def write_options():
    """Frequencies and factors by what config.json says, and activations of some numbers."""
    ropes = []
    for options, tokens in [*((options, 7) for options in ROPES), *OF_LENGTH]:
        config = {"head_dim": 26, "max_position_embeddings": 2048, "rope_parameters": options}
        rotary = Qwen3RotaryEmbedding(Qwen3Config(**copy.deepcopy(config)))
        rotary(torch.zeros(1), torch.arange(tokens)[None])
        ropes.append({"config": config, "tokens": tokens, "frequencies": rotary.inv_freq.tolist(), "factor": rotary.attention_scaling})
    x = torch.tensor([-30.0, -11, -3, -1.5, -0.7, -0.1, 0, 0.2, 0.5, 1, 2.5, 5.5, 7, 12, 30])
    bpe.write_json(ROOT / "qwen3-options" / "golden" / "options.json",
                   {"ropes": ropes, "x": x.tolist(), "activations": {name: ACT2FN[name](x).tolist() for name in ACTIVATIONS}})


def main():
    tokenizer = write_tokenizer()
    for number, (name, options) in enumerate(MODELS.items()):
        write_model(name, options, number, tokenizer)
    write_options()


if __name__ == "__main__":
    main()
