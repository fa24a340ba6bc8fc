"""Fits a machine to the rows of docs/planning/NAME.fit.csv, predicts those of NAME.rest.csv, and prints how far off each is.

    python3 -m tools.figures.planned_tables [build/tessera] [NAME ...]
"""
import csv
import itertools
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "docs" / "planning"
NAMES = ("a100-nvlink", "a100-pcie", "l20-pcie", "t4-pcie")


def rows_of(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def predicted(program, row, machine):
    words = [program, "plan", "--model", FOLDER / row["model"], "--machine", machine, "--height", row["height"], "--width", row["width"],
             "--num-inference-steps", row["steps"], "--images", row["batch"], "--devices", row["devices"], "--json", *row["flags"].split()]
    return json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)["seconds"]


def table(program, name, base=None):
    """Rows with their predicted seconds, which nothing was fitted to, and the share of linear scaling that was measured."""
    fitted, rest = (rows_of(FOLDER / f"{name}.{part}.csv") for part in ("fit", "rest"))
    alone = {row["height"]: float(row["seconds"]) for row in fitted if row["devices"] == "1"}
    with tempfile.TemporaryDirectory() as folder:
        machine = pathlib.Path(folder) / "machine.json"
        # The data sheet, not the machine that ships with the fit.
        device, link = name.split("-")
        sheet = json.loads((FOLDER.parent.parent / "machines" / f"{device}.json").read_text())
        sheet["links"].sort(key=lambda each: each["kind"] != link)
        sheet["links"] = [each for each in sheet["links"] if each["kind"] == link or each.get("devices") is None]
        (pathlib.Path(folder) / "sheet.json").write_text(json.dumps(sheet))
        subprocess.run([program, "calibrate", "--from-table", FOLDER / f"{name}.fit.csv", "--machine", pathlib.Path(folder) / "sheet.json",
                        "-q", "-o", machine], check=True, stdout=subprocess.DEVNULL)
        for row in rest:
            row["measured"] = float(row["seconds"])
            row["predicted"] = predicted(program, row, machine)
            row["error"] = row["predicted"] / row["measured"] - 1
            row["scaling"] = alone[row["height"]] / (int(row["devices"]) * row["measured"])
    return rest


def pairs(rows):
    """How many pairs of methods on equal devices are ranked as measured, and how many are not; those within 3 % are left out."""
    right = wrong = 0
    for a, b in itertools.combinations(rows, 2):
        if (a["height"], a["devices"]) != (b["height"], b["devices"]) or abs(a["measured"] / b["measured"] - 1) < 0.03:
            continue
        if (a["measured"] - b["measured"]) * (a["predicted"] - b["predicted"]) > 0:
            right += 1
        else:
            wrong += 1
    return right, wrong


def main():
    program = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "build/tessera").resolve()
    right = wrong = 0
    for name in sys.argv[2:] or NAMES:
        rows = table(program, name)
        print(f"\n{name}\n\n| pixels | options | measured | predicted | error | of linear |\n|---|---|---|---|---|---|")
        for row in rows:
            options = " ".join(row["flags"].split()[3:])
            print(f"| {row['height']} | `{options}` | {row['measured']:g} | {row['predicted']:.4g} | {100 * row['error']:+.0f} % | "
                  f"{row['scaling']:.2f} |")
        errors = [abs(row["error"]) for row in rows]
        poor = [abs(row["error"]) for row in rows if row["scaling"] < 0.8]
        print(f"\nmedian {100 * statistics.median(errors):.1f} % of {len(errors)} rows, {100 * statistics.median(poor):.1f} % of the "
              f"{len(poor)} below 0.8 of linear, worst {100 * max(errors):.0f} %")
        of_table = pairs(rows)
        right, wrong = right + of_table[0], wrong + of_table[1]
    print(f"\n{right} of {right + wrong} pairs are ranked as measured: Kendall's tau {(right - wrong) / (right + wrong):.2f}")


if __name__ == "__main__":
    main()
