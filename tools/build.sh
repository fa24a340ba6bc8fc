#!/usr/bin/env bash
# build.sh PRESET TARGET...: configures (once) and builds with the preset of CMakePresets.json.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1
shift
case $preset in release) folder=build ;; *) folder=build-$preset ;; esac

if [ ! -f "$folder/build.ninja" ]; then
  torch=${TORCH_DIR:-$(.venv/bin/python -c 'import os, torch; print(os.path.dirname(torch.__file__))')}
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  cmake --preset "$preset" -DCMAKE_PREFIX_PATH="$torch" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
fi
cmake --build "$folder" --target "$@"
