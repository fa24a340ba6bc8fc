"""Writes tests/golden/t5-*: tiny random T5 encoders and their outputs in transformers, from ids and, with the tokenizer of
tests/golden/t5_tokenizer, from prompts. tools/golden/tokenizer.py must run first."""
import pathlib
import shutil

import torch
from safetensors.torch import save_file
from transformers import T5Config, T5EncoderModel, T5Tokenizer

ROOT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden"

# Head counts and widths are not powers of two, and d_model is not num_heads * d_kv.
MODELS = {
    "t5-gated": dict(vocab_size=810, d_model=22, d_kv=10, num_heads=3, d_ff=37, num_layers=3,
                     feed_forward_proj="gated-gelu"),
    "t5-relu": dict(vocab_size=61, d_model=30, d_kv=6, num_heads=5, d_ff=44, num_layers=2, feed_forward_proj="relu",
                    relative_attention_num_buckets=12, relative_attention_max_distance=50),
}
LENGTHS = [1, 7, 150]  # the last reaches the bucket of the farthest tokens
PADDED = 160
PROMPTS = ["", "A Red circle above a BLUE square",
           "  \u041a\u0440\u0430\u0441\u043d\u044b\u0439 \u043a\u0440\u0443\u0433 \uff41 </s> <extra_id_3>\n"]
PROMPT_LENGTH = 20


def run(model, ids, mask, length):
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=mask).last_hidden_state[0, :length].float().contiguous()


def main():
    tokenizer = T5Tokenizer.from_pretrained(ROOT / "t5_tokenizer")
    for number, (name, options) in enumerate(MODELS.items()):
        torch.manual_seed(number)
        shutil.rmtree(ROOT / name, ignore_errors=True)
        model = T5EncoderModel(T5Config(**options, dropout_rate=0.0)).eval()
        for parameter in model.parameters():
            scale = 0.4 if parameter.dim() == 1 else 1.5 * parameter[0].numel() ** -0.5
            torch.nn.init.normal_(parameter, std=scale)
        model.save_pretrained(ROOT / name)

        golden = {}
        batches = {}
        for length in LENGTHS:
            golden[f"ids.{length}"] = torch.randint(options["vocab_size"], (length,))
            ids = torch.zeros(1, PADDED, dtype=torch.long)
            ids[0, :length] = golden[f"ids.{length}"]
            batches[f"output.{length}"] = (ids, (torch.arange(PADDED) < length).long()[None], length)
        if options["vocab_size"] > len(tokenizer):
            for position, prompt in enumerate(PROMPTS):
                text = tokenizer(prompt.lower().strip(), padding="max_length", max_length=PROMPT_LENGTH, truncation=True,
                                 add_special_tokens=True, return_tensors="pt")
                batches[f"prompt.{position}"] = (text.input_ids, text.attention_mask, int(text.attention_mask.sum()))
        for dtype, suffix in ((torch.float32, ""), (torch.bfloat16, ".bf16"), (torch.float16, ".fp16")):
            model = T5EncoderModel.from_pretrained(ROOT / name, dtype=dtype).eval()
            for key, batch in batches.items():
                golden[key + suffix] = run(model, *batch)
        (ROOT / name / "golden").mkdir()
        save_file(golden, ROOT / name / "golden" / "golden.safetensors")


if __name__ == "__main__":
    main()
