#!/usr/bin/env bash
# Builds the fuzzers into build-fuzz/ and runs them for FUZZ_SECONDS (default 60) in total, starting from the inputs in
# fuzz/corpus/. It fails on a finding and leaves the input that triggers it in build-fuzz/findings/. With the same FUZZ_SEED
# and corpus a run tries the same inputs again (default 0: different inputs in each run).
set -euo pipefail
cd "$(dirname "$0")/../.."

tools/setup.sh fuzz
tools/build.sh fuzz all

fuzzers=(safetensors gguf json tokenizer messages video file_text exif trace machine stablehlo web_text api)
seconds=$(((${FUZZ_SECONDS:-60} + ${#fuzzers[@]} - 1) / ${#fuzzers[@]}))
export OMP_NUM_THREADS=1
for name in "${fuzzers[@]}"; do
  mkdir -p "build-fuzz/corpus/$name" build-fuzz/findings
  log=build-fuzz/$name.log
  build-fuzz/fuzz/fuzz_"$name" -max_total_time="$seconds" -seed="${FUZZ_SEED:-0}" -max_len=4096 -timeout=30 -rss_limit_mb=4096 \
    -dict="fuzz/$name.dict" -artifact_prefix="build-fuzz/findings/$name-" \
    "build-fuzz/corpus/$name" "fuzz/corpus/$name" >"$log" 2>&1 || { tail -n 60 "$log" >&2; exit 1; }
  echo "fuzz_$name: $(tail -n 1 "$log")"
done
