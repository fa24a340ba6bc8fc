"""Tests FLUX.2 klein on the command line: its options, many ranks, distilled models, its config alone, and bad input."""
import functools
import json
import shutil
import struct
import zlib

from files import assert_near, change_json, read_latents, read_png
from harness import MODEL as PIXART
from harness import ROOT
from tiny_pipeline import TinyPipeline

TINY = TinyPipeline("tiny-flux2-klein")
MOVING = ROOT / "tests" / "golden" / "tiny-open-sora" / "golden" / "moving.gif"
PICTURE = TINY.folder / "golden" / "70x101.png"
NO_GUIDANCE = "the model is distilled to run without guidance"
PUBLISHED = {"_class_name": "Flux2Transformer2DModel", "patch_size": 1, "in_channels": 128, "out_channels": None, "num_layers": 5,
             "num_single_layers": 20, "attention_head_dim": 128, "num_attention_heads": 24, "joint_attention_dim": 7680, "mlp_ratio": 3.0,
             "timestep_guidance_channels": 256, "axes_dims_rope": [32, 32, 32, 32], "rope_theta": 2000, "eps": 1e-6,
             "guidance_embeds": False}


def test_klein_equals_diffusers(box):
    for name in ("guided", "unguided"):
        TINY.expect_latents(box, name)
        TINY.expect_pictures(box, name)


def test_klein_on_many_ranks(box):
    for flags in ("--use-cfg-parallel --ulysses-degree 2", "--ring-degree 3", "--tensor-parallel-degree 2", "--data-parallel-degree 2",
                  "--pipefusion-parallel-degree 2 --warmup-steps 4"):
        TINY.expect_latents(box, "guided", *flags.split())
    TINY.expect_pictures(box, "guided", "--ring-degree", "2")


def test_klein_edits_pictures(box):
    for name in ("edited", "edited_two"):
        TINY.expect_latents(box, name)
    TINY.expect_pictures(box, "edited")
    for flags in ("--ulysses-degree 2", "--ring-degree 3", "--use-cfg-parallel --data-parallel-degree 2",
                  "--pipefusion-parallel-degree 2 --warmup-steps 4"):
        TINY.expect_latents(box, "edited_two", *flags.split())


def test_pictures_to_edit_in_files_of_a_run(box):
    """The settings of an image name them without their folders; a run from such a file says which are missing."""
    (box.folder / "secret").mkdir()
    house = shutil.copy(PICTURE, box.folder / "secret" / "house.png")
    TINY.generate(box, "a cat", *TINY.SMALL, "--image", house, "-o", "one.png", "--report", "run.json")
    data = (box.folder / "one.png").read_bytes()
    assert b"house.png" in data and b"secret" not in data
    settings = json.loads(read_png(box.folder / "one.png")[3]["tessera"])
    assert (settings["image"], settings["image_size"], settings["image_index"]) == (["house.png"], ["70x101"], 0), settings
    assert box.report()["settings"]["image"] == [str(house)]
    again = ["generate", "--request", "one.png", "--model", TINY.folder]
    box.refuse(3, "[one.png] its reference 'house.png' is not here; run it in the folder of that file, or give its path with --image", *again)
    outcome = box.run(*again, "--image", house, "-o", "again.png")
    assert outcome.code == 0 and read_png(box.folder / "again.png")[2] == read_png(box.folder / "one.png")[2], outcome
    # Another picture has a size of its own.
    outcome = box.run(*again, "--image", TINY.folder / "golden" / "96x64.png", "-o", "other.png")
    assert outcome.code == 0 and read_png(box.folder / "other.png")[2] != read_png(box.folder / "one.png")[2], outcome
    box.refuse(2, "is the file of --image, which would be lost; name another", "generate", "a cat", "--model", TINY.folder, *TINY.SMALL,
               "--image", house, "-o", house)


def test_plans_with_the_sizes_of_pictures(box):
    """Traces and plans need no file, and count the tokens."""
    words = ["--model", TINY.folder, "--dtype", "fp32", "--max-sequence-length", "32", *TINY.SMALL]
    events = {}
    for name, more in {"none": [], "size": ["--image-size", "70x101"], "file": ["--image", PICTURE]}.items():
        outcome = box.run("trace", "a cat", *words, *more, "--no-cache", "-q", "--json", "-o", "t.json")
        assert outcome.code == 0, outcome
        events[name] = {row["phase"]: row["flops"] for row in json.loads(outcome.out)["phases"]}
    assert events["size"] == events["file"], events
    assert events["size"]["denoise"] > 1.2 * events["none"]["denoise"] and events["size"]["encode"] > events["none"]["encode"], events
    seconds = [json.loads(box.run("plan", "a cat", *words, *more, "--machine", "cpu-avx2", "--devices", "1", "--json").out)["step_seconds"]
               for more in ([], ["--image-size", "512x512"])]
    assert seconds[1] > seconds[0], seconds
    dry = json.loads(box.run("generate", "a cat", *words, "--image", PICTURE, "--dry-run").out)
    assert dry["weights_bytes"]["encoder"] > 0 and dry["settings"]["image_size"] == ["70x101"], dry


def test_pictures_that_klein_refuses(box):
    """Before weights are read, on one rank and on several."""
    (box.folder / "text.png").write_text("not an image")
    small = shutil.copy(ROOT / "tests" / "golden" / "media" / "full.jpg", box.folder / "small.jpg")
    for code, needle, *words in (
            (3, "[missing.png] no such file", "--image", "missing.png"),
            (3, "[text.png] not an image or video", "--image", "text.png"),
            (3, "small.jpg] 40 x 56 pixels: sides must be at least 64 pixels", "--image", small),
            (3, "a GIF, an AVIF, an animation or a video, and --image takes pictures; give one of its frames as a PNG", "--image", MOVING),
            (2, "[--image-size] 64 x 600 pixels: a side may be at most 8 times as long as the other", "--image-size", "64x600"),
            (2, "[--image-size] expected two numbers", "--image-size", "64"),
            (2, "[--image-size] 2 of them for 1 of --image; leave them out", "--image", PICTURE, "--image-size", "70x101", "--image-size", "64x64"),
            (3, "is 70 x 101 pixels large, and --image-size says 70 x 100; leave that out", "--image", PICTURE, "--image-size", "70x100"),
            (2, "[--image] there is none for --image-size, which is enough for a plan or a trace alone; name it", "--image-size", "70x101")):
        for method in ((), ("--dry-run",), ("--ulysses-degree", "2")):
            TINY.refuse(box, code, needle, *words, *method)
    box.refuse(2, "[--image] PixArt-Sigma does not support it, got [\"a.png\"]; leave it out (it is an option of FLUX.2 klein, FLUX.2 dev)", "generate", "a cat",
               "--model", PIXART, "--image", "a.png")


def test_pictures_of_16_bits(box):
    """Of grey, Pillow clips what is above 255; a line says that this does not."""
    rows = [[7 + 256 * (x + y) for x in range(64)] for y in range(72)]
    for name, kind, channels in (("grey", 0, 1), ("colours", 2, 3)):
        data = b"".join(struct.pack(f">x{64 * channels}H", *(value for value in row for _ in range(channels))) for row in rows)
        chunks = {b"IHDR": struct.pack(">IIBBBBB", 64, 72, 16, kind, 0, 0, 0), b"IDAT": zlib.compress(data), b"IEND": b""}
        (box.folder / f"{name}.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(
            struct.pack(">I", len(chunk)) + which + chunk + struct.pack(">I", zlib.crc32(which + chunk)) for which, chunk in chunks.items()))
    latents = {}
    for name, more in {"grey": [], "colours": [], "ranks": ["--ulysses-degree", "2"]}.items():
        picture = "colours.png" if name == "colours" else "grey.png"
        outcome = TINY.generate(box, "a cat", *TINY.SMALL, "--image", picture, "-o", "z.safetensors", "--output-type", "latent", *more)
        said = "[grey.png] is grey of 16 bits: its upper eight bits are taken, whereas diffusers, with Pillow, clips it at 255\n"
        assert outcome.code == 0 and outcome.err.count(said) == (name != "colours"), outcome
        latents[name] = read_latents(box.folder / "z.safetensors")
    assert latents["grey"] == latents["colours"]
    assert_near(latents["ranks"], latents["grey"], 1e-4)


def test_a_distilled_klein(box):
    model = TINY.copy(box)
    change_json(model / "model_index.json", is_distilled=True)
    outcome = TINY.expect_latents(box, "distilled", model=model)
    assert f"--guidance-scale has no effect: {NO_GUIDANCE}\n" in outcome.err, outcome
    outcome = TINY.generate(box, "a cat", *TINY.SMALL, model=model)
    assert "no effect" not in outcome.err, outcome
    outcome = TINY.generate(box, "a cat", *TINY.SMALL, "--negative-prompt", "blurry", model=model)
    assert f"--negative-prompt has no effect: {NO_GUIDANCE}\n" in outcome.err, outcome
    for scale in ((), ("--guidance-scale", "4")):
        TINY.refuse(box, 2, "--use-cfg-parallel needs guidance, and the model is distilled to run without it", "--use-cfg-parallel", *scale, model=model)
    for folder, scale in ((TINY.folder, 4), (model, 1)):
        outcome = box.run("models", folder)
        said = f"FLUX.2 klein: images of 1024 x 1024 by default, 50 steps, guidance {scale}, 512 tokens a prompt\n"
        assert outcome.code == 0 and said in outcome.out and "warning" not in outcome.out, outcome


def test_a_limit_that_leaves_nothing_of_a_prompt(box):
    outcome = TINY.generate(box, "a cat", *TINY.SMALL, "--max-sequence-length", "3")
    said = "[--max-sequence-length] is 3, of which the chat template takes all, so that nothing of the prompt is left; raise it"
    assert outcome.err.count(said) == 1 and "too long" not in outcome.err, outcome


def test_options_that_klein_refuses(box):
    for words, needle in [
            (["--height", "40"], "[--height] 40 is not a multiple of 16; the nearest valid sizes are 32 and 48"),
            (["--guidance-rescale", "0.5"], "[--guidance-rescale] FLUX.2 klein does not support it, got 0.5"),
            (["--cfg-truncation", "0.5"], "[--cfg-truncation] FLUX.2 klein does not support it, got 0.5; leave it out (it is an option of Z-Image)"),
            (["--scheduler", "unipc"], "[--scheduler] the model hands its noise levels to its sampler; UniPCMultistepScheduler cannot take them"),
            (["--use-cfg-parallel", "--guidance-scale", "1"], "--use-cfg-parallel needs a guidance scale above 1 and a negative branch")]:
        TINY.refuse(box, 2, needle, *words)


def test_broken_models_of_klein(box):
    """One line each, before any weight is read."""
    TINY.refuse_cut_off(box)
    refuse = functools.partial(TINY.refuse_changed, box)
    refuse("weight 'time_guidance_embed.guidance_embedder.linear_1.weight' is missing", "transformer/config.json", guidance_embeds=True)
    refuse("weight 'context_embedder.weight' has shape [32, 24], expected [32, 36]", "transformer/config.json", joint_attention_dim=36)
    refuse("must be a quarter of the 16 in_channels of the denoiser, got 8", "vae/config.json", latent_channels=8)
    refuse("'num_hidden_layers'", "text_encoder/config.json", num_hidden_layers=26, layer_types=None)
    refuse("'vae' is [\"diffusers\",\"AutoencoderKL\"]: this class cannot run here; of diffusers these can: AutoencoderKLFlux2",
           "model_index.json", vae=["diffusers", "AutoencoderKL"])
    refuse("'is_distilled' must be", "model_index.json", is_distilled=1)


def test_the_config_of_a_published_klein_alone(box):
    """A trace and a plan need no more."""
    config = box.folder / "config.json"
    config.write_text(json.dumps(PUBLISHED))
    outcome = box.run("trace", "--model", config, "--dtype", "fp32", "--no-cache", "-o", "t.json")
    assert outcome.code == 0, outcome
    assert "with the defaults of FLUX.2 klein: prompts of 512 tokens, FlowMatchEulerDiscreteScheduler, 16 pixels" in outcome.err, outcome
    trace = json.loads((box.folder / "t.json").read_text())
    assert trace["steps"] == 50 and trace["model"] == "Flux2KleinPipeline", (trace["steps"], trace["model"])
    assert trace["ranks"][0]["weights_bytes"] == [0, 4 * 3_875_544_576, 0], trace["ranks"][0]["weights_bytes"]
    words = ["plan", "--model", config, "--machine", "l40-pcie", "--dtype", "bf16", "--guidance-scale", "1", "--json"]
    one, two = (json.loads(box.run(*words, *more).out) for more in (["--devices", "1"], ["--ulysses-degree", "2"]))
    assert two["step_seconds"] < 0.7 * one["step_seconds"], (one, two)
