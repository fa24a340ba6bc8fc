"""Tests `tessera compare`."""
import csv
import fractions
import json
import re

from files import says

SIZES = ["--layers", "24", "--hidden", "1024", "--heads", "16", "--sequence", "2048"]
EIGHT = [*SIZES, "--degree", "8"]
NAMES = {"L": "layers", "h": "hidden", "a": "heads", "s": "sequence", "n": "degree", "b": "batch", "k": "key_value_heads",
         "v": "vocabulary", "f": "frames", "u": "ulysses_degree", "r": "ring_degree", "M": "micro_batches", "c": "interleaved"}


def compare(box, *words):
    outcome = box.run("compare", *words)
    assert outcome.code == 0 and outcome.err == "", outcome
    assert max(map(len, outcome.out.splitlines())) <= (120 if "--json" not in words else 10**6), outcome.out
    return outcome.out


def value_of(formula, letters):
    """The exact value of a formula, in which factors stand beside each other."""
    words = re.findall(r"\d+|[A-Za-z]|[-+/()^]", formula)
    assert "".join(words) == formula.replace(" ", ""), formula
    text = ""
    for before, word in zip([""] + words, words):
        is_factor, was_factor = re.match(r"[\w(]", word), re.match(r"[\w)]", before)
        text += ("*" if is_factor and was_factor else "") + word.replace("^", "**")
    return eval(text, {"__builtins__": {}}, letters)


def letters_of(result):
    sizes = result["sizes"]
    letters = {letter: fractions.Fraction(sizes[name]) for letter, name in NAMES.items() if name in sizes}
    letters["d"] = letters["h"] * letters["k"] / letters["a"]
    for letter, ranks in zip("xy", sizes["mesh"].split("x")):
        letters[letter] = fractions.Fraction(ranks)
    return letters


def formulas_of(value):
    """All {"formula", "value"} within."""
    if isinstance(value, dict) and "formula" in value:
        yield value
    elif isinstance(value, (dict, list)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from formulas_of(each)


def test_compare_has_the_value_of_each_formula(box):
    some = [*EIGHT, "--batch", "16", "--mesh", "2x4", "--frames", "16", "--vocabulary", "50304"]
    for words in ([*some], [*some, "--train"], [*some, "--train", "--key-value-heads", "8", "--ring-degree", "4"],
                  [*some, "--train", "--interleaved", "3", "--micro-batches", "16"], [*EIGHT, "--batch", "8"],
                  [*some, "--train", "--micro-batches", "4"], [*SIZES, "--degree", "2", "--batch", "2", "--train"],
                  [*SIZES, "--degree", "1", "--train"]):
        result = json.loads(compare(box, *words, "--json"))
        letters = letters_of(result)
        for each in result["model"]:
            assert value_of(each["formula"], letters) == each["value"], each
            if "symbol" in each:
                letters[each["symbol"]] = fractions.Fraction(each["value"])
            if each["name"] == "activations of a layer, kept for backward":
                assert each["symbol"] == "A", each
        count = 0
        for method in result["methods"]:
            for each in formulas_of(method):
                assert abs(value_of(each["formula"], letters) - fractions.Fraction(each["value"])) < 1e-9, (method["name"], each)
                count += 1
            for sent in method.get("sends", []):
                assert sent["bytes"] == 2 * sent["elements"]["value"], sent
        assert count > 50, count


def test_compare_prints_a_table(box):
    text = compare(box, *EIGHT)
    for line in (r"TP +heads, weights +336.0 MiB +0 +72.1 MiB .*", r"Ring +tokens +168.0 MiB\* .*", r"KV gather +tokens +168.0 MiB +0 .*",
                 r"Ulysses +tokens, heads +42.0 MiB +0 .*", r"DP +no: 1 sample is too few for 8 ranks",
                 r"DSP +no: --frames says how tokens divide", r"TP +activations +2 AllReduce a layer +4 \(n-1\)/n b s h L",
                 r"P +parameters +302.3 M .* = \(12 h\^2 \+ 13 h\) L", r"F +products .* 1.65 T FLOP +=.*"):
        assert re.search(f"^{line}$", text, re.M), (line, text)
    text = compare(box, *EIGHT, "--batch", "8", "--train")
    for line in (r"ZeRO-3 +samples, weights +0 +1.48 GiB\* .*", r" +waits +0.875 of the time it computes +\(n-1\)/\(c M\)",
                 r" +keeps, in bytes +\(10 b s h \+ \(A - 10 b s h\)/n\) L", r"USP\+ZeRO-3 .*"):
        assert re.search(f"^{line}$", text, re.M), (line, text)
    assert "DistriFusion" not in text and "DistriFusion" in compare(box, *EIGHT)
    compare(box, "--layers", "96", "--hidden", "12288", "--heads", "96", "--sequence", "131072", "--degree", "32", "--batch", "32",
            "--frames", "64", "--key-value-heads", "32")
    compare(box, *EIGHT, "--degree", "64", "--frames", "64", "--train")


def test_compare_prints_what_json_has(box):
    for words in ([*EIGHT, "--batch", "8", "--frames", "16"], [*EIGHT, "--batch", "8", "--frames", "16", "--train"]):
        lines = compare(box, *words).split("\n\n")[2].splitlines()[2:]
        methods = json.loads(compare(box, *words, "--json"))["methods"]
        assert [line.split("  ")[0].split(" tokens")[0].strip() for line in lines[:-1]] == [method["name"] for method in methods], lines
        for line, method in zip(lines, methods):
            sent = {True: [], False: []}
            for each in method["sends"]:
                sent[each["data"] == "activations"].append(each)
            keeps = {name: value["value"] for name, value in method.items() if isinstance(value, dict) and "value" in value}
            if "--train" in words:
                state = keeps["weight_bytes"] + keeps["gradient_bytes"]
                rest = [state, keeps["optimizer_bytes"], keeps["activation_bytes"],
                        state + keeps["optimizer_bytes"] + keeps["activation_bytes"]]
            else:
                rest = [keeps["weight_bytes"], keeps["key_value_bytes"], keeps["flop"]]
            expected = [sum(each["bytes"] for each in sent[True]), sum(each["bytes"] for each in sent[False]), *rest]
            cells = re.findall(r"(?<= )(?:0|\d+\.\d+ [KMGT](?:iB)?)\*?(?= |$)", line)
            assert len(cells) == len(expected), (line, expected)
            for cell, exact in zip(cells, expected):
                assert says(cell.removesuffix("*"), exact), (line, cell, exact)
            stars = [bool(each) and all(one["overlaps"] for one in each) for each in (sent[True], sent[False])]
            assert [cell.endswith("*") for cell in cells] == stars + [False] * len(rest), (line, method["sends"])


def test_compare_of_uneven_parts_has_the_values_of_the_busiest_rank(box):
    sizes = ["--layers", "28", "--hidden", "1152", "--heads", "16", "--sequence", "4097", "--degree", "8", "--key-value-heads", "1",
             "--frames", "17"]
    text = compare(box, *sizes)
    for line in (r"PipeFusion +layers, patches~ .*", r"Ulysses +no: 1 key-value head is too few for 8 ranks", r"TP +heads, weights~ .*",
                 r"~ uneven; values are those of the busiest rank:", r"  PP, PipeFusion: 28 layers among 8 ranks, 4 at most",
                 r"  TP, 2D TP: 1 key-value head repeated on 8 ranks",
                 r"  DSP: 17 frames among 8 ranks, 3 at most; 241 places among 8 ranks, 31 at most"):
        assert re.search(f"^{line}$", text, re.M), (line, text)
    methods = {each["name"]: each for each in json.loads(compare(box, *sizes, "--json"))["methods"]}
    assert methods["PipeFusion"]["uneven"] == "28 layers among 8 ranks, 4 at most", methods
    rows = {row["name"]: row for row in csv.DictReader(box.run("compare", *sizes, "--csv").out.splitlines())}
    assert rows["PipeFusion"]["uneven"] == methods["PipeFusion"]["uneven"] and rows["DP"]["uneven"] == "", rows
    assert "uneven" not in compare(box, *EIGHT)


def test_compare_as_csv_has_what_json_has(box):
    for words in ([*EIGHT, "--batch", "8", "--frames", "16"], [*EIGHT, "--batch", "8", "--train"], EIGHT):
        rows = list(csv.DictReader(box.run("compare", *words, "--csv").out.splitlines()))
        methods = json.loads(compare(box, *words, "--json"))["methods"]
        assert [row["name"] for row in rows] == [method["name"] for method in methods], rows
        for row, method in zip(rows, methods):
            assert row["obstacle"] == method.get("obstacle", "") and row["divides"] == method["divides"], (row, method)
            sent = {"sent_activation_bytes": 0, "sent_other_bytes": 0}
            for each in method.get("sends", []):
                sent["sent_activation_bytes" if each["data"] == "activations" else "sent_other_bytes"] += each["bytes"]
            numbers = {**sent, **{key: method[key]["value"] if isinstance(method[key], dict) else method[key]
                                  for key in row if key in method and key not in ("name", "divides", "obstacle")}}
            for key, value in numbers.items():
                assert row[key] == ("" if row["obstacle"] else str(value)), (key, row, method)
            assert row["idle"] == (str(method["idle"]["value"]) if "idle" in method else ""), (row, method)


def test_compare_refuses(box):
    box.refuse(2, "[--csv] and --json are two forms", "compare", *EIGHT, "--csv", "--json")
    box.refuse(2, "[--layers] is missing", "compare")
    box.refuse(2, "[--degree] is missing", "compare", *SIZES)
    box.refuse(2, "[--degree] must be 1 or more, got 0", "compare", *SIZES, "--degree", "0")
    box.refuse(2, "[--degree] expected an integer", "compare", *SIZES, "--degree", "99999999999999999999")
    box.refuse(2, "[--degree] 2049 are more than there are samples (1), tokens (2048), heads (16) and layers (24): no method can use so many ranks",
               "compare", *SIZES, "--degree", "2049")
    box.refuse(2, "[--heads] 7 do not divide a hidden size of 1024", "compare", *EIGHT, "--heads", "7")
    box.refuse(2, "[--mesh] 2x3 is not the 8 ranks of --degree", "compare", *EIGHT, "--mesh", "2x3")
    for mesh in ("2", "2x", "x4", "2x4x1", "-2x-4", "0x8", "2 x 4"):
        box.refuse(2, "[--mesh] expected two numbers of ranks as in 2x4", "compare", *EIGHT, "--mesh", mesh)
    box.refuse(2, "[--ulysses-degree] 3 does not divide", "compare", *EIGHT, "--ulysses-degree", "3")
    box.refuse(2, "--ring-degree 4 are not the 8 ranks", "compare", *EIGHT, "--ulysses-degree", "4", "--ring-degree", "4")
    box.refuse(2, "raise --ring-degree", "compare", *EIGHT, "--degree", "32", "--ulysses-degree", "32")
    box.refuse(2, "[--micro-batches] 3 do not divide a batch of 8", "compare", *EIGHT, "--batch", "8", "--micro-batches", "3")
    box.refuse(2, "[--interleaved] 5 runs of layers", "compare", *EIGHT, "--interleaved", "5")
    box.refuse(2, "[--frames] 5 do not divide", "compare", *EIGHT, "--frames", "5")
    box.refuse(2, "[--key-value-heads] 3 do not divide 16 heads", "compare", *EIGHT, "--key-value-heads", "3")
    box.refuse(2, "too large", "compare", *EIGHT, "--sequence", "1000000000000")
    box.refuse(2, "too large", "compare", *EIGHT, "--batch", "9000000000000000000", "--train")
    box.refuse(2, "unknown option; did you mean --layers?", "compare", "--layer", "24")
    box.refuse(2, "one argument too many", "compare", *EIGHT, "24")
