"""Tests `tessera trace`."""
import json
import shutil

from harness import MODEL, SMALL, test

DEGREES = ["--ulysses-degree", "2", "--dtype", "fp32"]


def sums(rank, phase):
    """Returns (FLOPs, bytes sent) of a rank in a phase."""
    events = [event for event in rank["events"] if event["phase"] == phase]
    return (sum(event["flops"] for event in events if "operation" in event),
            sum(event["bytes"] for event in events if "collective" in event))


@test
def trace_of_a_model(box):
    outcome = box.run("trace", "a cat", "--model", MODEL, *SMALL, *DEGREES, "-o", "t.json")
    assert outcome.code == 0 and outcome.err == "" and outcome.out.endswith("t.json\n"), outcome
    trace = json.loads((box.folder / "t.json").read_text())
    assert trace["world_size"] == 2 and [rank["rank"] for rank in trace["ranks"]] == [0, 1], trace["world_size"]
    assert all(f"{rank}  denoise" in outcome.out for rank in (0, 1)), outcome.out
    # A run of as many steps sends as many bytes in the denoiser.
    box.latents("a cat", "--model", MODEL, *SMALL, *DEGREES, "--report", "run.json")
    report = box.report()
    steps = len(report["step_seconds"])
    for rank in (0, 1):
        real = sum(row["bytes"] for row in report["ranks"][rank]["communication"] if row["axis"] == "ulysses")
        traced = sum(event["bytes"] for event in trace["ranks"][rank]["events"] if event.get("axis") == "ulysses")
        assert real == traced * steps / trace["traced_steps"], (real, traced)
    one = box.run("trace", "a cat", "--model", MODEL, *SMALL, *DEGREES, "--rank", "1", "-o", "one.json")
    assert one.code == 0 and json.loads((box.folder / "one.json").read_text())["ranks"] == trace["ranks"][1:], one


@test
def trace_of_configs_alone(box):
    folder = box.folder / "configs"
    for file in (file for file in MODEL.rglob("*.json") if file.parent.name not in ("tokenizer", "golden")):
        place = folder / file.relative_to(MODEL)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, place)
    whole = box.run("trace", "--model", MODEL, *SMALL, "-o", "whole.json")
    bare = box.run("trace", "--model", folder, *SMALL, "-o", "bare.json")
    assert whole.code == 0 and bare.code == 0, (whole, bare)
    traces = [json.loads((box.folder / name).read_text())["ranks"][0] for name in ("whole.json", "bare.json")]
    assert sums(traces[0], "decode") == sums(traces[1], "decode") and sums(traces[1], "denoise")[0] > 0, traces


@test
def trace_refuses(box):
    box.refuse(2, "[--rank] must be 'all' or a rank from 0 to 1, got '2'", "trace", "--model", MODEL, *SMALL, *DEGREES,
               "--rank", "2")
    box.refuse(2, "[--output]", "trace", "--model", MODEL, *SMALL, "-o", "no/such/folder/t.json")
    box.refuse(2, "unknown option", "trace", "--model", MODEL, "--reprot", "x")
    box.refuse(3, "no-such-model", "trace", "--model", "no-such-model")
    assert box.files() == []
