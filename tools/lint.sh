#!/usr/bin/env bash
# The format of every source, and clang-tidy over src/.
set -euo pipefail
cd "$(dirname "$0")/.."

tools/setup.sh lint
git ls-files '*.h' '*.cc' | xargs clang-format --dry-run -Werror

# clang cannot read GCC's precompiled header, nor some of its flags: clang-tidy gets commands without them, and a
# precompiled header of its own.
folder=build/lint
mkdir -p "$folder"
torch=$(sed -n 's/^CMAKE_PREFIX_PATH:[A-Z]*=//p' build/CMakeCache.txt)
# A command for each source.
cmake --preset release -B "$folder/commands" -DTESSERA_UNITY=OFF -DCMAKE_PREFIX_PATH:PATH="$torch" >/dev/null 2>&1
python3 - "$folder/commands/compile_commands.json" "$folder" <<'PYTHON'
import json, pathlib, re, sys

commands, folder = json.load(open(sys.argv[1])), pathlib.Path(sys.argv[2]).resolve()
root = pathlib.Path.cwd()
kept = []
for entry in commands:
    if not entry["file"].startswith(f"{root}/src/"):
        continue
    command = re.sub(r" -(fpch-preprocess|Winvalid-pch|Wno-maybe-uninitialized|fopenmp)\b", "", entry["command"])
    command = re.sub(r"^.*?(?=\S*/(c\+\+|g\+\+)\S* )", "", command, count=1)  # the compiler cache before the compiler
    command = re.sub(r"-include \S*cmake_pch\.hxx", f"-include-pch {folder}/precompiled.pch", command)
    kept.append(entry | {"command": command})
json.dump(kept, open(folder / "compile_commands.json", "w"), indent=1)
first = kept[0]["command"].split(" -o ")[0].replace(f"-include-pch {folder}/precompiled.pch", "")
header = f"clang++ {first.split(' ', 1)[1]} -x c++-header {root}/cmake/precompiled.h -o {folder}/precompiled.pch"
open(folder / "header.sh", "w").write(f"cd {kept[0]['directory']} && {header}\n")
print(len(kept), "sources")
PYTHON
bash "$folder/header.sh"
git ls-files 'src/*.cc' | xargs -P "$(nproc)" -n 1 clang-tidy --quiet -p "$folder"
