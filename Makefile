# `make help` lists the targets.
SHELL := /bin/bash
PREFIX ?= /usr/local
BUILD := build
# SHORT=1 runs the part of parity, score and soak that every change has to pass (.ci/run).
SHORT ?=
RUNS ?= $(if $(SHORT),10,200)
# PART=1/9 to PART=9/9 divide the tests that the sanitizers run.
PART ?= 1/1

.PHONY: demo test check build setup bench format lint parity score browser asan tsan fuzz mutants soak hosts nccl install clean help

demo: build           ## set up, build, and generate the first image, on two ranks
	$(BUILD)/tessera generate "a red circle above a blue square on a white background" --use-cfg-parallel --seed 1 -o out.png

test: setup           ## set up, build, and run every test (a few minutes)
	@tools/build.sh release all
	@python3 -m tools.ci.check_layers
	@python3 tests/tools/check_layers_test.py --quiet
	@python3 tests/tools/draw_mutants_test.py --quiet
	@python3 tests/tools/layout_open_sora_test.py --quiet
	@python3 tests/tools/published_test.py --quiet
	@tools/ci/side_by_side.sh "tools/ci/run_unit_tests.sh $(BUILD)/tests/tessera_tests" \
	  "tests/cli/run.sh $(BUILD)/tessera -m 'not alone'" "tools/ci/test_capped.sh $(BUILD)/tests/tessera_tests"
	@tests/cli/run.sh $(BUILD)/tessera -m alone -n 0

check:                ## run tests, parity, score, soak, sanitizers, fuzzing and lint at full length, before a release (hours)
	@tools/ci/check.sh

build: setup          ## set up and build the program and the library
	@tools/build.sh release tessera tessera_shared

help:                 ## list the targets
	@sed -n 's/^\([a-z]*\):[^#]*##/\1\t/p' Makefile | expand -t 10

setup:                ## install missing Debian packages, libtorch and pytest; does nothing the second time
	@tools/setup.sh

bench: setup          ## time Tessera against diffusers, and two ranks against one: ratios
	@tools/setup.sh python
	@tools/build.sh release all
	.venv/bin/python bench/compare.py
	.venv/bin/python bench/ranks.py

parity: build         ## compare live with diffusers and transformers, over many configurations
	@tools/setup.sh python
	@tools/build.sh release tokenize_lines run_samplers read_pictures
	@tools/ci/side_by_side.sh ".venv/bin/python -m tools.parity $(BUILD) $(if $(SHORT),--short)" \
	  ".venv/bin/python tests/tools/check_demo_test.py --quiet" \
	  $(if $(SHORT),,".venv/bin/python tests/tools/check_video_test.py --quiet" ".venv/bin/python tests/tools/video_model_test.py --quiet")

score: build          ## judge from the pixels what the shipped models make of captions that training never saw
	@tools/setup.sh python
	@tools/score/run.sh $(if $(SHORT),--short)

browser: build        ## test the page of the server, play videos and open a report of traces in headless Chromium
	@tools/setup.sh browser
	@tools/browser/run.sh $(BUILD)/tessera

asan: setup           ## run the tests under AddressSanitizer and UBSan
	@tools/build.sh asan tessera tessera_shared tessera_tests
	PART=$(PART) tools/ci/run_asan.sh

tsan: setup           ## run the tests in which ranks are threads (Rank in their names; not Memory, nor Large) under ThreadSanitizer
	@tools/build.sh tsan tessera_tests
	@PART=$(PART) tools/ci/run_tsan.sh

fuzz: setup           ## fuzz for a minute (FUZZ_SECONDS=60)
	@tools/ci/fuzz.sh

mutants: setup        ## change behaviour in small ways, one at a time: which changes do the tests catch? (MUTANTS="--sample 10", or DRAW=30 SEED=1 at random)
	python3 -m tools.ci.mutants $(if $(DRAW),--draw $(DRAW) --seed $(or $(SEED),1)) $(MUTANTS)

soak: build           ## kill and stop ranks and processes of a server at random, cancel requests of one engine at random (RUNS=200)
	@tools/build.sh release tessera_tests
	@tools/ci/side_by_side.sh "python3 tests/cli/soak_ranks.py $(BUILD)/tessera --runs $(RUNS)" \
	  "TESSERA_SOAK_REQUESTS=$(RUNS) $(BUILD)/tests/tessera_tests --gtest_filter='*Soak*'"
	@python3 tests/cli/soak_server.py $(BUILD)/tessera --kills $(RUNS)

hosts: build          ## run on several hosts (network namespaces) under torchrun, Open MPI, MPICH and Slurm
	@tools/setup.sh hosts
	.venv/bin/python tests/cli/hosts.py $(BUILD)/tessera

nccl: setup           ## check that code for GPUs compiles (fetches 1.6 GB of NVIDIA's packages for their headers)
	@tools/setup.sh python
	@tools/gpu/check_nccl.sh

format: setup         ## run clang-format on every source
	@tools/setup.sh lint
	git ls-files '*.h' '*.cc' | xargs .venv/bin/clang-format -i

lint: setup           ## check with clang-format and clang-tidy (CHANGED=COMMIT: only what changed since)
	@tools/ci/lint.sh $(if $(CHANGED),--changed $(CHANGED))

install: build        ## install the program and its models under PREFIX (/usr/local)
	cmake --install $(BUILD) --prefix $(PREFIX)

clean:                ## remove the build folders
	rm -rf build build-asan build-tsan build-fuzz build-mutants
