"""Tests Z-Image on the command line: its options, many ranks, its config alone, and bad input."""
import functools
import json
import shutil

from files import assert_near, change_json, read_latents, read_png, read_safetensors, write_safetensors
from harness import MODEL as PIXART
from harness import ROOT
from tiny_pipeline import TinyPipeline

TINY = TinyPipeline("tiny-z-image")
PUBLISHED = {"_class_name": "ZImageTransformer2DModel", "all_patch_size": [2], "all_f_patch_size": [1], "in_channels": 16, "dim": 3840,
             "n_layers": 30, "n_refiner_layers": 2, "n_heads": 30, "n_kv_heads": 30, "norm_eps": 1e-5, "qk_norm": True,
             "cap_feat_dim": 2560, "rope_theta": 256.0, "t_scale": 1000.0, "axes_dims": [32, 48, 48], "axes_lens": [1536, 512, 512]}


def test_z_image_equals_diffusers(box):
    for name in TINY.runs["runs"]:
        TINY.expect_latents(box, name)
        TINY.expect_pictures(box, name)


def test_z_image_on_many_ranks(box):
    exact = ["--ulysses-degree 2", "--ring-degree 3", "--kv-gather-degree 2", "--tensor-parallel-degree 2", "--use-cfg-parallel",
             "--data-parallel-degree 2", "--displaced-patch-degree 2 --displaced-mode full_sync", "--use-cfg-parallel --ulysses-degree 2"]
    for name, all_flags in (("limited", exact), ("guided", ["--pipefusion-parallel-degree 2 --warmup-steps 4", "--ulysses-degree 2"])):
        for flags in all_flags:
            TINY.expect_latents(box, name, *flags.split())
    TINY.expect_pictures(box, "limited", "--ring-degree", "2")


def test_patches_without_tokens_of_the_text(box):
    """The third stage gets the text from the second, also of a patch that has none of its tokens."""
    words = ["a", "--height", "640", "--width", "32", "--num-inference-steps", "3", "--seed", "1", "--output-type", "latent",
             "--pipefusion-parallel-degree", "3", "--num-pipeline-patch", "40"]
    ranks, alone = box.folder / "ranks.safetensors", box.folder / "alone.safetensors"
    TINY.generate(box, *words, "-o", ranks)
    TINY.generate(box, *words, "--simulate-ranks", "-o", alone)
    assert_near(read_latents(ranks), read_latents(alone), 1e-4)


def test_z_image_in_a_request(box):
    """The settings of a picture give it again, and a report names them."""
    TINY.generate(box, *TINY.words("limited"), "-o", "one.png", "--report", "run.json")
    settings = box.report()["settings"]
    assert settings["cfg_normalization"] == 0.9 and settings["cfg_truncation"] == 0.5, settings
    outcome = box.run("generate", "--model", TINY.folder, "--request", "one-0.png", "-o", "again.png")
    assert outcome.code == 0, outcome
    assert read_png(box.folder / "one-0.png")[2] == read_png(box.folder / "again-0.png")[2]


def test_what_guidance_0_leaves_without_effect(box):
    outcome = TINY.generate(box, "a cat", *TINY.SMALL, "--guidance-scale", "0", "--negative-prompt", "blurry", "--cfg-truncation", "0.5")
    assert ("--negative-prompt, --cfg-truncation have no effect: --guidance-scale is 0, and there is guidance only above 0\n"
            in outcome.err), outcome
    outcome = TINY.generate(box, "a cat", *TINY.SMALL, "--guidance-scale", "0.5", "--negative-prompt", "blurry")
    assert "no effect" not in outcome.err, outcome


def test_options_that_z_image_refuses(box):
    for words, needle in [
            (["--cfg-truncation", "1.5"], "[--cfg-truncation] must be from 0 to 1"),
            (["--cfg-truncation=-0.1"], "[--cfg-truncation] must be from 0 to 1"),
            (["--cfg-truncation", "on"], "[--cfg-truncation]"),
            (["--cfg-normalization=-1"], "[--cfg-normalization] must be 0 or more"),
            (["--cfg-normalization", "true"], "[--cfg-normalization]"),
            (["--height", "44"], "[--height] 44 is not a multiple of 8; the nearest valid sizes are 40 and 48"),
            (["--width", "1032"], "[--width] must be at most 1024, for which the model has positions, got 1032"),
            (["--guidance-rescale", "0.5"], "[--guidance-rescale] Z-Image does not support it, got 0.5"),
            (["--scheduler", "unipc"], "[--scheduler] the model hands its noise levels to its sampler; UniPCMultistepScheduler cannot take them"),
            (["--use-cfg-parallel", "--guidance-scale", "0"], "--use-cfg-parallel needs a guidance scale above 0 and a negative branch"),
            (["--pipefusion-parallel-degree", "2", "--cfg-normalization", "1"], "--cfg-normalization limits the norm of a whole image")]:
        TINY.refuse(box, 2, needle, *words)
    for option in ("--cfg-normalization", "--cfg-truncation"):
        box.refuse(2, f"[{option}] PixArt-Sigma does not support it, got 1.0; leave it out (it is an option of Z-Image)", "generate", "a cat",
                   "--model", PIXART, option, "1")


def into_shards(folder):
    """Divides the weights of a transformer into two files."""
    path = folder / "diffusion_pytorch_model.safetensors"
    tensors, metadata = read_safetensors(path)
    keys = sorted(tensors)
    files = {}
    for number, part in enumerate((keys[:30], keys[30:]), 1):
        files[f"diffusion_pytorch_model-0000{number}-of-00002.safetensors"] = part
    for name, part in files.items():
        write_safetensors(folder / name, {key: tensors[key] for key in part}, metadata)
    path.unlink()
    weight_map = {key: name for name, part in files.items() for key in part}
    (folder / "diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return list(files)


def test_a_sharded_transformer(box):
    model = TINY.copy(box)
    shards = into_shards(model / "transformer")
    TINY.expect_latents(box, "turbo", model=model)
    (model / "transformer" / shards[1]).unlink()
    TINY.refuse(box, 3, shards[1], model=model)


def test_broken_models(box):
    """One line each, before any weight is read; `tessera models` says the same."""
    TINY.refuse_cut_off(box)
    refuse = functools.partial(TINY.refuse_changed, box)
    refuse("weight 'cap_embedder.0.weight' has shape [12], expected [20]", "transformer/config.json", cap_feat_dim=20)
    refuse("'siglip_feat_dim' is 1152: pictures as a part of the prompt (Omni) are not supported", "transformer/config.json",
           siglip_feat_dim=1152)
    refuse("'all_patch_size' is [4]: only patches of 2 x 2 latents and 1 frame can be had here", "transformer/config.json",
           all_patch_size=[4])
    refuse("'axes_lens' must be three positive numbers, of which the first is at least 34", "transformer/config.json",
           axes_lens=[33, 64, 64])
    refuse("has shape", "text_encoder/config.json", hidden_size=14)
    refuse("'num_hidden_layers'", "text_encoder/config.json", num_hidden_layers=0)
    refuse("'model_type' must be \"qwen3\"", "text_encoder/config.json", model_type="qwen2")
    refuse("'latent_channels' must be 4, as in_channels of the denoiser", "vae/config.json", latent_channels=16)
    refuse("'text_encoder' is [\"transformers\",\"T5EncoderModel\"]: this class cannot run here; of transformers these can: Qwen3Model, "
           "Qwen3ForCausalLM", "model_index.json", text_encoder=["transformers", "T5EncoderModel"])
    refuse("EulerDiscreteScheduler cannot take them; give --scheduler flow-euler", "model_index.json",
           scheduler=["diffusers", "EulerDiscreteScheduler"])
    model = TINY.copy(box)
    shutil.rmtree(model / "text_encoder")
    shutil.copytree(ROOT / "tests" / "golden" / "qwen3-grouped", model / "text_encoder", ignore=shutil.ignore_patterns("golden"))
    TINY.refuse(box, 3, "the text encoder gives tokens of width 22, but the denoiser takes 12; are they of one model?", model=model)


def test_broken_tokenizers(box):
    model = TINY.copy(box)
    template = model / "tokenizer" / "chat_template.jinja"
    known = template.read_text()
    template.write_text(known + "{{ 1 }}")
    TINY.refuse(box, 3, "chat_template.jinja] the chat template (of", model=model)
    template.unlink()
    TINY.refuse(box, 3, "the tokenizer has no chat template", model=model)
    template.write_text(known)
    (model / "tokenizer" / "tokenizer.json").unlink()
    TINY.refuse(box, 3, str(model / "tokenizer"), model=model)
    # One with more tokens than the text encoder has, whose special tokens come last.
    shutil.rmtree(model / "tokenizer")
    shutil.copytree(ROOT / "tests" / "golden" / "qwen3_tokenizer", model / "tokenizer")
    TINY.refuse(box, 2, "that the text encoder, with", model=model)
    model = TINY.copy(box)
    change_json(model / "model_index.json", tokenizer=["transformers", "CLIPTokenizer"])
    TINY.refuse(box, 3, "'tokenizer' is [\"transformers\",\"CLIPTokenizer\"]: this class cannot run here", model=model)


def test_the_config_of_the_published_transformer_alone(box):
    """A trace and a plan need no more."""
    config = box.folder / "config.json"
    config.write_text(json.dumps(PUBLISHED))
    outcome = box.run("trace", "--model", config, "--dtype", "fp32", "--no-cache", "-o", "t.json")
    assert outcome.code == 0 and "with the defaults of Z-Image: prompts of 512 tokens, FlowMatchEulerDiscreteScheduler, 8 pixels" in outcome.err, outcome
    trace = json.loads((box.folder / "t.json").read_text())
    assert trace["steps"] == 50 and trace["model"] == "ZImagePipeline", (trace["steps"], trace["model"])
    assert trace["ranks"][0]["weights_bytes"] == [0, 4 * 6_154_908_736, 0], trace["ranks"][0]["weights_bytes"]
    words = ["plan", "--model", config, "--machine", "l40-pcie", "--dtype", "bf16", "--json"]
    one, two = (json.loads(box.run(*words, *more).out) for more in (["--devices", "1"], ["--ulysses-degree", "2"]))
    assert two["step_seconds"] < 0.7 * one["step_seconds"], (one, two)
    best = json.loads(box.run(*words, "--devices", "4").out)["layouts"]
    limited = json.loads(box.run(*words, "--devices", "4", "--cfg-normalization", "1").out)["layouts"]
    assert any("pipefusion" in each["layout"] for each in best) and not any("pipefusion" in each["layout"] for each in limited), limited
