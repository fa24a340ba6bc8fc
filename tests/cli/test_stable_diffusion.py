"""Tests Stable Diffusion XL on the command line: its options, many ranks, one file instead of a folder, and bad input."""
import json
import re
import shutil
import struct

from files import assert_near, floats, psnr, read_latents, read_png, read_safetensors, write_safetensors
from harness import MODEL as PIXART
from harness import ROOT

MODEL = ROOT / "tests" / "golden" / "tiny-sdxl"
ONE = ROOT / "tests" / "golden" / "tiny-sd"
GOLDEN = MODEL / "golden"
RUNS = json.loads((GOLDEN / "runs.json").read_text())
FOLDER = ["--model", MODEL]
SMALL = ["--height", "32", "--width", "48", "--num-inference-steps", "2", "--seed", "1"]


def arguments_of(options):
    words = ["--seed", str(RUNS["seed"])]
    for key, value in options.items():
        if key == "prompt":
            words += value
        elif key == "prompt_2":
            words += [f"--{key}={value[0]}"]  # one value holds for all prompts
        elif isinstance(value, list):
            words += [f"--{key}", "x".join(map(str, value))]
        else:
            words += [f"--{key}", str(value)]
    return words


def generate(box, *words, model=FOLDER):
    outcome = box.run("generate", *model, "--dtype", "fp32", *words)
    assert outcome.code == 0, outcome
    return outcome


def latents(box, *words, model=FOLDER):
    generate(box, *words, "--output-type", "latent", "-o", box.folder / "out.safetensors", model=model)
    return read_latents(box.folder / "out.safetensors")


def golden(name):
    tensor = read_safetensors(GOLDEN / "latents.safetensors")[0][name]
    return tensor[1], floats(tensor)


def test_sdxl_equals_diffusers(box):
    for name, options in RUNS["runs"].items():
        assert_near(latents(box, *arguments_of(options)), golden(name), 1e-3)
        outcome = generate(box, *arguments_of(options), "-o", f"{name}.png")
        for number, path in enumerate(outcome.out.split()):
            width, height, pixels, _ = read_png(box.folder / path)
            expected = read_png(GOLDEN / f"{name}-{number}.png")
            assert (width, height) == expected[:2], (width, height)
            assert psnr(pixels, expected[2]) > 50, (name, number)


def test_a_mask_of_the_prompts_padding_is_refused_where_diffusers_uses_it(box):
    """The pipeline of 1.x and 2.x passes over the padding if the text encoder's file says so; that of XL does not."""
    for name, part in (("tiny-sd", "text_encoder"), ("tiny-sdxl", "text_encoder_2")):
        model = box.folder / name
        shutil.copytree(ROOT / "tests" / "golden" / name, model, ignore=shutil.ignore_patterns("golden"))
        config = model / part / "config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), "use_attention_mask": True}))
        if name == "tiny-sd":
            box.refuse(3, "'use_attention_mask' is true", "generate", "a cat", "--model", model, *SMALL)
        else:
            assert latents(box, "a cat", *SMALL, model=["--model", model]) == latents(box, "a cat", *SMALL)


def test_decoding_in_blocks_gives_the_same_image(box):
    name, options = next(iter(RUNS["runs"].items()))
    for ranks in ["1", "2"]:
        for rows in ["1", "5"]:
            outcome = generate(box, *arguments_of(options), "--vae-block-size", rows, "--tensor-parallel-degree", ranks, "-o", "blocks.png")
            pixels = read_png(box.folder / outcome.out.split()[0])[2]
            assert psnr(pixels, read_png(GOLDEN / f"{name}-0.png")[2]) > 50, (ranks, rows)
    for rows in ["0", "-1", "x"]:
        outcome = box.run("generate", *FOLDER, "a cat", "--vae-block-size", rows)
        assert outcome.code == 2 and "--vae-block-size" in outcome.err, outcome


def test_sdxl_from_a_single_file(box):
    configs = box.folder / "configs"
    shutil.copytree(MODEL, configs, ignore=shutil.ignore_patterns("*.safetensors", "golden"))
    single = ["--model", MODEL / "single.safetensors", "--config", configs]
    assert_near(latents(box, *arguments_of(RUNS["runs"]["all"]), model=single), golden("all"), 1e-3)
    assert_near(latents(box, *arguments_of(RUNS["runs"]["all"]), "--use-cfg-parallel", model=single), golden("all"), 1e-3)


def test_sdxl_on_many_ranks(box):
    words = arguments_of(RUNS["runs"]["all"])
    expected = golden("all")
    for flags in ("--ulysses-degree 2", "--ring-degree 2 --use-cfg-parallel", "--tensor-parallel-degree 2 --no-vae-parallel",
                  "--displaced-patch-degree 3 --displaced-mode full_sync", "--displaced-patch-degree 2 --warmup-steps 4",
                  "--displaced-patch-degree 2 --displaced-mode full_sync --data-parallel-degree 2"):
        assert_near(latents(box, *words, *flags.split()), expected, 1e-3)
        picture = generate(box, *words, *flags.split(), "-o", "ranks.png").out.split()[1]
        assert psnr(read_png(box.folder / picture)[2], read_png(GOLDEN / "all-1.png")[2]) > 50, flags


def test_displaced_patches_are_near_and_reported(box):
    exact = golden("plain")
    words = arguments_of(RUNS["runs"]["plain"])
    seen = []
    for mode in ("sync_gn", "corrected_async_gn", "stale_gn", "separate_gn", "no_sync"):
        flags = ["--displaced-patch-degree", "2", "--displaced_mode", mode, "--warmup-steps", "1", "--report", "run.json"]
        displaced = latents(box, *words, *flags)
        apart = max(abs(a - b) for a, b in zip(displaced[1], exact[1]))
        assert 1e-4 < apart < 10, (mode, apart)  # a random model amplifies differences
        seen.append(displaced[1].tolist())
        assert box.report()["settings"]["parallel"] == {"world_size": 2, "displaced": 2, "displaced_mode": mode, "warmup_steps": 1}
    assert all(a != b for i, a in enumerate(seen) for b in seen[:i]), "two modes gave the same"
    # Each of the two ranks has only three rows at the coarsest scale, so the default mode changes and the run reports it.
    outcome = generate(box, *words, "--displaced-patch-degree", "2", "--report", "run.json", "-o", "p.png")
    assert outcome.err.count("--displaced-mode is sync_gn") == 1, outcome
    assert box.report()["settings"]["parallel"]["displaced_mode"] == "sync_gn"


def test_displaced_patches_of_pixart(box):
    words = ["a green star", "--model", PIXART, "--seed", "7", "--height", "64", "--width", "48", "--no-resolution-binning",
             "--num-inference-steps", "4", "--dtype", "fp32"]
    one = latents(box, *words, model=[])
    assert_near(latents(box, *words, "--displaced-patch-degree", "2", "--displaced-mode", "full_sync", model=[]), one, 1e-4)
    stale = latents(box, *words, "--displaced-patch-degree", "2", "--warmup-steps", "1", model=[])
    assert 1e-5 < max(abs(a - b) for a, b in zip(stale[1], one[1])) < 3


# PNDM evaluates the model more often than there are steps.
def test_a_warm_up_of_all_steps_is_exact_with_any_sampler(box):
    words = ["a cat", *SMALL, "--scheduler", "pndm", "--num-inference-steps", "4"]
    assert_near(latents(box, *words, "--displaced-patch-degree", "2", "--warmup-steps", "4"), latents(box, *words), 1e-4)
    words += ["--model", PIXART, "--no-resolution-binning"]
    assert_near(latents(box, *words, "--pipefusion-parallel-degree", "2", "--warmup-steps", "4", model=[]),
                latents(box, *words, model=[]), 1e-4)


def test_an_absent_negative_prompt_is_not_an_empty_one(box):
    absent, empty = latents(box, "a cat", *SMALL), latents(box, "a cat", *SMALL, "--negative-prompt", "")
    assert absent[1] != empty[1]
    # As in diffusers, the second negative prompt alone has no effect.
    assert_near(latents(box, "a cat", *SMALL, "--negative-prompt-2", "a dog"), absent, 0)
    # The pipeline's own option says whether it is zeros; it is true where the folder does not have it.
    model = box.folder / "model"
    shutil.copytree(MODEL, model, ignore=shutil.ignore_patterns("golden", "single.safetensors"))
    index = json.loads((model / "model_index.json").read_text())
    for zeros, expected in ((True, absent), (False, empty), (None, absent)):
        changed = {**index, "force_zeros_for_empty_prompt": zeros}
        (model / "model_index.json").write_text(json.dumps({key: value for key, value in changed.items() if value is not None}))
        assert_near(latents(box, "a cat", *SMALL, model=["--model", model]), expected, 0)


def test_options_that_sdxl_refuses(box):
    for words, *needles in [
            (["--prompt-2", "a", "--prompt-2", "b", "--prompt-2", "c"], "--prompt-2", "3 of them for 1 prompt;"),
            (["--clip-skip", "9"], "--clip-skip", "at most"),
            (["--clip-skip", "-1"], "must be from 0 to"),
            (["--guidance-rescale", "1.5"], "must be from 0 to 1"),
            (["--original-size", "64"], "expected two numbers"),
            (["--target-size", "64x"], "expected two numbers"),
            (["--crops-coords-top-left=-1x3"], "expected two numbers"),
            (["--eta", "2"], "must be from 0 to 1"),
            (["--displaced-mode", "fresh", "--displaced-patch-degree", "2"], "full_sync"),
            (["--displaced-patch-degree", "3"], "there are 2"),
            (["--displaced-patch-degree", "2", "--ulysses-degree", "2"], "cannot be combined"),
            (["--warmup-steps", "2"], "--warmup-steps"),
            (["--pipefusion-parallel-degree", "2"], "PipeFusion does not support"),
            (["--vae-parallel"], "--vae-parallel applies to runs with several ranks only"),
            (["--height", "36"], "--height")]:
        outcome = box.refuse(2, needles[0], "generate", "a cat", *FOLDER, *SMALL, *words)
        assert all(needle in outcome.err for needle in needles), (needles, outcome)
    for words, needle in [(["--max-sequence-length", "5"], "[--max-sequence-length] Stable Diffusion XL does not support it, got 5"),
                          (["--no-resolution-binning"], "[--no-resolution-binning] Stable Diffusion XL does not support it"),
                          (["--eta", "0.5"], "[--eta] EulerDiscreteScheduler does not support it, got 0.5; leave it out (it is an option of ddim, tcd)")]:
        box.refuse(2, needle, "generate", "a cat", *FOLDER, *SMALL, *words)
    for option in ("--prompt-2", "--negative-prompt-2", "--original-size", "--clip-skip", "--guidance-rescale"):
        value = "8x8" if "size" in option else "0" if "skip" in option or "rescale" in option else "a"
        box.refuse(2, option, "generate", "a cat", "--model", PIXART, option, value)


def test_invalid_single_files(box):
    file = MODEL / "single.safetensors"
    box.refuse(2, "--config", "generate", "a cat", "--model", file, *SMALL)
    box.refuse(2, "--config", "generate", "a cat", *FOLDER, "--config", MODEL, *SMALL)
    box.refuse(3, "model_index.json", "generate", "a cat", "--model", file, "--config", box.folder, *SMALL)
    box.refuse(3, "is of PixArt-Sigma, but models that can be read from a single file are those of Stable Diffusion, ", "generate", "a cat", "--model", file, "--config", PIXART, "--height", "32", "--width", "32",
               "--no-resolution-binning")
    box.refuse(2, "[--variant] selects files of a folder, but", "generate", "a cat", "--model", file, "--config", MODEL, "--variant", "fp16", *SMALL)
    other = PIXART / "transformer" / "diffusion_pytorch_model.safetensors"
    box.refuse(3, "has no text_encoder", "generate", "a cat", "--model", other, "--config", MODEL, *SMALL)
    tensors, _ = read_safetensors(file)
    box.refuse(3, f"is of Stable Diffusion XL, but '{ONE}' is of Stable Diffusion; name a folder of the file's model with --config", "generate", "a cat",
               "--model", file, "--config", ONE, *SMALL)
    (box.folder / "in").mkdir()
    part = {"x": next(iter(tensors.values()))}
    for keys, text in ((["lora_unet_down_blocks_0.lora_up.weight"], "is a LoRA, which cannot be added to a model yet"), (["unet.a.lora_A.weight"], "is a LoRA"),
                       (["emb_params"], "is an embedding of textual inversion"), (["clip_l", "clip_g"], "is an embedding"), (["<cat>"], "is an embedding"),
                       (["control_model.x"], "is a ControlNet"), (["encoder.x", "decoder.y", "post_quant_conv.weight"], "is a VAE alone; name a whole model")):
        write_safetensors(box.folder / "in" / "kind.safetensors", {key: part["x"] for key in keys})
        for words in ((), ("--config", MODEL)):
            box.refuse(3, f"kind.safetensors] {text}", "generate", "a cat", "--model", box.folder / "in" / "kind.safetensors", *words, *SMALL)
        box.refuse(3, f"kind.safetensors] {text}", "models", box.folder / "in" / "kind.safetensors")
    del tensors["model.diffusion_model.out.2.weight"]
    write_safetensors(box.folder / "in" / "part.safetensors", tensors)
    box.refuse(3, "'conv_out.weight' is missing", "generate", "a cat", "--model", box.folder / "in" / "part.safetensors", "--config",
               MODEL, *SMALL)
    (box.folder / "in" / "part.safetensors").write_bytes(file.read_bytes()[:5000])
    box.refuse(3, "part.safetensors", "generate", "a cat", "--model", box.folder / "in" / "part.safetensors", "--config", MODEL, *SMALL)
    outcome = box.run("models", file, "--config", MODEL)
    assert outcome.code == 0 and f"can run: tessera generate \"PROMPT\" --model {file} --config {MODEL}\n" in outcome.out, outcome
    assert all(re.search(f"^  {part} .* 1 file$", outcome.out, re.M) for part in ("unet", "vae", "text_encoder_2")), outcome
    (box.folder / "in" / "old.ckpt").write_bytes(b"PK")
    for name, data in (("old.ckpt", b"PK"), ("0123abcd", b"PK\3\4" + bytes(20)), ("old.safetensors", b"\x80\2" + bytes(20)), ("new.bin", b"")):
        (box.folder / "in" / name).write_bytes(data)
        box.refuse(3, f"{name}] is a pickle (.ckpt, .pt, .bin), and only .safetensors and .gguf can be read as a single file; convert it with", "generate",
                   "a cat", "--model", box.folder / "in" / name, "--config", MODEL, *SMALL)


def test_a_single_file_is_known_by_its_content(box):
    """Others name it .sft, and the cache of a hub by its hash."""
    (box.folder / "in").mkdir()
    for name in ("a.sft", "a.SAFETENSORS", "0123abcd", "a.ckpt"):
        file = box.folder / "in" / name
        shutil.copyfile(MODEL / "single.safetensors", file)
        outcome = box.run("models", file, "--config", MODEL)
        assert outcome.code == 0 and "can run" in outcome.out, outcome
        box.refuse(2, f"[--config] '{file}' holds only weights: name a folder", "generate", "a cat", "--model", file, *SMALL)


def warnings_of(box, *words):
    outcome = box.run("generate", "a cat", *words, *SMALL)
    assert outcome.code == 0, outcome
    return [line for line in outcome.err.splitlines() if line.startswith("warning: ")]


def test_what_a_single_file_says_of_its_training(box):
    tensors, metadata = read_safetensors(MODEL / "single.safetensors")
    (box.folder / "in").mkdir()
    file, nothing = box.folder / "in" / "file.safetensors", ("F32", [0], b"")
    v, snr = "prediction_type=v_prediction", "rescale_betas_zero_snr=true"
    first = f"warning: [{file}] says that it was trained otherwise than the scheduler runs it; give --scheduler-option "
    for more, spec, told, options in (
            ({"v_pred": nothing, "ztsnr": nothing}, None, first + f"{v} --scheduler-option {snr}", [v, snr]),
            ({}, "v", first + v, [v]), ({"ztsnr": nothing}, "epsilon", first + snr, [snr])):
        write_safetensors(file, {**tensors, **more}, {"modelspec.prediction_type": spec} if spec else None)
        model = ["--model", file, "--config", MODEL]
        assert warnings_of(box, *model) == [told]
        assert told.removeprefix("warning: ") in box.run("models", file, "--config", MODEL).out
        assert warnings_of(box, *model, *[word for option in options for word in ("--scheduler-option", option)]) == []
    write_safetensors(file, {**tensors, "edm_mean": nothing, "edm_std": nothing})
    (told,) = warnings_of(box, *model)
    assert "'edm_mean' says that the model has EDM's noise levels, and EulerDiscreteScheduler has others; give --scheduler edm-" in told
    assert not any("edm_mean" in line for line in warnings_of(box, *model, "--scheduler", "edm-euler"))


def test_buffers_that_are_computed(box):
    """What a file stores of them has no effect, as in diffusers, so that other numbers are warned of."""
    (box.folder / "in").mkdir()
    file = box.folder / "in" / "file.safetensors"
    tensors, _ = read_safetensors(MODEL / "single.safetensors")
    config = json.loads((MODEL / "scheduler" / "scheduler_config.json").read_text())
    assert config["beta_schedule"] == "linear"
    products, product = [], 1
    for i in range(1000):
        product *= 1 - (config["beta_start"] + i / 999 * (config["beta_end"] - config["beta_start"]))
        products.append(product)
    (key,) = [key for key in tensors if key.endswith("position_ids")]
    positions = tensors[key]
    for more, told in (
            ({"alphas_cumprod": ("F32", [1000], struct.pack("<1000f", *products))}, None),
            ({"alphas_cumprod": ("F16", [1000], struct.pack("<1000e", *products))}, None),
            ({"denoiser.sigmas": ("F32", [1000], struct.pack("<1000f", *[((1 - a) / a) ** 0.5 for a in products]))}, None),
            ({"alphas_cumprod": ("F32", [1000], struct.pack("<1000f", *[a * a for a in products]))},
             "'alphas_cumprod' holds other noise levels than the scheduler has"),
            ({key: (*positions[:2], positions[2][8:] + positions[2][:8])}, "position_ids' is not used: the model computes it")):
        write_safetensors(file, {**tensors, **more})
        got = warnings_of(box, "--model", file, "--config", MODEL)
        assert len(got) == 1 and told in got[0] if told else got == [], got


def test_weights_that_nobody_reads_are_one_warning(box):
    model = box.folder / "model"
    shutil.copytree(ONE, model, ignore=shutil.ignore_patterns("golden", "single.safetensors"))
    file = model / "vae" / "diffusion_pytorch_model.safetensors"
    tensors, _ = read_safetensors(file)
    some = tensors["decoder.conv_in.bias"]
    for names, text in ((["a"], "weight 'a' is not used"), (["a", "b", "c"], "3 weights are not used, from 'a' to 'c'")):
        write_safetensors(file, {**tensors, **{name: some for name in names}})
        err = box.run("generate", "a cat", "--model", model, *SMALL).err
        assert err.count("warning: ") == 1 and f"vae] {text}\n" in err, err


def test_invalid_sdxl_folders(box):
    def change(name, **values):
        folder = box.folder / "model"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(MODEL, folder, ignore=shutil.ignore_patterns("golden", "single.safetensors"))
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
        return folder

    for name, values, needle in [
            ("unet/config.json", {"in_channels": 9}, "in_channels"),
            ("unet/config.json", {"down_block_types": ["DownBlock2D", "AttnDownBlock2D"]}, "down_block_types"),
            ("unet/config.json", {"class_embed_type": "timestep"}, "'class_embed_type' is \"timestep\": U-Nets"),
            ("unet/config.json", {"time_cond_proj_dim": 3}, "'time_cond_proj_dim' must be null, 1, or 4 and more"),
            ("unet/config.json", {"time_cond_proj_dim": 16}, "time_embedding.cond_proj.weight"),
            ("model_index.json", {"text_encoder_2": ["transformers", "CLIPTextModel"]}, "'text_encoder_2' must be a CLIPTextModelW"),
            ("unet/config.json", {"attention_head_dim": [3, 5]}, "attention_head_dim"),
            ("unet/config.json", {"cross_attention_dim": 99}, "weight"),
            ("text_encoder/config.json", {"hidden_act": "tanh"}, "hidden_act"),
            ("scheduler/scheduler_config.json", {"prediction_type": "noise"}, "prediction_type")]:
        folder = change(name, **values)
        box.refuse(3, needle, "generate", "a cat", "--model", folder, *SMALL)
    folder = change("unet/config.json")
    (folder / "tokenizer" / "merges.txt").write_text("#version: 0.2\na b c\n")
    box.refuse(3, "merges.txt", "generate", "a cat", "--model", folder, *SMALL)
    folder = change("tokenizer/tokenizer_config.json", model_max_length=1)
    box.refuse(3, "no prompt has room in 1 token", "generate", "a cat", "--model", folder, *SMALL)
    for length in (2, 20):  # with room for the two marks alone, and for words
        folder = change("tokenizer/tokenizer_config.json", model_max_length=length)
        box.refuse(3, f"prompts of {length} and 77 tokens", "generate", "a cat", "--model", folder, *SMALL)
    folder = change("text_encoder_2/config.json", projection_dim=4)  # half of the pooled prompt
    weights, _ = read_safetensors(folder / "text_encoder_2" / "model.safetensors")
    dtype, (rows, columns), data = weights["text_projection.weight"]
    weights["text_projection.weight"] = (dtype, [rows // 2, columns], data[:len(data) // 2])
    write_safetensors(folder / "text_encoder_2" / "model.safetensors", weights)
    box.refuse(3, "a pooled prompt of width 8", "generate", "a cat", "--model", folder, *SMALL)
    folder = change("unet/config.json")
    (folder / "tokenizer_2" / "vocab.json").unlink()
    box.refuse(3, "vocab.json", "generate", "a cat", "--model", folder, *SMALL)
    outcome = box.run("models", MODEL)
    assert outcome.code == 0 and "StableDiffusionXLPipeline" in outcome.out, outcome


def test_a_latent_consistency_model_takes_the_scale_as_an_input(box):
    """Its U-Net and scheduler are beside the other parts of tiny-sd. What belongs to a negative branch is warned of."""
    goldens, model = ROOT / "tests" / "golden", box.folder / "model"
    shutil.copytree(goldens / "tiny-sd", model, ignore=shutil.ignore_patterns("golden", "single.safetensors", "unet", "scheduler"))
    for part in ("unet", "scheduler"):
        shutil.copytree(goldens / "tiny-lcm" / part, model / part)
    index = json.loads((model / "model_index.json").read_text())
    (model / "model_index.json").write_text(json.dumps({**index, "scheduler": ["diffusers", "LCMScheduler"]}))
    runs = json.loads((goldens / "tiny-lcm" / "golden" / "runs.json").read_text())
    words = ["--seed", str(runs["seed"]), *arguments_of(runs["runs"]["default"])[2:]]
    tensor = read_safetensors(goldens / "tiny-lcm" / "golden" / "golden.safetensors")[0]["default.latents"]
    assert_near(latents(box, *words, model=["--model", model]), (tensor[1], floats(tensor)), 1e-3)
    outcome = generate(box, *words, "-o", "lcm.png", model=["--model", model])
    needle = "--negative-prompt, --guidance-rescale have no effect: the model takes --guidance-scale as an input"
    assert outcome.err.count(needle) == 1, outcome
    outcome = box.run("models", model)
    assert outcome.code == 0 and "guidance 7.5" in outcome.out and "can run" in outcome.out, outcome
    refused = "--use-cfg-parallel needs a guidance scale above 1 and a negative branch"
    box.refuse(2, refused, "generate", "a cat", "--model", model, "--use-cfg-parallel", *SMALL)
    box.refuse(2, refused, "mesh", "--model", model, "--use-cfg-parallel")
