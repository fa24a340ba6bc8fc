#!/usr/bin/env bash
# test_capped.sh TESTS [FILTER]: the unit tests of operations, or those of the filter, once more under caps of the instruction
# set (core/cpu.h), so that the kernels of older processors are tested on newer ones.
set -euo pipefail
cd "$(dirname "$0")/.."
filter=${2:-$(sed -nE 's/^TEST(_P|_F)?\((\w+),.*/*\2.*/p' tests/ops/*_test.cc tests/core/cpu_test.cc | sort -u | paste -sd:)}
for isa in avx2 avx512; do
  echo "instruction sets up to $isa:"
  TESSERA_MAX_ISA=$isa "$1" --gtest_brief=1 --gtest_filter="$filter"
done
