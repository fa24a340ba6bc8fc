"""Tests `tessera plan` and `tessera calibrate --from-table`."""
import csv
import json
import pathlib
import shutil
import statistics

from harness import test

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "planning"
MODEL = ["--model", str(DOCS / "pixart-alpha" / "config.json")]
SIZE = ["--height", "512", "--width", "512", "--num-inference-steps", "10"]


def plan(box, *words):
    outcome = box.run("plan", *MODEL, *SIZE, "--json", *words)
    assert outcome.code == 0 and outcome.err == "", outcome
    return json.loads(outcome.out)


@test
def a_plan_names_the_soonest_layouts_and_why(box):
    found = plan(box, "--machine", "l40-pcie", "--devices", "4")
    seconds = [each["seconds"] for each in found["layouts"]]
    assert len(seconds) == 10 and seconds == sorted(seconds), seconds
    assert "data sheet" in found["basis"], found["basis"]
    best = found["layouts"][0]
    assert best["devices"] == 4 and len(best["peak_bytes"]) == 4 and min(best["peak_bytes"]) > 0, best
    assert found["reasons"][0].startswith(best["layout"]) and len(found["reasons"]) > 5, found["reasons"]
    # Its options ask for it.
    words = []
    for name, value in best["options"].items():
        words += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
    alone = plan(box, "--machine", "l40-pcie", *words)
    assert alone["layout"] == best["layout"] and abs(alone["seconds"] / best["seconds"] - 1) < 1e-9, (alone, best)
    text = box.run("plan", *MODEL, *SIZE, "--machine", "l40-pcie", "--devices", "4")
    assert text.code == 0 and best["layout"] in text.out and found["reasons"][-1] in text.out, text


@test
def a_plan_is_exact_or_within_a_memory_on_demand(box):
    found = plan(box, "--machine", "l40", "--devices", "4", "--max-staleness", "none")
    assert all(each["exact"] for each in found["layouts"]), found
    least = min(max(each["peak_bytes"]) for each in found["layouts"])
    small = plan(box, "--machine", "l40", "--devices", "4", "--max-staleness", "none", "--memory-limit", str((least + 1) / 2**30))
    assert small["layouts"] and all(max(each["peak_bytes"]) <= least + 1 for each in small["layouts"]), small
    box.refuse(2, "nearest is", "plan", *MODEL, *SIZE, "--machine", "l40", "--devices", "2", "--memory-limit", "0.1")


@test
def a_plan_for_devices_of_two_speeds_deals_shares(box):
    machine = json.loads((pathlib.Path(box.program).resolve().parents[1] / "machines" / "l40.json").read_text())
    (box.folder / "two.json").write_text(json.dumps(machine | {"speeds": [1, 0.5]}))
    best = plan(box, "--machine", "two.json", "--devices", "2", "--max-staleness", "none")["layouts"][0]
    assert best["options"].get("rank_shares") == "1,0.5", best
    equal = plan(box, "--machine", "two.json", "--ulysses-degree", "2")
    shared = plan(box, "--machine", "two.json", "--ulysses-degree", "2", "--rank-shares", "1,0.5")
    assert shared["step_seconds"] < 0.85 * equal["step_seconds"], (shared, equal)


@test
def a_plan_refuses_what_it_cannot_be(box):
    box.refuse(2, "--machine", "plan", *MODEL, "--devices", "2")
    box.refuse(2, "--devices", "plan", *MODEL, "--machine", "l40")
    box.refuse(2, "--devices", "plan", *MODEL, "--machine", "l40", "--devices", "4", "--ulysses-degree", "2")
    box.refuse(2, "--max-staleness", "plan", *MODEL, "--machine", "l40", "--devices", "2", "--max-staleness", "some")
    box.refuse(2, "--images", "plan", *MODEL, "--machine", "l40", "--devices", "2", "--images", "2", "--num-images-per-prompt", "2")
    box.refuse(2, "above 0", "plan", *MODEL, "--machine", "l40", "--devices", "2", "--memory-limit", "0")
    box.refuse(3, "no such file", "plan", *MODEL, "--machine", "l41", "--devices", "2")
    box.refuse(2, "a head for each rank", "plan", *MODEL, "--machine", "l40", "--tensor-parallel-degree", "32")


@test
def a_machine_is_fitted_to_rows_and_tells_others(box):
    """The rows of docs/planning that nothing was fitted to: the errors that its page promises."""
    shutil.copytree(DOCS, box.folder / "rows")
    outcome = box.run("calibrate", "--from-table", "rows/t4-pcie.fit.csv", "--machine", "t4", "-o", "mine.json")
    assert outcome.code == 0 and outcome.out == "mine.json\n" and "gemm efficiency" in outcome.err, outcome
    assert len(json.loads((box.folder / "mine.json").read_text())["calibration"]["fitted"]) == 6
    with open(DOCS / "t4-pcie.rest.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    errors = []
    for row in rows:
        found = box.run("plan", *MODEL, "--machine", "mine.json", "--height", row["height"], "--width", row["width"],
                        "--num-inference-steps", row["steps"], "--json", *row["flags"].split())
        assert found.code == 0, found
        errors.append(abs(json.loads(found.out)["seconds"] / float(row["seconds"]) - 1))
    assert statistics.median(errors) <= 0.15 and max(errors) < 0.2, errors


@test
def a_table_that_cannot_be_is_refused(box):
    header = "model,height,width,frames,steps,batch,devices,flags,seconds\n"
    row = f"{DOCS / 'pixart-alpha' / 'config.json'},512,512,,10,1,1,,1.5\n"

    def refuse(code, word, text):
        (box.folder / "rows.csv").write_text(text)
        box.refuse(code, word, "calibrate", "--from-table", "rows.csv", "--machine", "t4", "-o", "mine.json")

    refuse(3, "no column 'seconds'", header.replace(",seconds", ""))
    refuse(3, "no row below", header)
    refuse(3, "is empty", "")
    refuse(3, "line 2", header + row.replace(",1.5", ""))
    refuse(3, "'seconds' must be", header + row.replace("1.5", "soon"))
    refuse(3, "'devices' is 2", header + row.replace(",1,1,,", ",1,2,,"))
    refuse(2, "line 3", header + row + row.replace(",1,1,,", ",1,,--ulysses-degre 2,"))
    refuse(3, "line 2", header + row.replace("config.json", "confg.json"))
    box.refuse(2, "--machine", "calibrate", "--from-table", "rows.csv")
    box.refuse(2, "--from-table", "calibrate", "--machine", "t4")
    box.refuse(2, "--threads", "calibrate", "--from-table", "rows.csv", "--machine", "t4", "--threads", "2")
    assert "mine.json" not in box.files(), box.files()
