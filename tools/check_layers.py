#!/usr/bin/env python3
"""Fails on an include that points up or sideways on the ladder of ARCHITECTURE.md, and on files over 500 lines."""
import pathlib
import re
import sys

LADDER = ["core", "comm", "weights", "parallel", "ops", "nn", "text", "samplers", "models", "engine", "launch", "plan", "serve",
          "cli"]
# Rungs that stand beside each other and may not see one another.
SIDEWAYS = {("text", "nn"), ("text", "ops"), ("text", "parallel"), ("text", "comm"), ("samplers", "text"),
            ("samplers", "nn"), ("samplers", "ops"), ("samplers", "parallel"), ("samplers", "comm"),
            ("samplers", "weights"), ("parallel", "weights"), ("ops", "parallel")}
MAX_LINES = 500

root = pathlib.Path(__file__).resolve().parent.parent
problems = []
for path in sorted((root / "src").rglob("*.[hc]*")):
    folder = path.relative_to(root / "src").parts[0]
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines, 1):
        match = re.match(r'#include "([a-z_]+)/', line)
        if not match or match[1] == folder:
            continue
        if match[1] not in LADDER or LADDER.index(match[1]) > LADDER.index(folder) or (folder, match[1]) in SIDEWAYS:
            problems.append(f"{path.relative_to(root)}:{number}: {folder}/ may not include {match[1]}/")
for pattern in ("src/**/*.h", "src/**/*.cc", "tests/**/*.h", "tests/**/*.cc", "bench/*.h", "bench/*.cc", "tools/*.py",
                "bench/*.py", "tests/*/*.py"):
    for path in sorted(root.glob(pattern)):
        count = len(path.read_text().splitlines())
        if count > MAX_LINES:
            problems.append(f"{path.relative_to(root)}: {count} lines, at most {MAX_LINES}: one noun a file")
print("\n".join(problems) if problems else "layers: no upward include, no file too long")
sys.exit(1 if problems else 0)
