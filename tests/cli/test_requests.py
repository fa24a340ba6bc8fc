"""Tests of requests that stand in files: prompts, one per line, and the settings of an earlier run."""
import json
import math
import os
import pty
import subprocess
import threading

from files import assert_near, read_exif, read_latents, read_png
from harness import MODEL, ROOT, SMALL
from test_launchers import finish_ranks, start_ranks, torchrun_variables
from test_ranks import NEAR

PROMPTS = ["a caf\u00e9", "  a dog, \"quoted\" --seed", "\u732b"]


def test_prompts_from_a_file(box):
    for text in ("\n".join(PROMPTS), "\ufeff" + "\r\n\r\n".join(PROMPTS) + "\r\n", "\n \t\n" + "\n\n".join(PROMPTS) + "\n\n"):
        (box.folder / "prompts.txt").write_bytes(text.encode())
        outcome = box.generate("--prompt-file", "prompts.txt", "--report", "run.json", "--seed", "5", *SMALL)
        assert outcome.out.split() == ["out-0.png", "out-1.png", "out-2.png"], outcome
        assert box.report()["settings"]["prompt"] == PROMPTS, text
        box.generate(*(f"--prompt={prompt}" for prompt in PROMPTS), "-o", "words.png", "--seed", "5", *SMALL)
        for i in range(3):
            assert read_png(box.folder / f"out-{i}.png")[2] == read_png(box.folder / f"words-{i}.png")[2]


def test_prompts_from_standard_input_reach_all_ranks(box):
    words = ["--seed", "5", "--report", "run.json", "--guidance-scale", "3", *SMALL]
    expected = box.latents(*(f"--prompt={prompt}" for prompt in PROMPTS), *words)
    for degrees in ([], ["--use-cfg-parallel"], ["--data-parallel-degree", "3"]):
        latents = box.latents("--prompt-file", "-", *degrees, *words, stdin="\n".join(PROMPTS).encode())
        assert box.report()["settings"]["prompt"] == PROMPTS
        assert_near(latents, expected, NEAR)


def test_ranks_of_another_launcher_take_the_prompts_that_rank_0_reads(box):
    (box.folder / "prompts.txt").write_text("a cat\n")
    words = ["generate", "--prompt-file", "prompts.txt", "--model", MODEL, "--dtype", "fp32", "--use-cfg-parallel", "--seed", "5", *SMALL,
             "--output-type", "latent", "-o", "out.safetensors"]
    elsewhere = ["generate", "--prompt-file", "not-on-this-host.txt"]
    (code, _, err), second = finish_ranks(start_ranks(box, torchrun_variables, [words, elsewhere]))
    assert code == 0 and second == (0, "", ""), (err, second)
    assert_near(read_latents(box.folder / "out.safetensors"), box.latents("a cat", "--seed", "5", *SMALL), NEAR)


def test_a_pipe_serves_as_a_file_of_prompts(box):
    os.mkfifo(box.folder / "pipe")
    writer = threading.Thread(target=lambda: (box.folder / "pipe").write_text("a cat\na dog\n"))
    writer.start()
    outcome = box.generate("--prompt-file", "pipe", *SMALL)
    writer.join()
    assert json.loads(read_png(box.folder / "out-1.png")[3]["tessera"])["prompt"] == ["a cat", "a dog"], outcome


def test_unusable_files_of_prompts_are_refused(box):
    words = ["generate", "--model", MODEL, *SMALL, "--prompt-file"]
    (box.folder / "empty.txt").write_text("\n  \n\r\n")
    (box.folder / "many.txt").write_text("a cat\n" * 1025)
    (box.folder / "latin1.txt").write_bytes("a cat\na caf\u00e9\n".encode("latin-1"))
    for flags in ([], ["--use-cfg-parallel"]):
        box.refuse(3, "[empty.txt] holds no prompt; write one per line", *words, "empty.txt", *flags)
        box.refuse(3, "[latin1.txt] line 2 is not valid UTF-8 (byte 5)", *words, "latin1.txt", *flags)
        box.refuse(2, "[--prompt-file] many.txt holds 1025 prompts, and a run makes at most 1024 images; split the file", *words, "many.txt", *flags)
        box.refuse(3, "[none.txt] no such file", *words, "none.txt", *flags)
        box.refuse(3, "[standard input] holds no prompt", *words, "-", *flags, stdin=b"")
        box.refuse(2, "[--prompt-file] there are prompts on the command line too", *words, "empty.txt", "a cat", *flags)


AGAIN = [  # arguments whose run must give the same files again
    ["a cat"],
    ["a cat", "a dog", "--num-images-per-prompt", "2", "--negative-prompt", "b", "--negative-prompt", "\u732b", "--scheduler", "ddim",
     "--eta", "0.5", "--guidance-scale", "3.3"],
    ["a cat", "--use-cfg-parallel", "--ulysses-degree", "2", "--no-vae-parallel"],
    ["a cat", "--pipefusion-parallel-degree", "2", "--num-pipeline-patch", "2", "--warmup-steps", "0", "--simulate-ranks",
     "--attn-layer-num-for-pp", "1", "1"],
    ["A <b>CAT</b>", "--no-clean-caption", "--threads", "3", "--vae-tiling", "--scheduler", "EulerAncestralDiscreteScheduler"],
]


def names(box, stem):
    return sorted(path.name for path in box.folder.glob(f"{stem}*.png"))


def test_a_request_gives_the_same_files_again(box):
    for arguments in AGAIN:
        box.generate(*arguments, "-o", "a.png", "--report", "run.json", *SMALL)
        first = names(box, "a")
        (box.folder / "settings.json").write_text(json.dumps(json.loads((box.folder / "run.json").read_text())["settings"]))
        # A PNG names the model without its path.
        for request in ([first[-1], "--model", MODEL], ["run.json"], ["settings.json", "--quiet"]):
            outcome = box.run("generate", "--request", *request, "-o", "b.png")
            assert outcome.code == 0, outcome
            again = names(box, "b")
            assert len(again) == len(first), (again, first)
            for one, other in zip(first, again):
                assert (box.folder / one).read_bytes() == (box.folder / other).read_bytes(), (arguments, request, one)
                (box.folder / other).unlink()
            said = f"{first[-1]} is image 4 of the 4 that are made again\n" in outcome.err
            assert said == (len(first) == 4 and request[0] == first[-1]), outcome
        for name in first:
            (box.folder / name).unlink()


def test_a_record_has_the_threads_that_were_asked_for(box):
    """How many a run took depends on what else ran beside it; a recording and its ranks have that number too."""
    for words, threads in (([], None), (["--threads", "3"], 3)):
        box.generate("a cat", *SMALL, "-o", "a.png", "--report", "run.json", "--record", "record.json", *words,
                     env={"OMP_NUM_THREADS": "3", "OMP_THREAD_LIMIT": "2"})
        report, record = box.report(), json.loads((box.folder / "record.json").read_text())
        settings = [json.loads(read_png(box.folder / "a.png")[3]["tessera"]), report["settings"]]
        assert [each.get("threads") for each in settings] == [threads] * 2, settings
        assert report["ranks"][0]["threads"] == record["settings"]["threads"] == 2, (report, record["settings"])


def test_what_a_run_reads_is_not_overwritten(box):
    """Records do not have the names of their outputs, so the default could be the very file that is read."""
    box.generate("a cat", *SMALL, "-o", "cat.png", "--report", "run.json")
    assert box.generate("--request", "run.json").out == "out.png\n"
    (box.folder / "prompts.txt").write_text("a dog\n")
    (box.folder / "link.png").symlink_to("out.png")
    before = {name: (box.folder / name).read_bytes() for name in box.files()}
    lost = "which would be lost; name another"
    for name in ("out.png", "link.png"):
        box.refuse(2, f"[--output] 'out.png' is the file of --request, {lost}", "generate", "--request", name, "--model", MODEL)
    box.refuse(2, f"[--report] './run.json' is the file of --request, {lost}", "generate", "--request", "run.json", "-o", "b.png",
               "--report", "./run.json")
    box.refuse(2, f"[--timeline] 'prompts.txt' is the file of --prompt-file, {lost}", "generate", "--prompt-file", "prompts.txt",
               "--model", MODEL, *SMALL, "-o", "b.png", "--timeline", "prompts.txt")
    assert {name: (box.folder / name).read_bytes() for name in box.files()} == before


def test_a_trace_is_not_a_request(box):
    assert box.run("trace", "--model", MODEL, "-o", "trace.json").code == 0
    box.generate("a cat", *SMALL, "--record", "record.json")
    for name in ("trace.json", "record.json"):
        box.refuse(3, f"[{name}] a trace is not a request; give an image, a video, a report or a request in JSON", "generate",
                   "--request", name)


def test_the_picture_of_the_readme_is_a_request(box):
    outcome = box.run("generate", "--request", ROOT / "docs" / "first-picture.png", "--dry-run")
    assert outcome.code == 0, outcome
    settings = json.loads(outcome.out)["settings"]
    (command,) = [line for line in (ROOT / "Makefile").read_text().splitlines() if "generate" in line and "out.png" in line]
    assert f'"{settings["prompt"][0]}"' in command and f"--seed {settings['seed']} " in command, (settings, command)


def test_requests_of_other_families_give_the_same_files_again(box):
    golden = ROOT / "tests" / "golden"
    for model, options in (("tiny-sdxl", ["--prompt-2", "b", "--crops-coords-top-left", "3x4", "--clip-skip", "1"]),
                           ("tiny-open-sora", ["--num-frames", "17", "--height", "32", "--width", "48", "--motion-score", "4"])):
        outcome = box.run("generate", "a cat", "--model", golden / model, *options, "--num-inference-steps", "2", "-o", "a.png",
                          "--report", "run.json")
        assert outcome.code == 0, outcome
        outcome = box.run("generate", "--request", "run.json", "-o", "b.png")
        assert outcome.code == 0, outcome
        first, again = names(box, "a"), names(box, "b")
        assert len(first) == len(again) == (17 if "--num-frames" in options else 1), (first, again)
        for one, other in zip(first, again):
            assert (box.folder / one).read_bytes() == (box.folder / other).read_bytes(), (model, one)
            (box.folder / one).unlink()
            (box.folder / other).unlink()


def test_records_of_each_kind_run_with_models_of_each_kind(box):
    folder = ROOT / "tests" / "golden" / "tiny-sd"
    models = {"folder": ["--model", folder], "file": ["--model", folder / "single.safetensors", "--config", folder]}
    words = ["a cat", "--seed", "5", "--dtype", "fp32", "--height", "64", "--width", "64", "--num-inference-steps", "1"]
    images = {}

    def image_of(*words):
        """Returns the pixels or the latents that a run makes."""
        path = box.folder / ("again.safetensors" if "latents.safetensors" in words else "again.png")
        outcome = box.run("generate", *words, "-o", path)
        assert outcome.code == 0, (words, outcome)
        return read_latents(path) if path.suffix == ".safetensors" else read_png(path)[2]

    for kind, model in models.items():
        images[kind] = image_of(*words, *model)
    images["folder, latents"] = images["file, latents"] = None  # those of the first record
    for kind, model in models.items():
        files, named = ["a.png", "a.jpg", "a.webp", "latents.safetensors"], ["report.json", "settings.json", "plan.json"]
        for record in files[:3]:
            assert box.run("generate", *words, *model, "-o", record, "--report", "report.json").code == 0
        (box.folder / "settings.json").write_text(json.dumps(json.loads((box.folder / "report.json").read_text())["settings"]))
        (box.folder / "plan.json").write_text(box.run("generate", *words, *model, "--dry-run").out)
        assert box.run("generate", *words, *model, "--output-type", "latent", "-o", files[3]).code == 0
        for record in files + named:
            for other, given in models.items():
                made = image_of("--request", record, *given)
                key = f"{other}, latents" if record == files[3] else other
                images[key] = images[key] or made
                assert made == images[key], (kind, record, other)
        for record in named:  # which say where their model is
            assert image_of("--request", record) == images[kind], (kind, record)


def test_options_replace_the_values_of_a_request(box):
    request = {"prompt": "a cat", "seed": 5, "height": 32, "width": 48, "use_resolution_binning": False, "num_inference_steps": 2,
               "model": str(MODEL), "dtype": "fp32", "use_cfg_parallel": True, "negative_prompt": None}
    (box.folder / "request.json").write_text(json.dumps(request))
    for words, expected in (([], request), (["--seed", "6", "--prompt", "a dog"], {**request, "seed": 6, "prompt": "a dog"}),
                            (["--guidance-scale", "3"], {**request, "guidance_scale": 3})):
        outcome = box.run("generate", "--request", "request.json", *words, "--report", "run.json")
        assert outcome.code == 0, outcome
        settings = box.report()["settings"]
        assert settings["parallel"] == {"world_size": 2, "cfg": 2}, settings
        for name, value in expected.items():
            if value is not None and name != "use_cfg_parallel":
                assert settings[name] == ([value] if name == "prompt" else value), (name, settings)
        assert "negative_prompt" not in settings, settings


def test_integers_of_a_request_may_be_written_as_floats(box):
    (box.folder / "request.json").write_text('{"prompt": "a", "height": 32.0, "width": 48, "num_inference_steps": 1e0, "seed": 1e3,'
                                             ' "use_resolution_binning": false}')
    box.generate("--request", "request.json", "--report", "run.json")
    settings = box.report()["settings"]
    assert [repr(settings[key]) for key in ("height", "num_inference_steps", "seed")] == ["32", "1", "1000"], settings
    for text, needle in (("32.5", "expected an integer, got 32.5"), ("1e20", "expected an integer, got 1e+20"),
                         ("9007199254740993.0", "expected an integer, got 9007199254740992")):  # not the number that is written
        (box.folder / "request.json").write_text('{"prompt": "a", "height": %s}' % text)
        box.refuse(3, needle, "generate", "--request", "request.json", "--model", MODEL)


def test_a_request_may_begin_with_the_mark_of_an_editor(box):
    (box.folder / "request.json").write_text('{"prompt": "a", "seed": 7}', encoding="utf-8-sig")
    box.generate("--request", "request.json", *SMALL, "--report", "run.json")
    assert box.report()["settings"]["seed"] == 7


def test_unusable_requests_are_refused(box):
    (box.folder / "plain.png").write_bytes((ROOT / "docs" / "demo-sheet.png").read_bytes())
    box.generate("a cat", "-o", "own.png", *SMALL)
    for text, needle in (
            ('{"prompt": "a", "sead": 5}', "[request.json] 'sead' is not a field of a request; did you mean 'seed'?"),
            ('{"prompt": "a", "output": "x.png"}', "[request.json] 'output' is not a field of a request"),
            ('{"prompt": "a", "seed": "x"}', "[request.json] [--seed] expected an integer"),
            ('{"prompt": "a", "height": 0}', "[request.json] [--height] must be from 1 to 16384"),
            ('{"prompt": "a", "device": "tpu"}', "[request.json] [--device] expected cpu"),
            ('{"prompt": "a", "model": "no-such-model"}', "[request.json] its model 'no-such-model' is not here; give its path with --model"),
            ('{"prompt": ', "[request.json]"),
            ("a cat", "[request.json] neither a request in JSON, nor a report, an image, a video or latents"),
            ("", "[request.json] neither a request in JSON, nor a report, an image, a video or latents")):
        (box.folder / "request.json").write_text(text)
        box.refuse(3, needle, "generate", "--request", "request.json")
    box.refuse(3, "[plain.png] holds no settings; give a file that this program wrote", "generate", "--request", "plain.png")
    box.refuse(3, "[own.png] its model 'tiny-pixart' is not here; give its path with --model", "generate", "--request", "own.png")
    box.refuse(3, "[none.png] no such file", "generate", "--request", "none.png")


def test_a_jpeg_or_webp_has_the_request_of_its_image(box):
    words = ["a caf\u00e9 \U0001f600", "--seed", "5", *SMALL]
    box.generate(*words, "-o", "first.png")
    for name in ("image.jpg", "image.JPEG", "image.webp"):
        assert box.generate(*words, "-o", name).out.split() == [name]
        box.generate("--request", name, "-o", "again.png")
        assert read_png(box.folder / "again.png")[2] == read_png(box.folder / "first.png")[2], name
        # Web UIs read the comment as UTF-16, whose order of bytes is that of the numbers.
        text = read_png(box.folder / "first.png")[3]
        assert read_exif((box.folder / name).read_bytes()) == {
            0x10E: text["tessera"].encode() + b"\0", 0x131: text["Software"].encode() + b"\0",
            0x9286: b"UNICODE\0" + text["parameters"].encode("utf-16-be")}, name
    bytes_ = (box.folder / "image.webp").read_bytes()
    (box.folder / "image.webp").write_bytes(bytes_[:bytes_.index(b"EXIF")])
    box.refuse(3, "[image.webp] holds no settings; give a file that this program wrote", "generate", "--request", "image.webp")


def test_numbered_images_have_as_many_digits_as_the_last(box):
    names = [f"out-{i:02}.jpg" for i in range(11)]
    assert box.generate("a cat", "--num-images-per-prompt", "11", "--seed", "5", *SMALL, "-o", "out.jpg").out.split() == names
    assert box.generate("a cat", "--num-images-per-prompt", "2", *SMALL, "-o", "out.jpg").out.split() == ["out-0.jpg", "out-1.jpg"]


def test_latents_have_their_request(box):
    words = ["a cat", "a dog", "--seed", "5", *SMALL, "--output-type", "latent"]
    box.generate(*words, "-o", "first.safetensors")
    box.generate("--request", "first.safetensors", "-o", "again.safetensors")
    assert (box.folder / "again.safetensors").read_bytes() == (box.folder / "first.safetensors").read_bytes()
    (box.folder / "weights.safetensors").symlink_to(ROOT / "models" / "shapes" / "vae" / "diffusion_pytorch_model.safetensors")
    box.refuse(3, "[weights.safetensors] holds no settings; give a file that this program wrote", "generate", "--request",
               "weights.safetensors")


def test_an_image_goes_to_standard_output(box):
    box.generate("a cat", "--seed", "5", *SMALL, "-o", "file.png")
    for flags in ([], ["--use-cfg-parallel", "--report", "run.json"]):
        words = ["generate", "a cat", "--model", MODEL, "--dtype", "fp32", "--seed", "5", *SMALL, "-o", "-", *flags]
        done = subprocess.run([box.program, *map(str, words)], cwd=box.folder, capture_output=True)
        assert done.returncode == 0, done.stderr
        (box.folder / "piped.png").write_bytes(done.stdout)
        assert read_png(box.folder / "piped.png")[:2] == read_png(box.folder / "file.png")[:2]
        if not flags:
            assert read_png(box.folder / "piped.png")[2] == read_png(box.folder / "file.png")[2]
        box.generate("--request", "piped.png", "-o", "again.png")
        assert read_png(box.folder / "again.png")[2] == read_png(box.folder / "piped.png")[2]
    for flags, things in ((["--num-images-per-prompt", "2"], "several"), (["--output-type", "latent"], "latents")):
        box.refuse(2, f"[--output] standard output takes one image; name a file for {things}", "generate", "a cat", "--model", MODEL,
                   *SMALL, "-o", "-", *flags)
    with open("/dev/full", "wb") as full:
        done = subprocess.run([box.program, "generate", "a cat", "--model", str(MODEL), *SMALL, "-o", "-"], cwd=box.folder, stdout=full,
                              stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and "[standard output] cannot write: No space" in done.stderr.splitlines()[-1], done


def test_an_image_is_not_shown_on_a_terminal(box):
    terminal, follower = pty.openpty()
    done = subprocess.run([box.program, "generate", "a cat", "--model", str(MODEL), *SMALL, "-o", "-"], cwd=box.folder, stdout=follower,
                          stderr=subprocess.PIPE, text=True)
    os.close(follower)
    os.close(terminal)
    assert done.returncode == 2 and "[--output] standard output is a terminal; redirect it, or name a file" in done.stderr, done


def test_a_dry_run_says_what_would_run(box):
    words = ["a cat", "--seed", "5", *SMALL, "--report", "run.json", "--threads", "3"]
    whole_text = "--no-text-encoder-parallel"
    for flags in ([], ["--use-cfg-parallel", "--pipefusion-parallel-degree", "2", whole_text], ["--tensor-parallel-degree", "2", whole_text]):
        dry = box.generate(*words, *flags, "--dry-run")
        plan = json.loads(dry.out)
        assert "3 threads" in dry.err, dry
        assert box.files() == [], box.files()
        outcome = box.generate(*words, *flags)
        report = box.report()
        assert plan["settings"] == report["settings"], (plan, report)
        assert plan["outputs"] == outcome.out.split() and plan["world_size"] == len(report["ranks"])
        # The weights of the rank that has the most, which is not the first one of a pipeline.
        assert sum(plan["weights_bytes"].values()) == max(rank["weights_bytes"] for rank in report["ranks"]), (plan, report)
        if not flags:
            whole = plan["weights_bytes"]
        else:
            assert plan["weights_bytes"]["denoiser"] < whole["denoiser"], plan
            assert "pipefusion_parallel_degree" not in plan["settings"] or \
                report["ranks"][0]["bytes_read"] < report["ranks"][1]["bytes_read"], report
        pixels = read_png(box.folder / "out.png")[2]
        (box.folder / "out.png").unlink()
        box.generate("--request", "-", stdin=json.dumps(plan).encode())
        assert read_png(box.folder / "out.png")[2] == pixels
        (box.folder / "out.png").unlink()


def test_a_dry_run_counts_the_weights_of_a_u_net(box):
    for model, dtype in (("tiny-sd", "fp32"), ("tiny-sdxl", "fp32"), ("tiny-sd", "bf16")):
        words = ["generate", "a cat", "--model", ROOT / "tests" / "golden" / model, "--dtype", dtype, "--height", "64", "--width", "64",
                 "--num-inference-steps", "1", "--report", "run.json"]
        plan = json.loads(box.run(*words, "--seed", "5", "--dry-run").out)
        assert box.run(*words, "--seed", "5").code == 0
        report, weights = box.report(), plan["weights_bytes"]
        (rank,) = report["ranks"]
        assert sum(weights.values()) == rank["weights_bytes"] and all(weights.values()), (model, weights)
        assert (rank["bytes_read"] == rank["weights_bytes"]) == (dtype == "fp32"), (dtype, rank)  # the files are in fp32
        assert plan["settings"] == report["settings"], (plan, report)


def numbers_of(path, is_read):
    """Returns how many numbers the tensors of a checkpoint have whose names `is_read` takes."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__" and is_read(name))


def test_weights_are_counted_as_the_files_have_them(box):
    """All but the embeddings of tokens, of which rows are read, and the encoder of the VAE. A U-Net reads the convolutions behind
    its upsampling twice, in two layouts."""
    for model, denoiser, stored in (("tests/golden/tiny-pixart", "transformer", 4), ("tests/golden/tiny-sd", "unet", 4),
                                    ("tests/golden/tiny-sdxl", "unet", 4), ("models/shapes", "transformer", 2)):
        def count(part, is_read, model=model):
            return sum(numbers_of(path, is_read) for path in (ROOT / model).glob(f"{part}/*.safetensors"))

        numbers = {"text_encoder": count("text_encoder*", lambda name: "token_embedding" not in name and "shared." not in name
                                         and "embed_tokens" not in name),
                   "denoiser": count(denoiser, lambda name: True) + count(denoiser, lambda name: "upsamplers" in name),
                   "decoder": count("vae", lambda name: name.startswith(("decoder.", "post_quant_conv.")))}
        words = ["generate", "a cat", "--model", ROOT / model, "--dtype", "fp32", "--height", "64", "--width", "64",
                 "--num-inference-steps", "1"]
        plan = json.loads(box.run(*words, "--dry-run").out)
        assert plan["weights_bytes"] == {part: 4 * count for part, count in numbers.items()}, (model, plan, numbers)
        assert box.run(*words, "--report", "run.json").code == 0
        (rank,) = box.report()["ranks"]
        assert rank["weights_bytes"] == 4 * sum(numbers.values()), (model, rank, numbers)
        assert rank["bytes_read"] == stored * sum(numbers.values()), (model, rank, numbers)


def test_a_dry_run_refuses_what_a_run_would_refuse(box):
    box.refuse(2, "[--scheduler]", "generate", "a cat", "--model", MODEL, "--scheduler", "none", "--dry-run")
    model = box.copy_model()
    (model / "vae" / "diffusion_pytorch_model.safetensors").unlink()
    box.refuse(3, "diffusion_pytorch_model.safetensors", "generate", "a cat", "--model", model, "--dry-run")
    words = ["generate", "a cat", "--model", MODEL, "--use-cfg-parallel", *SMALL, "--dry-run"]
    for code, out, err in finish_ranks(start_ranks(box, torchrun_variables, [words, words])):
        assert code == 2 and out == "", (code, out, err)
        if err:
            assert "[--dry-run] one process prints the plan for all ranks; leave out the launcher" in err, err
