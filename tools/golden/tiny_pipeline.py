"""Makes tests/golden/tiny-pixart: a whole PixArt-Sigma pipeline with random weights, small enough for the repository,
and under golden/ the latents and pictures that diffusers generates with it. The tests of the command line use both."""
import io
import json
import pathlib
import random
import shutil

import sentencepiece
import torch
from diffusers import AutoencoderKL, DPMSolverMultistepScheduler, PixArtSigmaPipeline, PixArtTransformer2DModel
from safetensors.torch import save_file
from transformers import T5Config, T5EncoderModel, T5Tokenizer

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "tiny-pixart"
WORDS = "a red green blue circle square star above below left right of on the white black background blurry".split()
RUNS = {
    # name: the arguments of the pipeline's call
    "exact": dict(prompt=["A red circle above a blue square", ""], negative_prompt="blurry", height=64, width=96,
                  num_inference_steps=20, guidance_scale=4.5, use_resolution_binning=False),
    "binned": dict(prompt=["a green star"], height=72, width=104, num_inference_steps=4, guidance_scale=4.5),
    "unguided": dict(prompt=["a green star"], height=32, width=48, num_inference_steps=4, guidance_scale=1.0,
                     num_images_per_prompt=2, use_resolution_binning=False),
}
SEED = 7


def vocabulary():
    rng = random.Random(0)
    letters = "abcdefghijklmnopqrstuvwxyz0123456789,.-'"
    lines = [" ".join(rng.choice(WORDS) for _ in range(8)) for _ in range(400)]
    lines += ["".join(rng.choice(letters) for _ in range(12)) for _ in range(400)]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=120, model_type="unigram", pad_id=0, eos_id=1,
        unk_id=2, bos_id=-1, normalization_rule_name="identity", num_threads=1, minloglevel=2)
    return model.getvalue()


def randomize(model):
    for parameter in model.parameters():  # including those that start at zero
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=1.0 if parameter.mean() > 0.5 else 0.0, std=0.1)
        else:
            torch.nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
    return model.eval()


def build():
    torch.manual_seed(0)
    spiece = vocabulary()
    tokenizer_folder = FOLDER / "tokenizer"
    tokenizer_folder.mkdir(parents=True)
    (tokenizer_folder / "spiece.model").write_bytes(spiece)
    (tokenizer_folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "T5Tokenizer", "extra_ids": 0, "model_max_length": 300}) + "\n")
    text_encoder = randomize(T5EncoderModel(T5Config(
        vocab_size=120, d_model=12, d_kv=4, d_ff=20, num_layers=2, num_heads=3, feed_forward_proj="gated-gelu",
        tie_word_embeddings=False, is_encoder_decoder=False, use_cache=False)))
    transformer = randomize(PixArtTransformer2DModel(
        num_attention_heads=2, attention_head_dim=8, num_layers=2, sample_size=32, in_channels=4, out_channels=8,
        caption_channels=12, cross_attention_dim=16, use_additional_conditions=False, interpolation_scale=0.5))
    vae = randomize(AutoencoderKL(
        down_block_types=["DownEncoderBlock2D"] * 4, up_block_types=["UpDecoderBlock2D"] * 4,
        block_out_channels=[4, 4, 8, 8], layers_per_block=1, norm_num_groups=4, latent_channels=4, sample_size=256,
        scaling_factor=0.13025))
    return PixArtSigmaPipeline(
        tokenizer=T5Tokenizer.from_pretrained(tokenizer_folder), text_encoder=text_encoder, vae=vae,
        transformer=transformer, scheduler=DPMSolverMultistepScheduler(prediction_type="v_prediction"))


def write_golden(folder, runs, pipeline):
    """Writes the requests and the results of pipeline(**request, ...) under golden/."""
    golden = folder / "golden"
    golden.mkdir()
    (golden / "runs.json").write_text(json.dumps({"seed": SEED, "runs": runs}, indent=1) + "\n")
    latents = {}
    for name, options in runs.items():
        def run(output_type):
            return pipeline(**options, generator=torch.Generator().manual_seed(SEED), output_type=output_type).images
        latents[name] = run("latent")
        for number, picture in enumerate(run("pil")):
            picture.save(golden / f"{name}-{number}.png")
    save_file(latents, golden / "latents.safetensors")


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    pipeline = build()
    for name in ("text_encoder", "transformer", "vae", "scheduler"):
        getattr(pipeline, name).save_pretrained(FOLDER / name)
    pipeline.save_config(FOLDER)  # rewrites model_index.json; the tokenizer keeps the form of published checkpoints
    pipeline.set_progress_bar_config(disable=True)
    write_golden(FOLDER, RUNS, pipeline)


if __name__ == "__main__":
    main()
