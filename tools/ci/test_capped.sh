#!/usr/bin/env bash
# test_capped.sh TESTS [FILTER]: runs the unit tests of operations, and those that compare traces of PixArt with real runs, because
# both choose kernels, or the tests that the filter selects, again under each cap of the instruction set (core/host.h) that lies
# below this processor's, so that the kernels of older processors are tested on newer ones. A cap that is not below changes
# nothing, so only the tests of the cap itself run under it.
set -euo pipefail
cd "$(dirname "$0")/../.."
filter=${2:-$(sed -nE 's/^TEST(_P|_F)?\((\w+),.*/*\2.*/p' tests/{kernels,ops}/*_test.cc tests/core/host_test.cc | sort -u | paste -sd:):Families/Traces.*/PixArt*}
has() { grep -qw "$1" /proc/cpuinfo; }
commands=()
for isa in avx2 avx512 avx512_bf16; do
  case $isa in
    avx2) is_below() { has avx512f; } ;;
    avx512) is_below() { has avx512_bf16; } ;;
    avx512_bf16) is_below() { has amx_bf16; } ;;
  esac
  is_below && selected=$filter || selected='Cpu.*'
  commands+=("echo 'instruction sets up to $isa:'; TESSERA_MAX_ISA=$isa $1 --gtest_brief=1 --gtest_filter='$selected'")
done
tools/ci/side_by_side.sh "${commands[@]}"
