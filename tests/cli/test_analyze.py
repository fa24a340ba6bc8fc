"""Tests `tessera analyze`."""
import collections
import csv
import json
import re

from files import Page, says, table_rows
from harness import MODEL, ROOT, SMALL

VIDEO = ["--num-frames", "51", "--height", "240", "--width", "426"]
MACHINES = sorted(path.stem for path in (ROOT / "machines").glob("*.json"))


def analysis(box, machine, *arguments):
    outcome = box.run("analyze", "hardware", "--machine", machine, "--json", *arguments)
    assert outcome.code == 0 and outcome.err == "", outcome
    return json.loads(outcome.out)


def test_analyzes_on_every_machine_that_ships(box):
    sheets = {"a100", "h100", "h200", "l40", "l20", "t4", "tx8", "cpu-avx2", "cpu-avx512", "cpu-amx"}
    assert sheets | {"a100-nvlink", "a100-pcie", "l20-pcie", "t4-pcie"} == set(MACHINES), MACHINES
    for machine in MACHINES:
        found = analysis(box, machine, *VIDEO)
        assert found["machine"] == machine and found["without"] == [], found
        assert [found[key] for key in ("num_frames", "height", "width", "batch", "dies")] == [51, 240, 426, 2, 1], found
        assert (found["latent_frames"], found["tokens_per_frame"], found["pairs"]) == (15, 405, 28), found
        pair = sum(each["count"] * each["latency_seconds"] for each in found["operators"])
        assert abs(found["pair_seconds"] / pair - 1) < 1e-9, found
        assert abs(found["total_seconds"] / (pair * 28 * 30) - 1) < 1e-9, found
        # The formula of the products, without what vectors compute: no machine is faster than its data sheet.
        file = json.loads((ROOT / "machines" / f"{machine}.json").read_text())
        rate = file["tiles"] * file["gemm_tflops_per_tile"][found["dtype"]]
        b, n, h, s, t, token = 2, 15 * 405, 1152, 405, 15, 300
        tera = 28 * ((56 * b * n + 8 * b * token) * h * h + 4 * b * n * h * (s + t + 2 * token)) / 1e12
        assert found["total_seconds"] > 30 * tera / rate, (machine, found["total_seconds"], 30 * tera / rate)
        for each in found["operators"]:
            assert 0 < each["utilization"] <= 1 and each["latency_seconds"] >= each["compute_seconds"], each
            assert abs(each["communication_seconds"] - each["dram_seconds"] - each["noc_seconds"]) < 1e-12, each


def test_more_steps_samples_and_devices(box):
    one = analysis(box, "h100", *VIDEO)
    assert abs(analysis(box, "h100", *VIDEO, "--num-inference-steps", "60")["total_seconds"] / one["total_seconds"] - 2) < 1e-9
    more = analysis(box, "h100", *VIDEO, "--batch", "4")
    assert more["batch"] == 4 and 1.5 < more["total_seconds"] / one["total_seconds"] < 2.1, more
    four = analysis(box, "h100", *VIDEO, "--dies", "4")
    # docs/video.md: 10.01 MiB for each pair; the first link of the file is NVLink, and a pair has two exchanges.
    assert abs(four["exchange_bytes"] / 2**20 - 10.01) < 0.005, four
    assert abs(four["exchange_seconds"] / (four["exchange_bytes"] / 450e9 + 2 * 2e-6) - 1) < 1e-9, four
    assert one["exchange_seconds"] == 0 and one["exchange_bytes"] == 0, one
    assert isinstance(four["exchange_bytes"], int) and "have no frame" not in box.run("analyze", "hardware", "--machine", "h100",
                                                                                      *VIDEO, "--dies", "15").out
    idle = box.run("analyze", "hardware", "--machine", "h100", *VIDEO, "--dies", "17").out
    assert "2 of the 17 devices have no frame: the video has 15 latent frames" in idle, idle
    assert four["pair_seconds"] < one["pair_seconds"] / 2, (four["pair_seconds"], one["pair_seconds"])
    slow = analysis(box, "h100", *VIDEO, "--dies", "4", "--link", "ethernet")
    assert abs(slow["exchange_seconds"] / (four["exchange_bytes"] / 12.5e9 + 2 * 5e-6) - 1) < 1e-9, slow


def hardware(box, trace, machine, *arguments):
    outcome = box.run("analyze", "hardware", trace, "--machine", machine, "--json", *arguments)
    assert outcome.code == 0 and outcome.err == "", outcome
    return json.loads(outcome.out)


def test_the_hardware_of_traces_of_every_family(box):
    for model, words in ((MODEL, SMALL[:-2]), (ROOT / "models" / "shapes-xl", ["--height", "64", "--width", "64"]),
                         (ROOT / "models" / "shapes-video", ["--num-frames", "17", "--height", "64", "--width", "64"])):
        assert box.run("trace", "a cat", "--model", model, *words, "--num-inference-steps", "7", "-o", "t.json").code == 0
        events = [each for each in json.loads((box.folder / "t.json").read_text())["ranks"][0]["events"] if "operation" in each]
        for machine in ("a100", "tx8", "cpu-avx512", "t4"):
            found = hardware(box, "t.json", machine)
            assert found["without"] == [] and found["collectives"] == [] and found["num_inference_steps"] == 7, found["without"]
            rows = found["operators"]
            total = sum(row["count"] * row["latency_seconds"] for row in rows)
            for parts in (found["phases"], found["roles"], rows):
                assert abs(sum(row["seconds"] for row in parts) / total - 1) < 1e-9, (machine, total)
            assert abs(found["total_seconds"] / total - 1) < 1e-9, found["total_seconds"]
            seconds = [row["seconds"] for row in found["roles"]]
            assert seconds == sorted(seconds, reverse=True), seconds
            # Steps are alike: a run of fourteen takes seven of them more, and what it does once no longer.
            longer = hardware(box, "t.json", machine, "--num-inference-steps", "14")["total_seconds"]
            assert abs(longer - total - 7 * found["step_seconds"]) < 1e-9 * total, (total, found["step_seconds"], longer)
            assert sum(row["seconds"] for row in found["parts"] if row["part"] == "before the steps") > 0, found["parts"]
            # No machine is faster than its memory, were it to hold all numbers in 2 bytes.
            file = json.loads((ROOT / "machines" / f"{machine}.json").read_text())
            moved = sum(event["bytes"] for event in events) / 2
            assert total > moved / (file["dram_gb_per_s"] * 1e9), (machine, total, moved)
            # What an operator is, besides how it is mapped.
            for row in rows:
                assert row["flops"] >= 0 and row["bytes"] >= 0 and row["output"] and row["kind"] in ("vector", "gemm", "attention"), row
    text = box.run("analyze", "hardware", "t.json", "--machine", "a100", "--top", "0").out
    assert text.startswith("a100: OpenSoraPipeline, 1 rank, 7 steps. Times in ms\n\nThe run takes "), text
    assert "spatial_blocks.*.attn.qkv" in text and " others " not in text, text
    assert box.run("analyze", "hardware", "t.json", "--machine", "a100", "--top", str(2**63 - 1)).out == text, "more rows than there are"
    short = box.run("analyze", "hardware", "t.json", "--machine", "a100").out
    rows = [line for line in short[short.index("Operators of rank 0"):].splitlines() if line.endswith("%") or "%  " in line]
    assert len(rows) == 16 and " others " in rows[-1] and len(short.splitlines()) < len(text.splitlines()), short
    box.refuse(2, "[--top] does not go with hardware as JSON or CSV, which have all rows", "analyze", "hardware", "t.json", "--machine",
               "a100", "--csv", "--top", "3")
    lines = box.run("analyze", "hardware", "t.json", "--machine", "a100", "--csv").out.splitlines()
    assert lines[0].startswith("phase,operation,role,dtype,count,shape,split,compute_seconds,dram_seconds"), lines[0]


def test_the_hardware_of_ranks(box):
    assert box.run("trace", "a cat", "--model", MODEL, *SMALL[:-2], "--ulysses-degree", "2", "--num-inference-steps", "5",
                   "-o", "t.json").code == 0
    ranks = json.loads((box.folder / "t.json").read_text())["ranks"]
    box.refuse(2, "[--link-gb-per-s] is needed: ", "analyze", "hardware", "t.json", "--machine", "tx8")
    for rank in (0, 1):
        found = hardware(box, "t.json", "tx8", "--rank", str(rank), "--link-gb-per-s", "2")
        sent = [event for event in ranks[rank]["events"] if event.get("axis") == "ulysses"]
        expected = 5 * sum(max(event["bytes"], sum(size for _, size in event["receives"])) for event in sent)
        row, = (row for row in found["collectives"] if row["axis"] == "ulysses")
        assert row["count"] == 5 * len(sent) and row["bytes"] == expected, (row, expected)
        assert abs(row["seconds"] / (expected / 2e9) - 1) < 1e-9, row
        slow = hardware(box, "t.json", "a100", "--rank", str(rank), "--link", "ethernet")
        row, = (row for row in slow["collectives"] if row["axis"] == "ulysses")
        assert abs(row["seconds"] / (expected / 12.5e9 + row["count"] * 5e-6) - 1) < 1e-9, row
        assert abs(sum(row["seconds"] for row in slow["phases"]) / slow["total_seconds"] - 1) < 1e-9, slow["phases"]
        # Ranks compute and wait until they are through; the run ends with the last.
        for row in slow["ranks"]:
            assert abs(row["computing_seconds"] + row["waiting_seconds"] - row["end_seconds"]) < 1e-9, row
        assert max(row["end_seconds"] for row in slow["ranks"]) == slow["total_seconds"] and len(slow["ranks"]) == 2, slow["ranks"]


def test_the_hardware_of_several_traces(box):
    """One table compares runs, however many steps their traces hold; it has the totals of each trace alone."""
    methods = {"one": [], "cfg": ["--use-cfg-parallel"], "pipe": ["--pipefusion-parallel-degree", "2", "--warmup-steps", "1"]}
    for name, words in methods.items():
        assert box.run("trace", "a cat", "--model", MODEL, *SMALL[:-2], *words, "--num-inference-steps", "9", "-o", f"{name}.json").code == 0
    paths = [f"{name}.json" for name in methods]
    rows = json.loads(box.run("analyze", "hardware", *paths, "--machine", "l40", "--json").out)
    assert [row["trace"] for row in rows] == paths, rows
    for row in rows:
        alone = hardware(box, row["trace"], "l40")
        assert row["total_seconds"] == alone["total_seconds"] and row["step_seconds"] == alone["step_seconds"], (row, alone)
        assert row["num_inference_steps"] == 9 and row["imbalance"] == alone["imbalance"], row
        if row["world_size"] > 1:
            ratio = f"{row['imbalance']:.2f}"
            said = "All ranks compute equally long, within 1 %\n" if ratio == "1.00" else f" computes longest, {ratio} times the mean of all\n"
            assert said in box.run("analyze", "hardware", row["trace"], "--machine", "l40").out, (said, row)
        sent = {}
        for rank in range(row["world_size"]):
            comm = json.loads(box.run("analyze", "comm", row["trace"], "--rank", str(rank), "--json").out)
            flops = json.loads(box.run("analyze", "flops", row["trace"], "--rank", str(rank), "--json").out)
            assert comm["steps"] == 9 and flops["traced_steps"] == comm["traced_steps"], comm
            total = comm["sum"] or {"sent": 0, "step_sent": 0}
            sent[rank] = total["sent"], total["step_sent"]
            assert sum(each["sent"] for each in comm["rows"]) == total["sent"], comm
            assert sum(flops["sum"][key] for key in ("products", "elementwise")) <= row["flops"], (row, flops["sum"])
        assert max(run for run, _ in sent.values()) == row["sent"] and max(step for _, step in sent.values()) == row["step_sent"], (row, sent)
    lines = box.run("analyze", "hardware", *paths, "--machine", "l40").out.splitlines()
    assert lines[0].startswith("l40. Times in ms") and len(lines) == 4 + len(paths), lines
    # Of a trace without all ranks nobody knows the total.
    assert box.run("trace", "a cat", "--model", MODEL, *SMALL, "--ulysses-degree", "2", "--rank", "1", "-o", "half.json").code == 0
    half = hardware(box, "half.json", "l40")
    assert half["total_seconds"] is None and half["ranks"] is None and half["operators"] and half["rank"] == 1, half
    assert "No total: the trace holds 1 of 2 ranks" in box.run("analyze", "hardware", "half.json", "--machine", "l40").out
    # The page has the same numbers.
    assert box.run("analyze", "report", *paths, "--machine", "l40", "-o", "r.html").code == 0
    page = (box.folder / "r.html").read_text()
    for row in rows:
        shown = row["total_seconds"] * 1e3
        assert f"<td>{shown:.0f}</td>" in page or f"<td>{float(f'{shown:.3g}'):g}</td>" in page, (row, shown)
    box.refuse(2, "[--num-inference-steps] must be at least 4, the steps of the denoiser that pipe.json holds, got 3", "analyze", "hardware",
               "pipe.json", "--machine", "l40", "--num-inference-steps", "3")


def test_tables_fit_into_150_columns(box):
    """What is too long for that goes on below; nothing is left out."""
    video = ["--model", ROOT / "models" / "shapes-video", "--num-frames", "17"]
    eight = ["--use-cfg-parallel", "--ulysses-degree", "2", "--ring-degree", "2"]
    traces = []
    for words in (video, [*video, *eight], ["--model", ROOT / "models" / "shapes"], ["--model", ROOT / "models" / "shapes-xl", *eight]):
        traces.append(f"a-file-with-a-long-name-{len(traces)}.json")
        assert box.run("trace", "a cat", *words, "--rank", "0", "-o", traces[-1]).code == 0
    views = [(view, trace) for trace in traces for view in (["ops"], ["comm"], ["flops"], ["memory"])]
    views += [(["hardware", "--machine", "h100", "--top", "0"], trace) for trace in traces]
    for words, trace in views:
        text = box.run("analyze", words[0], trace, *words[1:]).out
        assert text and max(map(len, text.splitlines())) <= 150, (words, trace, text)
        if words == ["ops"]:
            rows = json.loads(box.run("analyze", "ops", trace, "--json").out)["rows"]
            for row, line in zip(rows, table_rows(text.split("\n\n")[1])):
                name = f"{row['operation']} {row['role']}".strip()
                assert line.startswith(f"{row['phase']}  {name}  {row['inputs']} -> {row['output']}".replace("   ->", "  ->")), (row, line)
    text = box.run("analyze", "hardware", *traces, "--machine", "h100").out
    table = text[:text.index("no total")]
    assert max(map(len, table.splitlines()[:-1])) <= 150 and "GFLOP" in table, text


def test_the_plots_of_a_report(box):
    """They have the numbers of the views."""
    assert box.run("trace", "a cat", "--model", MODEL, *SMALL[:-2], "--dtype", "fp32", "--ulysses-degree", "2", "-o", "t.json").code == 0
    assert box.run("analyze", "report", "t.json", "--machine", "h100", "-o", "r.html").code == 0
    html = (box.folder / "r.html").read_text()
    bars = Page(html).texts
    rank = str(hardware(box, "t.json", "h100")["busiest_rank"])
    operators = hardware(box, "t.json", "h100", "--rank", rank)["operators"]
    rows = json.loads(box.run("analyze", "ops", "t.json", "--rank", "0", "--json").out)["rows"]
    for heading, shown, units in [
            ("FLOPs of each role in a steady step, rank 0", [(row, row["step_flops"] or 0) for row in rows], {"MFLOP": 1e6}),
            (f"Time of each role in a steady step on h100, rank {rank}",
             [(each, each["step_count"] * each["latency_seconds"]) for each in operators], {"ms": 1e-3, "us": 1e-6})]:
        sums = collections.Counter()
        for row, number in shown:
            sums[f"{row['operation']} {row['role']}".strip()] += number
        names, texts = bars[heading][::2], bars[heading][1::2]
        most = [number for _, number in sums.most_common(16)]
        assert len(names) > 3 and all(says(text, number, units) for text, number in zip(texts, most)), (heading, texts, most)
        assert all(says(text, sums[name], units) for name, text in zip(names[:16], texts)), (heading, names, texts, sums)
    # Both axes of the roofline are logarithmic; the roof bends where the arithmetic takes as long as the memory.
    section = html[html.index("Roofline of h100"):]
    ticks = [(float(x), float(text)) for x, text in re.findall(r'x="([\d.]+)" y="[\d.]+" text-anchor="middle">([\d.e+-]+)<', section)][:2]
    (x0, least), (x1, next_to_it) = ticks
    bend = float(re.search(r'<polyline points="\S+ ([\d.]+),', section)[1])
    machine = json.loads((ROOT / "machines" / "h100.json").read_text())
    ridge = machine["tiles"] * machine["gemm_tflops_per_tile"]["fp32"] * 1e3 / machine["dram_gb_per_s"]
    assert abs(least * (next_to_it / least) ** ((bend - x0) / (x1 - x0)) / ridge - 1) < 0.01, (ticks, bend, ridge)


def test_no_total_without_what_does_not_fit(box):
    assert box.run("trace", "a cat", "--model", MODEL, *SMALL, "-o", "t.json").code == 0
    machine = json.loads((ROOT / "machines" / "h100.json").read_text())
    machine["sram_kib_per_tile"] = 0.05
    (box.folder / "mine.json").write_text(json.dumps(machine))
    found = hardware(box, "t.json", "mine.json")
    assert found["total_seconds"] is None and len(found["without"]) > 3, found["without"]
    text = box.run("analyze", "hardware", "t.json", "--machine", "mine.json").out
    assert f" without {len(found['without'])} operators of which no split fits" in text, text
    # Nor of a video.
    found = analysis(box, "mine.json", *VIDEO)
    assert found["total_seconds"] is None and "spatial_norm" in found["without"], found["without"]
    assert all("obstacle" in each for each in found["operators"] if each["name"] in found["without"]), found
    text = box.run("analyze", "hardware", "--machine", "mine.json", *VIDEO).out
    assert "does not fit: " in text and f" s without {len(found['without'])} operators\n" in text, text
    assert f"Not counted, since no split fits: {', '.join(found['without'])}\n" in text, text


def test_the_hardware_of_a_trace_refuses(box):
    assert box.run("trace", "a cat", "--model", MODEL, *SMALL, "-o", "t.json").code == 0
    words = ["analyze", "hardware", "t.json", "--machine", "h100"]
    box.refuse(2, "[--num-frames] does not go with hardware of a trace", *words, "--num-frames", "51")
    box.refuse(2, "[--dies] does not go with hardware of a trace", *words, "--dies", "2")
    box.refuse(2, "[--rank] does not go with hardware", "analyze", "hardware", "--machine", "h100", *VIDEO, "--rank", "1")
    box.refuse(2, "[--rank] is 3, but t.json holds rank 0", *words, "--rank", "3")
    box.refuse(2, "[--link] is between devices, but no rank of t.json sends anything", *words, "--link", "pcie")
    box.refuse(2, "[--machine] is needed; see", "analyze", "hardware", "t.json")
    box.refuse(2, "[--rank] does not go with hardware of several traces", *words, "t.json", "--rank", "0")
    box.refuse(2, "[--top] does not go with ops", "analyze", "ops", "t.json", "--top", "3")
    box.refuse(3, "not the name of a machine", "analyze", "hardware", "t.json", "--machine", "h1000x")
    (box.folder / "none.json").write_text("{}")
    box.refuse(3, "none.json] is no trace", "analyze", "hardware", "none.json", "--machine", "h100")


def test_hardware_as_csv(box):
    found = analysis(box, "h100", *VIDEO)["operators"]
    rows = list(csv.DictReader(box.run("analyze", "hardware", "--machine", "h100", "--csv", *VIDEO).out.splitlines()))
    assert [row["name"] for row in rows] == [each["name"] for each in found], rows
    for row, each in zip(rows, found):
        for key in ("count", "compute_seconds", "dram_seconds", "noc_seconds", "latency_seconds", "utilization"):
            assert float(row[key]) == each[key], (key, row, each)
        assert (row["shape"], row["split"], row["bound"]) == (each["shape"], each["split"], each["bound"]), (row, each)


def test_the_published_machine_has_no_link(box):
    tx8 = ["analyze", "hardware", "--machine", "tx8", *VIDEO]
    box.refuse(2, "tx8.json does not give the bandwidth of its link 'die-to-die'", *tx8, "--dies", "16")
    found = analysis(box, "tx8", *VIDEO, "--dies", "16", "--link-gb-per-s", "50")
    assert abs(found["exchange_seconds"] / (found["exchange_bytes"] / 50e9) - 1) < 1e-9, found


def test_a_machine_file_of_ones_own(box):
    machine = json.loads((ROOT / "machines" / "a100.json").read_text())
    path = box.folder / "mine.json"

    def write(**changes):
        path.write_text(json.dumps({key: value for key, value in {**machine, **changes}.items() if value is not ...}))

    write(name="mine", dram_gb_per_s=machine["dram_gb_per_s"] / 1000)
    assert analysis(box, "mine.json", *VIDEO)["total_seconds"] > 10 * analysis(box, "a100", *VIDEO)["total_seconds"]
    outcome = box.run("analyze", "hardware", "--machine", "mine", *VIDEO, env={"TESSERA_MACHINES": str(box.folder)})
    assert outcome.code == 0 and outcome.out.startswith("mine, bf16: STDiT3-XL, 51 frames of 240 x 426, 2 samples of 15 x 405"), outcome
    words = ["analyze", "hardware", "--machine", "mine.json", *VIDEO]
    for changes, needle in (({"links": ...}, "[mine.json] 'links' must be a list of links between devices, but it is missing"),
                            ({"dram_gb_per_s": 0}, "[mine.json] 'dram_gb_per_s' must be a positive number of GB/s, got 0"),
                            ({"dram_gb_per_s": 1e-7}, "[mine.json] 'dram_gb_per_s' must be at least 1e-06 GB/s, got"),
                            ({"sram_kib": 64}, "[mine.json] 'sram_kib' is not a key of a machine; did you mean"),
                            ({"tiles": 107}, "[mine.json] 'grid' must be [rows, columns] of 107 tiles, got [9,12]")):
        write(**changes)
        box.refuse(3, needle, *words)
    path.write_text("{")
    box.refuse(3, "[mine.json] not valid JSON", *words)
    write(links=[])
    box.refuse(3, "[mine.json] 'links' is empty, but devices send to each other", *words, "--dies", "2")
    write(links=[{"kind": "pcie", "gb_per_s": rate, "latency_us": 5} for rate in (25, 50)])
    box.refuse(3, "[mine.json: links[1]] 'kind' must be a kind that no link before it has, got", *words)


def test_analyze_refuses(box):
    words = ["analyze", "hardware", "--machine", "h100", *VIDEO]
    box.refuse(3, "did you mean h100?", "analyze", "hardware", "--machine", "h10", *VIDEO)
    box.refuse(3, "no such file", "analyze", "hardware", "--machine", "nowhere.json", *VIDEO)
    box.refuse(2, "[--machine] is needed", "analyze", "hardware", *VIDEO)
    box.refuse(2, "[--num-frames] is needed", "analyze", "hardware", "--machine", "h100")
    box.refuse(2, "say what to analyze: ops, sizes", "analyze", "--machine", "h100", *VIDEO)
    box.refuse(2, "cannot analyze 'software'", "analyze", "software", "--machine", "h100", *VIDEO)
    box.refuse(2, "[--height] must be from 16 to 8192 pixels, got 8", *words, "--height", "8")
    box.refuse(2, "[--link] is between devices: give --dies too", *words, "--link", "pcie")
    box.refuse(2, "[--link] 'token-ring' is none of the links of h100: nvlink, pcie, ethernet", *words, "--dies", "2", "--link",
               "token-ring")
    box.refuse(2, "[--machine] is empty", "analyze", "hardware", "--machine", "", *VIDEO)
    box.refuse(3, "'gemm_tflops_per_tile' has no bf16; it has fp16, fp32", "analyze", "hardware", "--machine", "t4", *VIDEO,
               "--dtype", "bf16")


def test_help_page_and_completion_know_analyze(box):
    text, page = box.run("analyze", "--help").out, box.run("man").out.replace("\\-", "-")
    script = box.run("completion", "bash").out
    for option in ("--machine", "--dies", "--link-gb-per-s", "--num-frames", "--json"):
        assert option in text and f"\\fB{option}\\fR" in page and option in script, option
    for machine in MACHINES:
        assert machine in text, machine
