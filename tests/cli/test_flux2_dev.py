"""Tests FLUX.2 dev on the command line: its options, many ranks, its config alone, and bad input. Where it is as FLUX.2 klein, the tests of that
are enough."""
import functools
import json

from files import change_json
from tiny_pipeline import TinyPipeline

TINY = TinyPipeline("tiny-flux2-dev")
NO_BRANCH = "the model takes --guidance-scale as an input and has no negative branch"


def test_dev_equals_diffusers(box):
    for name in ("guided", "default", "edited"):
        TINY.expect_latents(box, name)
        TINY.expect_pictures(box, name)


def test_dev_on_many_ranks(box):
    for flags in ("--ulysses-degree 2", "--ring-degree 3", "--tensor-parallel-degree 2", "--data-parallel-degree 2",
                  "--pipefusion-parallel-degree 2 --warmup-steps 4", "--ulysses-degree 2 --data-parallel-degree 2"):
        TINY.expect_latents(box, "guided", *flags.split())
    TINY.expect_pictures(box, "guided", "--ring-degree", "2")
    TINY.expect_latents(box, "edited", "--ulysses-degree", "2")


def test_the_guidance_scale_of_dev(box):
    """It is an input, so that there is nothing to divide."""
    for words in (["--negative-prompt", "blurry"], ["--negative-prompt", "blurry", "--guidance-scale", "1"]):
        outcome = TINY.generate(box, "a cat", *TINY.SMALL, *words)
        assert f"--negative-prompt has no effect: {NO_BRANCH}\n" in outcome.err, outcome
    TINY.refuse(box, 2, "--use-cfg-parallel needs a guidance scale above 1 and a negative branch", "--use-cfg-parallel")
    outcome = box.run("models", TINY.folder)
    said = "FLUX.2 dev: images of 1024 x 1024 by default, 50 steps, guidance 4, 512 tokens a prompt\n"
    assert outcome.code == 0 and said in outcome.out and "warning" not in outcome.out, outcome


def test_options_that_dev_refuses(box):
    for words, needle in [
            (["--height", "40"], "[--height] 40 is not a multiple of 16; the nearest valid sizes are 32 and 48"),
            (["--cfg-truncation", "0.5"], "[--cfg-truncation] FLUX.2 dev does not support it, got 0.5; leave it out (it is an option of Z-Image)"),
            (["--scheduler", "unipc"], "[--scheduler] the model hands its noise levels to its sampler; UniPCMultistepScheduler cannot take them")]:
        TINY.refuse(box, 2, needle, *words)


def test_broken_models_of_dev(box):
    """One line each, before any weight is read."""
    TINY.refuse_cut_off(box)
    refuse = functools.partial(TINY.refuse_changed, box)
    refuse("'guidance_embeds' must be true, as in FLUX.2 dev; that of FLUX.2 klein is false, got false", "transformer/config.json", guidance_embeds=False)
    refuse("'model_type' must be \"mistral3\", got \"qwen3\"", "text_encoder/config.json", model_type="qwen3")
    refuse("'text_config' must be an object", "text_encoder/config.json", text_config=None)
    refuse("'pad_token' must be a token: the model takes padded prompts", "tokenizer/tokenizer_config.json", pad_token=None)
    refuse("'bos_token' must be a token, with which the chat template begins", "tokenizer/tokenizer_config.json", bos_token=None)
    refuse("which are those of Mistral Small 3.1; it cannot run", "tokenizer/processor_config.json", chat_template="{{ messages }}")
    refuse("'tokenizer' is [\"transformers\",\"Qwen2Tokenizer\"]: this class cannot run here; of transformers these can: PixtralProcessor",
           "model_index.json", tokenizer=["transformers", "Qwen2Tokenizer"])
    model = TINY.copy(box)
    (model / "tokenizer" / "chat_template.jinja").unlink()
    TINY.refuse(box, 3, "the processor has no chat template: neither chat_template.jinja nor chat_template.json", model=model)
    (model / "tokenizer" / "tokenizer.json").unlink()
    TINY.refuse(box, 3, "there is no tokenizer.json, which tokenizers of class", model=model)


def test_a_pattern_that_is_not_known(box):
    model = TINY.copy(box)
    path = model / "tokenizer" / "tokenizer.json"
    document = json.loads(path.read_text())
    document["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = r"\p{Greek}+|."
    path.write_text(json.dumps(document))
    TINY.refuse(box, 3, r"has '\p{Greek}' at byte 0, which is not supported", model=model)


def test_a_window_of_the_text_encoder(box):
    """One that covers all tokens changes nothing; what others give is compared with transformers in unit tests."""
    model = TINY.copy(box)
    path = model / "text_encoder" / "config.json"
    text = json.loads(path.read_text())["text_config"]
    change_json(path, text_config={**text, "sliding_window": 512})
    TINY.expect_latents(box, "guided", model=model)


def test_the_config_of_the_published_dev_alone(box):
    """A trace and a plan need no more."""
    config = box.folder / "config.json"
    config.write_text(json.dumps({"_class_name": "Flux2Transformer2DModel", "guidance_embeds": True}))
    outcome = box.run("trace", "--model", config, "--dtype", "fp32", "--no-cache", "-o", "t.json")
    assert outcome.code == 0, outcome
    assert "with the defaults of FLUX.2 dev: prompts of 512 tokens, FlowMatchEulerDiscreteScheduler, 16 pixels" in outcome.err, outcome
    trace = json.loads((box.folder / "t.json").read_text())
    assert trace["steps"] == 50 and trace["model"] == "Flux2Pipeline", (trace["steps"], trace["model"])
    assert trace["ranks"][0]["weights_bytes"] == [0, 4 * 32_223_281_152, 0], trace["ranks"][0]["weights_bytes"]
    words = ["plan", "--model", config, "--machine", "l40-pcie", "--dtype", "bf16", "--json"]
    one, two = (json.loads(box.run(*words, *more).out) for more in (["--devices", "1"], ["--ulysses-degree", "2"]))
    assert two["step_seconds"] < 0.7 * one["step_seconds"], (one, two)
