#!/usr/bin/env bash
# check_nccl.sh: checks on a machine without CUDA that comm/nccl.cc compiles, which only builds with libtorch for CUDA contain.
# The headers come from NVIDIA's packages on PyPI (1.6 GB, mostly libraries, which are deleted at once) and stay in build/.
set -euo pipefail
cd "$(dirname "$0")/../.."
headers=build/nccl-headers
packages=(nvidia-nccl-cu12 nvidia-cuda-runtime-cu12 nvidia-cuda-nvcc-cu12 nvidia-cuda-cccl-cu12 nvidia-cublas-cu12
  nvidia-cusparse-cu12 nvidia-cusolver-cu12)
if [ ! -f $headers/complete ]; then
  rm -rf $headers
  wheels=$(mktemp -d)
  trap 'rm -rf "$wheels"' EXIT
  .venv/bin/pip download --quiet --no-deps --dest "$wheels" "${packages[@]}"
  .venv/bin/python - "$wheels" $headers <<'PYTHON'
import pathlib, sys, zipfile
wheels, headers = map(pathlib.Path, sys.argv[1:])
for wheel in wheels.glob("*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if "/include/" in name and not name.endswith("/"):
                path = headers / name.split("/include/", 1)[1]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(archive.read(name))
# libtorch's CUDA build generates this header. It only defines macros, none of which is used here.
macros = headers / "c10" / "cuda" / "impl" / "cuda_cmake_macros.h"
macros.parent.mkdir(parents=True)
macros.write_text("#pragma once\n")
(headers / "complete").touch()
PYTHON
fi
torch=$(.venv/bin/python -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])')/include
${CXX:-c++} -std=c++20 -fsyntax-only -Wall -Wextra -Werror -DUSE_C10D_NCCL -DUSE_DISTRIBUTED -Isrc \
  -isystem "$torch" -isystem "$torch/torch/csrc/api/include" -isystem $headers src/comm/nccl.cc
echo "comm/nccl.cc compiles with NCCL"
