"""Tests `tessera generate --parallel auto`: the layout that a plan chooses, and the machine that it rests on."""
import json
import os
import pathlib
import signal
import statistics
import subprocess
import time

import pytest

from files import assert_near, read_latents
from harness import MODEL, ROOT, SMALL, words_of
from running import alive, children, start
from test_launchers import finish_ranks, start_ranks, torchrun_variables
from test_ranks import NEAR

AUTO = ["--nproc", "2", "--parallel", "auto"]


def write_machine(box, **changes):
    """A machine of processors with a link, whose times are those of a GPU's data sheet."""
    machine = json.loads((ROOT / "machines" / "l40.json").read_text()) | {"device": "cpu", "name": "mine"} | changes
    (box.folder / "mine.json").write_text(json.dumps(machine))
    return ["--machine", "mine.json"]


def test_a_plan_chooses_the_layout_of_a_run(box):
    machine = write_machine(box)
    base = ["a cat", "--seed", "5", *SMALL, "--output-type", "latent"]
    outcome = box.generate(*base, *AUTO, *machine, "--report", "auto.json", "-o", "auto.safetensors")
    lines = [line for line in outcome.err.splitlines() if line.startswith("planned: ")]
    report = json.loads((box.folder / "auto.json").read_text())
    plan, settings = report["plan"], report["settings"]
    assert len(lines) == 1 and plan["layout"] in lines[0] and "2 ranks" in lines[0] and "data sheet" in lines[0], outcome.err
    assert " ".join(words_of(plan["options"])) + " asks for it" in lines[0], outcome.err
    assert all(settings[name] == value for name, value in plan["options"].items()) and plan["exact"], (plan, settings)
    # It is the soonest exact layout of two devices, and those options ask for the same run.
    found = box.run("plan", "a cat", "--model", MODEL, "--dtype", "fp32", *SMALL, "--output-type", "latent", *machine,
                    "--devices", "2", "--max-staleness", "none", "--json")
    of_two = [each for each in json.loads(found.out)["layouts"] if each["devices"] == 2]
    assert of_two[0]["options"] == plan["options"], (of_two, plan)
    assert abs(plan["seconds"]["predicted"] / of_two[0]["seconds"] - 1) < 1e-9, (of_two[0], plan)
    box.generate(*base, *words_of(plan["options"]), "-o", "given.safetensors")
    box.generate(*base, "-o", "alone.safetensors")
    latents = read_latents(box.folder / "auto.safetensors")
    assert latents == read_latents(box.folder / "given.safetensors")
    assert_near(latents, read_latents(box.folder / "alone.safetensors"), NEAR)
    # A report is a request that another plan may divide anew.
    again = box.run("generate", "--request", "auto.json", *AUTO, *machine, "-o", "again.safetensors", "-q")
    assert again.code == 0 and again.err == "", again
    assert read_latents(box.folder / "again.safetensors") == latents


def test_a_report_has_a_plan_beside_the_run(box):
    machine = write_machine(box)
    box.generate("a cat", *SMALL, "--ulysses-degree", "2", *machine, "--report", "r.json")
    report = box.report("r.json")
    plan, seconds = report["plan"], report["seconds"]
    assert plan["options"] == {"ulysses_degree": 2} and plan["machine"] == "mine" and plan["file"] == "mine.json", plan
    measured = {name: plan[name]["measured"] for name in plan if isinstance(plan[name], dict) and "measured" in plan[name]}
    assert set(measured) == {"seconds", "encode_seconds", "denoise_seconds", "decode_seconds", "step_seconds", "peak_bytes"}, plan
    assert abs(measured["seconds"] - sum(seconds[part] for part in ("encode", "denoise", "decode"))) < 1e-9, report
    assert measured["step_seconds"] == statistics.median_low(report["step_seconds"]), report
    assert len(plan["peak_bytes"]["predicted"]) == 2 and min(plan["peak_bytes"]["predicted"]) > 0, plan
    for rank, taken in zip(report["ranks"], measured["peak_bytes"]):
        assert taken == rank["peak_rss_bytes"] - rank["first_rss_bytes"] > 0, report
    box.generate("a cat", *SMALL, "--ulysses-degree", "2", "--report", "r.json")
    assert "plan" not in box.report("r.json")


def test_a_plan_takes_several_prompts_and_videos(box):
    machine = write_machine(box)
    prompts = ["a cat", "a dog", "a bird", "a cow"]
    box.generate(*prompts, *SMALL, *AUTO, *machine, "--report", "r.json")
    report = box.report("r.json")
    assert report["plan"]["devices"] == 2 and len(report["outputs"]) == 4, report
    (box.folder / "first.png").write_bytes((box.folder / "out-0.png").read_bytes())
    video = ["generate", "a red circle", "--model", ROOT / "models" / "shapes-video", "--num-frames", "34", "--num-inference-steps", "2",
             "--height", "64", "--width", "64", *machine, "-o", "v.mp4", "--report", "r.json"]
    for more in ([], ["--loop", "2"], ["--reference-path", "first.png", "--mask-strategy", "0"]):
        outcome = box.run(*video, *AUTO, *more)
        assert outcome.code == 0 and "planned: " in outcome.err, outcome
        assert box.report("r.json")["plan"]["seconds"]["predicted"] > 0, more


def test_a_plan_of_a_run_is_stale_on_demand(box):
    # On slow links, what hides messages behind computing is soonest.
    machine = write_machine(box, links=[{"kind": "slow", "gb_per_s": 0.001, "latency_us": 10}])
    words = ["a cat", "--height", "64", "--width", "64", "--no-resolution-binning", "--guidance-scale", "1", "--num-inference-steps",
             "20", *AUTO, *machine, "--dry-run"]
    exact = box.generate(*words)
    stale = box.generate(*words, "--max-staleness", "any")
    settings = [json.loads(outcome.out)["settings"] for outcome in (exact, stale)]
    assert "displaced_patch_degree" not in settings[0] and settings[0].get("num_pipeline_patch", 1) == 1, settings[0]
    assert settings[1].get("displaced_patch_degree", 1) * settings[1].get("pipefusion_parallel_degree", 1) == 2, settings[1]


def test_a_plan_of_a_run_refuses_what_it_cannot_be(box):
    machine = write_machine(box)
    words = ["generate", "a cat", "--model", MODEL, *SMALL]
    box.refuse(2, "[--parallel] auto needs --nproc", *words, "--parallel", "auto", *machine)
    box.refuse(2, "[--parallel] expected auto, got 'most'", *words, "--nproc", "2", "--parallel", "most")
    for option in (["--ulysses-degree", "2"], ["--use-cfg-parallel"], ["--rank-shares", "1", "2"], ["--split-scheme", "2d"],
                   ["--num-pipeline-patch", "2"], ["--simulate-ranks"]):
        box.refuse(2, f"[--parallel] auto chooses the layout; leave out {option[0]}", *words, *AUTO, *machine, *option)
    box.refuse(2, "[--max-staleness] is for --parallel auto", *words, "--max-staleness", "any")
    box.refuse(2, "must be none, any or a number of steps", *words, *AUTO, *machine, "--max-staleness", "some")
    box.refuse(3, "[mine.jsn/] no such file", *words, *AUTO, "--machine", "mine.jsn/")
    box.refuse(3, "did you mean", *words, *AUTO, "--machine", "h10")
    box.refuse(2, "[--machine] h100 is of cuda devices, and the run is on cpu", *words, *AUTO, "--machine", "h100")
    box.refuse(2, "of 63 ranks fits this request", *words, "--nproc", "63", "--parallel", "auto", *machine)
    box.refuse(2, "[TESSERA_CALIBRATION_SECONDS] must be from 1 to 3600", *words, *AUTO, env={"TESSERA_CALIBRATION_SECONDS": "0"})
    # What is wrong with the request is said before anything is measured.
    box.refuse(2, "[--output]", *words, *AUTO, "-o", "no/such/folder/out.png")


def test_ranks_of_a_launcher_are_not_planned(box):
    words = ["generate", "a cat", "--model", MODEL, *SMALL]
    for more, name in ((["--parallel", "auto"], "--parallel"), (["--use-cfg-parallel", "--machine", "l40"], "--machine")):
        first, second = finish_ranks(start_ranks(box, torchrun_variables, [[*words, *more]] * 2))
        assert first[0] == 2 and f"[{name}] plans ranks that --nproc starts on this host" in first[2], first
        assert second == (2, "", ""), second
    assert box.files() == [], box.files()


@pytest.mark.alone
def test_this_host_is_measured_once(box):
    fast = {"TESSERA_CALIBRATION_SECONDS": "1", "XDG_CACHE_HOME": str(box.folder / "cache")}
    words = ["a cat", *SMALL, *AUTO, "-o", "out.png"]
    first = box.generate(*words, env=fast)
    (file,) = (box.folder / "cache" / "tessera" / "machines").iterdir()
    assert f"measuring this host once, about 1 s; kept in {file}\n" in first.err, first.err
    assert "measurements of the machine" in first.err and f"({file})" in first.err, first.err
    kept = file.read_bytes()
    assert json.loads(kept)["calibration"]["host"]["cores"] == len(os.sched_getaffinity(0)), kept
    assert "measuring" not in box.generate(*words, env=fast).err and file.read_bytes() == kept
    # Each run tells of a calibration that had too little time.
    poor = json.loads(kept)
    poor["calibration"] |= {"operations": 5, "all_operations": 63}
    file.write_text(json.dumps(poor))
    told = f"by poor measurements of the machine, in which 5 of 63 operations had time ({file}); delete it to have this host measured"
    assert told in box.generate(*words, env=fast).err
    file.write_bytes(kept[:len(kept) // 2])
    # Of two runs at once, one measures and the other waits for that.
    command = [box.program, "generate", "--model", MODEL, "--dtype", "fp32", *words[:-1]]
    runs = [subprocess.Popen([*map(os.fspath, command), f"{name}.png"], cwd=box.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             env={**os.environ, **fast}) for name in "ab"]
    errors = [run.communicate(timeout=100)[1] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], errors
    assert sum("measuring this host once" in err for err in errors) == 1, errors
    assert sum("another run is measuring this host" in err for err in errors) <= 1, errors
    assert json.loads(file.read_bytes())["calibration"]["host"] == json.loads(kept)["calibration"]["host"]
    assert [path.name for path in file.parent.iterdir()] == [file.name], list(file.parent.iterdir())


def test_ctrl_c_ends_the_measuring_of_a_host(box):
    os.environ |= {"TESSERA_CALIBRATION_SECONDS": "60", "XDG_CACHE_HOME": str(box.folder / "cache")}
    try:
        run = start(box.program, box.folder, "a cat", "--model", MODEL, *SMALL, *AUTO)
    finally:
        del os.environ["TESSERA_CALIBRATION_SECONDS"], os.environ["XDG_CACHE_HOME"]
    run.wait_for("measuring this host once")
    while not (aside := children(run.process.pid)) or not children(aside[0]):
        assert run.process.poll() is None, run.shown
        time.sleep(0.01)
    started = [*aside, *children(aside[0])]
    run.process.send_signal(signal.SIGINT)
    code, out, lines = run.finish()
    assert code == 130 and out == "" and lines == ["tessera: stopped at once; nothing was written"], (code, out, lines)
    deadline = time.monotonic() + 60
    while any(map(alive, started)):
        assert time.monotonic() < deadline, started
        time.sleep(0.01)
    assert [name for name in box.files() if pathlib.Path(box.folder, name).is_file()] == [], box.files()


def test_a_report_of_a_recording_draws_its_plan_beside_it(box):
    machine = write_machine(box)
    box.generate("a cat", *SMALL, "--ulysses-degree", "2", "--record", "run.json")
    outcome = box.run("analyze", "report", "run.json", *machine, "-o", "r.html")
    assert outcome.code == 0, outcome
    page = (box.folder / "r.html").read_text()
    for text in (">rank 0, predicted<", ">rank 1, recorded<", "All 2 steps are drawn, at one scale",
                 'aria-label="Timelines of the ranks in the denoiser, as predicted and as recorded"'):
        assert text in page, text
    recorded = json.loads((box.folder / "run.json").read_text())
    ends = [max(event["end"] for rank in recorded["ranks"] for event in rank["events"] if event["phase"] == "denoise" and event.get("step") == step)
            for step in (0, 1)]
    step = 1e3 * (ends[1] - ends[0])
    assert (f"{step:.0f}" if step >= 100 else f"{step:.3g}") in page, ends
