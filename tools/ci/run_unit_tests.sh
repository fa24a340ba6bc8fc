#!/usr/bin/env bash
# run_unit_tests.sh TESTS [FILTER]: runs the unit tests, or those that gtest's filter selects, in parallel shards. PART=1/2 in
# the environment runs every second one of them, PART=2/2 the others.
set -euo pipefail
cd "$(dirname "$0")/../.."
part=${PART:-1/1}
parts=${part#*/}
shards=$((2 * $(nproc) * parts))  # more than cores, so that a slow shard leaves no core idle
commands=()
for ((shard = ${part%/*} - 1; shard < shards; shard += parts)); do
  commands+=("GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard $1 --gtest_brief=1 --gtest_filter='${2:-*}'")
done
tools/ci/side_by_side.sh "${commands[@]}"
