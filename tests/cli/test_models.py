"""Tests `tessera models`, --help and --version."""
import json
import math
import re

from files import change_json, read_latents, read_safetensors, write_safetensors
from harness import MODEL, SMALL


def test_describes_a_checkpoint(box):
    outcome = box.run("models", MODEL)
    assert outcome.code == 0 and outcome.err == "", outcome
    for word in ("PixArtSigmaPipeline", "T5EncoderModel", "PixArtTransformer2DModel", "AutoencoderKL",
                 "DPMSolverMultistepScheduler", "T5Tokenizer", "fp32", "16.1 K", "1 file", "256 x 256", "every weight", "can run"):
        assert word in outcome.out, (word, outcome.out)


def test_describes_a_checkpoint_as_json(box):
    model = box.copy_model()
    parts = {}
    for part, file in (("text_encoder", "model"), ("transformer", "diffusion_pytorch_model")):
        tensors, _ = read_safetensors(model / part / f"{file}.safetensors")
        size = sum(len(data) for _, _, data in tensors.values())
        parts[part] = {"parameters": size // 4, "bytes": size, "dtype": "fp32", "files": 1}
    index = json.loads((model / "model_index.json").read_text())
    (model / "model_index.json").write_text(json.dumps({**index, "safety_checker": ["stable_diffusion", "StableDiffusionSafetyChecker"],
                                                        "feature_extractor": [None, None]}))
    text = "transformer/diffusion_pytorch_model.safetensors"
    for code, state in ((0, {}), (3, {"state": "damaged"})):
        if code:
            (model / text).write_bytes((model / text).read_bytes()[:100])
            parts["transformer"] = state
        outcome = box.run("models", model, "--json")
        assert outcome.code == code and outcome.err == "", outcome
        described = json.loads(outcome.out)
        assert list(described) == ["model", "class", "can_run", "reason", "warnings", "inputs", "parts"], described
        assert (described["model"], described["class"], described["warnings"]) == (str(model), "PixArtSigmaPipeline", []), described
        assert described["can_run"] == (code == 0) and (described["reason"] is None) == (code == 0), described
        assert {name: (part["library"], part["class"]) for name, part in described["parts"].items()} == {
            "feature_extractor": (None, None), "safety_checker": ("stable_diffusion", "StableDiffusionSafetyChecker"),
            **{name: tuple(index[name]) for name in ("scheduler", "text_encoder", "tokenizer", "transformer", "vae")}}, described
        for name, expected in {**parts, "safety_checker": {"state": "missing, not run"}, "tokenizer": {}, "scheduler": {}}.items():
            numbers = {key: value for key, value in described["parts"][name].items() if key not in ("library", "class")}
            assert numbers == expected, (name, numbers)


def test_names_of_models_that_ship(box):
    (box.folder / "shapes").mkdir()  # which is no model
    for name in ("shapes", "shapes/"):
        outcome = box.run("models", name)
        assert outcome.code == 0 and outcome.out.splitlines()[0].endswith("models/shapes: PixArtAlphaPipeline"), outcome


def test_says_why_a_checkpoint_cannot_run(box):
    model = box.copy_model()
    index = json.loads((model / "model_index.json").read_text())
    (model / "model_index.json").write_text(json.dumps({**index, "_class_name": "FluxPipeline"}))
    outcome = box.run("models", model)
    assert outcome.code == 3 and "cannot run" in outcome.out and "FluxPipeline" in outcome.out, outcome


def test_checks_every_weight(box):
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


def test_reports_each_damaged_file_once(box):
    model = box.copy_model()
    parts = ["vae/diffusion_pytorch_model.safetensors", "text_encoder/model.safetensors"]
    for damaged, part in enumerate(parts, 1):
        (model / part).write_bytes((model / part).read_bytes()[:100])
        outcome = box.run("models", model)
        assert outcome.code == 3 and outcome.err == "", outcome
        assert outcome.out.count("it is cut off") == outcome.out.count("  damaged\n") == damaged, outcome
        assert all(outcome.out.count(f"[{model / each}]") == 1 for each in parts[:damaged]), outcome
        assert outcome.out.count("cannot run: [") == 1, outcome


def test_says_what_generate_says(box):
    """In one line, before any weight is read."""
    refused = [  # file, keys, what the line holds
        ("model_index.json", {"vae": ["diffusers", "ConsistencyDecoderVAE"]}, "'vae' is"),
        ("model_index.json", {"transformer": ["my_parts", "PixArtTransformer2DModel"]}, "'transformer' is"),
        ("model_index.json", {"tokenizer": ["transformers", "Qwen2Tokenizer"]}, "'tokenizer' is"),
        ("model_index.json", {"text_encoder": ["transformers", "UMT5EncoderModel"]}, "'text_encoder' is"),
        ("model_index.json", {"scheduler": ["my_parts", "DDIMScheduler"]}, "'scheduler' is"),
        ("model_index.json", {"scheduler": ["diffusers", "RePaintScheduler"]}, "RePaintScheduler, cannot run yet"),
        ("model_index.json", {"scheduler": None}, "'scheduler' must be a library and a class"),
        ("vae/config.json", {"out_channels": 4}, "'out_channels' is 4"),
        ("vae/config.json", {"scaling_factor": None}, "'scaling_factor' must be a number, got null"),
        ("transformer/config.json", {"norm_type": None}, "'norm_type' must be a string, got null"),
        ("scheduler/scheduler_config.json", {"beta_schedule": None}, "'beta_schedule' must be a string, got null"),
    ]
    for file, keys, line in refused:
        model = box.copy_model()
        change_json(model / file, **keys)
        outcome = box.run("models", model)
        assert outcome.code == 3 and "cannot run: [" in outcome.out and line in outcome.out, outcome
        said = outcome.out.split("cannot run: ")[1].strip()
        refusal = box.refuse(3, line, "generate", "a cat", "--model", model, *SMALL)
        assert said in refusal.err and "load" not in refusal.err and len(said) < 600, (said, refusal)


def test_takes_the_class_of_the_index(box):
    model = box.copy_model()
    words = ["--model", model, "--seed", "3", "--dtype", "fp32", "--output-type", "latent", *SMALL]
    box.run("generate", "a cat", *words, "-o", "a.safetensors", "--scheduler", "EulerAncestralDiscreteScheduler")
    expected = read_latents(box.folder / "a.safetensors")
    change_json(model / "model_index.json", scheduler=["diffusers", "EulerAncestralDiscreteScheduler"])
    outcome = box.run("models", model)
    assert outcome.code == 0 and "EulerAncestralDiscreteScheduler" in outcome.out, outcome
    outcome = box.run("generate", "a cat", *words, "-o", "b.safetensors", "--report", "b.json")
    assert outcome.code == 0 and read_latents(box.folder / "b.safetensors") == expected, outcome
    assert "EulerAncestralDiscreteScheduler" in (box.folder / "b.json").read_text()


def test_reads_the_files_that_diffusers_reads(box):
    model = box.copy_model()
    words = ["generate", "a cat", "--model", model, "--seed", "3", "--dtype", "fp32", "--output-type", "latent", *SMALL]

    def latents(*more):
        outcome = box.run(*words, *more)
        assert outcome.code == 0, outcome
        return read_latents(box.folder / "out.safetensors")

    expected, described = latents(), box.run("models", model).out
    stem = model / "transformer/diffusion_pytorch_model"
    tensors, metadata = read_safetensors(stem.with_suffix(".safetensors"))
    others = {name: (dtype, shape, bytes(len(data))) for name, (dtype, shape, data) in tensors.items()}
    for name in ("diffusion_pytorch_model.ema", "diffusion_pytorch_model.fp16", "adapter_model", "backup"):
        write_safetensors(model / f"transformer/{name}.safetensors", others, metadata)
    write_safetensors(model / "text_encoder/flax_model.safetensors", others)
    assert latents() == expected and box.run("models", model).out == described
    assert latents("--variant", "ema") != expected
    outcome = box.run("models", model, "--variant", "ema")
    assert outcome.code == 0 and "--variant ema" in outcome.out, outcome
    for words_of in (words, ["models", model]):
        outcome = box.run(*words_of, "--variant", "int8")
        assert outcome.code == 3 and "--variant is 'int8', but no component has files of that variant" in outcome.out + outcome.err, outcome

    for name in ("diffusion_pytorch_model", "diffusion_pytorch_model.fp16"):
        (model / f"transformer/{name}.safetensors").unlink()
    listed = "but adapter_model.safetensors, backup.safetensors, diffusion_pytorch_model.ema.safetensors; "
    box.refuse(3, listed, *words)
    outcome = box.run("models", model)
    assert outcome.code == 3 and listed in outcome.out, outcome
    outcome = box.run("models", model, "--variant", "ema")  # which the denoiser still has
    assert outcome.code == 0, outcome


def test_help_and_version(box):
    for words in (["--help"], ["-h"], ["generate", "--help"], ["models", "--help"]):
        outcome = box.run(*words)
        assert outcome.code == 0 and "Usage: tessera" in outcome.out and outcome.err == "", outcome
    text = box.run("generate", "--help").out
    assert "Examples:" in text
    flags = re.findall(r"^ +--no-(\S+)\s+(\S.*)$", text, re.M)
    assert len(flags) == 6 and all(re.match(r"[A-Z][a-z]+ [a-z]", said) for _, said in flags), flags
    titles = re.findall(r"^(\S.*):$", text, re.M)
    assert titles[titles.index("Common options"):titles.index("Examples")] == [
        "Common options", "Prompt", "Image", "Sampling", "Video", "Model", "Output", "Memory", "Machine", "Parallel degrees",
        "Parallel methods", "Launch and messages"], titles
    unwrapped = re.sub(r"\n {20,}", " ", text)  # an option and all of its description on one line
    for said in (r"--height PIXELS +Image height: a multiple of 8 \(PixArt, Z-Image and FLUX.2: of 16\), or any with resolution binning; ",
                 r"--split-scheme SCHEME .* 1d or 2d$", r"--num-inference-steps N .* 1 or more$"):
        assert re.search(said, unwrapped, re.M), said
    for words in (["--help"], ["generate", "--help"], ["models", "--help"], ["mesh", "--help"], ["compare", "--help"]):
        assert max(map(len, box.run(*words).out.splitlines())) <= 128, words
    outcome = box.run("--version")
    assert outcome.code == 0 and outcome.out.startswith("tessera "), outcome


def test_a_lone_config_is_described(box):
    config = box.folder / "config.json"
    config.write_bytes((MODEL / "transformer" / "config.json").read_bytes())
    weights = read_safetensors(MODEL / "transformer" / "diffusion_pytorch_model.safetensors")[0]
    parameters = sum(math.prod(shape) for _, shape, _ in weights.values())
    has = json.loads(config.read_text())
    inputs = {"latents": [1, has["in_channels"], has["sample_size"], has["sample_size"]], "timestep": [1],
              "prompt": [1, 300, has["caption_channels"]]}
    for given in (config, box.folder):
        told = box.run("models", given, "--json")
        described = json.loads(told.out)
        assert told.code == 3 and (described["parameters"], described["inputs"]) == (parameters, inputs), told
        told = box.run("models", given)
        assert told.code == 3 and f"{given}: the denoiser of PixArt-Sigma, " in told.out and "cannot run: a run needs" in told.out, told
    config.write_bytes((MODEL / "vae" / "config.json").read_bytes())
    box.refuse(3, "is of AutoencoderKL, but a denoiser is of", "models", config)
    box.refuse(3, f"did you mean {MODEL}?", "models", MODEL / "vae")
