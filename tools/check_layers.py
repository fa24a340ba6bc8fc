#!/usr/bin/env python3
"""Fails if an include points up or sideways on the ladder of ARCHITECTURE.md, if a file under models/ mentions ranks, if a
string in a folder below cli/ contains an option of the command line, if a file has over 500 lines, or if the median file of
src/ has over 110."""
import pathlib
import re
import statistics
import sys

LADDER = ["core", "comm", "weights", "parallel", "ops", "nn", "text", "samplers", "models", "engine", "launch", "plan", "serve",
          "cli"]
# These folders are on the same rung and may not include each other.
SIDEWAYS = {("text", "nn"), ("text", "ops"), ("text", "parallel"), ("text", "comm"), ("samplers", "text"),
            ("samplers", "nn"), ("samplers", "ops"), ("samplers", "parallel"), ("samplers", "comm"),
            ("samplers", "weights"), ("parallel", "weights"), ("ops", "parallel")}
MAX_LINES = 500
MAX_MEDIAN = 110
# A model family is written as if for one device. These words, alone or within a name, reveal that it is not. In norms they
# have another meaning.
RANK_WORDS = {"rank", "ranks", "group", "groups", "cut", "cuts", "stage", "stages", "degree", "degrees", "communicator",
              "communicators", "ulysses", "ring", "collective", "collectives", "world", "mesh"}
# Messages name fields (core/field_name.h) because only the command line knows which option sets a field.
OPTION = re.compile(r'"(?:[^"\\]|\\.)*--[a-z](?:[^"\\]|\\.)*"')
OF_NORMS = re.compile(r"GroupNorm|group_norm|norm_num_groups|norm_groups")

root = pathlib.Path(__file__).resolve().parent.parent
problems = []
for path in sorted((root / "src").rglob("*.[hc]*")):
    folder = path.relative_to(root / "src").parts[0]
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines, 1):
        if folder != "cli" and OPTION.search(line.split("//")[0]):
            problems.append(f"{path.relative_to(root)}:{number}: a string with an option of the command line; use field() to name it")
        match = re.match(r'#include "([a-z_]+)/', line)
        if not match or match[1] == folder:
            continue
        if match[1] not in LADDER or LADDER.index(match[1]) > LADDER.index(folder) or (folder, match[1]) in SIDEWAYS:
            problems.append(f"{path.relative_to(root)}:{number}: {folder}/ may not include {match[1]}/")
for path in sorted((root / "src" / "models").iterdir()):
    for number, line in enumerate(path.read_text().splitlines(), 1):
        names = re.findall(r"[A-Za-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", OF_NORMS.sub("", line)))
        for word in sorted({name.lower() for name in names} & RANK_WORDS):
            problems.append(f"{path.relative_to(root)}:{number}: a model must not mention '{word}'")
        if re.match(r'#include "comm/', line):
            problems.append(f"{path.relative_to(root)}:{number}: a model may not include comm/")
median = statistics.median(len(path.read_text().splitlines()) for path in (root / "src").rglob("*.[hc]*"))
if median > MAX_MEDIAN:
    problems.append(f"src/: the median file has {median} lines, more than {MAX_MEDIAN}")
for pattern in ("src/**/*.h", "src/**/*.cc", "tests/**/*.h", "tests/**/*.cc", "bench/*.h", "bench/*.cc", "tools/*.py",
                "bench/*.py", "tests/*/*.py"):
    for path in sorted(root.glob(pattern)):
        count = len(path.read_text().splitlines())
        if count > MAX_LINES:
            problems.append(f"{path.relative_to(root)}: {count} lines, more than {MAX_LINES}; split the file")
print("\n".join(problems) if problems else f"layers: no upward include, no model that mentions ranks, no file too long (median {median:.0f} lines)")
sys.exit(1 if problems else 0)
