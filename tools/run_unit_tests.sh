#!/usr/bin/env bash
# run_unit_tests.sh TESTS [FILTER]: runs the unit tests, or those that gtest's filter selects, in parallel shards.
set -euo pipefail
cd "$(dirname "$0")/.."
shards=$((2 * $(nproc)))  # more shards than cores, so that a slow shard leaves no core idle
commands=()
for ((shard = 0; shard < shards; ++shard)); do
  commands+=("GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard $1 --gtest_brief=1 --gtest_filter='${2:-*}'")
done
tools/side_by_side.sh "${commands[@]}"
