#!/usr/bin/env bash
# run_unit_tests.sh TESTS [FILTER]: the unit tests, or those of gtest's filter, in shards that run side by side.
set -euo pipefail
cd "$(dirname "$0")/.."
shards=$((2 * $(nproc)))  # more than cores, so that a slow one leaves no core idle
commands=()
for ((shard = 0; shard < shards; ++shard)); do
  commands+=("GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard $1 --gtest_brief=1 --gtest_filter='${2:-*}'")
done
tools/side_by_side.sh "${commands[@]}"
