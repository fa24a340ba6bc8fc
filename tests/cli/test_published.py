"""Tests tools/published with what the program prints: it reproduces the figures of two published documents (docs/published.md)."""
import csv
import fractions
import json
import os
import re
import subprocess
import sys

from harness import ROOT
from test_compare import EIGHT, SIZES, compare, letters_of, value_of

LARGE = ["--num-frames", "204", "--height", "360", "--width", "640"]


def published(box, *words, code=0):
    done = subprocess.run([sys.executable, "-m", "tools.published", *words], cwd=box.folder,
                          env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == code, done
    return done.stderr if code else done.stdout


def published_json(box, *words):
    return json.loads(published(box, *words, "--json"))


def save(box, name, *words):
    """Keeps what the program prints as JSON."""
    outcome = box.run(*words, "--json")
    assert outcome.code == 0 and outcome.err == "", outcome
    (box.folder / name).write_text(outcome.out)
    return name


def test_published_operators_of_a_pair(box):
    hardware = save(box, "h.json", "analyze", "hardware", "--machine", "tx8", *LARGE)
    found = published_json(box, "tx8", hardware)
    names = [each["name"] for each in found["operators"]]
    ours = {each["name"]: each for each in json.loads((box.folder / hardware).read_text())["operators"]}
    assert set(names) < set(ours) and "spatial_o_proj" not in names and "spatial_q_norm" not in names, names
    for each in found["operators"]:
        assert (each["shape"], each["count"]) == (ours[each["name"]]["shape"], 1 if each["name"] == "cross_residual" else ours[each["name"]]["count"]), each
    # Norms along 60 frames: a sequence cannot be cut into parts small enough. Some formulas give less time than a bound takes.
    assert (found["without"], found["beyond_bound"]) == (["temporal_norm"], ["mlp_up"]), found
    text = published(box, "tx8", hardware)
    assert re.search(r"^mlp_modulate +2 +110400 x 1152 +2484 parts +0\.238 +2\.469 +0\.000 +2\.470 +9\.635% +DRAM$", text, re.M), text
    assert re.search(r"^spatial_q_proj .* 2\.482 +85\.917% ", text, re.M), text
    assert "Without temporal_norm: no part of a sequence of 60" in text and "Faster than their bound: mlp_up\n" in text, text
    preset = published_json(box, "tx8", hardware, "--preset-splits")["without"]
    assert preset == ["spatial_attention", "temporal_norm", "temporal_attention", "cross_attention"], preset
    image = save(box, "i.json", "analyze", "hardware", "--machine", "tx8", "--num-frames", "1", "--height", "240", "--width", "426")
    assert "1 frames have no latent frame by the published rule" in published(box, "tx8", image, code=1)
    assert "is not what tessera analyze hardware --json prints" in published(box, "volumes", save(box, "c.json", "compare", *EIGHT), code=1)
    rows = [line.split("  ")[0] + " " + " ".join(re.findall(r"[\d.]+ +[\d.]+%", line)) for line in published(box, "operators").splitlines()]
    assert rows[1:4] == ["RMSNorm [2, 55200, 1152] 2.467    19.260%", "modulation [2, 55200, 1152] 2.470    9.635%",
                         "attention, 120 x 920 tokens, one head 0.278    90.602%"], rows


def test_published_volumes_and_the_run_on_16_devices(box):
    for words, digits in ((LARGE, {"Megatron": ("GB", "80.124"), "Ulysses": ("GB", "16.054"), "2D": ("GiB", "34.892"), "Ring": ("GiB", "25.009")}),
                          (["--num-frames", "51", "--height", "720", "--width", "1280"],
                           {"Megatron": ("GB", "78.382"), "Ulysses": ("GB", "15.705"), "2D": ("GiB", "34.135"), "Ring": ("GiB", "24.468")})):
        hardware = save(box, "h.json", "analyze", "hardware", "--machine", "tx8", *words, "--dies", "16", "--link-gb-per-s", "1e9")
        head, *lines = (line.split() for line in published(box, "volumes", hardware).splitlines())
        found = {line[0]: dict(zip(head, line)) for line in lines}
        assert {method: (unit, found[method][unit]) for method, (unit, _) in digits.items()} == digits, found
        assert published_json(box, "volumes", hardware).keys() == digits.keys()
        total = published_json(box, "tx8", hardware)["total_seconds"]
        if words is LARGE:
            assert f"{total:.1f}" == "6.6", total


def test_published_flops_of_open_sora(box):
    """Of STDiT3-XL, with two samples of 300 tokens of text: TFLOP of a step, and what they use of an A100 that was measured."""
    config = json.loads((ROOT / "tests" / "golden" / "tiny-open-sora" / "transformer" / "config.json").read_text())
    config |= {"depth": 28, "hidden_size": 1152, "num_heads": 16, "caption_channels": 4096, "model_max_length": 300}
    (box.folder / "config.json").write_text(json.dumps(config))
    for frames, height, width, products, elementwise, seconds, use in ((204, 360, 640, "260.978", "0.795", "99.00", 0.253),
                                                                       (408, 360, 640, None, None, "202.3", 0.248),
                                                                       (51, 720, 1280, "292.026", "1.160", "104.24", 0.269),
                                                                       (102, 720, 1280, None, None, "206.92", 0.271)):
        outcome = box.run("trace", "--model", "config.json", "--num-frames", str(frames), "--height", str(height), "--width", str(width),
                          "--dtype", "bf16", "-o", "t.json")
        assert outcome.code == 0, outcome
        found = published_json(box, "flops", "t.json", "--seconds", seconds)
        assert abs(found["use"] - use) < 0.001, (frames, found)
        if products:
            assert abs(found["step"]["products"] / 1e12 - float(products)) < 0.001, found
            assert abs(found["step"]["elementwise"] / 1e12 - float(elementwise)) < 0.0005, found
            assert f"A step: {products} TFLOP of products, {elementwise} of elementwise work\n30 steps in " in published(
                box, "flops", "t.json", "--seconds", seconds), found
            # What a run does once is part of each of its steps, and texts are those of both samples.
            counted = json.loads(box.run("analyze", "flops", "t.json", "--json").out)["sum"]["products"]
            assert found["run"]["denoise"]["products"] == 30 * found["step"]["products"] > counted, (found, counted)
    assert "t.json does not hold rank 1" in published(box, "flops", "t.json", "--rank", "1", code=1)


def test_published_flops_of_exported_programs(box):
    """Of one evaluation of STDiT3-XL, with two samples of 300 tokens of text, as a program: each sample with its own text, and with the
    texts of both as in the graphs of the analysis."""
    config = json.loads((ROOT / "tests" / "golden" / "tiny-open-sora" / "transformer" / "config.json").read_text())
    config |= {"depth": 28, "hidden_size": 1152, "num_heads": 16, "caption_channels": 4096, "model_max_length": 300}
    (box.folder / "config.json").write_text(json.dumps(config))
    for frames, height, width, own, all_texts in ((204, 360, 640, 252.431, 260.978), (51, 720, 1280, 283.665, 292.026)):
        outcome = box.run("trace", "--model", "config.json", "--num-frames", str(frames), "--height", str(height), "--width", str(width),
                          "--dtype", "bf16", "--stablehlo", "p.mlir")
        assert outcome.code == 0, outcome
        counted = json.loads((box.folder / save(box, "f.json", "analyze", "flops", "p.mlir")).read_text())["sum"]
        assert abs(counted["products"] / 1e12 - own) < 0.001, counted
        rows = save(box, "o.json", "analyze", "ops", "p.mlir")
        found = published_json(box, "flops", rows)
        assert abs(found["step"]["products"] / 1e12 - all_texts) < 0.001, found
        assert found["step"]["elementwise"] > counted["elementwise"], (found, counted)
    assert "without --seconds and --rank" in published(box, "flops", rows, "--seconds", "99", code=1)


def comparison(box, *words, extra=()):
    files = [save(box, "forward.json", "compare", *words), save(box, "training.json", "compare", *words, "--train")]
    return published_json(box, "comparison", *files), published(box, "comparison", *files, *extra)


def test_published_comparison_has_the_value_of_each_printed_formula(box):
    words = [*EIGHT, "--batch", "8", "--mesh", "2x4", "--vocabulary", "50304"]
    result, text = comparison(box, *words)
    letters = letters_of(result)
    model = json.loads(compare(box, *words, "--train", "--json"))["model"]
    letters |= {each["symbol"]: fractions.Fraction(each["value"]) for each in model if "symbol" in each}
    count = 0
    for cell in result["cells"]:
        for side in ("printed", "corrected"):
            if cell[side]["value"] is not None:
                assert value_of(cell[side]["formula"], letters) == cell[side]["value"], cell
                count += 1
        for error in (cell["error"] or "").split(", "):
            assert error == "" or error in result["errors"], cell
    assert count > 120, count
    assert list(result["errors"]) == [*(f"E{number}" for number in range(1, 16)), "O"], result["errors"]
    assert re.search(r"^USP\+ZeRO-3 +parameters, collectives +table +2\*AllGather \+ ReduceScatter +1 ReduceScatter \+ 2 AllGather a step", text, re.M), text
    assert re.search(r"^USP\+ZeRO-3 +activations sent, both ways +table +≤ 4O\(bsh\) +1.61 G +352.3 M O, E5$", text, re.M), text
    assert "needs equal parts" not in text
    _, alone = comparison(box, *EIGHT)
    assert re.search(r"^DP +optimizer +table +6P +- +- $", alone, re.M), alone
    assert "- needs equal parts:\n  DP, ZeRO-1: 1 sample is too few for 8 ranks\n" in alone, alone
    assert re.search(r"^Ulysses +activations kept +text +bsh\(34/n\+5sa/h\) .* E8$", text, re.M), text
    assert re.search(r"^E8 +The text leaves scores whole", text, re.M), text


def by_cell(result):
    return {(cell["subject"], cell["cell"], cell["where"]): cell for cell in result["cells"]}


def test_published_comparison_has_its_errors(box):
    """What the document prints where it is not what is computed here."""
    one = ["--layers", "1", *SIZES[2:], "--degree", "8"]
    sent, kept, text, table = "activations sent, both ways", "activations kept", "text", "table"
    cells = by_cell(comparison(box, *one, "--mesh", "2x4")[0])
    every = by_cell(comparison(box, *EIGHT, "--batch", "8")[0])
    for found, key, printed, corrected, error in (
            (cells, ("model", "parameters of a layer, listed", text), 302211072 // 24, 302309376 // 24, "E2"),
            (every, ("model", "FLOPs of one MLP matrix", text), 17179869184, 8 * 17179869184, "E3"),
            (cells, ("model", "activations of the MLP", text), 39845888 // 19 * 18, 39845888, "E4"),
            (cells, ("TP", sent, text), 14680064, 2 * 14680064, "E5"), (cells, ("Ring", sent, table), 8388608, 11010048, "O, E5"),
            (cells, ("2D TP", "h x 4h: input gathered", text), 786432, 786432, None),
            (cells, ("2D TP", "h x 4h: sums scattered", text), 2097152, 1048576, "E6"),
            (cells, ("Ulysses", kept, text), 344457216, 50855936, "E8"), (cells, ("Ring", kept, text), 344457216, 50855936, "E8"),
            (cells, ("Ring", "activations sent, forward", text), 8388608, 7340032, "O"),
            (cells, ("Megatron-SP", sent, text), 20971520, 18350080, "O"), (cells, ("Megatron-SP", "more AllGathers in backward", text), 1, 2, "E10"),
            # The volume that is printed is a half, up to (n-1)/n and biases.
            (every, ("DP", "gradients and weights sent", table), 12 * 1024 * 1024 * 24, 302309376 // 8 * 14, "E13"),
            (every, ("USP+ZeRO-3", "gradients and weights sent", table), 18 * 1024 * 1024 * 24, 302309376 // 8 * 21, "E13"),
            (cells, ("TP", kept, table), 406847488 // 8 * 7, 69206016, "E15")):
        cell = found[key]
        assert (cell["printed"]["value"], cell["corrected"]["value"], cell["error"]) == (printed, corrected, error), cell
    assert (every["PP", sent, text]["printed"]["value"], every["PP", sent, text]["error"]) == (None, "E7"), every["PP", sent, text]
    assert every["ZeRO-1", "divides activations/weights", table]["error"] == "E14"
    # A cell without an error equals ours, and one with an error does not, unless only its words are wrong.
    valued = [cell for cell in every.values() if cell["printed"]["value"] is not None]
    for cell in valued:
        differs = cell["printed"]["value"] != cell["corrected"]["value"]
        assert differs == (cell["error"] is not None and cell["cell"] != "FLOPs forward"), cell
    assert len(valued) > 60 and all(cell["printed"]["text"] and not cell["obstacle"] for cell in every.values()), len(valued)
    # Nothing is computed for what cannot run: one sample is not divided.
    for cell in comparison(box, *EIGHT)[0]["cells"]:
        if cell["subject"] == "DP":
            assert cell["printed"]["value"] is None and cell["corrected"]["value"] is None, cell
            assert cell["obstacle"] == ("1 sample is too few for 8 ranks" if cell["printed"]["formula"] else None), cell
    # The document's formulas are those of equal parts.
    assert by_cell(comparison(box, *EIGHT, "--batch", "9")[0])["DP", "optimizer", table]["obstacle"] == "9 samples among 8 ranks, 2 at most"


TABLE = """
DS-SP|AllReduce|12O(h²)|8*All2All|(8/N)O(bsh)|a/s|P+G|6P|A/N
Ring-SP|AllReduce|12O(h²)|P2P|4O(bsh)|L/L|P+G|6P|A/N
DP|AllReduce|12O(h²)|0|0|b/b|P+G|6P|A/N
ZeRO1|AllGather + ReduceScatter|12O(h²)|0|0|a/s|P+G|6P/N|A/N
USP + ZeRO1|AllGather + ReduceScatter|12O(h²)|P2P + 8*All2All|≤ 4O(bsh)|a/s|P+G|6P/N|A/N
USP + ZeRO2|AllGather + ReduceScatter|12O(h²)|P2P + 8*All2All|≤ 4O(bsh)|a/s|P+(G/N)|6P/N|A/N
USP + ZeRO3|2*AllGather + ReduceScatter|18O(h²)|P2P + 8*All2All|≤ 4O(bsh)|a/s|(P+G)/N|6P/N|A/N
TP|0|0|4*AllReduce|8O(bsh)|a/h|(P+G)/N|6P/N|αA
Megatron-SP|0|0|6*AllGather + 4*ReduceScatter|10O(bsh)|a/h|(P+G)/N|6P/N|A/N
"""
COLUMNS = ("name", "parameters, collectives", "gradients and weights sent", "activations, collectives", "activations sent, both ways",
           "divides activations/weights", "weights and gradients", "optimizer", "activations kept")
# Of each row: h^2 and b s h times numbers, the latter divided by ranks; among how many weights, gradients and the optimizer are
# divided; the parts of the activations that are kept; and the collectives that it names.
REDUCED, SCATTERED, GATHERED = "1 AllReduce a step", "1 ReduceScatter + 1 AllGather a step", "1 ReduceScatter + 2 AllGather a step"
VALUES = {"Ulysses": (12, 8, 8, 1, 1, 1, 1, REDUCED, "8 AllToAll a layer"), "Ring": (12, 4, 1, 1, 1, 1, 1, REDUCED, None),
          "DP": (12, 0, 1, 1, 1, 1, 1, REDUCED, None), "ZeRO-1": (12, 0, 1, 1, 1, 8, 1, SCATTERED, None),
          "USP+ZeRO-1": (12, 4, 1, 1, 1, 8, 1, SCATTERED, "8 AllToAll a layer"), "USP+ZeRO-2": (12, 4, 1, 1, 8, 8, 1, SCATTERED, "8 AllToAll a layer"),
          "USP+ZeRO-3": (18, 4, 1, 8, 8, 8, 1, GATHERED, "8 AllToAll a layer"), "TP": (0, 8, 1, 8, 8, 8, 7, None, "4 AllReduce a layer"),
          "Megatron-SP": (0, 10, 1, 8, 8, 8, 1, None, "6 AllGather + 4 ReduceScatter a layer")}


def test_published_comparison_has_every_cell_of_the_table(box):
    result, lines = comparison(box, *EIGHT, "--batch", "8", extra=["--csv"])
    table = [cell for cell in result["cells"] if cell["where"] == "table"]
    assert [cell["cell"] for cell in table] == 9 * list(COLUMNS), table
    assert [cell["printed"]["text"] for cell in table] == TABLE.strip().replace("\n", "|").split("|"), table
    cells = by_cell(result)
    hh, bsh, parameters = 24 * 1024 * 1024, 24 * 8 * 2048 * 1024, 302309376
    for name, (weights, activations, ranks, of_weights, of_gradients, of_optimizer, kept, *named) in VALUES.items():
        values = {column: cells[name, column, "table"]["printed"]["value"] for column in COLUMNS}
        assert values["gradients and weights sent"] == weights * hh, values
        assert values["activations sent, both ways"] == activations * bsh // ranks, values
        assert values["weights and gradients"] == 2 * parameters // of_weights + 2 * parameters // of_gradients, values
        assert values["optimizer"] == 12 * parameters // of_optimizer, values
        assert values["activations kept"] == 24 * 406847488 * kept, values
        for column, collectives in zip(("parameters, collectives", "activations, collectives"), named):
            assert collectives in (None, cells[name, column, "table"]["corrected"]["formula"]), (name, column)
    rows = list(csv.DictReader(lines.splitlines()))
    assert len(rows) == len(result["cells"]), len(rows)
    for row, cell in zip(rows, result["cells"]):
        for side in ("printed", "corrected"):
            value = cell[side]["value"]
            assert row["printed"] == cell["printed"]["text"], (row, cell)
            assert (row[side + "_formula"], row[side + "_value"]) == (cell[side]["formula"], "" if value is None else str(value)), row
        assert (row["subject"], row["cell"], row["error"]) == (cell["subject"], cell["cell"], cell["error"] or ""), (row, cell)


def test_published_comparison_refuses(box):
    grouped = [save(box, f"{name}.json", "compare", *EIGHT, "--key-value-heads", "8", *more) for name, more in (("f", []), ("t", ["--train"]))]
    assert "has no grouped queries" in published(box, "comparison", *grouped, code=1)
    other = save(box, "o.json", "compare", *SIZES, "--degree", "4", "--train")
    for files in ((grouped[0], other), (grouped[1], grouped[0])):
        assert "takes two files for the same sizes" in published(box, "comparison", *files, code=1)
    assert published(box, "comparison", "none.json", other, code=1).startswith("tools/published: none.json: ")
    assert "o.json is no trace" in published(box, "flops", other, code=1)
