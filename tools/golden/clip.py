"""Writes tests/golden/clip-*: tiny random CLIP text encoders and their outputs in transformers."""
import pathlib

import torch
from safetensors.torch import load_file, save_file
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

ROOT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden"

# These are like Stable Diffusion's encoder and Stable Diffusion XL's second one. The first has the end mark of released configs
# (2, which means the largest id), the second its actual id.
MODELS = {
    "clip-quick": (CLIPTextModel, dict(hidden_act="quick_gelu", eos_token_id=2)),
    "clip-projection": (CLIPTextModelWithProjection, dict(hidden_act="gelu", eos_token_id=41, pad_token_id=0)),
}
END = 41
PROMPTS = [[40, 7, 9, END, 0, 0, 0], [40, 3, 38, 12, 22, 5, END]]


def main():
    for number, (name, (model_class, options)) in enumerate(MODELS.items()):
        torch.manual_seed(number)
        config = CLIPTextConfig(vocab_size=42, hidden_size=12, intermediate_size=20, num_hidden_layers=3,
                                num_attention_heads=3, max_position_embeddings=7, projection_dim=10, bos_token_id=40,
                                **options)
        model = model_class(config).eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3 if parameter.dim() == 1 else parameter[0].numel() ** -0.5)
        model.save_pretrained(ROOT / name)
        if name == "clip-quick":  # released files also hold the position ids
            path = ROOT / name / "model.safetensors"
            prefixed = {key if key.startswith("text_model.") else f"text_model.{key}": tensor
                        for key, tensor in load_file(path).items()}
            prefixed["text_model.embeddings.position_ids"] = torch.arange(7).unsqueeze(0)
            save_file(prefixed, path, metadata={"format": "pt"})
        golden = {}
        for dtype, suffix in ((torch.float32, ""), (torch.bfloat16, ".bf16")):
            model = model.to(dtype)
            for row, ids in enumerate(PROMPTS):
                with torch.no_grad():
                    out = model(torch.tensor([ids]), output_hidden_states=True)
                    inner = model.text_model if hasattr(model, "text_model") else model
                    for skip in range(3):
                        golden[f"hidden.{row}.{skip}{suffix}"] = out.hidden_states[-(skip + 1)][0].float().clone()
                        normed = inner.final_layer_norm(out.hidden_states[-(skip + 1)])
                        golden[f"normed.{row}.{skip}{suffix}"] = normed[0].float().clone()
                if hasattr(out, "text_embeds"):
                    golden[f"pooled.{row}{suffix}"] = out.text_embeds[0].float().clone()
                golden[f"last.{row}{suffix}"] = out.last_hidden_state[0].float().clone()
        golden["ids"] = torch.tensor(PROMPTS)
        (ROOT / name / "golden").mkdir(exist_ok=True)
        save_file(golden, ROOT / name / "golden" / "golden.safetensors")


if __name__ == "__main__":
    main()
