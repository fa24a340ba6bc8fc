"""Tests what `tessera trace` prints, of what it makes traces, and `tessera generate --record`."""
import json
import shutil

from files import DEGREES, sums
from harness import MODEL, ROOT, SMALL


def test_what_a_trace_prints(box):
    words = ["trace", "a cat", "--model", MODEL, *SMALL, *DEGREES]
    loud = box.run(*words, "-o", "t.json")
    assert loud.out == "t.json\n" and "denoise: of 2 steps, the first is traced\n" in loud.err, loud
    quiet = box.run(*words, "-o", "t.json", "-q")
    assert quiet.code == 0 and quiet.out == "t.json\n" and quiet.err == "", quiet
    piped = box.run(*words, "-o", "-")
    assert piped.code == 0 and piped.out == (box.folder / "t.json").read_text() and piped.err == loud.err, piped.err
    device = box.run(*words, "-o", "/dev/stdout", "-q")
    assert device.code == 0 and device.out == piped.out and device.err == "", device.err
    summary = json.loads(box.run(*words, "-o", "t.json", "-q", "--json").out)
    trace = json.loads(piped.out)
    assert (summary["output"], summary["world_size"], summary["traced_steps"]) == ("t.json", 2, trace["traced_steps"]), summary
    assert [(row["rank"], row["phase"]) for row in summary["phases"]] == [
        (rank, phase) for rank in (0, 1) for phase in ("encode", "denoise", "decode")], summary
    for row in summary["phases"]:
        assert (row["flops"], row["sent_bytes"]) == sums(trace["ranks"][row["rank"]], row["phase"]), row
    # What was written is read again, also from a pipe.
    view = box.run("analyze", "comm", "t.json", "--csv")
    for name in ("-", "/dev/stdin"):  # with an environment of its own, as it is more than the pipe to a fork takes at once
        assert box.run("analyze", "comm", name, "--csv", stdin=piped.out.encode(), env={"LANG": "C"}).out == view.out, name
    box.refuse(3, "standard input", "analyze", "ops", "-", stdin=b"")


def test_a_trace_for_gpus_needs_none(box):
    words = ["--model", MODEL, *SMALL[:-2], "--ulysses-degree", "2", "--dtype", "bf16", "-q"]
    for name, device in (("cpu", []), ("cuda", ["--device", "cuda"])):
        outcome = box.run("trace", "a cat", *words, *device, "-o", f"{name}.json")
        assert outcome.code == 0, outcome
    traces = [json.loads((box.folder / f"{name}.json").read_text())["ranks"] for name in ("cpu", "cuda")]
    assert [sums(rank, "denoise") for rank in traces[0]] == [sums(rank, "denoise") for rank in traces[1]], traces[0][0]["rank"]


def test_trace_of_fp8_weights(box):
    tiny = ROOT / "tests" / "golden" / "tiny-sd"
    folder = box.folder / "fp8"
    shutil.copytree(tiny, folder, copy_function=shutil.copyfile)
    file = folder / "text_encoder" / "model.safetensors"
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header, offset = json.loads(data[8:8 + size]), 0
    for entry in (value for name, value in header.items() if name != "__metadata__"):
        if entry["dtype"] == "F32":
            entry["dtype"] = "F8_E4M3"
            length = (entry["data_offsets"][1] - entry["data_offsets"][0]) // 4
        else:
            length = entry["data_offsets"][1] - entry["data_offsets"][0]
        entry["data_offsets"] = [offset, offset + length]
        offset += length
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(offset))
    outcome = box.run("trace", "a cat", "--model", folder, "--height", "64", "--width", "64", "-o", "t.json")
    assert outcome.code == 0, outcome
    assert '"fp8_e4m3"' in (box.folder / "t.json").read_text()
    assert box.run("analyze", "ops", "t.json").code == 0


def test_a_run_is_recorded_as_a_trace(box):
    def products(rank, steps):
        """FLOPs of the layers and of attention in a run of so many steps, of which the trace shows the first."""
        return sum(event["flops"] * (steps if event.get("step") == 0 else 1) for event in rank["events"]
                   if event.get("operation") in ("linear", "attention"))

    outcome = box.generate("a cat", *SMALL, *DEGREES, "--record", "run.json", "--timeline", "line.json", "--report", "report.json")
    assert outcome.code == 0, outcome
    assert box.run("trace", "a cat", "--model", MODEL, *SMALL, *DEGREES, "-o", "t.json").code == 0
    run, trace = (json.loads((box.folder / name).read_text()) for name in ("run.json", "t.json"))
    assert run["traced_steps"] == run["steps"] == trace["steps"] and run["model"] == trace["model"], run["steps"]
    assert [rank["rank"] for rank in run["ranks"]] == [0, 1], run["ranks"][0]["rank"]
    for real, traced in zip(run["ranks"], trace["ranks"]):
        assert products(real, 1) == products(traced, run["steps"]) > 0, (products(real, 1), products(traced, run["steps"]))
        begins = [event["begin"] for event in real["events"]]
        assert begins == sorted(begins) and all(event["begin"] <= event["end"] for event in real["events"])
        weights = real["weights_bytes"], traced["weights_bytes"]
        assert [each > 0 for each in weights[0]] == [each > 0 for each in weights[1]] and weights[0][1] > 0, weights
    # Recording takes nothing from the report and the timeline.
    assert any(row["axis"] == "ulysses" for row in box.report("report.json")["ranks"][1]["communication"])
    assert any("wait" in event["name"] for event in json.loads((box.folder / "line.json").read_text())["traceEvents"])
    for view in ("ops", "comm", "flops", "memory"):
        assert box.run("analyze", view, "run.json", "--rank", "1").code == 0, view
    assert box.run("analyze", "hardware", "run.json", "--machine", "h100").code == 0
    assert box.run("analyze", "report", "run.json", "--machine", "h100", "-o", "r.html").code == 0
    box.refuse(2, "[--trace] unknown option; did you mean --timeline?", "generate", "a", "--trace", "x.json")
    box.refuse(2, "[--record]", "generate", "a", "--model", MODEL, *SMALL, "--record", "no/such/run.json")
    many = ["a", "--model", MODEL, "--height", "256", "--width", "256", "--no-resolution-binning", "--num-images-per-prompt", "9"]
    box.refuse(2, "[--record] records the pictures of a single group, and these make 2 groups", "generate", *many, "--record", "x.json")
    outcome = box.run("trace", *many)
    assert outcome.code == 0 and "pictures: the first of 2 groups, which follow one another" in outcome.err, outcome
    # That a part has to be longer than the frames with which it begins does not matter then.
    box.refuse(2, "[--loop] a trace shows one part", "generate", "a", "--model", ROOT / "models" / "shapes-video", "--loop", "2",
               "--num-frames", "17", "--record", "x.json")


def test_trace_refuses_parts_and_references(box):
    words = ["trace", "--model", ROOT / "models" / "shapes-video", "--num-frames", "17"]
    box.refuse(2, "[--loop] a trace shows one part of a video without references; leave it out", *words, "--loop", "3")
    box.refuse(2, "[--reference-path] a trace shows one part", *words, "a", "--reference-path", "no.png", "--mask-strategy", "0")
    box.refuse(2, "[--reference-path] a trace shows one part", *words, 'a {"reference_path": "no.png", "mask_strategy": "0"}')
    box.refuse(2, "[--mask-strategy] a trace shows one part", *words, "a", "--mask-strategy", "0")
