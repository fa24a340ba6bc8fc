"""A published comparison of parallel methods (a reading note of November 2024 on parallelism in vision transformers): its formulas and
its training table as they are printed, beside those of `tessera compare`, with what is wrong in them. Only formulas and numbers are
taken from it. Values are those of the formulas; its costs are those of a layer, formulas and values those of all layers."""
import fractions
import math
import re

ERRORS = {
    "E1": "One letter has several meanings (m, n, M, L, alpha); here each has one.",
    "E2": "The weights and biases that it lists sum to 9 h; the 13 h of its total need the two norms, 4 h.",
    "E3": "The products of an MLP matrix lack the batch, and FLOPs are called bytes.",
    "E4": "The parts that it lists for the MLP sum to 19 b s h, which its total of 34 b s h needs, not to 18.",
    "E5": "TP counts elements and says bytes; Ring lacks the gradients of keys and values in backward.",
    "E6": "The scatter of 2D TP is divided by one side of the mesh instead of both.",
    "E7": "The pipeline has no volume and no idle time; those here are ours.",
    "E8": "The text leaves scores whole; Ulysses divides them by heads, and Ring by tokens.",
    "E9": "2.5D and 3D tensor parallelism, often named with 2D, are not in it, and not here either.",
    "E10": "Backward gathers the input of both regions of a layer again: two more AllGathers, not one.",
    "E11": "The number of ranks has to divide the heads, not the other way round.",
    "E12": "Ulysses and TP both divide heads, but work together where their product divides the heads.",
    "E13": "An AllReduce moves each gradient twice, 24 h^2 a layer, and ZeRO-3 moves 36 h^2: twice the printed.",
    "E14": "L means tokens in the row of Ring, where it is layers elsewhere; ZeRO-1 divides samples.",
    "E15": "TP keeps 10 b s h whole and divides the rest, which is not (n-1)/n of everything.",
    "O": "The factor (n-1)/n is left out, as O(...) allows."}

LETTERS = {"L": "layers", "h": "hidden", "a": "heads", "s": "sequence", "n": "degree", "b": "batch", "v": "vocabulary"}
SENT, FORWARD, KEPT = "activations sent, both ways", "activations sent, forward", "activations kept"

# The costs of the training table: collectives and volume as printed, the number in the volume, and what is wrong.
NOTHING = ("0", "0", 0, "")
ALL_REDUCE = ("AllReduce", "12O(h²)", 12, "E13")
ZERO = ("AllGather + ReduceScatter", "12O(h²)", 12, "E13")
ZERO_3 = ("2*AllGather + ReduceScatter", "18O(h²)", 18, "E13")
USP = ("P2P + 8*All2All", "≤ 4O(bsh)", 4, "O, E5")
# Which state of a parameter a row divides: the memory of weights and gradients, and of the optimizer, as printed and in our letters.
WHOLE, DIVIDED = ("6P", "12 P"), ("6P/N", "12 P/n")
STATES = {"nothing": (("P+G", "2 P + 2 P"), WHOLE), "optimizer": (("P+G", "2 P + 2 P"), DIVIDED),
          "gradients": (("P+(G/N)", "2 P + 2 P/n"), DIVIDED), "everything": (("(P+G)/N", "(2 P + 2 P)/n"), DIVIDED)}
# Our method and the printed one, costs of weights and of activations, what activations/weights are divided by (printed, what is wrong,
# right), and the state that is divided.
TABLE = [
    ("Ulysses", "DS-SP", ALL_REDUCE, ("8*All2All", "(8/N)O(bsh)", 8, "O"), ("a/s", "", "a/s"), "nothing"),
    ("Ring", "Ring-SP", ALL_REDUCE, ("P2P", "4O(bsh)", 4, "O, E5"), ("L/L", "E14", "s/s"), "nothing"),
    ("DP", "DP", ALL_REDUCE, NOTHING, ("b/b", "", "b/b"), "nothing"),
    ("ZeRO-1", "ZeRO1", ZERO, NOTHING, ("a/s", "E14", "b/b"), "optimizer"),
    ("USP+ZeRO-1", "USP + ZeRO1", ZERO, USP, ("a/s", "", "a/s"), "optimizer"),
    ("USP+ZeRO-2", "USP + ZeRO2", ZERO, USP, ("a/s", "", "a/s"), "gradients"),
    ("USP+ZeRO-3", "USP + ZeRO3", ZERO_3, USP, ("a/s", "", "a/s"), "everything"),
    ("TP", "TP", NOTHING, ("4*AllReduce", "8O(bsh)", 8, "O"), ("a/h", "", "a/h"), "everything"),
    ("Megatron-SP", "Megatron-SP", NOTHING, ("6*AllGather + 4*ReduceScatter", "10O(bsh)", 10, "O"), ("a/h", "", "a/h"), "everything")]


class Refused(Exception):
    """The sizes have no comparison; the text is for the user."""


def value_of(formula, letters):
    """The value of a formula, in which factors stand beside each other; a part of what is not divisible is rounded up."""
    text = ""
    for before, word in zip(["", *(words := re.findall(r"\d+|[A-Za-z]|[-+/()^]", formula))], words):
        text += ("*" if re.match(r"[\w(]", word) and re.match(r"[\w)]", before) else "") + word.replace("^", "**")
    return math.ceil(eval(text, {"__builtins__": {}}, letters))


def letters_of(comparison):
    sizes = comparison["sizes"]
    letters = {letter: sizes.get(name, 0) for letter, name in LETTERS.items()}
    letters |= dict(zip("xy", map(int, sizes["mesh"].split("x"))))
    letters |= {each["symbol"]: each["value"] for each in comparison["model"] if "symbol" in each}
    return {letter: fractions.Fraction(value) for letter, value in letters.items()}


def obstacle_of(method):
    """Why formulas for equal parts have no value for a method; empty if they have."""
    return method.get("obstacle") or method.get("uneven", "")


def sends(method, activations):
    return [each for each in method["sends"] if (each["data"] == "activations") == activations]


def sent(method, activations=True):
    """What `tessera compare` says of it: formula and value in elements."""
    elements = [each["elements"] for each in sends(method, activations)]
    return " + ".join(each["formula"] for each in elements) or "0", sum(each["value"] for each in elements)


def collectives(method, activations):
    if "obstacle" in method:
        return "-"
    return " + ".join(each["collectives"] for each in sends(method, activations)) or "0"


def kept(method, *names):
    cells = [method[f"{name}_bytes"] for name in names]
    return " + ".join(each["formula"] for each in cells), sum(each["value"] for each in cells)


class Cells:
    """Builds the list of cells."""

    def __init__(self, forward, training):
        self.letters, self.cells = letters_of(training), []
        self.methods = {(each["name"], train): each for train, comparison in ((False, forward), (True, training))
                        for each in comparison["methods"]}
        self.model = {each["name"]: (each["formula"], each["value"]) for each in training["model"]}

    def method(self, name, train=True):
        return self.methods[name, train]

    def add(self, subject, what, where, unit, text, formula, error, ours, obstacle=""):
        """`ours` is a formula, or a formula and its value; a function of the method where there may be an obstacle."""
        printed = corrected = None
        corrected_formula = ""
        if not obstacle:
            ours = ours() if callable(ours) else ours
            corrected_formula, corrected = ours if isinstance(ours, tuple) else (ours, value_of(ours, self.letters))
            printed = value_of(formula, self.letters) if formula else None
        self.cells.append({"subject": subject, "cell": what, "where": where, "unit": unit, "obstacle": obstacle or None,
                           "printed": {"text": text, "formula": formula, "value": printed},
                           "corrected": {"formula": corrected_formula, "value": corrected}, "error": error or None})

    def add_to(self, name, what, where, unit, text, formula, error, ours, train=True):
        method = self.method(name, train)
        self.add(name, what, where, unit, text, formula, error, lambda: ours(method), obstacle_of(method))

    def add_words(self, name, what, text, error, right):
        self.add(name, what, "table", "", text, "", error, (right, None))


def in_bytes(elements):
    formula, value = elements
    return f"2 ({formula})", 2 * value


def add_model(cells):
    logits = cells.letters["v"] > 0

    def add(what, unit, text, formula, error, ours):
        cells.add("model", what, "text", unit, text, formula, error, cells.model.get(ours, ours))

    def with_logits(formula, more):
        return formula + more if logits else formula

    add("parameters of a layer, listed", "parameters", "4(h*h+h*1)+h*4h+4h*1+4h*h+h*1", "12 h^2 + 9 h", "E2", "12 h^2 + 13 h")
    add("parameters", "parameters", with_logits("(12hh+13h)L", " + hv"), with_logits("(12 h^2 + 13 h) L", " + h v"), "", "parameters")
    add("FLOPs of one MLP matrix", "FLOP", "8shh", "8 s h^2", "E3", "8 b s h^2")
    add("FLOPs forward", "FLOP", with_logits("(24bshh + 4bssh)L", " + 2bshv"), with_logits("(24 b s h^2 + 4 b s^2 h) L", " + 2 b s h v"), "E3",
        "products of a forward pass")
    add("FLOPs of a step, no logits", "FLOP", "72BLshh(1+s/(6h))", "72 b s h^2 L (1 + s/(6 h))", "",
        "3 (F - 2 b s h v)" if logits else "3 F")
    add("activations of attention", "bytes", "11bsh + 5bssa", "11 b s h + 5 a b s^2", "", "of these of attention")
    add("activations of the MLP", "bytes", "18bsh", "18 b s h", "E4", "of these of the MLP")
    add("activations of the norms", "bytes", "4bsh", "4 b s h", "", "of these of the norms")
    add("activations of a layer", "bytes", "bsh(34+5sa/h)", "34 b s h + 5 a b s^2", "", "activations of a layer, kept for backward")


def add_text(cells):
    def kept_of(method):
        return kept(method, "activation")

    add = cells.add_to
    add("TP", SENT, "text", "bytes", "8αbsh", "8 (n-1)/n b s h L", "E5", lambda method: in_bytes(sent(method)))
    add("TP", KEPT, "text", "bytes", "bsh(10+24/n+5as/(hn))", "(10 + 24/n + 5 a s/(h n)) b s h L", "", kept_of)
    add("2D TP", "h x 4h: input gathered", "text", "elements", "bsh(n-1)/(mn)", "b s h (y-1)/n", "", lambda _: "b s h (y-1)/n")
    add("2D TP", "h x 4h: sums scattered", "text", "elements", "bse(m-1)/n", "4 b s h (x-1)/y", "E6", lambda _: "4 b s h (x-1)/n")
    add("Megatron-SP", SENT, "text", "elements", "10bsh", "10 b s h L", "O", sent)
    add("Megatron-SP", "more AllGathers in backward", "text", "", "1", "1", "E10", lambda _: "2")
    add("Megatron-SP", KEPT, "text", "bytes", "bsh/n*(34+5as/h)", "(34 + 5 a s/h) b s h L/n", "", kept_of)
    add("PP", SENT, "text", "elements", "not given", "", "E7", sent)
    add("Ulysses", FORWARD, "text", "bytes", "8αbsh/n", "8 (n-1)/n b s h L/n", "", lambda method: in_bytes(sent(method)), train=False)
    add("Ring", FORWARD, "text", "bytes", "4bsh", "4 b s h L", "O", lambda method: in_bytes(sent(method)), train=False)
    for name in ("Ulysses", "Ring"):
        add(name, KEPT, "text", "bytes", "bsh(34/n+5sa/h)", "(34/n + 5 a s/h) b s h L", "E8", kept_of)


def add_row(cells, name, printed_name, weights, activations, divides, state):
    method = cells.method(name)
    cells.add_words(name, "name", printed_name, "", name)
    for data, (names, volume, times, error), letters in (("parameters", weights, "h^2 L"),
                                                         ("activations", activations, "b s h L/n" if name == "Ulysses" else "b s h L")):
        is_activations = data == "activations"
        cells.add_words(name, f"{data}, collectives", names, "", collectives(method, is_activations))
        cells.add_to(name, SENT if is_activations else "gradients and weights sent", "table", "elements", volume,
                     f"{times} {letters}" if times else "0", error, lambda method: sent(method, is_activations))
    cells.add_words(name, "divides activations/weights", *divides)
    (text, formula), (optimizer_text, optimizer) = STATES[state]
    cells.add_to(name, "weights and gradients", "table", "bytes", text, formula, "", lambda method: kept(method, "weight", "gradient"))
    cells.add_to(name, "optimizer", "table", "bytes", optimizer_text, optimizer, "", lambda method: kept(method, "optimizer"))
    text, formula, error = ("αA", "(n-1)/n A L", "E15") if name == "TP" else ("A/N", "A L/n", "")
    cells.add_to(name, KEPT, "table", "bytes", text, formula, error, lambda method: kept(method, "activation"))


def compare(forward, training):
    """The cells, from what `tessera compare --json` and `tessera compare --train --json` print for the same sizes."""
    if (forward.get("pass"), training.get("pass")) != ("forward", "training step") or forward["sizes"] != training["sizes"]:
        raise Refused("takes two files for the same sizes: what tessera compare --json prints, and with --train")
    if training["sizes"]["key_value_heads"] != training["sizes"]["heads"]:
        raise Refused("the printed document has no grouped queries; leave out --key-value-heads")
    cells = Cells(forward, training)
    add_model(cells)
    add_text(cells)
    for row in TABLE:
        add_row(cells, *row)
    return {"sizes": training["sizes"], "cells": cells.cells, "errors": ERRORS}


def value_text(value, unit):
    if value is None:
        return "-"
    base, units = (1024, ("", "KiB", "MiB", "GiB", "TiB")) if unit == "bytes" else (1000, ("", "K", "M", "G", "T", "P"))
    power = 1 if unit == "bytes" else 0
    while power + 1 < len(units) and value >= base**(power + 1):
        power += 1
    return f"{value / base**power:.{2 if power > 2 else 1}f} {units[power]}" if power else str(value)


def table_text(comparison):
    line = "{:<11} {:<29} {:<5} {:<29} {:>10} {:>10} {}\n".format
    text, obstacles = line("", "cell", "in", "as printed", "its value", "corrected", "errors"), {}
    for cell in comparison["cells"]:
        printed, corrected = cell["printed"], cell["corrected"]
        if cell["obstacle"]:
            obstacles.setdefault(cell["obstacle"], {})[cell["subject"]] = True
        start, error = (cell["subject"], cell["cell"], cell["where"], printed["text"]), cell["error"] or ""
        if not printed["formula"] and corrected["value"] is None:
            text += "{:<11} {:<29} {:<5} {:<29} {:>21} {}\n".format(*start, corrected["formula"], error)
        else:
            text += line(*start, *(value_text(side["value"], cell["unit"]) for side in (printed, corrected)), error)
    if obstacles:
        text += "- needs equal parts:\n" + "".join(f"  {', '.join(names)}: {why}\n" for why, names in obstacles.items())
    text += ("\nThe document's N is n, its α (n-1)/n; its costs are those of a layer, and values those of all layers.\n"
             "P, G and OS are parameters, gradients and the optimizer's state, in 16-bit parameters.\n\n")
    return text + "".join(f"{number:<4} {error}\n" for number, error in comparison["errors"].items())


def rows(comparison):
    """For a table as CSV."""
    for cell in comparison["cells"]:
        yield {**{key: cell[key] for key in ("subject", "cell", "where", "unit")}, "printed": cell["printed"]["text"],
               **{f"{side}_{key}": cell[side][key] for side in ("printed", "corrected") for key in ("formula", "value")},
               "error": cell["error"]}
