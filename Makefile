# make help lists what there is.
SHELL := /bin/bash
PREFIX ?= /usr/local
BUILD := build
# SHORT=1: as much of parity, score and soak as every change goes through (.ci/run).
SHORT ?=
RUNS ?= $(if $(SHORT),5,200)

.PHONY: demo test check build setup bench format lint parity score asan tsan fuzz mutants soak hosts nccl install clean help

demo: build           ## set up, build, and paint the first picture, on two ranks
	$(BUILD)/tessera generate "a red circle above a blue square on a white background" --use-cfg-parallel --seed 1 -o out.png

test: setup           ## set up, build, and run every test: a few minutes
	@tools/build.sh release all
	@python3 tools/check_layers.py
	@python3 tests/tools/check_layers_test.py --quiet
	@tools/run_unit_tests.sh $(BUILD)/tests/tessera_tests
	@tools/test_capped.sh $(BUILD)/tests/tessera_tests
	@tests/cli/run.sh $(BUILD)/tessera

check:                ## everything at full length, before a release: hours
	@tools/check.sh

build: setup          ## set up and build the program
	@tools/build.sh release tessera

help:                 ## this list
	@sed -n 's/^\([a-z]*\):[^#]*##/\1\t/p' Makefile | expand -t 10

setup:                ## install what is missing (Debian packages, libtorch); nothing the second time
	@tools/setup.sh

bench: setup          ## Tessera and diffusers side by side, two ranks and one side by side: ratios
	@tools/setup.sh python
	@tools/build.sh release all
	.venv/bin/python bench/compare.py
	.venv/bin/python bench/ranks.py

parity: build         ## live comparison with diffusers and transformers over many configurations
	@tools/setup.sh python
	@tools/build.sh release tokenize_lines run_samplers
	.venv/bin/python tests/tools/check_demo_test.py
	@tools/parity.sh $(BUILD) $(if $(SHORT),--short)

score: build          ## the shipped model's pictures of captions that training never saw, judged from the pixels
	@tools/setup.sh python
	@tools/score.sh $(if $(SHORT),--short)

asan: setup           ## the tests under AddressSanitizer and UBSan
	@tools/build.sh asan tessera tessera_tests
	tools/run_asan.sh

tsan: setup           ## the tests of ranks, which are threads there, under ThreadSanitizer: those with `Ranks` in their name
	@tools/build.sh tsan tessera_tests
	@TSAN_OPTIONS=ignore_noninstrumented_modules=1 tools/run_unit_tests.sh build-tsan/tests/tessera_tests '*Ranks*'

fuzz: setup           ## a minute of fuzzing (FUZZ_SECONDS=60)
	@tools/fuzz.sh

mutants: setup        ## small changes of behaviour, one after the other: which do the tests catch? (MUTANTS="--sample 10")
	python3 tools/mutants.py $(MUTANTS)

soak: build           ## ranks killed and stopped at random, requests of one engine cancelled at random (RUNS=200)
	python3 tests/cli/soak_ranks.py $(BUILD)/tessera --runs $(RUNS)
	@tools/build.sh release tessera_tests
	TESSERA_SOAK_REQUESTS=$(RUNS) $(BUILD)/tests/tessera_tests --gtest_filter='*Soak*'

hosts: build          ## several hosts (network namespaces) and launchers: torchrun, Open MPI, MPICH, Slurm
	@tools/setup.sh hosts
	python3 tests/cli/hosts.py $(BUILD)/tessera

nccl: setup           ## what is built only for GPUs compiles (fetches 1.6 GB of NVIDIA's packages for their headers)
	@tools/setup.sh python
	@tools/check_nccl.sh

format:               ## clang-format over every source
	git ls-files '*.h' '*.cc' | xargs clang-format -i

lint: setup           ## clang-format and clang-tidy find nothing (CHANGED=COMMIT: in what changed since)
	@tools/lint.sh $(if $(CHANGED),--changed $(CHANGED))

install: build        ## the program and its model under PREFIX (/usr/local)
	cmake --install $(BUILD) --prefix $(PREFIX)

clean:                ## remove the build folders
	rm -rf build build-asan build-tsan build-fuzz build-lint
