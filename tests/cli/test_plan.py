"""Tests `tessera plan`, and `tessera calibrate --from-table` and `--from-records`."""
import csv
import json
import pathlib
import shutil
import statistics

from harness import MODEL as MODEL_FOLDER, SMALL, words_of

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "planning"
MODEL = ["--model", str(DOCS / "pixart-alpha" / "config.json")]
SIZE = ["--height", "512", "--width", "512", "--num-inference-steps", "10"]


def plan(box, *words):
    outcome = box.run("plan", *MODEL, *SIZE, "--json", *words)
    assert outcome.code == 0 and outcome.err == "", outcome
    return json.loads(outcome.out)


def test_a_plan_names_the_soonest_layouts_and_why(box):
    found = plan(box, "--machine", "l40-pcie", "--devices", "4")
    seconds = [each["seconds"] for each in found["layouts"]]
    assert len(seconds) == 10 and seconds == sorted(seconds), seconds
    assert "data sheet" in found["basis"], found["basis"]
    best = found["layouts"][0]
    assert best["devices"] == 4 and len(best["peak_bytes"]) == 4 and min(best["peak_bytes"]) > 0, best
    assert found["reasons"][0].startswith(best["layout"]) and len(found["reasons"]) > 5, found["reasons"]
    # Its options ask for it.
    alone = plan(box, "--machine", "l40-pcie", *words_of(best["options"]))
    assert alone["layout"] == best["layout"] and abs(alone["seconds"] / best["seconds"] - 1) < 1e-9, (alone, best)
    text = box.run("plan", *MODEL, *SIZE, "--machine", "l40-pcie", "--devices", "4")
    assert text.code == 0 and best["layout"] in text.out and found["reasons"][-1] in text.out, text
    assert "--max-staleness none leaves these out, as generate --parallel auto does by default" in text.out, text.out
    for each in found["layouts"]:
        causes = sum(each[f"step_{cause}_seconds"] for cause in ("launching", "latency", "sending"))
        assert -1e-9 <= causes <= each["step_waiting_seconds"] + 1e-9, each
        assert ("displaced_mode" in each) == ("displaced" in each["layout"]), each


def test_a_plan_is_exact_or_within_a_memory_on_demand(box):
    found = plan(box, "--machine", "l40", "--devices", "4", "--max-staleness", "none")
    assert all(each["exact"] is True for each in found["layouts"]), found
    text = box.run("plan", *MODEL, *SIZE, "--machine", "l40", "--devices", "4", "--max-staleness", "none")
    assert "\nOnly exact layouts\n" in text.out and "stale" not in text.out, text.out
    least = min(max(each["peak_bytes"]) for each in found["layouts"])
    small = plan(box, "--machine", "l40", "--devices", "4", "--max-staleness", "none", "--memory-limit", str((least + 1) / 2**30))
    assert small["layouts"] and all(max(each["peak_bytes"]) <= least + 1 for each in small["layouts"]), small
    box.refuse(2, "nearest is", "plan", *MODEL, *SIZE, "--machine", "l40", "--devices", "2", "--memory-limit", "0.1")


def test_a_plan_for_devices_of_two_speeds_deals_shares(box):
    machine = json.loads((pathlib.Path(box.program).resolve().parents[1] / "machines" / "l40.json").read_text())
    (box.folder / "two.json").write_text(json.dumps(machine | {"speeds": [1, 0.5]}))
    best = plan(box, "--machine", "two.json", "--devices", "2", "--max-staleness", "none")["layouts"][0]
    assert best["options"].get("rank_shares") == "1,0.5", best
    equal = plan(box, "--machine", "two.json", "--ulysses-degree", "2")
    shared = plan(box, "--machine", "two.json", "--ulysses-degree", "2", "--rank-shares", "1,0.5")
    assert shared["step_seconds"] < 0.85 * equal["step_seconds"], (shared, equal)


def test_a_plan_decodes_on_one_rank_where_that_is_sooner(box):
    """A link whose messages take long: of the whole checkpoint, the prompts are encoded and the picture is decoded on one rank."""
    words = ["plan", "--model", str(MODEL_FOLDER), *SMALL, "--machine", "l40-pcie", "--dtype", "fp32", "--link-gb-per-s", "0.01", "--json"]
    found = box.run(*words, "--devices", "2", "--memory-limit", "40")
    assert found.code == 0 and found.err == "", found
    found = json.loads(found.out)
    two = next(each for each in found["layouts"] if each["devices"] == 2)
    assert two["options"].get("vae_parallel") is False, two
    options = words_of(two["options"])
    alone, divided = (json.loads(box.run(*words, *these).out) for these in (
        options, [word for word in options if word != "--no-vae-parallel"]))
    assert abs(alone["seconds"] / two["seconds"] - 1) < 1e-9 and alone["decode_seconds"] < divided["decode_seconds"] / 2, (alone, divided)
    fixed = json.loads(box.run(*words, "--devices", "2", "--vae-parallel").out)
    assert all(each["options"].get("vae_parallel") is True for each in fixed["layouts"] if each["devices"] > 1), fixed["layouts"]


def test_a_server_is_dealt_to_worlds(box):
    few = plan(box, "--machine", "l40-pcie", "--devices", "4", "--requests-per-minute", "1")
    assert [(each["worlds"], each["devices"]) for each in few["choices"]] == [(1, 4), (2, 2), (4, 1)], few
    for each in few["choices"]:
        assert abs(each["capacity_per_minute"] / (60 * each["worlds"] / each["service_seconds"]) - 1) < 1e-9, each
        assert each["exact"] in (True, False), each
        assert each["service_seconds"] <= min(each["mean_seconds"], each["p95_seconds"]), each
    best = min(few["choices"], key=lambda each: each["p95_seconds"])
    assert few["choices"][few["best"]] == best and best["devices"] == 4, few
    # Its service is the soonest layout of so many devices.
    alone = plan(box, "--machine", "l40-pcie", "--devices", "4")
    assert best["layout"] == alone["layouts"][0]["layout"] and best["service_seconds"] == alone["layouts"][0]["seconds"], (best, alone)
    busy = plan(box, "--machine", "l40-pcie", "--devices", "4", "--requests-per-minute", str(0.97 * few["most_per_minute"]))
    assert busy["choices"][busy["best"]]["worlds"] == 4 and busy["choices"][0]["p95_seconds"] is None, busy
    words = [*MODEL, *SIZE, "--machine", "l40-pcie", "--devices", "4"]
    text = box.run("plan", *words, "--requests-per-minute", "1")
    assert text.code == 0 and "1 world of 4 devices is best, with the least p95: " in text.out and text.out.rstrip().endswith(" ".join(words_of(best["options"]))), text
    beyond = box.run("plan", *words, "--requests-per-minute", str(2 * few["most_per_minute"]))
    assert beyond.code == 0 and f"the most is {few['most_per_minute']:.4g}." in beyond.out, beyond
    box.refuse(2, "--requests-per-minute", "plan", *words, "--requests-per-minute", "0")
    box.refuse(2, "--requests-per-minute", "plan", *MODEL, "--machine", "l40", "--ulysses-degree", "2", "--requests-per-minute", "1")
    box.refuse(2, "--memory-limit", "plan", *MODEL, "--machine", "l40", "--ulysses-degree", "2", "--memory-limit", "1")
    box.refuse(2, "[--link-gb-per-s] must be from 1e-06 to", "plan", *MODEL, "--machine", "l40", "--devices", "2", "--link-gb-per-s", "0")
    box.refuse(2, "nearest is", "plan", *words, "--requests-per-minute", "1", "--memory-limit", "0.1")


def test_a_plan_refuses_what_it_cannot_be(box):
    box.refuse(2, "--num-pipeline-patch", "plan", *MODEL, "--machine", "l40", "--devices", "2", "--num-pipeline-patch", "2")
    box.refuse(2, "--machine", "plan", *MODEL, "--devices", "2")
    box.refuse(2, "--devices", "plan", *MODEL, "--machine", "l40")
    box.refuse(2, "--devices", "plan", *MODEL, "--machine", "l40", "--devices", "4", "--ulysses-degree", "2")
    box.refuse(2, "--max-staleness", "plan", *MODEL, "--machine", "l40", "--devices", "2", "--max-staleness", "some")
    box.refuse(2, "--images", "plan", *MODEL, "--machine", "l40", "--devices", "2", "--images", "2", "--num-images-per-prompt", "2")
    box.refuse(2, "above 0", "plan", *MODEL, "--machine", "l40", "--devices", "2", "--memory-limit", "0")
    box.refuse(3, "no such file", "plan", *MODEL, "--machine", "l41", "--devices", "2")
    box.refuse(2, "--devices", "plan", *MODEL, "--machine", "l40", "--devices", "4097")
    box.refuse(3, "is no machine file", "plan", *MODEL, "--machine", MODEL[1], "--devices", "2")
    box.refuse(2, "a head for each rank", "plan", *MODEL, "--machine", "l40", "--tensor-parallel-degree", "32")


def test_a_machine_is_fitted_to_rows_and_tells_others(box):
    """The rows of docs/planning that nothing was fitted to: the errors that its page promises."""
    shutil.copytree(DOCS, box.folder / "rows")
    outcome = box.run("calibrate", "--from-table", "rows/t4-pcie.fit.csv", "--machine", "t4", "-o", "mine.json")
    assert outcome.code == 0 and outcome.out == "mine.json\n" and "gemm efficiency" in outcome.err, outcome
    assert "warning" not in outcome.err, outcome.err
    machine = json.loads((box.folder / "mine.json").read_text())
    fitted = machine["calibration"]["fitted"]
    assert len(fitted) == 6 and fitted["launch"] == {"value": machine["launch_us"], "unit": "us", "factor": fitted["launch"]["factor"]}, fitted
    assert fitted["gemm efficiency"]["value"] == machine["efficiency"]["gemm"], fitted
    assert f"{fitted['launch']['value']:.4g} us ({fitted['launch']['factor']:.3f} x where the fit began)" in outcome.err, outcome.err
    with open(DOCS / "t4-pcie.rest.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    errors = []
    for row in rows:
        found = box.run("plan", *MODEL, "--machine", "mine.json", "--height", row["height"], "--width", row["width"],
                        "--num-inference-steps", row["steps"], "--json", *row["flags"].split())
        assert found.code == 0, found
        errors.append(abs(json.loads(found.out)["seconds"] / float(row["seconds"]) - 1))
    assert statistics.median(errors) <= 0.15 and max(errors) < 0.2, errors


def test_a_table_that_cannot_be_is_refused(box):
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


def test_a_machine_is_fitted_to_recorded_runs(box):
    """The denoising and the decoding of runs on one and two ranks, of which a machine that is slower than this host tells less."""
    cpu = json.loads((pathlib.Path(box.program).resolve().parents[1] / "machines" / "cpu-avx2.json").read_text())
    cpu["links"] = [{"kind": "memory", "gb_per_s": 10, "latency_us": 5}]
    (box.folder / "base.json").write_text(json.dumps(cpu))
    for name, degrees in (("one", []), ("two", ["--ulysses-degree", "2"])):
        box.generate("a cat", *SMALL, *degrees, "--record", f"{name}.json", "-o", f"{name}.png")
        record = json.loads((box.folder / f"{name}.json").read_text())
        assert record["settings"]["threads"] == 1 and record["settings"]["dtype"] == "fp32", record["settings"]
    fitted = box.run("calibrate", "--from-records", "one.json", "two.json", "--machine", "base.json", "-o", "mine.json")
    assert fitted.code == 0 and fitted.out == "mine.json\n" and "link bandwidth" in fitted.err, fitted
    machine = json.loads((box.folder / "mine.json").read_text())
    rows = machine["calibration"]["rows"]
    assert [(row["run"], row["devices"]) for row in rows] == [
        ("one.json, denoising", 1), ("one.json, decoding", 1), ("two.json, denoising", 2), ("two.json, decoding", 2)], rows
    for row, name in zip(rows, ("one", "one", "two", "two")):
        phase = row["run"].split(", ")[1][:-3].replace("denois", "denoise").replace("decod", "decode")
        record = json.loads((box.folder / f"{name}.json").read_text())
        spans = [[event for event in rank["events"] if event["phase"] == phase] for rank in record["ranks"]]
        longest = max(max(each["end"] for each in span) - min(each["begin"] for each in span) for span in spans)
        assert abs(row["measured_seconds"] / longest - 1) < 1e-6, (row, longest)
    # A plan tells of the run from its shapes what the fit told from its record.
    found = json.loads(box.run("plan", "a cat", "--model", MODEL_FOLDER, *SMALL, "--machine", "mine.json", "--devices", "1", "--dtype",
                               "fp32", "--json").out)
    assert abs(found["denoise_seconds"] / rows[0]["predicted_seconds"] - 1) < 1e-6, (found, rows)
    # A run that took twenty times as long is none that the numbers of the others can meet.
    record = json.loads((box.folder / "one.json").read_text())
    for event in record["ranks"][0]["events"]:
        event["begin"], event["end"] = 20 * event["begin"], 20 * event["end"]
    (box.folder / "slow.json").write_text(json.dumps(record))
    slow = box.run("calibrate", "--from-records", "one.json", "slow.json", "--machine", "base.json", "-o", "slow-machine.json")
    warned = [line for line in slow.err.splitlines() if "warning: the fit is far off" in line]
    assert slow.code == 0 and len(warned) == 1 and "of 4 runs: " in warned[0] and "disturbed" in warned[0], slow
    again = box.run("calibrate", "--from-records", "one.json", "--machine", "base.json", "-q", "-o", "-")
    assert again.code == 0 and again.err == "" and len(json.loads(again.out)["calibration"]["fitted"]) == 3, again


def test_records_that_cannot_be_fitted_are_refused(box):
    box.generate("a cat", *SMALL, "--record", "run.json", "-o", "a.png")
    record = json.loads((box.folder / "run.json").read_text())

    def refuse(code, word, change=None, *, text=None, machine="cpu-avx2", more=()):
        changed = json.loads(json.dumps(record))
        if change:
            change(changed)
        (box.folder / "other.json").write_text(text if text is not None else json.dumps(changed))
        box.refuse(code, word, "calibrate", "--from-records", "other.json", *more, "--machine", machine, "-o", "mine.json")

    refuse(3, "cuda", machine="l40")
    refuse(3, "does not tell the threads", lambda changed: changed["settings"].pop("threads"))
    refuse(3, "no rate", lambda changed: changed["settings"].update(dtype="fp16"))
    refuse(3, "fit each dtype by itself", lambda changed: changed["settings"].update(dtype="bf16"), machine="cpu-amx", more=["run.json"])
    refuse(3, "1 of 2 ranks", lambda changed: changed.update(world_size=2))
    refuse(3, "other.json", text=json.dumps(record)[:-200])
    refuse(3, "other.json", text="{}")
    refuse(3, "other.json", text="")
    cpu = json.loads((pathlib.Path(box.program).resolve().parents[1] / "machines" / "cpu-avx2.json").read_text())
    (box.folder / "threads.json").write_text(json.dumps(cpu | {"calibration": {"threads": 64}}))
    refuse(3, "measured with 64", machine="threads.json")
    assert box.run("trace", "a cat", "--model", MODEL_FOLDER, *SMALL, "-q", "-o", "trace.json").code == 0
    box.refuse(3, "from shapes", "calibrate", "--from-records", "trace.json", "--machine", "cpu-avx2")
    box.refuse(3, "no such file", "calibrate", "--from-records", "nothing.json", "--machine", "cpu-avx2")
    box.refuse(2, "--machine", "calibrate", "--from-records", "run.json")
    box.refuse(2, "leave one out", "calibrate", "--from-records", "run.json", "--from-table", "a.csv", "--machine", "cpu-avx2")
    box.refuse(2, "--threads", "calibrate", "--from-records", "run.json", "--machine", "cpu-avx2", "--threads", "2")
    assert "mine.json" not in box.files() and "machine.json" not in box.files(), box.files()
