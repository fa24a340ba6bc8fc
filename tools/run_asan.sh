#!/usr/bin/env bash
# The unit tests under AddressSanitizer, LeakSanitizer and UBSan, which end the program at the first finding.
set -euo pipefail
cd "$(dirname "$0")/.."

export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1
ASAN_OPTIONS+=:allocator_may_return_null=1:max_allocation_size_mb=32768
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1

build-asan/tests/tessera_tests --gtest_brief=1
