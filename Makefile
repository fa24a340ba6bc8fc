# make help lists what there is.
SHELL := /bin/bash
PREFIX ?= /usr/local
BUILD := build
RUNS ?= 200

.PHONY: demo test build setup bench format lint parity score asan tsan fuzz mutants soak hosts nccl install clean help

demo: build           ## set up, build, and paint the first picture, on two ranks
	$(BUILD)/tessera generate "a red circle above a blue square on a white background" --use-cfg-parallel --seed 1 -o out.png

test: setup           ## set up, build, and run every test
	@tools/build.sh release all
	@python3 tools/check_layers.py
	$(BUILD)/tests/tessera_tests --gtest_brief=1
	@tools/test_capped.sh $(BUILD)/tests/tessera_tests
	@tests/cli/run.sh $(BUILD)/tessera

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
	.venv/bin/python tools/parity_tokenizer.py --binary $(BUILD)/tests/tokenize_lines
	.venv/bin/python tools/parity_bpe_tokenizer.py --binary $(BUILD)/tests/tokenize_lines
	.venv/bin/python tools/parity_samplers.py --binary $(BUILD)/tests/run_samplers
	@tools/side_by_side.sh ".venv/bin/python tools/parity.py --tessera $(BUILD)/tessera" \
	  ".venv/bin/python tools/parity_parallel.py --tessera $(BUILD)/tessera" \
	  ".venv/bin/python tools/parity_stable_diffusion.py --tessera $(BUILD)/tessera"

score: build          ## the shipped model's pictures of captions that training never saw, judged from the pixels
	@tools/setup.sh python
	@tools/score.sh

asan: setup           ## the tests under AddressSanitizer and UBSan
	@tools/build.sh asan tessera tessera_tests
	tools/run_asan.sh

tsan: setup           ## the tests in which ranks are threads, under ThreadSanitizer
	@tools/build.sh tsan tessera_tests
	TSAN_OPTIONS=ignore_noninstrumented_modules=1 build-tsan/tests/tessera_tests --gtest_brief=1 \
	  --gtest_filter='Ranks/*:All/Wires*:Sizes/*Worlds*:PipeFusion*:SharedQueue*:Hooks*:RankThreads*:Status*:Heartbeat*:LocalPeers*:*OnManyRanks*'

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
