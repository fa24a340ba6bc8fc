"""Tests `tessera models`, --help and --version."""
import json
import re

from files import read_safetensors, write_safetensors
from harness import MODEL, test


@test
def describes_a_checkpoint(box):
    outcome = box.run("models", MODEL)
    assert outcome.code == 0 and outcome.err == "", outcome
    for word in ("PixArtSigmaPipeline", "T5EncoderModel", "PixArtTransformer2DModel", "AutoencoderKL",
                 "DPMSolverMultistepScheduler", "T5Tokenizer", "fp32", "16.1 K", "1 file", "256 x 256", "every weight", "can run"):
        assert word in outcome.out, (word, outcome.out)


@test
def says_why_a_checkpoint_cannot_run(box):
    model = box.copy_model()
    index = json.loads((model / "model_index.json").read_text())
    (model / "model_index.json").write_text(json.dumps({**index, "_class_name": "FluxPipeline"}))
    outcome = box.run("models", model)
    assert outcome.code == 3 and "cannot run" in outcome.out and "FluxPipeline" in outcome.out, outcome


@test
def checks_every_weight(box):
    model = box.copy_model()
    for part, name in (("text_encoder/model.safetensors", "encoder.block.0.layer.1.DenseReluDense.wo.weight"),
                       ("transformer/diffusion_pytorch_model.safetensors", "transformer_blocks.0.attn2.to_k.weight"),
                       ("vae/diffusion_pytorch_model.safetensors", "decoder.conv_out.bias")):
        whole = (model / part).read_bytes()
        tensors, metadata = read_safetensors(model / part)
        dtype, shape, data = tensors.pop(name)
        write_safetensors(model / part, {**tensors, "more": ("F32", [1], bytes(4))}, metadata)
        outcome = box.run("models", model)
        assert outcome.code == 3 and f"'{name}' is missing" in outcome.out, outcome
        write_safetensors(model / part, {**tensors, name: (dtype, [1, *shape], data)}, metadata)
        outcome = box.run("models", model)
        assert outcome.code == 3 and f"'{name}' has shape [1, " in outcome.out, outcome
        write_safetensors(model / part, {**tensors, name: (dtype, shape, data), "more": ("F32", [1], bytes(4))}, metadata)
        outcome = box.run("models", model)
        assert outcome.code == 0 and "warning" in outcome.out and "more" in outcome.out, outcome
        (model / part).write_bytes(whole)


@test
def reports_each_damaged_file_once(box):
    model = box.copy_model()
    parts = ["vae/diffusion_pytorch_model.safetensors", "text_encoder/model.safetensors"]
    for damaged, part in enumerate(parts, 1):
        (model / part).write_bytes((model / part).read_bytes()[:100])
        outcome = box.run("models", model)
        assert outcome.code == 3 and outcome.err == "", outcome
        assert outcome.out.count("it is cut off") == outcome.out.count("  damaged\n") == damaged, outcome
        assert all(outcome.out.count(f"[{model / each}]") == 1 for each in parts[:damaged]), outcome
        assert outcome.out.count("cannot run: [") == 1, outcome


@test
def help_and_version(box):
    for words in (["--help"], ["-h"], ["generate", "--help"], ["models", "--help"]):
        outcome = box.run(*words)
        assert outcome.code == 0 and "Usage: tessera" in outcome.out and outcome.err == "", outcome
    text = box.run("generate", "--help").out
    assert "Examples:" in text
    flags = re.findall(r"^ +--no-(\S+)\s+(\S.*)$", text, re.M)
    assert len(flags) == 4 and all(re.match(r"[A-Z][a-z]+ [a-z]", said) for _, said in flags), flags
    titles = re.findall(r"^(\S.*):$", text, re.M)
    assert titles[titles.index("Prompt"):titles.index("Examples")] == [
        "Prompt", "Image", "Sampling", "Model", "Output", "Memory", "Machine", "Parallel degrees", "Parallel methods",
        "Launch and messages"], titles
    for said in (r"--height PIXELS +Image height \[the model's\]; from 1 to 16384 pixels$",
                 r"--split-scheme SCHEME .*\s.*1d or 2d$", r"--num-inference-steps N .*\s.*1 or more$"):
        assert re.search(said, text, re.M), said
    for words in (["--help"], ["generate", "--help"], ["models", "--help"], ["mesh", "--help"]):
        assert max(map(len, box.run(*words).out.splitlines())) <= 128, words
    outcome = box.run("--version")
    assert outcome.code == 0 and outcome.out.startswith("tessera "), outcome
