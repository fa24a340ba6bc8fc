#!/usr/bin/env python3
"""Compares what tessera plan predicts for one and for two ranks on this machine with what the runs take: seconds of a steady step,
seconds of the request (encoding, denoising and decoding; a plan does not include loading), and the most memory that a rank holds.

Shared hosts change their speed within minutes. So the machine is calibrated before and after each model and size, unless --machine names
a file, and planned seconds are the means of both; all layouts run once a round.
The models have random weights and the widths of PixArt-Sigma-XL, SDXL and Open-Sora 1.2, with few blocks or all. A measured step is the median
of those of all rounds, as a calibration takes that of its times, and a part of a request that of its rounds. A run during which other
programs took more than --others of a core is repeated, and the least disturbed counts. Memory is that of the process less that of a run
of the smallest model that ships on as many ranks: ranks are forks, which have fewer pages of the libraries.
"""
import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import models
import ranks

ROOT = pathlib.Path(__file__).resolve().parent.parent
TESSERA = ROOT / "build" / "tessera"
TITLES = {"pixart": "PixArt-Sigma-XL", "sdxl": "SDXL's U-Net", "open-sora": "STDiT3-XL"}
SIZES = {"pixart": ["256x256", "512x512"], "sdxl": ["256x256", "384x384"], "open-sora": ["144x256x17", "192x336x17"]}
BLOCKS = {"pixart": 8, "sdxl": 1, "open-sora": 2}  # as in models.LAYERS
LATENT = ["--output-type", "latent"]
SCALES = {"step": 1, "request": 1, "memory": 2**30}


def layouts(family):
    """Name -> flags of the layouts of up to two ranks; `data` makes two pictures."""
    table = {"one rank": []}
    for name, flags in ranks.methods(2, 2, family, prompts=2).items():
        if name == "pipefusion":
            for patches in (2, 4):
                table[f"PipeFusion 2, {patches} patches"] = [*flags[:2], "--num-pipeline-patch", str(patches), *flags[4:]]
        elif name != "full_sync":
            table[f"{name} 2"] = flags
    return table


def option_flags(options):
    """Of the `options` of a plan."""
    flags = []
    for name, value in options.items():
        name = name.replace("_", "-")
        flags += [f"--{name}" if value else f"--no-{name}"] if isinstance(value, bool) else [f"--{name}", str(value)]
    return flags


def request_flags(family, folder, size, steps, dtype):
    sides = size.split("x")
    more = {"pixart": ["--no-resolution-binning"], "open-sora": ["--num-frames", sides[-1]]}.get(family, [])
    return ["--model", str(folder), "--dtype", dtype, "--height", sides[0], "--width", sides[1], "--num-inference-steps", str(steps), *more]


def prompts_of(flags):
    return ["a red circle"] * (2 if "--data-parallel-degree" in flags else 1)


def plan(args, machine, request, flags, prompts):
    """The JSON of a plan, or None where the layout is refused."""
    done = subprocess.run([str(TESSERA), "plan", *prompts, *request, *flags, "--machine", str(machine), "--json"],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        print(f"planned: {' '.join(flags)}: {done.stderr.strip()}", file=sys.stderr, flush=True)
        return None
    return json.loads(done.stdout)


def busy_seconds():
    """For which the cores of the machine have worked, and the children of this process among them."""
    fields = pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]  # user nice system idle iowait irq softirq steal
    ticks = sum(int(field) for number, field in enumerate(fields) if number not in (3, 4))
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ticks / os.sysconf("SC_CLK_TCK"), own.ru_utime + own.ru_stime


def generate(command, report):
    """The report of one run, with the cores that others had meanwhile."""
    alone = "degree" not in " ".join(command) and "cfg-parallel" not in " ".join(command)
    begin, (all_before, own_before) = time.monotonic(), busy_seconds()
    done = subprocess.run([*command, "--report", str(report)], stdout=subprocess.DEVNULL, env=dict(os.environ, OMP_NUM_THREADS="1"),
                          preexec_fn=(lambda: ranks.pin(0, 2)) if alone else None)
    if done.returncode != 0:
        sys.exit(f"planned: {' '.join(command)} failed")
    all_after, own_after = busy_seconds()
    others = (all_after - all_before - (own_after - own_before)) / (time.monotonic() - begin)
    return json.loads(report.read_text()) | {"others": max(others, 0)}


def wait_until_idle(args):
    """Waits until other programs leave the cores alone, for some time at most."""
    for _ in range(args.patience):
        before, _ = busy_seconds()
        time.sleep(1)
        if busy_seconds()[0] - before <= args.others:
            return


def quiet(args, command, report):
    wait_until_idle(args)
    best = generate(command, report)
    for _ in range(1, args.tries):
        if best["others"] <= args.others:
            break
        wait_until_idle(args)
        best = min(best, generate(command, report), key=lambda each: each["others"])
    return best


def memory_of(report):
    return max(rank["peak_rss_bytes"] for rank in report["ranks"])


def run_layout(args, family, request, flags, report, decodes):
    """The report of one run, and of the cores that others had meanwhile."""
    for left in report.parent.glob("picture*"):
        left.unlink()
    suffix = ".mp4" if decodes and family == "open-sora" else ".png" if decodes else ".safetensors"
    output = [*([] if decodes else LATENT), "-o", str(report.with_name("picture%d" + suffix))]
    return quiet(args, [str(TESSERA), "generate", *prompts_of(flags), *request, *flags, "--threads", "1", "--seed", "1", "-q", *output], report)


def summary_of(reports, flags):
    """The measured figures of the reports of a layout, all of which may have decoded."""
    last = -1 if "--pipefusion-parallel-degree" in flags else None  # it drains in the last step
    steps = [step for each in reports for step in each["step_seconds"][2:last]]
    parts = [statistics.median([each["seconds"][part] for each in reports]) for part in ("encode", "denoise")]
    decoding = [each["seconds"]["decode"] for each in reports if each["seconds"]["decode"] > 0]
    return {"step": statistics.median(steps), "request": sum(parts), "decode": statistics.median(decoding or [0]),
            "memory": max(map(memory_of, reports)), "others": max(each["others"] for each in reports),
            "seconds": [each["seconds"] for each in reports], "step_seconds": [each["step_seconds"] for each in reports]}


def measure(args, family, request, table, report):
    """Runs every layout of the table once a round, so that a host that changes its speed does so for all of them alike. Returns the
    figures by layout. How long decoding takes depends on the number of ranks alone: the first layout of each number decodes."""
    reports = {name: [] for name in table}
    for _ in range(args.rounds):
        decoded = set()
        for name, flags in table.items():
            kind = kind_of(name, flags)
            reports[name].append(run_layout(args, family, request, flags, report, kind not in decoded))
            decoded.add(kind)
    return {name: summary_of(reports[name], flags) for name, flags in table.items()}


def kind_of(name, flags):
    return "data" if "data" in name else len(flags) > 0


def mean_plan(args, machines, request, flags, prompts):
    """The plans of all machine files, the first with the means of the seconds of all; None where the layout is refused."""
    plans = [plan(args, machine, request, flags, prompts) for machine in machines]
    if None in plans:
        return None
    return plans[0] | {key: statistics.mean(each[key] for each in plans) for key in ("seconds", "step_seconds")}


def calibrated(args, family, size, when):
    """The machine file that a calibration makes, unless one was given or what was measured is planned again."""
    path = ROOT / "build" / f"planned-{family}-{size}-{when}.json"
    if args.machine:
        return args.machine
    if not args.measured:
        path.unlink(missing_ok=True)
        subprocess.run([str(TESSERA), "calibrate", "-o", str(path)], check=True)
    return path


def model_of(args, family):
    blocks = models.LAYERS[family] if args.all_blocks else BLOCKS[family]
    return models.folder_with(family, blocks, args.text_layers, args.models_folder)


def memory_rows(args, family, size, report, empty):
    """What each layout holds; the runs have as few steps as show that, and other programs may run meanwhile."""
    rows = []
    for name, flags in layouts(family).items():
        steps = 3 if "PipeFusion" in name else 2 if "displaced" in name else 1
        request = request_flags(family, model_of(args, family), size, steps, args.dtype)
        told = plan(args, args.machine, request, flags or ["--devices", "1"], prompts_of(flags))
        if told is None:
            continue
        suffix = ".mp4" if family == "open-sora" else ".png"
        command = [str(TESSERA), "generate", *prompts_of(flags), *request, *flags, "--threads", "1", "--seed", "1", "-q", "-o"]
        held = memory_of(generate([*command, str(report.with_name("picture%d" + suffix))], report)) - empty[len(flags) > 0]
        for left in report.parent.glob("picture*"):
            left.unlink()
        rows.append({"model": TITLES[family], "size": size, "layout": name, "planned": {"memory": max(told["peak_bytes"])}, "measured": {"memory": held}})
        print_row(rows[-1], ["memory"])
    return rows


def print_row(row, figures, end=""):
    print(f"{row['model']:16} {row['size']:11} {row['layout']:24} " + "  ".join(
        f"{what} {row['planned'][what] / SCALES[what]:.3f} / {row['measured'][what] / SCALES[what]:.3f} = {ratio(row, what):.2f}"
        for what in figures) + end, flush=True)


def rows_of(args, family, size, report, empty):
    folder = model_of(args, family)
    request = request_flags(family, folder, size, args.steps, args.dtype)
    machines = [calibrated(args, family, size, "before")]
    table = {name: flags for name, flags in layouts(family).items()
             if plan(args, machines[0], request, flags or ["--devices", "1"], prompts_of(flags)) is not None}
    found = plan(args, machines[0], request, ["--devices", "2"], ["a red circle"])
    first = option_flags(found["layouts"][0]["options"])
    if first not in [[flag for flag in flags if flag not in ("--warmup-steps", "1")] for flags in table.values()]:
        table["the plan's first: " + found["layouts"][0]["layout"]] = first
    measured = {name: args.before[TITLES[family], size, name] for name in table if (TITLES[family], size, name) in args.before}
    if not args.before:
        measured = measure(args, family, request, table, report)
    machines.append(calibrated(args, family, size, "after"))
    rows, decode = [], {}
    for name, figures in measured.items():
        flags, kind = table[name], kind_of(name, table[name])
        told = mean_plan(args, machines, request, flags or ["--devices", "1"], prompts_of(flags))
        decodes = kind not in decode
        as_run = told if decodes else plan(args, machines[0], request, [*(flags or ["--devices", "1"]), *LATENT], prompts_of(flags))
        decode.setdefault(kind, figures["decode"])
        if not args.before:
            figures["memory"] -= empty[len(flags) > 0]
            figures["request"] += decode[kind]
        row = {"model": TITLES[family], "size": size, "layout": name, "measured": figures, "planned": {
            "step": told["step_seconds"], "request": told["seconds"], "memory": max(as_run["peak_bytes"]), "plan": told}}
        rows.append(row)
        print_row(row, SCALES, f"  others {row['measured']['others']:.2f}")
    return rows


def ratio(row, what):
    return row["planned"][what] / row["measured"][what]


def error(row, what):
    return abs(ratio(row, what) - 1)


def summarize(rows, figures):
    """A sentence for each figure, and one for each request: how much longer than the soonest the plan's first takes."""
    for what in figures:
        worst = max(rows, key=lambda row: error(row, what))
        print(f"{what}: median error {statistics.median(error(row, what) for row in rows):.1%}, worst {error(worst, what):.1%} "
              f"({worst['model']}, {worst['size']}, {worst['layout']})")
    for case in dict.fromkeys((row["model"], row["size"]) for row in rows if "request" in figures):
        # Two pictures are another request.
        of_case = [row for row in rows if (row["model"], row["size"]) == case and not row["layout"].startswith("data")]
        chosen = min(of_case, key=lambda row: row["planned"]["request"])
        best = min(of_case, key=lambda row: row["measured"]["request"])
        print(f"{' '.join(case)}: the plan's first is {chosen['layout']}, the soonest {best['layout']}; "
              f"it takes {chosen['measured']['request'] / best['measured']['request'] - 1:.1%} longer")


def print_markdown(rows, figures):
    print(f"| model | size | layout |{''.join(f' {what} | |' for what in figures)}\n|{'---|' * (3 + 2 * len(figures))}")
    for row in rows:
        cells = [f"{row['planned'][what] / SCALES[what]:.3g} / {row['measured'][what] / SCALES[what]:.3g} | {ratio(row, what):.2f}"
                 for what in figures]
        print(f"| {row['model']} | {row['size'].replace('x', ' x ')} | {row['layout']} | {' | '.join(cells)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", choices=SIZES, default=list(SIZES))
    parser.add_argument("--sizes", nargs="*", help="HEIGHTxWIDTH, of videos HEIGHTxWIDTHxFRAMES (default: two for each model)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5, help="denoising steps, of which the first two are not counted")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--others", type=float, default=0.1, help="cores that other programs may have during a run")
    parser.add_argument("--patience", type=int, default=30, help="seconds to wait for them before a run")
    parser.add_argument("--tries", type=int, default=3, help="at most so many runs until one is not disturbed")
    parser.add_argument("--machine", type=pathlib.Path, help="machine file (default: calibrations before and after each model and size, build/planned-MODEL-SIZE-*.json)")
    parser.add_argument("--text-layers", type=int, default=2)
    parser.add_argument("--all-blocks", action="store_true", help="as many blocks as the published models have (default: few)")
    parser.add_argument("--only-memory", action="store_true", help="of runs of few steps, for the times of which a --machine serves that is not theirs")
    parser.add_argument("--models-folder", type=pathlib.Path, default=models.MODELS)
    parser.add_argument("--markdown", action="store_true", help="also print the rows as Markdown")
    parser.add_argument("--measured", type=pathlib.Path, help="take what was measured from the JSON of a run before, and only plan again")
    parser.add_argument("-o", "--output", type=pathlib.Path, help="also write all figures as JSON")
    args = parser.parse_args()
    before = json.loads(args.measured.read_text()) if args.measured else []
    args.before = {(row["model"], row["size"], row["layout"]): row["measured"] for row in before}
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        report = pathlib.Path(scratch) / "report.json"
        smallest = [str(TESSERA), "generate", "a red circle", "--model", "shapes", "--dtype", args.dtype, "--threads", "1", "-q",
                    "--num-inference-steps", "1", "-o", str(report.with_suffix(".png"))]
        empty = [memory_of(generate([*smallest, *flags], report)) for flags in ([], ["--use-cfg-parallel"])]
        for family in args.models:
            for size in args.sizes or SIZES[family]:
                rows += (memory_rows if args.only_memory else rows_of)(args, family, size, report, empty)
                if args.output:
                    args.output.write_text(json.dumps(rows, indent=1))
    figures = ["memory"] if args.only_memory else list(SCALES)
    summarize(rows, figures)
    if args.markdown:
        print_markdown(rows, figures)


if __name__ == "__main__":
    main()
