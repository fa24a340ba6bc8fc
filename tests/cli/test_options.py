"""Tests that options take effect, and the reports of a run: bytes against the closed forms, and the timeline."""
import collections
import contextlib
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from files import assert_near, difference, read_latents
from harness import MODEL, ROOT, SMALL
from running import start, start_long_run
from test_launchers import finish_ranks, start_ranks, torchrun_variables
from test_ranks import NEAR, THREE_STEPS

PICTURE = ["a cat", "--seed", "5", *THREE_STEPS]


def test_threads(box):
    free = {"OMP_NUM_THREADS": None}
    cores = len(os.sched_getaffinity(0))
    for words, env, count in ((["--threads", "1"], free, 1), (["--threads", "3"], free, 3), ([], free, cores),
                              (["--threads", "2", "--use-cfg-parallel"], free, 2), (["--use-cfg-parallel"], free, 1)):
        outcome = box.generate(*PICTURE, "--report", "run.json", *words, env=env)
        assert [rank["threads"] for rank in box.report()["ranks"]] == [count] * (1 + ("--use-cfg-parallel" in words)), (words, count)
        assert f"{count} thread" in outcome.err, outcome
    assert_near(box.latents(*PICTURE, "--threads", "3", env=free), box.latents(*PICTURE, "--threads", "1"), 1e-5)


def test_threads_that_openmp_does_not_give(box):
    """oneDNN divides its products among as many threads as were asked for."""
    def latents(*words, env):
        box.generate(*PICTURE, "--report", "run.json", "--output-type", "latent", "-o", "latents.safetensors", *words, env=env)
        return box.report()["ranks"][0]["threads"], read_latents(box.folder / "latents.safetensors")

    expected = box.latents(*PICTURE, "--threads", "1")
    free = {"OMP_NUM_THREADS": None}
    for env, count in (({"OMP_THREAD_LIMIT": "1"}, 1), ({"OMP_THREAD_LIMIT": "2"}, 2), ({"OMP_MAX_ACTIVE_LEVELS": "0"}, 1),
                       ({"OMP_STACKSIZE": "900000 G"}, 1), ({"OMP_STACKSIZE": "16"}, 1), ({"OMP_STACKSIZE": "4M"}, 3),
                       ({"OMP_DYNAMIC": "true"}, 3), ({"OMP_NUM_THREADS": "1,2"}, 3), ({"MKL_NUM_THREADS": "1"}, 3),
                       ({"OMP_PROC_BIND": "true", "OMP_PLACES": "{0}"}, 3), ({"GOMP_CPU_AFFINITY": "0"}, 3)):
        threads, got = latents("--threads", "3", env=free | env)
        assert threads == count, (env, threads)
        assert_near(got, expected, 1e-5)
    threads, got = latents(env={"OMP_NUM_THREADS": "3", "OMP_THREAD_LIMIT": "2"})
    assert threads == 2
    assert_near(got, expected, 1e-5)
    assert_near(latents("--use-cfg-parallel", "--threads", "3", env=free | {"OMP_THREAD_LIMIT": "2"})[1], expected, NEAR)
    for words, told in ((["--threads", "3"], True), (["--use-cfg-parallel", "--threads", "3"], True), ([], False)):
        err = box.generate(*PICTURE, "-o", "out.png", *words, env={"OMP_NUM_THREADS": "3", "OMP_THREAD_LIMIT": "2"}).err
        assert err.count("--threads: 2 of 3 threads compute") == told, (words, err)


def test_threads_that_are_asked_for_compute_beside_other_programs(box):
    """More threads than cores: each other is load enough to take fewer, were the number not given. Those that are not taken end."""
    count = 4 * len(os.sched_getaffinity(0))
    run = start(box.program, box.folder, "a cat", "--model", MODEL, "--num-inference-steps", "100", "--height", "256", "--width", "256",
                "--no-resolution-binning", "--threads", str(count))
    run.wait_for("denoise [")
    counts = []
    while run.process.poll() is None:
        with contextlib.suppress(OSError):
            counts.append(len(os.listdir(f"/proc/{run.process.pid}/task")))
        if (box.folder / "out.png").exists():  # from here on it ends
            counts.pop()
            break
        time.sleep(0.02)
    assert run.finish()[:2] == (0, "out.png\n") and min(counts) >= count and counts == sorted(counts), (count, counts)


def test_ranks_take_the_seed_that_rank_0_drew(box):
    words = ["generate", "a cat", "--model", MODEL, "--dtype", "fp32", "--ulysses-degree", "2", "--report", "run.json",
             "--output-type", "latent", "-o", "out.safetensors", *THREE_STEPS]
    (code, _, err), _ = finish_ranks(start_ranks(box, torchrun_variables, [words, words]))
    assert code == 0, err
    seed = box.report()["settings"]["seed"]
    alone = box.latents("a cat", "--seed", str(seed), *THREE_STEPS)
    assert_near(read_latents(box.folder / "out.safetensors"), alone, NEAR)


def test_texts_reach_other_ranks_as_they_are(box):
    prompts = ["\x01number:x", "NaN", "\x01[", "", "--"]
    box.latents("--use-cfg-parallel", *THREE_STEPS, "--report", "run.json", "--prompt", *prompts[:4], "--seed", "5", "--prompt=--")
    assert box.report()["settings"]["prompt"] == prompts


def model_of_four_heads(box):
    """Returns a model with the same weights and four heads of half the size."""
    model = box.copy_model()
    path = model / "transformer" / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "num_attention_heads": 4, "attention_head_dim": 4}))
    return model


def test_tensor_parallelism_in_two_dimensions(box):
    model = ["--model", model_of_four_heads(box)]
    expected = box.latents(*PICTURE, *model)
    operations = {}
    for scheme, sizes in (("1d", {"tp": 4}), ("2d", {"tp2": 2, "tp": 2})):
        words = ["--tensor-parallel-degree", "4", "--split-scheme", scheme, "--report", "run.json"]
        assert_near(box.latents(*PICTURE, *model, *words), expected, NEAR)
        report = box.report()
        assert report["settings"]["parallel"] == {"world_size": 4, **sizes}, report["settings"]
        operations[scheme] = {sum_["axis"] for sum_ in report["ranks"][0]["communication"]} & {"tp", "tp2"}
    assert operations == {"1d": {"tp"}, "2d": {"tp", "tp2"}}, operations


def shared_mappings(process):
    """Returns the memory files in which a process writes messages that others read."""
    lines = [line.split(maxsplit=5) for line in pathlib.Path(f"/proc/{process}/maps").read_text().splitlines()]
    return [line[5] for line in lines if line[1] == "rw-s" and len(line) > 5 and line[5].startswith("/memfd:tessera-messages")]


def tcp_connections(process):
    sockets = {os.readlink(path) for path in pathlib.Path(f"/proc/{process}/fd").iterdir()}
    lines = [line.split() for line in pathlib.Path(f"/proc/{process}/net/tcp").read_text().splitlines()[1:]]
    return [line for line in lines if line[3] == "01" and f"socket:[{line[9]}]" in sockets]


def test_messages_with_and_without_shared_memory(box):
    for words, shared in (([], True), (["--no-shared-memory"], False)):
        run = start_long_run(box, *words)
        for rank in run.ranks:
            assert bool(shared_mappings(rank)) == shared, (words, shared_mappings(rank))
            assert shared or tcp_connections(rank), words
        run.process.send_signal(signal.SIGTERM)
        run.finish()


def test_ranks_have_separate_cores(box):
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("one core")
    if len(allowed) != os.sysconf("SC_NPROCESSORS_ONLN"):
        pytest.skip("the tests themselves may not use all cores")
    run = start_long_run(box)
    cores = [os.sched_getaffinity(rank) for rank in run.ranks]
    assert not cores[0] & cores[1] and all(len(each) == len(allowed) // 2 for each in cores), cores
    run.process.send_signal(signal.SIGTERM)
    run.finish()
    run = start_long_run(box, "--threads", str(len(allowed)))  # more threads than each rank's cores
    assert all(os.sched_getaffinity(rank) == allowed for rank in run.ranks)
    run.process.send_signal(signal.SIGTERM)
    run.finish()


def test_the_family_limits_the_length_of_prompts(box):
    for model, tokens in ((MODEL, 300), (ROOT / "models" / "shapes", 120)):
        words = ["--model", model, "--seed", "5", "--height", "32", "--width", "32", "--no-resolution-binning",
                 "--num-inference-steps", "1"]
        box.latents("a cat", "--report", "run.json", *words)
        assert box.report()["settings"]["max_sequence_length"] == tokens
        long, cut = ("circle " * 2 * tokens).strip(), ["--max-sequence-length", str(tokens)]
        whole = box.latents(long, *words)
        assert difference(whole[1], box.latents(long, *words, *cut)[1]) == 0
        cut[1] = str(tokens - 1)
        assert difference(whole[1], box.latents(long, *words, *cut)[1]) > 0


def test_warmup_has_the_requested_length(box):
    words = [*PICTURE, "--pipefusion-parallel-degree", "2", "--num-pipeline-patch", "2"]
    results = [box.latents(*words, "--warmup-steps", str(steps)) for steps in range(4)]
    for i in range(3):
        assert difference(results[i][1], results[i + 1][1]) > 1e-4, i
    assert_near(results[3], box.latents(*PICTURE), NEAR)  # all three steps are warm-up, so none is stale
    for flags, steps, said in ((words[len(PICTURE):], "3", 1), (words[len(PICTURE):], "2", 0), (["--displaced-patch-degree", "2"], "3", 1)):
        outcome = box.generate(*PICTURE, *flags, "--warmup-steps", steps)
        assert outcome.err.count("warning: every step is a warm-up step") == said, outcome
    # Where every step is synchronous in any case.
    for steps in ([], ["--warmup-steps", "3"]):
        outcome = box.generate(*PICTURE, "--displaced-patch-degree", "2", "--displaced-mode", "full_sync", *steps)
        assert "every step is a warm-up step" not in outcome.err, outcome
        has_no_effect = "--warmup-steps has no effect: in the mode full_sync every step is synchronous"
        assert (has_no_effect in outcome.err) == bool(steps), outcome


# The following tests check the reports of several ranks.

def bytes_by_axis(report):
    """Returns {axis: bytes sent} of each rank."""
    sums = [collections.Counter() for _ in report["ranks"]]
    for rank, counter in zip(report["ranks"], sums):
        for each in rank["communication"]:
            counter[each["axis"]] += each["bytes"]
    return sums


def test_bytes_match_the_closed_forms(box):
    # The closed forms are in docs/parallel.md. The image has 64 x 96 pixels, so 24 tokens in 4 rows, of width 16; the model has
    # 2 blocks and takes 2 samples per step in fp32.
    tokens, width, layers, samples, element, steps = 24, 16, 2, 2, 4, 3
    latents = 4 * 8 * 12 * element
    activation = samples * tokens * width * element
    words = ["a cat", "--seed", "5", "--height", "64", "--width", "96", "--no-resolution-binning", "--num-inference-steps",
             str(steps), "--no-text-encoder-parallel", "--report", "run.json"]
    for method, axis, expected in (
            (["--use-cfg-parallel"], "cfg", [latents * steps] * 2),
            (["--ulysses-degree", "2"], "ulysses", [4 * activation // 2 // 2 * layers * steps] * 2),
            (["--ring-degree", "2"], "ring", [2 * activation // 2 * layers * steps] * 2),
            (["--ring-degree", "4"], "ring", [2 * activation // 4 * 3 * layers * steps] * 4),
            (["--kv-gather-degree", "2"], "gather", [2 * activation // 2 * layers * steps] * 2),
            (["--kv-gather-degree", "4"], "gather", [2 * activation // 4 * 3 * layers * steps] * 4),
            (["--tensor-parallel-degree", "2"], "tp", [6 * activation // 2 * layers * steps] * 2),
            # Hidden states go to the second stage, and latents come back.
            (["--pipefusion-parallel-degree", "2"], "pp", [activation * steps, latents * steps])):
        box.latents(*words, *method)
        report = box.report()
        sent = [counter[axis] for counter in bytes_by_axis(report)]
        assert sent == expected, (method, sent, expected)


def test_timeline(box):
    words = ["--pipefusion-parallel-degree", "2", "--num-pipeline-patch", "2", "--timeline", "trace.json"]
    box.latents("a cat", "--seed", "5", *words, "--height", "64", "--width", "48", "--no-resolution-binning",
                "--num-inference-steps", "3")
    events = box.report("trace.json")["traceEvents"]
    names = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert names == {(rank, track): what for rank in (0, 1) for track, what in ((0, "work"), (1, "messages"))}, names
    assert {event["args"]["name"] for event in events if event["name"] == "process_name"} == {"rank 0", "rank 1"}
    done = [event for event in events if event["ph"] == "X"]
    assert all(event["dur"] >= 0 and event["ts"] + event["dur"] >= 0 for event in done), done
    for rank in (0, 1):
        local = [event for event in done if event["pid"] == rank]
        computed = [(event["name"], event["args"]["step"]) for event in local if "step" in event["args"]]
        # After one warm-up step come the patches in order; steps count from 0 as in diffusers.
        assert computed == [("step 0, 2 patches", 0), *[(f"step {step}, patch {patch}", step)
                                                        for step in (1, 2) for patch in (0, 1)]], computed
        begins = [event["ts"] for event in local if "step" in event["args"]]
        assert begins == sorted(begins), begins
        stages = [event["name"] for event in local if not event["args"]]
        assert [name for name in stages if not name.startswith("wait: ")] == ["load text encoder", "encode", "load denoiser"]
        messages = [event for event in local if event["tid"] == 1]
        assert not any(event["name"].startswith("wait: ") for event in messages), "waiting belongs to the track of work"
        sends = [event["args"]["bytes"] for event in messages if event["name"] == "send (pp)"]
        # Rank 0 sends 12 tokens of width 16 for two samples, rank 1 latents of 4 x 8 x 6; first whole, then by halves.
        whole = 2 * 12 * 16 * 4 if rank == 0 else 4 * 8 * 6 * 4
        assert sends == [whole] + [whole // 2] * 4, (rank, sends)
        assert sum(name == "wait: send (pp)" for name in stages) == len(sends), stages


def test_the_timeline_has_the_times_of_the_report(box):
    """In microseconds, one after the other."""
    outcome = box.run("generate", "a cat", "--model", ROOT / "tests" / "golden" / "tiny-sd", "--height", "64", "--width", "64",
                      "--num-inference-steps", "2", "--report", "run.json", "--timeline", "line.json")
    assert outcome.code == 0, outcome
    report, events = box.report(), [event for event in box.report("line.json")["traceEvents"] if event["ph"] == "X"]
    seconds = report["seconds"]
    for phase, expected in (("load ", seconds["load"]), ("encode", seconds["encode"]), ("decode", seconds["decode"])):
        shown = sum(event["dur"] for event in events if event["name"].startswith(phase))
        assert abs(shown - 1e6 * expected) < 0.01, (phase, shown, expected)
    steps = [event["dur"] for event in events if "step" in event["args"]]
    assert len(steps) == len(report["step_seconds"]) == 3, steps  # PNDM takes one of the two twice
    assert all(0 < dur <= 1e6 * whole for dur, whole in zip(steps, report["step_seconds"])), (steps, report["step_seconds"])
    assert events[0]["ts"] > 0, events[0]
    for before, after in zip(events, events[1:]):
        assert before["ts"] + before["dur"] <= after["ts"] + 0.01, (before, after)


def test_tracing_does_not_change_the_latents(box):
    one = box.latents(*PICTURE, "--timeline", "trace.json")
    assert difference(one[1], box.latents(*PICTURE)[1]) == 0
    events = box.report("trace.json")["traceEvents"]
    assert [event["name"] for event in events if "step" in event["args"]] == [f"step {i}, patch 0" for i in range(3)], events


def test_the_cap_of_instruction_sets_reaches_the_libraries(box):
    expected = box.latents(*PICTURE)
    capped = {"TESSERA_MAX_ISA": "avx2"}
    assert_near(box.latents(*PICTURE, env=capped), expected, 1e-4)
    outcome = box.generate(*PICTURE, "-o", "out.png", env={**capped, "ONEDNN_VERBOSE": "1"})
    said = [line for line in outcome.out.splitlines() if line.startswith("onednn_verbose") and ",isa:" in line]
    if platform.machine() == "x86_64":
        assert said and all(line.endswith("isa:Intel AVX2") for line in said), said
    (box.folder / "out.png").unlink()
    box.refuse(2, "TESSERA_MAX_ISA", "generate", "a cat", "--model", MODEL, env={"TESSERA_MAX_ISA": "avx"})


def test_options_are_given_in_every_form(box):
    """What CLI11 reads otherwise is written anew before it parses the words."""
    layers = ["--pipefusion-parallel-degree", "2"]
    for words, settings, output in (
            (["a", "--num_inference_steps=3", "--negative_prompt=--a_b=c"],
             {"prompt": ["a"], "num_inference_steps": 3, "negative_prompt": ["--a_b=c"]}, "out.png"),
            (["a", "--num_inference-steps", "3", "--seed", "4", "--seed=5"], {"num_inference_steps": 3, "seed": 5}, "out.png"),
            (["--negative-prompt=", "--seed", "3"], None, "at least one prompt"),
            (["--negative-prompt", "--use_cfg_parallel", "a"], {"negative_prompt": ["--use_cfg_parallel"], "prompt": ["a"]}, "out.png"),
            (["--prompt", "--seed=3", "b c"], {"prompt": ["--seed=3", "b c"]}, "out-0.png"),
            (["a", "-qo", "--height.png"], {"prompt": ["a"]}, "--height.png"),
            (["a", "-qo=x.png"], {}, "x.png"), (["a", "-qox=1.png"], {}, "x=1.png"), (["a", "-o=x.png"], {}, "x.png"),
            (["a", *layers, "--attn-layer-num-for-pp", "1", "1", "b c"], {"attn_layer_num_for_pp": [1, 1], "prompt": ["a", "b c"]}, "out-0.png"),
            (["a", *layers, "--attn_layer_num_for_pp=1,1", "b c"], {"attn_layer_num_for_pp": [1, 1], "prompt": ["a", "b c"]}, "out-0.png"),
            (["++", "--", "-o", "2", "--"], {"prompt": ["++", "-o", "2", "--"]}, "out-0.png"),
            (["a", "--no-use-resolution-binning", "--use_resolution_binning"], {"use_resolution_binning": True}, "out.png"),
            (["a", "--use-cfg-parallel=true"], None, "[--use-cfg-parallel] takes no value, got 'true'"),
            (["a", "-q=3"], None, "[-q] takes no value, got '3'"), (["a", "-qz"], None, "[-z] unknown option"),
            (["a", "-.5"], None, "[-.5] unknown option"), (["a", "--seed="], None, "got ''"), (["a", "---seed", "3"], None, "[---seed] unknown option")):
        words = ["generate", "--model", MODEL, "--dry-run", *words]
        if settings is None:
            box.refuse(2, output, *words)
            continue
        plan = json.loads(box.run(*words).out)
        assert plan["settings"] | settings == plan["settings"] and plan["outputs"][0] == output, (words, plan)


def test_a_shell_completes_commands_options_and_values(box):
    script = box.run("completion", "bash").out
    (box.folder / "image.png").touch()
    for words, some, others in ((["g"], {"generate"}, {"mesh"}),
                                (["generate", "--ulysses"], {"--ulysses-degree"}, {"--seed"}),
                                (["generate", "--no-re"], {"--no-resolution-binning"}, set()),
                                (["generate", "-"], {"-o", "--output", "--negative-prompt"}, {"--world"}),
                                (["mesh", "--w"], {"--world"}, {"--warmup-steps"}),
                                (["compare", "--m"], {"--mesh", "--micro-batches"}, {"--model"}),
                                (["generate", "--scheduler", "dpm"], {"dpm++", "dpm++-sde"}, {"ddim"}),
                                (["generate", "--dtype", ""], {"bf16", "fp16", "fp32"}, {"image.png"}),
                                (["generate", "--request", "im"], {"image.png"}, set()),
                                (["models", ""], {"image.png", "shapes", "shapes-video"}, set()),
                                (["generate", "--use_cfg"], {"--use-cfg-parallel"}, {"--seed"}),
                                (["generate", "--pipeline_patch_axis", ""], {"h", "t"}, {"image.png"}),
                                (["generate", "--dtype", "=", "b"], {"bf16"}, {"fp16"}),
                                (["generate", "--dtype", "="], {"bf16", "auto"}, {"image.png"}),
                                (["generate", "--model", ""], {"shapes", "shapes-xl", "image.png"}, set()),
                                (["analyze", ""], {"ops", "comm", "report", "hardware"}, {"image.png"}),
                                (["analyze", "ops", ""], {"image.png"}, {"comm"}),
                                (["analyze", "hardware", "--dtype", ""], {"bf16", "fp8"}, {"auto"}),
                                (["analyze", "hardware", "--machine", "h"], {"h100", "h200"}, {"l40"}),
                                (["completion", ""], {"bash", "zsh", "fish"}, {"image.png"}),
                                (["compare", ""], set(), {"image.png"})):
        code = script + "COMP_WORDS=(tessera \"$@\"); COMP_CWORD=$#; _tessera; printf '%s\\n' \"${COMPREPLY[@]}\""
        found = subprocess.run(["bash", "-c", code, "bash", *words], cwd=box.folder, capture_output=True, text=True, check=True)
        assert found.stderr == "" and some <= set(found.stdout.split()) and not others & set(found.stdout.split()), (words, found)


def test_the_manual_page_has_every_command_and_option(box):
    page = box.run("man").out
    for command in ("compare", "generate", "mesh", "models"):
        options = set(re.findall(r"^  (?:-\w,)?(--[a-z0-9-]+)", box.run(command, "--help").out, re.M))
        section = page.split(f".SS tessera {command}\n")[1].split("\n.SS ")[0].replace("\\-", "-")
        assert not {name for name in options if not re.search(rf"\\fB{name}\\fR", section)}, (command, section)
    assert all(re.match(r"\.(TH|SH|SS|PP|TP|B|BR|I|IR|RI|RS|RE|ad|br|nf|fi)\b", line)
               for line in page.splitlines() if line.startswith((".", "'"))), page
    sections = dict(re.findall(r"^\.SH (.*)\n((?:(?!\.SH ).*\n)*)", page, re.M))
    assert list(sections) == ["NAME", "SYNOPSIS", "DESCRIPTION", "COMMANDS", "ENVIRONMENT", "FILES", "EXIT STATUS", "EXAMPLES", "SEE ALSO"]
    assert re.match(r'\.TH TESSERA 1 "[A-Z][a-z]+ 20\d\d" ', page), page[:100]
    for variable in ("TESSERA_MODELS", "TESSERA_MACHINES", "TESSERA_MAX_ISA", "XDG_CACHE_HOME", "MASTER_ADDR"):
        assert variable in sections["ENVIRONMENT"], sections
    assert ".B tessera generate\n.RI [ PROMPT \\~.\\|.\\|.\\|]\n[options]\n" in sections["SYNOPSIS"], sections
    assert ".B tessera completion\n.I SHELL\n[options]\n" in sections["SYNOPSIS"], sections
    # What is not filled fits into 80 columns; a command that goes on in the next line does so for a shell, too.
    for block in re.findall(r"^\.nf\n(.*?)^\.fi$", page, re.M | re.S):
        lines = block.replace("\\-", "-").replace("\\e", "\\").splitlines()
        assert all(len(line) <= 70 and (line.startswith(("tessera ", "torchrun ")) or before.endswith("\\"))
                   for before, line in zip(["", *lines], lines)), lines


def test_the_manual_page_is_as_man_reads_it(box):
    if not shutil.which("groff"):
        pytest.skip("no groff")
    shown = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-rLL=80n", "-P-c"], input=box.run("man").out, capture_output=True, text=True,
                           check=True)
    text = re.sub(".\b", "", shown.stdout)  # as on a terminal, where letters are bold or underlined
    assert shown.stderr == "" and max(map(len, text.splitlines())) <= 80, text


def test_the_help_begins_with_common_options(box):
    groups = re.findall(r"^([A-Z][A-Za-z ]+):$", box.run("generate", "--help").out, re.M)
    groups = [group for group in groups if group not in ("Positionals", "Options", "Examples")]
    assert groups[0] == "Common options" and groups.index("Sampling") < groups.index("Video"), groups


def test_completion_has_every_option_for_every_shell(box):
    options = set(re.findall(r"^  (?:-\w,)?(--[a-z0-9-]+)", box.run("generate", "--help").out, re.M)) - {"--help"}
    assert len(options) > 60
    for shell, form in (("bash", " {} "), ("zsh", "'*{}["), ("fish", " -l {}")):
        script = box.run("completion", shell).out
        assert "h200" in script and "shapes-xl" in script and re.search(r"\bfp32 fp16 bf16 fp8\b", script), script
        if shutil.which(shell):
            subprocess.run([shell, "-n"], input=script, text=True, check=True)
        missing = {name for name in options if form.format(name if shell != "fish" else name[2:]) not in script}
        assert not missing, (shell, missing)
    box.refuse(2, "[SHELL] no completion for 'tcsh'; there is one for bash, zsh, fish", "completion", "tcsh")
    box.refuse(2, "SHELL is required; see tessera completion --help", "completion")


def test_scripts_say_how_to_get_a_missing_package(box):
    for package in ("numpy", "PIL"):
        (box.folder / f"{package}.py").write_text(f"raise ModuleNotFoundError(\"No module named '{package}'\", name='{package}')\n")
    for script in ("score.check_demo", "score.check_video", "figures.stale_table", "figures.draw_timeline"):
        outcome = subprocess.run([sys.executable, "-m", f"tools.{script}"], cwd=ROOT,
                                 env={**os.environ, "PYTHONPATH": str(box.folder)}, capture_output=True, text=True)
        assert outcome.returncode == 1 and outcome.stderr.count("\n") == 1, outcome
        assert "is missing; tools/setup.sh python installs it" in outcome.stderr, outcome
