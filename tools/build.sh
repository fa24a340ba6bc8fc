#!/usr/bin/env bash
# build.sh PRESET TARGET...: builds the targets with a preset of CMakePresets.json. It configures first if no build exists
# or if the presets or libtorch (TORCH_DIR, else the one in .venv) have changed since the last configuration.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1
shift
case $preset in release) folder=build ;; *) folder=build-$preset ;; esac

torch=${TORCH_DIR:-$(.venv/bin/python -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])')}
if [ ! -f "$torch/share/cmake/Torch/TorchConfig.cmake" ]; then
  echo "build: no libtorch in $torch (TORCH_DIR names the folder that holds share/cmake/Torch)" >&2
  exit 1
fi
torch=$(cd "$torch" && pwd)
configured=$(sed -n 's/^CMAKE_PREFIX_PATH:[A-Z]*=//p' "$folder/CMakeCache.txt" 2>/dev/null || true)
if [ ! -f "$folder/build.ninja" ] || [ "$configured" != "$torch" ] || [ CMakePresets.json -nt "$folder/build.ninja" ]; then
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  cmake --fresh --preset "$preset" -DCMAKE_PREFIX_PATH:PATH="$torch" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
fi
cmake --build "$folder" --target "$@"
