"""Programs of one rank and of several, exported and run, for those who compare them."""
import pathlib
import subprocess

import numpy as np

from tools.reference import stablehlo

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
MOST = 1e-4  # of the largest number
PROMPT = "a red circle left of a star"


def export_ranks(program, scratch, folder, flags, part, dtype="fp32"):
    scratch.mkdir(exist_ok=True)
    subprocess.run([program, "trace", PROMPT, "--model", folder, "--dtype", dtype, *flags, "--part", part, "--quiet",
                    "--stablehlo", scratch / "ranks.mlir"], check=True, stdout=subprocess.DEVNULL)
    paths = sorted(scratch.glob("ranks*.mlir"), key=lambda path: [int(word) for word in path.stem.split(".")[1:]])
    return [stablehlo.Program(path) for path in paths]


def part_of(whole, samples, slices):
    """What a rank has of an array of all samples, or of one that has none (`samples` is None)."""
    own = whole if samples is None else whole[samples]
    return own[tuple(slice(*ends) for ends in slices)] if slices else own


def run_ranks(programs, folder, given):
    """The results of these programs. Those that are partitions of one run together."""
    place = {one.description["rank"]: i for i, one in enumerate(programs)}
    results = [None] * len(programs)
    for i, one in enumerate(programs):
        ranks = one.description["partitions"]
        if len(ranks) == 1:
            results[i] = one.run(folder, given[i])
        elif ranks[0] == one.description["rank"]:
            places = [place[rank] for rank in ranks]
            together = stablehlo.Program.run_together([programs[each] for each in places], folder, [given[each] for each in places])
            for each, result in zip(places, together, strict=True):
                results[each] = result
    return results


def difference(result, expected, name):
    """The largest, as a share of the largest number."""
    expected = expected.float().numpy()
    if expected.shape != result.shape:
        raise SystemExit(f"{name}: the program gives {result.shape}, the reference {expected.shape}")
    return float(np.abs(result.astype(np.float32) - expected).max() / np.abs(expected).max())


def random_inputs(program, draw=0):
    """By name; what the program is conditioned on has the request's values."""
    random = np.random.default_rng(draw)
    inputs = {key: np.full([1], value, np.float32) for key, value in program.description["values"].items()}
    for each in program.inputs():
        if each["name"] == "tokens":
            inputs["tokens"] = random.integers(3, 90, each["shape"])
        elif each["name"] == "timestep":
            inputs["timestep"] = np.array([320.0], np.float32)  # which bf16 has: Open-Sora rounds it
        elif each["name"] not in inputs:
            inputs[each["name"]] = random.standard_normal(each["shape"]).astype(np.float32)
    return inputs
