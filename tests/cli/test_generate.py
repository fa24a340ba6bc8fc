"""Tests the files, numbers and reports of successful runs, and runs that are stopped."""
import fcntl
import json
import math
import os
import pathlib
import pty
import re
import shutil
import signal
import struct
import subprocess
import termios
import time

import pytest

from files import assert_near, floats, psnr, read_png, read_safetensors
from harness import GOLDEN, MODEL, ROOT, SMALL

RUNS = json.loads((GOLDEN / "runs.json").read_text())


def arguments_of(options):
    """Returns the arguments of diffusers' pipeline as words of the command line, in xDiT's spelling."""
    words = ["--seed", str(RUNS["seed"])]
    for key, value in options.items():
        if key == "prompt":
            words += value
        elif key == "use_resolution_binning":
            words += [] if value else ["--no_resolution_binning"]
        else:
            words += [f"--{key}", str(value)]
    return words


def test_latents_equal_diffusers(box):
    expected, _ = read_safetensors(GOLDEN / "latents.safetensors")
    for name, options in RUNS["runs"].items():
        golden = (expected[name][1], floats(expected[name]))
        # The program runs with one thread, and with the default number.
        for env in ({"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": None}):
            assert_near(box.latents(*arguments_of(options), env=env), golden, 1e-3)


def test_pictures_equal_diffusers(box):
    for name, options in RUNS["runs"].items():
        outcome = box.generate(*arguments_of(options), "-o", f"{name}.png")
        for number, path in enumerate(outcome.out.split()):
            width, height, pixels, _ = read_png(box.folder / path)
            expected = read_png(GOLDEN / f"{name}-{number}.png")
            assert (width, height) == expected[:2], (width, height)
            quality = psnr(pixels, expected[2])
            assert quality > 50, (name, number, quality)


def test_several_pictures_are_numbered_in_order(box):
    outcome = box.generate("a cat", "a dog", "--num-images-per-prompt", "2", "-o", "x.png", *SMALL)
    assert outcome.out.split() == ["x-0.png", "x-1.png", "x-2.png", "x-3.png"], outcome
    assert box.files() == outcome.out.split()
    parameters = [read_png(box.folder / path)[3]["parameters"].split("\n")[0] for path in outcome.out.split()]
    assert parameters == ["a cat", "a cat", "a dog", "a dog"], parameters
    texts = [json.loads(read_png(box.folder / path)[3]["tessera"]) for path in outcome.out.split()]
    assert all(text["prompt"] == ["a cat", "a dog"] for text in texts), texts
    assert [text["image_index"] for text in texts] == [0, 1, 2, 3]
    # Which of the pictures of its seed each is.
    for number, path in enumerate(outcome.out.split(), 1):
        assert f", Seed: {texts[0]['seed']}, Image: {number} of 4, Size: " in read_png(box.folder / path)[3]["parameters"]
    for arguments, left in ((["--num-images-per-prompt", "3"], "[x-3.png] was left by another run"), ([], None)):
        outcome = box.generate("a cat", *arguments, "-o", "x.png", *SMALL)
        assert left in outcome.err if left else "another run" not in outcome.err, outcome


def test_one_negative_prompt_for_all_or_one_for_each(box):
    words = ["a cat", "--negative-prompt", "blurry", "a dog", "--seed", "5", *SMALL]
    box.generate(*words, "-o", "x.png")
    one = [read_png(box.folder / f"x-{i}.png") for i in range(2)]
    assert all("\nNegative prompt: blurry\n" in picture[3]["parameters"] for picture in one), one
    box.generate(*words, "--negative-prompt", "a red circle", "-o", "x.png", "--report", "run.json")
    each = [read_png(box.folder / f"x-{i}.png") for i in range(2)]
    assert "\nNegative prompt: blurry\n" in each[0][3]["parameters"] and psnr(each[0][2], one[0][2]) > 50
    assert "\nNegative prompt: a red circle\n" in each[1][3]["parameters"] and each[1][2] != one[1][2]
    assert box.report()["settings"]["negative_prompt"] == ["blurry", "a red circle"]
    ranks = box.latents(*words, "--negative-prompt", "a red circle", "--use-cfg-parallel")
    assert_near(ranks, box.latents(*words, "--negative-prompt", "a red circle"), 1e-4)
    for path in list(box.folder.glob("x-*.png")):
        path.unlink()
    box.refuse(2, "[--negative-prompt] 3 of them for 2 prompts", "generate", "--model", MODEL, *words,
               *["--negative-prompt", "c"] * 2)


def test_what_has_no_effect_is_said_and_not_recorded(box):
    outcome = box.generate("a cat", "--negative-prompt", "b", "--guidance-scale", "1", "--report", "run.json", *SMALL)
    (warning,) = [line for line in outcome.err.splitlines() if line.startswith("warning: ")]
    assert warning == ("warning: --negative-prompt has no effect: --guidance-scale is 1, and there is guidance only above 1"), outcome
    assert not {"negative_prompt", "eta"} & set(box.report()["settings"])
    assert "Negative prompt" not in read_png(box.folder / "out.png")[3]["parameters"]
    outcome = box.generate("a cat", "--negative-prompt", "b", "--guidance-scale", "0.5", "--ulysses-degree", "2", *SMALL)
    assert outcome.err.count("--negative-prompt has no effect") == 1, outcome


def test_latents_that_are_not_finite_end_the_run(box):
    words = ["generate", "a cat", "--model", MODEL, "--seed", "5", "--dtype", "fp32", *SMALL, "--guidance-scale", "1e30"]
    needle = "[--guidance-scale] the latents are not finite from step 2 of 2 on, with 1e+30; try a smaller one"
    for flags in ([], ["--output-type", "latent"], ["--use-cfg-parallel"], ["--ulysses-degree", "2"], ["--data-parallel-degree", "2", "a dog"],
                  ["--pipefusion-parallel-degree", "2"]):
        box.refuse(2, needle, *words, *flags)


def test_a_safety_checker_is_not_run_and_that_is_said(box):
    model = box.copy_model()
    index = json.loads((model / "model_index.json").read_text())
    index["safety_checker"] = ["stable_diffusion", "StableDiffusionSafetyChecker"]
    (model / "model_index.json").write_text(json.dumps(index))
    words = ["generate", "a cat", "--model", model, *SMALL]
    assert "safety checker" not in box.run(*words).err  # its folder is not there
    (model / "safety_checker").mkdir()
    for flags, times in (["--quiet"], 1), (["--ulysses-degree", "2"], 1), (["--output-type", "latent"], 0):
        outcome = box.run(*words, *flags)
        assert outcome.code == 0 and outcome.err.count("safety checker is not run") == times, outcome
    outcome = box.run("models", model)
    (line,) = [line for line in outcome.out.splitlines() if line.startswith("  safety_checker")]
    assert line.endswith("not run"), outcome


def test_a_seed_gives_the_same_file_again(box):
    for path in ("a.png", "b.png"):
        box.generate("a cat", "--seed", "5", "-o", path, *SMALL)
    assert (box.folder / "a.png").read_bytes() == (box.folder / "b.png").read_bytes()
    box.generate("a cat", "--seed", "6", "-o", "c.png", *SMALL)
    assert read_png(box.folder / "a.png")[2] != read_png(box.folder / "c.png")[2]


def test_without_a_seed_one_is_drawn_and_reported(box):
    seeds = set()
    for _ in range(2):
        outcome = box.generate("a cat", *SMALL)
        seed = json.loads(read_png(box.folder / "out.png")[3]["tessera"])["seed"]
        assert f"seed {seed}," in outcome.err, outcome
        seeds.add(seed)
    assert len(seeds) == 2, seeds


def test_png_text(box):
    box.generate("A caf\u00e9", "--negative-prompt", "\u732b", "--seed", "5", "--guidance-scale", "3.5", *SMALL)
    text = read_png(box.folder / "out.png")[3]
    first, second, third = text["parameters"].split("\n")
    assert first == "A caf\u00e9" and second == "Negative prompt: \u732b", text
    assert third.startswith("Steps: 2, Sampler: DPMSolverMultistepScheduler, CFG scale: 3.5, Seed: 5, Size: 48x32, "
                            "Model: tiny-pixart, Version: Tessera "), third
    settings = json.loads(text["tessera"])
    assert settings["prompt"] == ["A caf\u00e9"] and settings["negative_prompt"] == ["\u732b"], settings


def test_options_of_the_sampler(box):
    words = ["a cat", "--seed", "5", "--report", "run.json", *SMALL]
    options = ["--scheduler-option", "use_karras_sigmas=true", "--scheduler-option", "solver_order=1"]
    outcome = box.generate(*words, *options, "-o", "options.png")
    assert "1 image of 32 x 48, DPMSolverMultistepScheduler with use_karras_sigmas=true, solver_order=1, 2 steps" \
        in outcome.err, outcome
    assert box.report()["settings"]["scheduler_option"] == ["use_karras_sigmas=true", "solver_order=1"]
    image, text = read_png(box.folder / "options.png")[2:]
    assert 'Sampler: DPMSolverMultistepScheduler, Sampler options: "use_karras_sigmas=true, solver_order=1", CFG scale: ' \
        in text["parameters"], text
    assert json.loads(text["tessera"])["scheduler_option"] == ["use_karras_sigmas=true", "solver_order=1"], text
    # The same as from a file that says so, by the name of these noise levels, and on two ranks.
    model = box.copy_model()
    path = model / "scheduler" / "scheduler_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "use_karras_sigmas": True, "solver_order": 1}))
    for name, same in {"file": ["--model", model], "name": ["--scheduler", "dpm++-karras", *options[2:]],
                       "ranks": [*options, "--use-cfg-parallel"]}.items():
        box.generate(*words, *same, "-o", f"{name}.png")
        assert psnr(read_png(box.folder / f"{name}.png")[2], image) > 50, name
    box.generate(*words, "-o", "without.png")
    assert psnr(read_png(box.folder / "without.png")[2], image) < 40


def test_report(box):
    outcome = box.generate("a cat", "--seed", "5", "--report", "run.json", "--threads", "1", "--scheduler", "ddim", *SMALL)
    report = json.loads((box.folder / "run.json").read_text())
    assert list(report) == ["settings", "seconds", "step_seconds", "ranks", "outputs"], list(report)
    assert list(report["settings"])[:3] == ["model", "model_class", "prompt"], report
    settings = report["settings"]
    for key, value in {"prompt": ["a cat"], "height": 32, "width": 48, "seed": 5,
                       "num_inference_steps": 2, "guidance_scale": 4.5, "scheduler": "ddim",
                       "scheduler_class": "DDIMScheduler", "dtype": "fp32",
                       "threads": 1, "use_resolution_binning": False, "model_class": "PixArtSigmaPipeline"}.items():
        assert settings[key] == value, (key, settings[key])
    seconds = report["seconds"]
    assert list(seconds) == ["load", "encode", "denoise", "decode", "write", "total"], seconds
    assert seconds["write"] > 0, seconds
    assert sum(value for key, value in seconds.items() if key != "total") <= seconds["total"], seconds
    assert len(report["step_seconds"]) == 2 and sum(report["step_seconds"]) <= seconds["denoise"], report
    (rank,) = report["ranks"]
    weights = sum(path.stat().st_size for path in MODEL.glob("*/*.safetensors"))
    assert rank["peak_rss_bytes"] > 1 << 20 and 0 < rank["bytes_read"] <= weights, rank
    assert rank["weights_bytes"] > 0, rank
    assert report["outputs"] == outcome.out.split() == ["out.png"], report


def as_duration(seconds):
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"


def test_messages_say_what_the_report_has(box):
    outcome = box.generate("a cat", "a dog", "--num-images-per-prompt", "2", "--report", "run.json", "--guidance-scale", "3.5", "--threads", "1", *SMALL)
    report = box.report()
    head, *phases, summary = outcome.err.splitlines()
    assert head == (f"tiny-pixart (PixArt-Sigma): 4 images of 32 x 48, 2 steps, guidance 3.5, seed {report['settings']['seed']}, "
                    "fp32 on 1 thread"), head
    seconds = report["seconds"]
    parts = ", ".join(f"{name} {as_duration(seconds[name])}" for name in ("load", "encode", "denoise", "decode", "write"))
    assert summary == f"{as_duration(seconds['total'])} in all: {parts}", (summary, seconds)
    shown = dict(line.rsplit("  ", 1) for line in phases)
    shown = {name.strip(): text.strip() for name, text in shown.items()}
    assert list(shown) == ["load text encoder", "encode", "load denoiser", "denoise", "load decoder", "decode"], phases
    for name in ("encode", "denoise", "decode"):
        assert shown[name] == as_duration(seconds[name]), (phases, seconds)
    loads = sum(float(text.split()[0]) for name, text in shown.items() if name.startswith("load"))
    assert abs(loads - seconds["load"]) < 0.02, (phases, seconds)  # each is rounded
    assert outcome.out.split() == report["outputs"] == [f"out-{i}.png" for i in range(4)], outcome


def test_a_report_has_the_peak_of_memory(box):
    words = ["a cat", "--model", MODEL, "--report", "run.json", "--quiet", *SMALL]
    process = subprocess.Popen([box.program, "generate", *map(str, words)], cwd=box.folder, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    (rank,) = box.report()["ranks"]
    # The kernel counts in KiB, and the report comes before the end.
    assert process.returncode == 0 and 0.98 < rank["peak_rss_bytes"] / (usage.ru_maxrss * 1024) <= 1, (rank, usage)


def test_a_report_goes_to_standard_output(box):
    log = box.folder / "log"
    log.write_text("before\n")
    with open(log, "a") as out:
        subprocess.run([box.program, "generate", "a cat", "--model", MODEL, "--report", "/dev/stdout", *SMALL],
                       cwd=box.folder, stdout=out, stderr=subprocess.PIPE, check=True)
    before, *report, path = log.read_text().splitlines()
    assert (before, path) == ("before", "out.png"), log.read_text()
    assert json.loads("\n".join(report))["outputs"] == ["out.png"], report


def test_output_and_messages_go_to_separate_streams(box):
    outcome = box.generate("a cat", *SMALL)
    assert outcome.out == "out.png\n", outcome
    assert "tiny-pixart" in outcome.err and "denoise" in outcome.err, outcome
    quiet = box.generate("a cat", "--quiet", *SMALL)
    assert quiet.out == "out.png\n" and quiet.err == "", quiet


def test_unusual_prompts(box):
    for prompt in ("", "[a, b]", "models", "\u732b\U0001F697", "a_b --c_d", "%s {}", "x" * 3000, "line\nbreak", "{}", "%%", "0",
                   "\x01[a]", "\x01number:NaN", "[\x01]", "\x0eheight\x0f", "NaN"):
        box.generate(prompt, "--seed", "1", *SMALL)
        assert json.loads(read_png(box.folder / "out.png")[3]["tessera"])["prompt"] == [prompt]
    box.generate("--negative_prompt", "--a_b", "--seed", "1", *SMALL, "--", "-1 --x_y")
    settings = json.loads(read_png(box.folder / "out.png")[3]["tessera"])
    assert settings["negative_prompt"] == ["--a_b"] and settings["prompt"] == ["-1 --x_y"], settings
    box.generate("--prompt", "--height", "--negative-prompt", "\x01[", "--seed", "1", *SMALL, "--", "--", "--seed", "-o", "-", "\x01number:x")
    settings = json.loads(read_png(box.folder / "out-3.png")[3]["tessera"])
    assert settings["prompt"] == ["--height", "--", "--seed", "-o", "-", "\x01number:x"], settings
    assert settings["negative_prompt"] == ["\x01["], settings
    box.generate("--prompt", "a", "--prompt=b", "c", *SMALL)
    assert (box.folder / "out-2.png").exists()


def test_a_long_prompt_is_cut_with_a_warning(box):
    outcome = box.generate("circle " * 50, "--max_sequence_length", "20", *SMALL)
    warnings = [line for line in outcome.err.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 1 and "tokens" in warnings[0], outcome
    assert warnings[0].startswith("warning: [tokenizer] the prompt 'circle circle circle circle circle circl...' is too long"), outcome
    # Ranks that split a text encoder all meet with it, and it is said once.
    outcome = box.generate("circle " * 50, "--max_sequence_length", "20", "--use-cfg-parallel", *SMALL)
    assert outcome.err.count("warning: ") == 1, outcome


def test_low_precision_stays_near(box):
    exact, errors = box.latents("a cat", "--seed", "3", *SMALL), {}
    for dtype in ("bf16", "fp16"):
        rounded = box.latents("a cat", "--seed", "3", "--dtype", dtype, "--report", "run.json", *SMALL)
        assert box.report()["settings"]["dtype"] == dtype
        assert rounded[0] == exact[0], (rounded[0], exact[0])
        errors[dtype] = math.sqrt(sum((a - b) ** 2 for a, b in zip(exact[1], rounded[1])) / sum(a * a for a in exact[1]))
    # fp16 has three more bits, so a run that computes in the other dtype is noticed.
    assert 0 < errors["fp16"] < errors["bf16"] / 3 and errors["bf16"] < 0.03, errors


def test_models_are_found_by_name(box):
    (box.folder / "shapes").symlink_to(MODEL)
    env = {"TESSERA_MODELS": str(box.folder)}
    outcome = box.run("generate", "a cat", *SMALL, env=env)
    assert outcome.code == 0 and outcome.err.startswith("shapes ("), outcome
    (box.folder / "sub").mkdir()
    (box.folder / "shapes").rename(box.folder / "sub" / "mine")
    outcome = box.run("generate", "a cat", "--model", "mine", *SMALL, env={"TESSERA_MODELS": str(box.folder / "sub")})
    assert outcome.code == 0, outcome


def test_an_installed_program_runs_from_any_folder(box):
    build = pathlib.Path(box.program).parent
    if not (build / "CMakeCache.txt").exists():
        pytest.skip("the program does not stand in a build folder: it was installed already")
    prefix = box.folder / "prefix"
    subprocess.run(["cmake", "--install", build, "--prefix", prefix], check=True, capture_output=True)
    env = {key: value for key, value in os.environ.items() if key not in ("LD_LIBRARY_PATH", "TESSERA_MODELS", "TESSERA_MACHINES")}
    (box.folder / "link").symlink_to(prefix / "bin" / "tessera")
    done = subprocess.run([box.folder / "link", "models", "--json"], cwd="/", env=env, capture_output=True, text=True)
    assert done.returncode == 0 and json.loads(done.stdout)[0]["model"] == f"{prefix}/share/tessera/models/shapes", done
    words = [box.folder / "link", "analyze", "hardware", "--machine", "t4", "--num-frames", "17", "--height", "240", "--width", "426"]
    done = subprocess.run(words, cwd="/", env=env, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("t4, fp16"), done
    words = [box.folder / "link", "generate", "a cat", "--model", ROOT / "tests" / "golden" / "tiny-open-sora", "--dtype", "fp32", "--height", "24",
             "--width", "40", "--num-frames", "17", "--num-inference-steps", "1", "-o", box.folder / "a.gif"]
    done = subprocess.run(words, cwd="/", env=env, capture_output=True, text=True)
    assert done.returncode == 0 and (box.folder / "a.gif").read_bytes().startswith(b"GIF89a"), done
    pages = list((prefix / "share" / "doc" / "tessera").rglob("*.md"))
    linked = {(page.name, link) for page in pages for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
              if not (page.parent / link).exists()}
    assert len(pages) > 10 and not linked, linked


@pytest.mark.parametrize("is_replaced", (False, True))
def test_a_program_that_is_deleted_while_it_runs_finds_what_ships(box, is_replaced):
    """As an upgrade does. The program waits for prompts meanwhile, and has looked for neither the model nor the module for JPEG."""
    for name, target in (("share/tessera/models", ROOT / "models"), ("lib/tessera", pathlib.Path(box.program).parent / "lib" / "tessera")):
        (box.folder / "prefix" / name).parent.mkdir(parents=True)
        (box.folder / "prefix" / name).symlink_to(target)
    (box.folder / "prefix" / "bin").mkdir()
    program, prompts = box.folder / "prefix" / "bin" / "tessera", box.folder / "prompts"
    shutil.copy(box.program, program)
    os.mkfifo(prompts)
    env = {**{key: value for key, value in os.environ.items() if key not in ("TESSERA_MODELS", "TESSERA_PREFIX")}, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([program, "generate", "--prompt-file", prompts, "--num-inference-steps", "1", "--height", "64", "--width", "64",
                           "-o", "out.jpg"], cwd=box.folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        with open(prompts, "w", encoding="utf-8") as writer:  # waits until the program reads
            program.unlink()
            if is_replaced:
                program.write_text("another program")
            writer.write("a red circle\n")
        out, err = process.communicate(timeout=100)
    assert (process.returncode, out) == (0, "out.jpg\n"), err
    assert (box.folder / "out.jpg").read_bytes().startswith(b"\xff\xd8"), err


def start_long_run(box):
    process = subprocess.Popen([box.program, "generate", "a cat", "--model", MODEL, "--num-inference-steps", "500",
                                "--num-images-per-prompt", "4"], cwd=box.folder, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    while "load denoiser" not in process.stderr.readline():
        assert process.poll() is None
    return process


def test_ctrl_c_ends_between_steps(box):
    process = start_long_run(box)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and out == "", (process.returncode, out, err)
    assert "stopped" in err.splitlines()[-1], err
    assert box.files() == []


def test_words_without_quotes_are_warned_of(box):
    (box.folder / "words.txt").write_text("a\nred\ncircle\n")
    for words, is_warned in ((["a", "red", "circle"], True), (["a", "red"], False), (["a", "red circle", "b"], False), (["\u732b", "\u72ac", "\u9ce5"], False),
                             (["--prompt-file", "words.txt"], False)):
        err = box.run("generate", *words, "--model", MODEL, *SMALL).err
        assert ("3 prompts of one word each make as many images" in err) == is_warned, (words, err)


def test_a_pattern_numbers_images(box):
    for count, pattern, names in ((2, "a-%03d.png", ["a-000.png", "a-001.png"]), (1, "b%d.jpg", ["b0.jpg"]), (1, "50%.png", ["50%.png"]),
                                  (1, "50%dark.png", ["50%dark.png"]), (2, "a%b-%d.png", ["a%b-0.png", "a%b-1.png"]),
                                  (1, "%%d-%d-%02d.png", ["%d-0-00.png"]), (2, "100%%.png", ["100%-0.png", "100%-1.png"])):
        outcome = box.run("generate", "a cat", "--model", MODEL, *SMALL, "--num-images-per-prompt", str(count), "-o", pattern)
        assert outcome.code == 0 and outcome.out.split() == names and box.files() == names, (outcome, box.files())
        if pattern == "a-%03d.png":
            (box.folder / "a-002.png").write_bytes(b"")
            assert "[a-002.png] was left by another run" in box.run("generate", "a cat", "--model", MODEL, *SMALL, "-o", "a-%03d.png", "--num-images-per-prompt",
                                                                    "2").err
        for name in box.files():
            (box.folder / name).unlink()
    latents = ["--num-images-per-prompt", "2", "--output-type", "latent", "-o"]
    for pattern, name in (("q%d.safetensors", "q0.safetensors"), ("q%%.safetensors", "q%.safetensors")):
        assert box.generate("a cat", *SMALL, *latents, pattern).out.split() == [name] == box.files()
        (box.folder / name).unlink()


def test_images_are_written_as_they_are_decoded(box):
    """Nothing of what is finished is lost when Ctrl-C or SIGTERM comes, or when the disk is full."""
    many = ["generate", "a cat", "--model", MODEL, "--height", "256", "--width", "256", "--no-resolution-binning", "--num-inference-steps", "1",
            "--num-images-per-prompt", "300", "--threads", "1"]
    for number, code, text in ((signal.SIGINT, 130, "stopped; finished files stay"), (signal.SIGTERM, 143, "stopped at once; finished files stay")):
        process = subprocess.Popen([box.program, *many], cwd=box.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while "out-001.png" not in box.files():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        files = box.files()
        assert process.returncode == code and err.splitlines()[-1] == f"tessera: {text}", (process.returncode, err)
        assert 2 <= len(files) < 300 and files == [f"out-{i:03}.png" for i in range(len(files))], files
        assert out.split() == (files if number == signal.SIGINT else []), out
        assert read_png(box.folder / files[-1])[:2] == (256, 256)
        for name in files:
            (box.folder / name).unlink()
    (box.folder / "out-2.png").symlink_to("/dev/full")
    outcome = box.run("generate", "a cat", "--model", MODEL, *SMALL, "--num-images-per-prompt", "4")
    assert outcome.code == 2 and outcome.out.split() == ["out-0.png", "out-1.png"] and "No space left" in outcome.err, outcome
    outcome = box.run("generate", "a cat", "--model", MODEL, *SMALL, "--report", "/dev/full")
    assert outcome.code == 2 and outcome.out == "out.png\n" and "No space left" in outcome.err, outcome


def test_groups_of_images_share_lines_and_memory(box):
    """Images beyond the first group need no more memory, and a phase has one line, however many groups there are."""
    peaks = []
    for images in (8, 30):
        outcome = box.run("generate", "a cat", "--model", MODEL, "--height", "256", "--width", "256", "--no-resolution-binning", "--num-inference-steps", "1",
                          "--num-images-per-prompt", str(images), "--threads", "1", "--report", "run.json")
        assert outcome.code == 0 and len(outcome.out.split()) == images, outcome
        # A phase that takes long also tells how far it is.
        lines = [line.split("  ")[0] for line in outcome.err.splitlines() if not line.endswith(" left")]
        assert lines.count("denoise") == lines.count("decode") == lines.count("load denoiser") == 1, outcome.err
        report = box.report()
        assert len(report["step_seconds"]) == (images + 7) // 8, report["step_seconds"]
        peaks.append(report["ranks"][0]["peak_rss_bytes"])
    assert peaks[1] < peaks[0] + 16 * 2**20, peaks


def test_termination_ends_at_once(box):
    process = start_long_run(box)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143, process.returncode
    assert err.splitlines()[-1] == "tessera: stopped at once; nothing was written", err
    assert box.files() == []


def test_a_terminal_gets_a_bar(box):
    assert b"[############............] 1/2" in shown_on_terminal(box, 80, "xterm") and b" left" in shown_on_terminal(box, 80, "xterm")
    narrow = shown_on_terminal(box, 30, "xterm").replace(b"\x1b[K", b"")
    bars = [text for text in narrow.replace(b"\n", b"\r").split(b"\r") if text.startswith(b"denoise [")]
    assert bars and max(map(len, bars)) == 29, bars
    dumb = shown_on_terminal(box, 80, "dumb")
    assert b"\x1b" not in dumb and b"[#" not in dumb and b"denoise  " in dumb, dumb


def shown_on_terminal(box, columns, kind):
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen([box.program, "generate", "a cat", "--model", MODEL, *SMALL], cwd=box.folder,
                               stdout=subprocess.PIPE, stderr=follower, env={**os.environ, "TERM": kind})
    os.close(follower)
    shown = b""
    while True:
        try:
            block = os.read(leader, 4096)
        except OSError:  # the other end was closed
            break
        if not block:
            break
        shown += block
    os.close(leader)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and out == b"out.png\n", (process.returncode, out)
    return shown
