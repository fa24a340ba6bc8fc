"""`tessera models`, --help and --version."""
import json

from harness import MODEL, test


@test
def describes_a_checkpoint(box):
    outcome = box.run("models", MODEL)
    assert outcome.code == 0 and outcome.err == "", outcome
    for word in ("PixArtSigmaPipeline", "T5EncoderModel", "PixArtTransformer2DModel", "AutoencoderKL",
                 "DPMSolverMultistepScheduler", "T5Tokenizer", "fp32", "16.1 K", "1 file", "256 x 256", "can run"):
        assert word in outcome.out, (word, outcome.out)


@test
def says_why_a_checkpoint_cannot_run(box):
    model = box.copy_model()
    index = json.loads((model / "model_index.json").read_text())
    (model / "model_index.json").write_text(json.dumps({**index, "_class_name": "FluxPipeline"}))
    outcome = box.run("models", model)
    assert outcome.code == 3 and "cannot run" in outcome.out and "FluxPipeline" in outcome.out, outcome


@test
def help_and_version(box):
    for words in (["--help"], ["-h"], ["generate", "--help"], ["models", "--help"]):
        outcome = box.run(*words)
        assert outcome.code == 0 and "Usage: tessera" in outcome.out and outcome.err == "", outcome
    assert "Examples:" in box.run("generate", "--help").out
    outcome = box.run("--version")
    assert outcome.code == 0 and outcome.out.startswith("tessera "), outcome
