"""Prints the figures of two published documents as they stand there, weak points included, from what tessera prints as JSON
(docs/published.md):

    comparison   the cells of a comparison of parallel methods, beside those of tessera compare
    flops        the FLOPs of an analysis of Open-Sora, from a trace, or from what tessera analyze ops --json prints of a program
    volumes      what each of its devices sends in a step, from the JSON of tessera analyze hardware
    tx8          its times of the operators of a pair of blocks, from the same JSON
    operators    its times of single operators"""
import argparse
import csv
import json
import pathlib
import sys

from tools.published import comparison, open_sora, tx8

MACHINES = pathlib.Path(__file__).resolve().parents[2] / "machines"


class Refused(Exception):
    """The text is for the user."""


def read(path):
    """The object in a file."""
    try:
        value = json.loads(sys.stdin.read() if path == "-" else pathlib.Path(path).read_text())
    except (OSError, ValueError) as error:
        raise Refused(f"{path}: {error}") from error
    if not isinstance(value, dict):
        raise Refused(f"{path} is no JSON object")
    return value


def print_json(value):
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(head, rows):
    rows = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip())


def print_comparison(arguments):
    result = comparison.compare(read(arguments.forward), read(arguments.training))
    if arguments.json:
        return print_json(result)
    if not arguments.csv:
        return print(comparison.table_text(result), end="")
    rows = list(comparison.rows(result))
    writer = csv.DictWriter(sys.stdout, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def counted_flops(arguments, trace):
    if "rows" in trace and all("operation" in row for row in trace["rows"]):
        if trace["steps"] > 1 or arguments.seconds or arguments.rank is not None:
            raise Refused(f"{arguments.trace} has rows of one rank; of one step, and without --seconds and --rank, they can be counted")
        return open_sora.count_rows(trace["rows"])
    if "tessera_trace" not in trace:
        raise Refused(f"{arguments.trace} is no trace; tessera trace makes one")
    ranks = [each["rank"] for each in trace["ranks"]]
    if arguments.rank is not None and arguments.rank not in ranks:
        raise Refused(f"{arguments.trace} does not hold rank {arguments.rank}")
    return open_sora.count_trace(trace, ranks[0] if arguments.rank is None else arguments.rank)


def print_flops(arguments):
    trace = read(arguments.trace)
    counted = counted_flops(arguments, trace)
    if arguments.seconds:
        counted["use"] = trace["steps"] * counted["step"]["products"] / (arguments.tflops * 1e12 * arguments.seconds)
    if arguments.json:
        return print_json(counted)
    print("A step: {:.3f} TFLOP of products, {:.3f} of elementwise work".format(*(number / 1e12 for number in counted["step"].values())))
    if arguments.seconds:
        print(f"{trace['steps']} steps in {arguments.seconds:g} s use {counted['use']:.3f} of {arguments.tflops:g} TFLOP/s")


def hardware_sizes(path):
    hardware = read(path)
    if "num_frames" not in hardware:
        raise Refused(f"{path} is not what tessera analyze hardware --json prints without a trace")
    sizes = open_sora.Sizes(hardware)
    if sizes.frames == 0:
        raise Refused(f"{hardware['num_frames']} frames have no latent frame by the published rule; the fewest are 4")
    return hardware, sizes


def print_volumes(arguments):
    _, sizes = hardware_sizes(arguments.hardware)
    volumes = open_sora.volumes(sizes)
    if arguments.json:
        return print_json({method: round(number) for method, number in volumes.items()})
    print_table(("bytes/step", "GB", "GiB"), ((method, f"{number / 1e9:.3f}", f"{number / 2**30:.3f}") for method, number in volumes.items()))


def mapping_texts(mapping):
    return (mapping["split"], *(f"{mapping[f'{name}_seconds'] * 1e3:.3f}" for name in ("compute", "dram", "noc", "latency")),
            f"{mapping['utilization']:.3%}", mapping["bound"])


COLUMNS = ("split", "compute", "DRAM", "NoC", "latency", "use", "bound")


def machine_of(name, dtype):
    return tx8.Machine(read(MACHINES / f"{name}.json" if "." not in name else name), dtype)


def print_tx8(arguments):
    hardware, sizes = hardware_sizes(arguments.hardware)
    found = open_sora.analyze(hardware, sizes, machine_of(arguments.machine, hardware["dtype"]), arguments.preset_splits)
    if arguments.json:
        return print_json(found)
    print_table(("operator", "times", "shape", *COLUMNS),
                ((row["name"], str(row["count"]), row["shape"], *(mapping_texts(row) if "split" in row else ("does not fit", *[""] * 6)))
                 for row in found["operators"]))
    print(f"\nTimes of one run in ms. A pair of blocks: {found['pair_seconds'] * 1e3:.3f} ms; {hardware['pairs']} pairs x "
          f"{hardware['num_inference_steps']} steps: {found['total_seconds']:.2f} s")
    for row in found["operators"]:
        if "obstacle" in row:
            print(f"Without {row['name']}: {row['obstacle']}")
    if found["beyond_bound"]:
        print(f"Faster than their bound: {', '.join(found['beyond_bound'])}")


def print_operators(arguments):
    found = [{"name": name, **open_sora.mapping_json(mapping)} for name, mapping in tx8.operators(machine_of(arguments.machine, "bf16"))]
    if arguments.json:
        return print_json(found)
    print_table(("operator", *COLUMNS), ((row["name"], *mapping_texts(row)) for row in found))


def parse():
    parser = argparse.ArgumentParser(prog="python3 -m tools.published", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name, run, *files):
        command = commands.add_parser(name)
        command.set_defaults(run=run)
        command.add_argument("--json", action="store_true", help="print JSON")
        for file, text in files:
            command.add_argument(file, metavar=f"{file.upper()}.json", help=text)
        return command

    hardware = ("hardware", "tessera analyze hardware --machine tx8 --num-frames N --height N --width N --json")
    command = add("comparison", print_comparison, ("forward", "tessera compare ... --json"), ("training", "tessera compare ... --train --json"))
    command.add_argument("--csv", action="store_true", help="print CSV")
    command = add("flops", print_flops, ("trace", "tessera trace ... -o TRACE.json"))
    command.add_argument("--rank", type=int, help="of the trace [the first]")
    command.add_argument("--seconds", type=float, help="measured for all steps: prints the share of --tflops that they use")
    command.add_argument("--tflops", type=float, default=312, help="of the machine on which they were measured [312, of an A100]")
    add("volumes", print_volumes, hardware)
    command = add("tx8", print_tx8, hardware)
    command.add_argument("--preset-splits", action="store_true", help="the published fixed tiles instead of a search")
    for each in (command, add("operators", print_operators)):
        each.add_argument("--machine", default="tx8", help="machine file, or the name of a machine that ships [tx8]")
    return parser.parse_args()


def main():
    arguments = parse()
    try:
        arguments.run(arguments)
    except (Refused, comparison.Refused) as error:
        sys.exit(f"tools/published: {error}")


if __name__ == "__main__":
    main()
