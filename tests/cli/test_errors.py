"""Bad input ends the program with one line and the right exit code, and leaves nothing behind."""
import json
import math
import os
import pathlib
import resource
import shlex
import shutil
import struct
import subprocess
import tempfile

import pytest

from files import read_safetensors, write_safetensors
from harness import MODEL, ROOT, SMALL
from test_launchers import finish_ranks, start_ranks, torchrun_variables

USAGE = [  # words after `generate "a cat" --model MODEL`, and text that the error must contain
    (["--height", "104", "--no-resolution-binning"], "96 and 112"),
    (["--no-resolution-binning=3"], "takes no value, got '3'"),
    (["--height", "3", "--no-resolution-binning"], "nearest valid size is 16"),
    (["--width", "100", "--no-resolution-binning"], "[--width] 100 is not a multiple of 16"),
    (["--height", "8", "--width", "100", "--no-resolution-binning"],
     "[--height] 8 is not a multiple of 16; the nearest valid size is 16; [--width] 100 is not a multiple of 16; the nearest valid "
     "sizes are 96 and 112"),
    (["--height", "72", "--no-resolution-binning"], "nearest valid sizes are 64 and 80"),
    (["--height", "0"], "from 1 to"),
    (["--height", "-64"], "from 1 to"),
    (["--width", "1000000000"], "from 1 to"),
    (["--height", "99999999999999999999"], "expected an integer"),
    (["--num-inference-steps", "0"], "must be 1 or more"),
    (["--num-inference-steps", "1000"], "[--num-inference-steps] must be at most 999 with dpm++ and the options of "),
    (["--num-inference-steps", "1001"], "[--num-inference-steps] must be at most 999 with dpm++ and the options of "),
    (["--num-inference-steps", "9223372036854775807"], "[--num-inference-steps] must be at most 999 with dpm++"),
    (["--num-inference-steps", "1001", "--scheduler", "ddim"], "[--num-inference-steps] must be at most 1000 with ddim"),
    (["--num-inference-steps", "20.5"], "expected an integer, got '20.5'"),
    (["--num-inference-steps", "20x"], "expected an integer, got '20x'"),
    (["--num-inference-steps", ""], "expected an integer, got ''"),
    (["--num-inference-steps="], "expected an integer, got ''"),
    (["--seed", "-1"], "0 to 18446744073709551615, got '-1'"),
    (["--seed", "18446744073709551616"], "0 to 18446744073709551615"),
    (["--seed", "7 "], "got '7 '"),
    (["--guidance-scale", "nan"], "finite"),
    (["--guidance-scale", "inf"], "finite"),
    (["--guidance-scale", "4,5"], "expected a number, got '4,5'"),
    (["--num-images-per-prompt", "0"], "from 1 to"),
    (["--num-images-per-prompt", "100000"], "from 1 to"),
    (["--max-sequence-length", "0"], "from 1 to"),
    (["--threads", "0"], "from 1 to"),
    (["--scheduler", "magic"], "magic"),
    (["--scheduler", "dpmpp_2m_karras"], "[--scheduler] unknown sampler 'dpmpp_2m_karras'; did you mean dpm++-karras?"),
    (["--scheduler-option", "karras"], "[--scheduler-option] expected KEY=VALUE, such as use_karras_sigmas=true, got 'karras'"),
    (["--scheduler-option", "use_karas_sigmas=true"],
     "[--scheduler-option] DPMSolverMultistepScheduler has no option 'use_karas_sigmas'; did you mean use_karras_sigmas?"),
    (["--scheduler-option", "use_karras_sigmas=yes"], "[--scheduler-option] 'use_karras_sigmas' must be true or false, got \"yes\""),
    (["--scheduler-option", "use_dynamic_shifting=true"],
     "[--scheduler-option] 'use_dynamic_shifting' is not supported; remove it, or choose another sampler with --scheduler"),
    (["--scheduler-option", "thresholding=true", "--scheduler-option", "sample_max_value=2", "--ring-degree", "2"],
     "but the sampler thresholds each image as a whole (thresholding with sample_max_value above 1)"),
    (["--scheduler-option", "steps_offset=1", "--scheduler-option", "steps_offset=0"],
     "[--scheduler-option] 'steps_offset' is given twice"),
    (["--dtype", "fp64"], "auto, fp32, bf16 or fp16"),
    (["--device", "gpu"], "cpu, cuda or cuda:N"),
    (["--device", "cuda:x"], "cpu, cuda or cuda:N"),
    (["--output-type", "jpeg"], "image or latent"),
    (["-o", "a.png", "-o", "b.png"], "[--output] is given more than once"),
    (["--lora", "x"], "[--lora] not supported yet (LoRA files)"),
    (["--strength", "0.5"], "[--strength] not supported yet (images to begin from)"),
    (["--fp16"], "[--fp16] unknown option; did you mean --dtype?"),
    (["--prompt2", "x"], "did you mean --prompt-2?"),
    (["\u2014seed", "3"], "[PROMPT] '\u2014seed' begins with a dash that is not the one on the keyboard"),
    (["-o", "out.bmp"], "must end in .png, .jpg, .jpeg, .webp for images"),
    (["-o", "out.png", "--output-type", "latent"], "must end in .safetensors: latents are written in that format"),
    (["-o", "missing/out.png"], "[--output] [missing/out.png] its folder does not exist; create that first"),
    (["-o", "/proc/out.png"], "[--output] [/proc/out.png] cannot create the file"),
    (["--report", "missing/run.json"], "[--report] [missing/run.json] its folder does not exist; create that first"),
    (["--report", "/"], "[--report] [/] is a folder"),
    (["--timeline", "missing/run.json"], "[--timeline] [missing/run.json] its folder does not exist; create that first"),
    (["--heigth", "64"], "did you mean --height?"),
    (["--guidance", "4"], "did you mean --guidance"),
    (["--steps-of-inference", "4"], "unknown option"),
    (["--steps", "4"], "did you mean --num-inference-steps?"),
    (["-W", "64"], "did you mean --width?"),
    (["-W64"], "did you mean --width?"),
    (["--use-cfg-parallel", "2"], "[--use-cfg-parallel] takes no value, got '2'"),
    (["--vae-tiling", "true"], "[--vae-tiling] takes no value, got 'true'"),
    (["--negative-prompt", "blue", "green"], "[--negative-prompt] takes one value; 'green' after it would be one more prompt"),
    (["-"], "[PROMPT] a lone - is not a prompt; --prompt-file - reads prompts from standard input"),
    (["--guidance-scale", "-2"], "must be 0 or more, got -2"),
    (["--report", "-"], "[--report] '-' is not standard output here"),
    (["--timeline", "-"], "[--timeline] '-' is not standard output here"),
    (["-z"], "unknown option"),
    (["--seed"], "needs a value"),
]


def test_usage_errors(box):
    for words, needle in USAGE:
        box.refuse(2, needle, "generate", "a cat", "--model", MODEL, *words)


def test_commands(box):
    box.refuse(2, "did you mean generate?", "genrate", "a cat")
    box.refuse(2, "tessera generate", "a cat")
    box.refuse(2, "did you mean --help?", "help")
    box.refuse(2, "a command comes first", "--seed", "1")
    box.refuse(2, "one argument too many", "models", MODEL, "more")
    box.refuse(2, "at least one prompt", "generate", "--model", MODEL)
    outcome = box.run()
    assert outcome.code == 2 and "Usage" in outcome.err and outcome.out == "", outcome


def test_text_that_is_not_utf8(box):
    box.refuse(2, "UTF-8", "generate", b"a \xff cat", "--model", MODEL)
    box.refuse(2, "UTF-8", "generate", "a cat", "--negative-prompt", b"\xc3", "--model", MODEL)


def test_no_checkpoint(box):
    box.refuse(3, "[--model] no such folder", "generate", "a cat", "--model", "")
    box.refuse(3, "[nowhere] no such folder, and not the name of a shipped model; shipped models: shapes, shapes-video, shapes-xl", "generate", "a cat", "--model", "nowhere")
    box.refuse(3, "did you mean shapes?", "models", "shape/")
    box.refuse(3, "did you mean shapes-xl?", "generate", "a cat", "--model", "shapes_xl")
    box.refuse(3, "[nowhere.safetensors] no such file", "generate", "a cat", "--model", "nowhere.safetensors")
    single = ["generate", "a cat", "--model", ROOT / "tests" / "golden" / "tiny-sdxl" / "single.safetensors", "--config"]
    box.refuse(3, "[no/where] no such folder; --config wants", *single, "no/where")
    box.refuse(3, "holds no model_index.json; --config wants", *single, MODEL / "vae")
    # A part names its model, and the folder of a hub's cache the snapshot.
    box.refuse(3, f"[{MODEL / 'vae'}] holds no model_index.json; did you mean {MODEL}?", "generate", "a cat", "--model", MODEL / "vae")
    (box.folder / "models--x" / "snapshots").mkdir(parents=True)
    (box.folder / "models--x" / "snapshots" / "0123").symlink_to(MODEL)
    box.refuse(3, "did you mean models--x/snapshots/0123?", "generate", "a cat", "--model", "models--x")
    box.refuse(3, "did you mean models--x/snapshots/0123?", "generate", "a cat", "--model", "models--x/snapshots")
    for name in ("0000", "4567"):
        (box.folder / "models--x" / "snapshots" / name).symlink_to(MODEL)
    (box.folder / "models--x" / "refs").mkdir()
    (box.folder / "models--x" / "refs" / "main").write_text("4567")
    box.refuse(3, "did you mean models--x/snapshots/4567?", "generate", "a cat", "--model", "models--x")
    box.refuse(3, "no such folder", "models", "no/where")
    (box.folder / "empty").mkdir()
    box.refuse(3, "model_index.json", "generate", "a cat", "--model", "empty")
    box.refuse(3, "is a file", "generate", "a cat", "--model", MODEL / "model_index.json")


TRANSFORMER = "transformer/diffusion_pytorch_model.safetensors"


def refuse_model(box, needle, model):
    return box.refuse(3, needle, "generate", "a cat", "--model", model, "--num-inference-steps", "1", "--dtype", "fp32",
                      "--height", "32", "--width", "32", "--no-resolution-binning")


def test_links_that_lead_nowhere(box):
    model = box.copy_model()
    weights = model / "vae" / "diffusion_pytorch_model.safetensors"
    weights.unlink()
    weights.symlink_to("../../blobs/gone")
    gone = "vae/diffusion_pytorch_model.safetensors] is a link to ../../blobs/gone, which does not exist; download it again"
    refuse_model(box, gone, model)
    outcome = box.run("models", model)
    assert "cannot run: " in outcome.out and outcome.out.count(gone) == 1 and outcome.err == "", outcome
    shutil.rmtree(model / "vae")
    (model / "vae").symlink_to("vae")
    outcome = box.run("models", model)
    assert "damaged" in outcome.out, outcome
    assert "/vae] cannot open: Too many levels of symbolic links" in outcome.out, outcome
    refuse_model(box, "Too many levels of symbolic links", model)
    model = box.copy_model()
    shutil.rmtree(model / "tokenizer")
    (model / "tokenizer").symlink_to("tokenizer")
    box.refuse(3, "/tokenizer] cannot open: Too many levels of symbolic links", "trace", "--model", model, "-o", "x.json")


def test_outputs_that_cannot_be_replaced(box):
    words = [box.program, "generate", "a cat", "--model", MODEL, "--quiet", *SMALL]
    (box.folder / "host.png").write_text("old")
    (box.folder / "out.png").write_text("old")
    mount = shlex.join(["mount", "--bind", "host.png", "out.png"])
    command = ["unshare", "-m", "sh", "-c", f"{mount} && {shlex.join(map(os.fspath, words))}"]
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "sh", "-c", mount], cwd=box.folder, capture_output=True).returncode != 0:
        pytest.skip("no right to mount")
    done = subprocess.run(command, cwd=box.folder, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == "out.png\n", done
    assert (box.folder / "host.png").read_bytes().startswith(b"\x89PNG"), done
    assert box.files() == ["host.png", "out.png"]


def test_weights_truncated_anywhere(box):
    model = box.copy_model()
    for part in (TRANSFORMER, "vae/diffusion_pytorch_model.safetensors", "text_encoder/model.safetensors"):
        whole = (model / part).read_bytes()
        (header,) = struct.unpack("<Q", whole[:8])
        for length in (0, 1, 7, 8, 9, 100, header + 7, header + 8, header + 9, len(whole) // 2, len(whole) - 1):
            (model / part).write_bytes(whole[:length])
            outcome = refuse_model(box, part, model)
            assert outcome.err.endswith("; get the file again\n"), (length, outcome)
        (model / part).write_bytes(whole)


def test_json_truncated_or_malformed(box):
    model = box.copy_model()
    for part in ("model_index.json", "transformer/config.json", "vae/config.json", "text_encoder/config.json",
                 "scheduler/scheduler_config.json"):
        whole = (model / part).read_bytes()
        for text in (b"", whole[:20], whole[:-3], b"[]", b"7", b"{\"a\": " * 5000, b"\xff\xfe"):
            (model / part).write_bytes(text)
            refuse_model(box, part, model)
        (model / part).unlink()
        refuse_model(box, part, model)
        (model / part).write_bytes(whole)


def test_headers_with_wrong_sizes_and_shapes(box):
    model = box.copy_model()
    path = model / TRANSFORMER
    whole = path.read_bytes()
    for length in (2 ** 60, 2 ** 64 - 1, len(whole), 0):
        path.write_bytes(struct.pack("<Q", length) + whole[8:])
        refuse_model(box, TRANSFORMER, model)
    (length,) = struct.unpack("<Q", whole[:8])
    header = json.loads(whole[8:8 + length])
    name = next(key for key in header if key != "__metadata__")
    for change in ({"data_offsets": [0, 10 ** 15]}, {"data_offsets": [8, 4]}, {"data_offsets": [-1, 4]},
                   {"dtype": "F31"}, {"shape": [2 ** 62, 8]}, {"shape": [-1]}, {"shape": "wide"}):
        text = json.dumps({**header, name: {**header[name], **change}}).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + whole[8 + length:])
        refuse_model(box, TRANSFORMER, model)


def test_tensors_of_wrong_shape_or_dtype(box):
    model = box.copy_model()
    path = model / TRANSFORMER
    tensors, metadata = read_safetensors(path)
    name = "proj_out.weight"
    dtype, shape, data = tensors[name]

    def write(**changes):
        write_safetensors(path, {**{key: value for key, value in tensors.items() if key != name}, **changes}, metadata)

    write(**{name: (dtype, shape[::-1], data)})
    outcome = refuse_model(box, name, model)
    assert str(shape[0]) in outcome.err and str(shape[1]) in outcome.err, outcome
    assert "load text encoder" not in outcome.err, outcome  # the shape is checked before any weight is read
    write(**{name: ("I32", shape, data)})
    refuse_model(box, name, model)
    write()
    refuse_model(box, name, model)


def test_weights_that_are_not_finite(box):
    for part, key, rest in ((TRANSFORMER, "proj_out.bias", []), (TRANSFORMER, "proj_out.bias", ["--dtype", "bf16"]),
                            ("text_encoder/model.safetensors", "shared.weight", ["--dtype", "bf16"]),
                            ("vae/diffusion_pytorch_model.safetensors", "decoder.conv_in.bias", []),
                            ("vae/diffusion_pytorch_model.safetensors", "decoder.conv_in.bias", ["--dtype", "bf16", "--ulysses-degree", "2"])):
        model = box.copy_model()
        tensors, metadata = read_safetensors(model / part)
        dtype, shape, data = tensors[key]
        write_safetensors(model / part, {**tensors, key: (dtype, shape, struct.pack("<f", math.nan) * (len(data) // 4))}, metadata)
        needle = f"[{(model / part).parent}] the weight {key} holds numbers that are not finite"
        box.refuse(3, needle, "generate", "a cat", "--model", model, *SMALL, *rest)


def test_checkpoints_that_cannot_run(box):
    model = box.copy_model()
    index = json.loads((model / "model_index.json").read_text())

    def change_json(part, **changes):
        config = json.loads((model / part).read_text())
        (model / part).write_text(json.dumps({**config, **changes}))
        return config

    (model / "model_index.json").write_text(json.dumps({**index, "_class_name": "KandinskyPipeline"}))
    outcome = refuse_model(box, "KandinskyPipeline", model)
    assert "PixArtSigmaPipeline" in outcome.err, outcome  # the message lists what can run
    (model / "model_index.json").write_text(json.dumps(index))

    change_json("model_index.json", scheduler=["diffusers", "MagicScheduler"])
    outcome = refuse_model(box, "MagicScheduler", model)
    assert "give --scheduler one of ddim, pndm" in outcome.err, outcome
    (model / "model_index.json").write_text(json.dumps(index))

    config = change_json("transformer/config.json", num_attention_heads=0)
    refuse_model(box, "num_attention_heads", model)
    (model / "transformer/config.json").write_text(json.dumps({**config, "patch_size": -2}))
    refuse_model(box, "patch_size", model)
    (model / "transformer/config.json").write_text(json.dumps(config))

    config = change_json("vae/config.json", latent_channels=8)
    refuse_model(box, "'latent_channels' must be 4, as in_channels of the denoiser", model)
    (model / "vae/config.json").write_text(json.dumps(config))

    whole = (model / TRANSFORMER).read_bytes()
    tensors, metadata = read_safetensors(model / TRANSFORMER)
    name = "caption_projection.linear_1.weight"
    width = tensors[name][1][0]
    write_safetensors(model / TRANSFORMER, {**tensors, name: ("F32", [width, 13], bytes(width * 13 * 4))}, metadata)
    config = change_json("transformer/config.json", caption_channels=13)
    refuse_model(box, "but the denoiser takes 13", model)
    (model / "transformer/config.json").write_text(json.dumps({**config, "norm_eps": -1.0}))
    refuse_model(box, "'norm_eps' must be from 0 to 1, got -1", model)
    (model / "transformer/config.json").write_text(json.dumps(config))
    (model / TRANSFORMER).write_bytes(whole)

    (model / TRANSFORMER).rename(model / "transformer/diffusion_pytorch_model.bin")
    refuse_model(box, "transformer", model)
    (model / "transformer/diffusion_pytorch_model.bin").rename(model / TRANSFORMER)

    shutil.rmtree(model / "tokenizer")
    refuse_model(box, "tokenizer", model)


def test_full_disk(box):
    small = ["generate", "a cat", "--model", MODEL, "--dtype", "fp32", "--height", "64", "--width", "64",
             "--no-resolution-binning", "--num-inference-steps", "1"]
    box.refuse(2, "File too large (ulimit -f)", *small, limits={resource.RLIMIT_FSIZE: 4096})
    outcome = box.run(*small, "--report", "/dev/full")
    assert outcome.code == 2 and "No space left" in outcome.err, outcome
    (box.folder / "out.png").unlink()


def test_a_folder_in_which_nothing_can_be_renamed(box):
    folder = box.folder / "log"
    folder.mkdir()
    if subprocess.run(["chattr", "+a", folder], capture_output=True).returncode != 0:
        pytest.skip("no right to change attributes, or a file system without them")
    try:
        for option in ("-o", "--report", "--timeline"):
            box.refuse(2, "nothing can be renamed in its folder (chattr +a)", "generate", "a cat", "--model", MODEL, *SMALL, option,
                       folder / ("out.png" if option == "-o" else "out.json"))
    finally:
        subprocess.run(["chattr", "-a", folder], check=True)


def test_full_file_system(box):
    with tempfile.TemporaryDirectory() as mount:
        words = ["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", mount]
        if os.geteuid() != 0 or subprocess.run(words, capture_output=True).returncode != 0:
            pytest.skip("no right to mount a small file system")
        try:
            box.refuse(2, "No space left", "generate", "a cat", "--model", MODEL, "--dtype", "fp32", "--height", "64",
                       "--width", "64", "--no-resolution-binning", "--num-inference-steps", "1", "-o", f"{mount}/out.png")
            assert not list(pathlib.Path(mount).iterdir())
        finally:
            subprocess.run(["umount", mount], check=True)


def test_standard_streams_that_cannot_be_written(box):
    words = ["generate", "a cat", "--model", MODEL, "--seed", "5", "--threads", "1", *SMALL]
    box.run(*words, "-o", "expected.png")
    expected = (box.folder / "expected.png").read_bytes()
    with open("/dev/full", "wb") as full:
        done = subprocess.run([box.program, *words], cwd=box.folder, stdout=subprocess.PIPE, stderr=full)
        assert (done.returncode, done.stdout) == (0, b"out.png\n"), done  # only the messages are lost
        done = subprocess.run([box.program, "models", MODEL], stdout=full, stderr=subprocess.PIPE)
        assert done.returncode == 2 and b"No space left" in done.stderr, done
    (box.folder / "out.png").unlink()
    command = " ".join(map(shlex.quote, map(str, [box.program, *words])))
    assert subprocess.run(["sh", "-c", command + " <&- >&- 2>&-"], cwd=box.folder).returncode == 0
    assert (box.folder / "out.png").read_bytes() == expected


def test_outputs_with_the_same_path(box):
    box.refuse(2, "[--report] 'x-1.png'", "generate", "a cat", "a dog", "--model", MODEL, "-o", "x.png", "--report",
               box.folder / "x-1.png", *SMALL)
    box.refuse(2, "[--timeline] 'run.json' is also the file of --report", "generate", "a cat", "--model", MODEL, "--report", "run.json",
               "--timeline", "run.json", *SMALL)
    (box.folder / "link.json").symlink_to("x.png")  # which is not there yet
    box.refuse(2, "[--report] 'x.png'", "generate", "a cat", "--model", MODEL, "-o", "x.png", "--report", "link.json", *SMALL)
    (box.folder / "link.json").unlink()


def test_out_of_memory(box):
    # The noise takes as much as the limit, of which the libraries themselves need only a part.
    box.refuse(5, "not enough memory", "generate", "a cat", "--model", MODEL, "--dtype", "fp32", "--height", "4096", "--width",
               "4096", "--no-resolution-binning", "--num-images-per-prompt", "500", "--num-inference-steps", "1",
               limits={resource.RLIMIT_AS: 2_000_000_000})


def test_what_cannot_fit_is_refused_before_weights_are_read(box):
    """The need is known from shapes alone: some terabytes here."""
    words = ["generate", "a boat", "--model", "shapes-video", "--num-frames", "1700", "--height", "16384", "--width", "16384", "-o",
             "boat.png"]
    for dtype, advice in (("bf16", "; try a smaller size or fewer frames\n"), ("fp32", "; try a smaller size or fewer frames or --dtype bf16\n")):
        run = box.refuse(5, " TiB, but this machine has ", *words, "--dtype", dtype)
        assert run.err.endswith(advice), run
        assert box.run(*words, "--dtype", dtype, "--dry-run") == run
    assert box.files() == [], box.files()
    ranks = [*words, "--use-cfg-parallel"]
    for code, _, err in finish_ranks(start_ranks(box, torchrun_variables, [ranks, ranks])):
        assert code == 5 and (not err or "[memory] the run needs about " in err), (code, err)


def test_a_run_warns_of_memory_that_is_not_free(box):
    """The longest video that is not refused needs nearly all memory that there is, of which some is always in use."""
    def words(frames, side):
        return ["generate", "a boat", "--model", "shapes-video", "--dtype", "fp32", "--height", str(side), "--width", str(side),
                "--num-frames", str(frames), "--use-cfg-parallel", "-o", "boat.png"]

    def is_refused(frames, side):
        outcome = box.run(*words(frames, side), "--dry-run")
        assert outcome.code == (5 if "[memory]" in outcome.err else 0), outcome
        return outcome.code == 5

    fits, refused = 17, 1700
    side = next(side for side in (1024, 2048, 4096, 8192, 16384) if is_refused(refused, side))
    while refused - fits > 1 + fits // 200:
        middle = (fits + refused) // 2
        fits, refused = (fits, middle) if is_refused(middle, side) else (middle, refused)
    longest = words(fits, side)
    plan = box.run(*longest, "--dry-run")
    warnings = [line for line in plan.err.splitlines() if line.startswith("warning: the run needs about ")]
    assert plan.code == 0 and len(warnings) == 1, plan
    assert warnings[0].endswith(" free, beyond which the kernel may kill it; try a smaller size or fewer frames or --dtype bf16"), warnings
    need = json.loads(plan.out)["memory_bytes"]
    assert 1 << 30 < need["decode"] < need["denoise"], need
    # A run that starts its ranks, and one whose ranks a launcher starts.
    for ranks in (start_ranks(box, lambda *_: {}, [longest]), start_ranks(box, torchrun_variables, [longest, longest])):
        said = " "
        while said and not said.startswith(("warning: ", "shapes-video (")):
            said = ranks[0].stderr.readline()
        for rank in ranks:  # before they take that memory
            rank.kill()
        finish_ranks(ranks)
        assert said.startswith("warning: the run needs about "), said
