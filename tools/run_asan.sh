#!/usr/bin/env bash
# The tests, those of the command line too, under AddressSanitizer, LeakSanitizer and UBSan, which end the program
# at the first finding with code 1: no test of the command line expects that one. These take minutes: a start of
# the program takes 0.7 s here, three times as long as without.
set -euo pipefail
cd "$(dirname "$0")/.."

export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1
ASAN_OPTIONS+=:allocator_may_return_null=1:max_allocation_size_mb=32768
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1

# Ranks as processes are tested without sanitizers, which neither survive the limits of memory nor the signals of those
# tests. As threads they run in the unit tests.
tools/side_by_side.sh "build-asan/tests/tessera_tests --gtest_brief=1" \
  "tests/cli/run.sh build-asan/tessera -test_ranks -test_options -test_mesh"
