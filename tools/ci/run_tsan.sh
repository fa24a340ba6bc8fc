#!/usr/bin/env bash
# Runs the tests in which ranks are threads under ThreadSanitizer.
set -euo pipefail
cd "$(dirname "$0")/../.."

# libtorch is not instrumented: what it does between its own threads says nothing about ours.
export TSAN_OPTIONS=ignore_noninstrumented_modules=1
# By default, freeing more than 64 KiB maps the shadow anew, which interrupts every core. Clearing it in place took 20.8 s
# instead of 33.9 s for a shard of the tests with small worlds.
TSAN_OPTIONS+=:clear_shadow_mmap_threshold=100000000

# Those that count memory, or need a lot of it, say nothing under a sanitizer that takes many times as much.
# Ranks in bf16 send the messages of those in fp32 (Worlds); of products of methods, Traces see the methods and Toys the products.
tools/ci/run_unit_tests.sh build-tsan/tests/tessera_tests '*Rank*:-*Memory*:*Large*:*SmallWorlds*:*TracesOfProducts*'
