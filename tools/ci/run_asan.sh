#!/usr/bin/env bash
# Runs the unit tests and the tests of the command line under AddressSanitizer, LeakSanitizer and UBSan. They end the program
# with code 1 at the first finding, a code that no test of the command line expects. These tests take minutes because
# starting the program takes 0.7 s; no tessera_forks is built, so that leaks of each run are looked for in the program itself.
set -euo pipefail
cd "$(dirname "$0")/../.."

export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1
ASAN_OPTIONS+=:allocator_may_return_null=1:max_allocation_size_mb=1500
export UBSAN_OPTIONS=print_stacktrace=1

# Ranks that are processes are tested without sanitizers, which survive neither the memory limits nor the signals of those
# tests. Ranks that are threads run in the unit tests.
# Programs that link the library have no sanitizers. Tests that measure memory at the real networks' widths say nothing under a
# sanitizer that takes more of it.
tools/ci/run_unit_tests.sh build-asan/tests/tessera_tests '*:-DecoderMemory*:ConvMemory*'
tests/cli/run.sh build-asan/tessera --ignore=test_ranks.py --ignore=test_launchers.py --ignore=test_options.py \
  --ignore=test_mesh.py --ignore=test_library.py
