"""The requests of tools/gpu/check_cuda.py, without what judges them."""
import dataclasses
import itertools
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHAPES = ["--model", "shapes", "--num-inference-steps", "6"]
XL = ["--model", "shapes-xl", "--num-inference-steps", "6"]
VIDEO = ["--model", "shapes-video", "--num-inference-steps", "4", "--num-frames", "17"]
GOLDEN = ROOT / "tests" / "golden"
TINY = {
    "tiny-pixart": ["--height", "48", "--width", "80", "--no-resolution-binning", "--num-inference-steps", "4"],
    "tiny-sd": ["--height", "96", "--width", "64", "--num-inference-steps", "4"],
    "tiny-sdxl": ["--height", "64", "--width", "96", "--num-inference-steps", "4"],
    "tiny-open-sora": ["--height", "24", "--width", "40", "--num-frames", "17", "--num-inference-steps", "3"],
    "tiny-open-sora-1.1": ["--height", "24", "--width", "40", "--num-frames", "6", "--num-inference-steps", "3"],
}
CIRCLE, STAR = "a red circle on a white background", "a green star on a pink background"
GIVEN = ["--reference-path", str(GOLDEN / "tiny-open-sora" / "golden" / "circle.png"), "--mask-strategy", "0"]


@dataclasses.dataclass(frozen=True)
class Case:
    """A request on the device. Its reference is the same request in fp32 on the CPU; `same_ranks` keeps its parallel methods."""
    name: str
    words: tuple
    method: tuple = ()
    ranks: int = 1
    dtype: str = "fp32"
    output: str = "latents"  # or the suffix of images and videos
    same_ranks: bool = False
    written: tuple = ()  # options of files in JSON, which must be valid


def case(name, words, **options):
    return Case(name, tuple(words), **options)


def one_rank_cases():
    """Every model in every data type first."""
    models = {"shapes": [CIRCLE, *SHAPES], "shapes-xl": [CIRCLE, *XL], "shapes-video": [CIRCLE, *VIDEO],
              **{name: [CIRCLE, "--model", GOLDEN / name, *words] for name, words in TINY.items()}}
    for name, words in models.items():
        yield case(f"{name} latents", words)
    for name, words in models.items():
        yield case(f"{name} image", words, output=".png")
    for name, words in models.items():
        for dtype in ("bf16", "fp16"):
            yield case(f"{name} {dtype}", words, dtype=dtype, output=".png")


def feature_cases():
    yield case("report and trace", [CIRCLE, *SHAPES], written=("--report", "--timeline"))
    yield case("two prompts", [CIRCLE, STAR, *SHAPES])
    yield case("two images in bf16", [CIRCLE, *SHAPES, "--num-images-per-prompt", "2"], dtype="bf16", output=".png")
    yield case("negative prompts", [CIRCLE, STAR, *SHAPES, "--negative-prompt", "blue", "--negative-prompt", "square"])
    yield case("negative prompt, xl", [CIRCLE, *XL, "--negative-prompt", "blue square"])
    yield case("no guidance", [CIRCLE, *SHAPES, "--guidance-scale", "1"])
    yield case("guidance rescale", [CIRCLE, *XL, "--guidance-rescale", "0.7"])
    yield case("vae tiling", [CIRCLE, *SHAPES, "--height", "384", "--width", "256", "--no-resolution-binning", "--vae-tiling"],
               output=".png")
    yield case("vae blocks", [CIRCLE, *SHAPES, "--vae-block-size", "24"], output=".png")
    yield case("odd size", [CIRCLE, *SHAPES, "--height", "80", "--width", "176", "--no-resolution-binning"], output=".png")
    for sampler in ("ddim", "pndm", "euler", "euler-a", "dpm++", "dpm++-sde", "dpm++-singlestep", "deis", "sa-solver", "unipc",
                    "ddpm", "lms", "heun", "kdpm2-a"):
        yield case(f"sampler {sampler}", [CIRCLE, *SHAPES, "--scheduler", sampler])
    yield case("sampler ddim, eta", [CIRCLE, *SHAPES, "--scheduler", "ddim", "--eta", "0.5"])
    for sampler in ("euler-karras", "euler-a", "lcm", "tcd"):
        yield case(f"sampler {sampler}, xl", [CIRCLE, *XL, "--scheduler", sampler])
    yield case("video from a reference", [CIRCLE, *VIDEO, *GIVEN])
    yield case("video from a reference, image", [CIRCLE, *VIDEO, *GIVEN], output=".png")
    yield case("video, edit of a reference", [CIRCLE, *VIDEO, *GIVEN[:2], "--mask-strategy", "0,0,0,0,2,0.5"])
    yield case("video in two parts", [CIRCLE, *VIDEO, "--loop", "2", "--num-frames", "34"], output=".png")
    yield case("video 1.1 in two parts", [CIRCLE, "--model", GOLDEN / "tiny-open-sora-1.1", *TINY["tiny-open-sora-1.1"], *GIVEN,
                                          "--loop", "2"], output=".png")
    yield case("one frame", [CIRCLE, *VIDEO, "--num-frames", "1"], output=".png")
    for suffix in (".gif", ".mp4", ".webm"):
        yield case(f"video as {suffix[1:]}", [CIRCLE, *VIDEO], output=suffix)


def method(name, *words, ranks, **options):
    """A case that gets its request later."""
    return case(name, [], method=words, ranks=ranks, **options)


def stale(stages, *words, ranks=2):
    return method("pipefusion stale", "--pipefusion-parallel-degree", stages, *words, ranks=ranks, same_ranks=True)


CFG, TENSOR, PIPE = "--use-cfg-parallel", "--tensor-parallel-degree", "--pipefusion-parallel-degree"
WARM = ["--warmup-steps", "6"]  # all steps of SHAPES and XL, and more than VIDEO has
METHODS = {  # model and size: methods; shapes has 3 heads, shapes-video too
    "shapes": ([CIRCLE, STAR, *SHAPES], [
        method("cfg", CFG, ranks=2),
        method("ulysses", "--ulysses-degree", "2", ranks=2),
        method("ring", "--ring-degree", "2", ranks=2),
        method("gather", "--kv-gather-degree", "2", ranks=2),
        method("unequal ulysses", "--ulysses-degree", "2", "--rank-shares", "3,2", ranks=2),
        method("unequal tensor", TENSOR, "2", "--rank-shares", "3,2", ranks=2),
        method("tensor", TENSOR, "2", ranks=2),
        method("pipefusion warm", PIPE, "2", *WARM, ranks=2),
        stale("2", "--warmup-steps", "1"),
        method("data", "--data-parallel-degree", "2", ranks=2),
        method("usp", "--ulysses-degree", "2", "--ring-degree", "2", ranks=4),
        method("gather x ring", "--kv-gather-degree", "2", "--ring-degree", "2", ranks=4),
        stale("4", "--num-pipeline-patch", "5", "--warmup-steps", "1", ranks=4),
        stale("2", "--warmup-steps", "1", "--ring-degree", "2", ranks=4),
        method("cfg x ulysses", CFG, "--ulysses-degree", "2", ranks=4),
        method("cfg x tensor", CFG, TENSOR, "2", ranks=4),
        method("data x cfg", "--data-parallel-degree", "2", CFG, ranks=4),
        stale("2", "--warmup-steps", "0", CFG, ranks=4),
    ]),
    "shapes-xl": ([CIRCLE, *XL], [
        method("cfg", CFG, ranks=2),
        method("ulysses", "--ulysses-degree", "2", ranks=2),
        method("ring", "--ring-degree", "2", ranks=2),
        *[method(f"displaced {mode}", "--displaced-patch-degree", "2", "--warmup-steps", "2", "--displaced-mode", mode, ranks=2,
                 same_ranks=True) for mode in ("corrected_async_gn", "full_sync", "stale_gn", "no_sync")],
        method("tensor", TENSOR, "2", ranks=2),
        method("displaced", "--displaced-patch-degree", "4", "--warmup-steps", "1", "--displaced-mode", "corrected_async_gn",
               ranks=4, same_ranks=True),
        method("cfg x displaced", CFG, "--displaced-patch-degree", "2", "--warmup-steps", "1", ranks=4, same_ranks=True),
        method("usp", "--ulysses-degree", "2", "--ring-degree", "2", ranks=4),
    ]),
    "shapes-video": ([CIRCLE, *VIDEO], [
        method("dsp", "--ulysses-degree", "2", "--dynamic-sequence-parallel", ranks=2),
        method("ulysses", "--ulysses-degree", "2", "--no-dynamic-sequence-parallel", ranks=2),
        method("ring", "--ring-degree", "2", ranks=2),
        method("cfg", CFG, ranks=2),
        method("tensor", TENSOR, "2", ranks=2),
        method("pipefusion warm", PIPE, "2", *WARM, ranks=2),
        stale("2", "--warmup-steps", "1"),
        method("pipefusion of frames", PIPE, "2", "--pipeline-patch-axis", "t", "--warmup-steps", "1", ranks=2, same_ranks=True),
        method("cfg x dsp", CFG, "--ulysses-degree", "2", ranks=4),
    ]),
    "tiny-open-sora": ([CIRCLE, "--model", GOLDEN / "tiny-open-sora", *TINY["tiny-open-sora"]], [
        method("tensor 2d", TENSOR, "4", "--split-scheme", "2d", ranks=4),
        method("ulysses", "--ulysses-degree", "4", "--no-dynamic-sequence-parallel", ranks=4),
    ]),
    "tiny-open-sora-1.1": ([CIRCLE, "--model", GOLDEN / "tiny-open-sora-1.1", *TINY["tiny-open-sora-1.1"]], [
        method("dsp", "--ulysses-degree", "2", ranks=2),  # its sampler draws noise
    ]),
}


def several_rank_cases():
    """The methods of all models in turn, so that a broken one shows early."""
    rows = [[dataclasses.replace(each, name=f"{model} {each.name} x{each.ranks}", words=tuple(words)) for each in methods]
            for model, (words, methods) in METHODS.items()]
    yield from (dataclasses.replace(row[0], name=f"{row[0].name} image", output=".png") for row in rows)
    yield from (each for turn in itertools.zip_longest(*rows) for each in turn if each)
    for model, (words, _) in itertools.islice(METHODS.items(), 3):
        for dtype in ("bf16", "fp16"):
            yield case(f"{model} ulysses {dtype}", words, method=("--ulysses-degree", "2"), ranks=2, dtype=dtype, output=".png")
    words = [CIRCLE, STAR, *SHAPES]
    yield case("shapes bf16 tensor", words, method=(TENSOR, "2"), ranks=2, dtype="bf16", output=".png")
    yield case("shapes bf16 ring", words, method=("--ring-degree", "2"), ranks=2, dtype="bf16", output=".png")
    yield case("shapes cfg, vae not parallel", words, method=(CFG, "--no-vae-parallel"), ranks=2, output=".png")
    yield case("shapes cfg, text not parallel", words, method=(CFG, "--no-text-encoder-parallel"), ranks=2)
    yield case("shapes cfg, vae tiling", [*words, "--height", "256", "--width", "256", "--no-resolution-binning", "--vae-tiling"],
               method=(CFG,), ranks=2, output=".png")
    yield case("shapes ring, noisy", [*words, "--scheduler", "euler-a"], method=("--ring-degree", "2"), ranks=2)
    yield case("shapes-xl ring, guidance rescale", [CIRCLE, *XL, "--guidance-rescale", "0.5"],
               method=("--ring-degree", "2"), ranks=2)
    yield case("shapes-video dsp of a reference", [CIRCLE, *VIDEO, *GIVEN], method=("--ulysses-degree", "2"), ranks=2)
    yield case("shapes-video dsp, gif", [CIRCLE, *VIDEO], method=("--ulysses-degree", "2"), ranks=2, output=".gif")
    yield case("shapes cfg, report and trace", words, method=(CFG,), ranks=2, written=("--report", "--timeline"))
