#!/usr/bin/env python3
"""Fails on an include that points up or sideways on the ladder of ARCHITECTURE.md, on a file under models/ that knows of
ranks, on an option of the command line in the words of a folder below cli/, on files over 500 lines, and when the median
file of src/ has over 110."""
import pathlib
import re
import statistics
import sys

LADDER = ["core", "comm", "weights", "parallel", "ops", "nn", "text", "samplers", "models", "engine", "launch", "plan", "serve",
          "cli"]
# Rungs that stand beside each other and may not see one another.
SIDEWAYS = {("text", "nn"), ("text", "ops"), ("text", "parallel"), ("text", "comm"), ("samplers", "text"),
            ("samplers", "nn"), ("samplers", "ops"), ("samplers", "parallel"), ("samplers", "comm"),
            ("samplers", "weights"), ("parallel", "weights"), ("ops", "parallel")}
MAX_LINES = 500
MAX_MEDIAN = 110
# A family is written as for one device. These words, alone or in a name, say otherwise; what they mean in norms is
# another thing.
RANK_WORDS = {"rank", "ranks", "group", "groups", "cut", "cuts", "stage", "stages", "degree", "degrees", "communicator",
              "communicators", "ulysses", "ring", "collective", "collectives", "world", "mesh"}
# Messages name fields (core/field_name.h); which option a user gives for one, only the command line knows.
OPTION = re.compile(r'"(?:[^"\\]|\\.)*--[a-z](?:[^"\\]|\\.)*"')
OF_NORMS = re.compile(r"GroupNorm|group_norm|norm_num_groups|norm_groups")

root = pathlib.Path(__file__).resolve().parent.parent
problems = []
for path in sorted((root / "src").rglob("*.[hc]*")):
    folder = path.relative_to(root / "src").parts[0]
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines, 1):
        if folder != "cli" and OPTION.search(line.split("//")[0]):
            problems.append(f"{path.relative_to(root)}:{number}: a string with an option of the command line; name the field()")
        match = re.match(r'#include "([a-z_]+)/', line)
        if not match or match[1] == folder:
            continue
        if match[1] not in LADDER or LADDER.index(match[1]) > LADDER.index(folder) or (folder, match[1]) in SIDEWAYS:
            problems.append(f"{path.relative_to(root)}:{number}: {folder}/ may not include {match[1]}/")
for path in sorted((root / "src" / "models").iterdir()):
    for number, line in enumerate(path.read_text().splitlines(), 1):
        names = re.findall(r"[A-Za-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", OF_NORMS.sub("", line)))
        for word in sorted({name.lower() for name in names} & RANK_WORDS):
            problems.append(f"{path.relative_to(root)}:{number}: a model does not know of a '{word}'")
        if re.match(r'#include "comm/', line):
            problems.append(f"{path.relative_to(root)}:{number}: a model may not include comm/")
median = statistics.median(len(path.read_text().splitlines()) for path in (root / "src").rglob("*.[hc]*"))
if median > MAX_MEDIAN:
    problems.append(f"src/: the median file has {median} lines, at most {MAX_MEDIAN}")
for pattern in ("src/**/*.h", "src/**/*.cc", "tests/**/*.h", "tests/**/*.cc", "bench/*.h", "bench/*.cc", "tools/*.py",
                "bench/*.py", "tests/*/*.py"):
    for path in sorted(root.glob(pattern)):
        count = len(path.read_text().splitlines())
        if count > MAX_LINES:
            problems.append(f"{path.relative_to(root)}: {count} lines, at most {MAX_LINES}: one noun a file")
print("\n".join(problems) if problems else f"layers: no upward include, no model that knows of ranks, no file too long (median {median:.0f} lines)")
sys.exit(1 if problems else 0)
