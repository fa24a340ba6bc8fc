"""Tests `tessera calibrate`."""
import json
import os
import signal

from running import start

FAST = ["--seconds", "1", "--dtype", "fp32", "--threads", "1"]


def test_calibrates_a_machine_that_analyses_take(box):
    outcome = box.run("calibrate", *FAST, "--nproc", "2", "-o", "mine.json")
    assert outcome.code == 0 and outcome.out == "mine.json\n", outcome
    assert "measuring 2 ranks of 2" in outcome.err, outcome.err
    machine = json.loads((box.folder / "mine.json").read_text())
    assert set(machine["efficiency"]) == {"gemm", "convolution", "attention", "vector"}, machine["efficiency"]
    assert all(0 < share <= 1 for shares in machine["sharing"].values() for share in shares), machine["sharing"]
    assert all(len(shares) == 2 for shares in machine["sharing"].values()), machine["sharing"]
    link = machine["links"][0]
    assert link["kind"] == "shared-memory" and {"all_to_all", "all_gather", "send", "receive"} <= set(link["collectives"]), link
    assert all(row[0] == 2 and row[2] > 0 for rows in link["collectives"].values() for row in rows), link
    for dies in ("1", "2"):
        found = box.run("analyze", "hardware", "--machine", "mine.json", "--num-frames", "17", "--height", "144", "--width", "256",
                        "--dies", dies, "--json")
        assert found.code == 0 and json.loads(found.out)["total_seconds"] > 0, found


def test_calibrates_one_rank_and_says_nothing(box):
    outcome = box.run("calibrate", *FAST, "--nproc", "1", "-q", "-o", "-")
    assert outcome.code == 0 and outcome.err == "", outcome
    assert json.loads(outcome.out)["links"] == [] and box.files() == [], box.files()


def test_refuses_a_calibration_before_it_measures(box):
    box.refuse(2, "--output", "calibrate", *FAST, "-o", "no/such/folder/machine.json")
    box.refuse(2, "--threads", "calibrate", "--threads", "0")
    box.refuse(2, "fp32 or bf16", "calibrate", "--dtype", "int8")
    cores = len(os.sched_getaffinity(0))
    box.refuse(2, f"[--threads] is {cores + 1}, more than the {cores} core", "calibrate", "--threads", str(cores + 1))
    box.refuse(2, f"too few cores: {cores}; give at most {cores}", "calibrate", "--nproc", str(cores + 1))
    box.refuse(2, "give at most 1", "calibrate", "--nproc", "2", "--threads", str(cores))
    assert box.files() == []


def test_ends_a_calibration_without_a_file(box):
    for until in ("measuring 2 ranks of 2", "operations in fp32"):
        run = start(box.program, box.folder, "--seconds", "60", "--nproc", "2", "--dtype", "fp32", "-o", "mine.json", command="calibrate")
        run.wait_for(until)
        run.process.send_signal(signal.SIGINT)
        code, out, _ = run.finish()
        assert code == 130 and out == "", (code, out, run.shown)
        assert "this step" not in run.shown, run.shown
        assert ("stopping after this measurement" in run.shown) == ("ranks" in until), run.shown
        assert box.files() == [], box.files()
