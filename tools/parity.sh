#!/usr/bin/env bash
# parity.sh BUILD_FOLDER [--short]: compares the built programs with diffusers and transformers. `--short` takes fewer lines,
# samplers and random checkpoints, and the smallest set of pipeline rows in which every option of all rows occurs.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
short=${2:-}
lines=10000 samplers=1000 generated=1000
[ -z "$short" ] || lines=1000 samplers=150 generated=8

python=.venv/bin/python
tools/side_by_side.sh "$python tools/parity_stable_diffusion.py --tessera $build/tessera $short" \
  "$python tools/parity.py --tessera $build/tessera $short" \
  "$python tools/parity_parallel.py --tessera $build/tessera $short" \
  "$python tools/parity_checkpoints.py --tessera $build/tessera $short" \
  "$python tools/parity_generated.py --tessera $build/tessera --count $generated" \
  "$python tools/parity_samplers.py --binary $build/tests/run_samplers --count $samplers" \
  "$python tools/parity_tokenizer.py --binary $build/tests/tokenize_lines --count $lines" \
  "$python tools/parity_bpe_tokenizer.py --binary $build/tests/tokenize_lines --count $lines"
