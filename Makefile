# `make` lists the targets. The work is done by CMake (CMakePresets.json) and tools/.
PRESET ?= release
BUILD := build/$(PRESET)
JOBS ?= $(shell nproc)
VENV := build/venv
PY := $(VENV)/bin/python

.DEFAULT_GOAL := help
.PHONY: help setup build demo test test-build test-venvs test-unit test-e2e test-agent test-gpu jobs bench bench-feed golden format lint check asan tsan fuzz aarch64 wheel docs clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' Makefile

setup: ## install the system packages that the build lacks (asks for sudo only if needed)
	@tools/setup.sh build

build: setup ## build everything into build/release
	@cmake --preset $(PRESET) > /dev/null
	@cmake --build $(BUILD) -j $(JOBS)

demo: ## install what is missing, build, and diagnose the embedded trainer: no Python, network or GPU
	@tools/setup.sh build
	@cmake --preset $(PRESET) -DFLATOUT_BUILD_TESTS=OFF > /dev/null
	@cmake --build $(BUILD) -j $(JOBS) --target flatout flatout_agent flatout_malloc flatout_feed_c
	@tools/demo.sh $(BUILD)/flatout

test: ## install what is missing, build, and run all tests, real PyTorch included
	@tools/setup.sh build test
	@$(MAKE) --no-print-directory -j 2 test-build test-venvs
	@$(MAKE) --no-print-directory test-unit
	@$(MAKE) --no-print-directory test-e2e

test-build:
	@cmake --preset $(PRESET) -DFLATOUT_BUILD_TESTS=ON $(OPTIONS) > /dev/null
	@cmake --build $(BUILD) -j $(JOBS)

test-venvs: # mostly waits for the network: while the tests are built
	@tools/venv.sh $(VENV) tests/requirements.txt
	@tools/venv.sh $(VENV)-tf tests/requirements-tensorflow.txt || echo "no TensorFlow for this Python: its tests are skipped"

test-unit: # ctest: everything but the fuzzers
	@ctest --test-dir $(BUILD) --output-on-failure -j $(JOBS) -LE fuzz

E2E = FLATOUT_BIN=$(CURDIR)/$(BUILD)/flatout $(PY) -m pytest tests/e2e -q -rs

test-e2e: # pytest: the built program on real jobs (the hooks in every shape of job: make test-agent); what looks at time has the machine to itself
	@failed=0; \
	$(E2E) -m 'not shapes and parallel' -n 2 --dist loadfile || failed=1; \
	$(E2E) -m 'not shapes and not parallel' || failed=1; \
	exit $$failed

test-agent: build ## the Python hooks in some fifty shapes of job, about 12 minutes
	@tools/venv.sh $(VENV) tests/requirements.txt
	@FLATOUT_BIN=$(CURDIR)/$(BUILD)/flatout $(PY) -m pytest tests/e2e/test_agent.py -q -rs

test-gpu: ## what needs a graphics card: builds the CUDA kernels, runs the tests labelled gpu
	@tools/setup.sh build test
	@cmake --preset $(PRESET) -DFLATOUT_BUILD_TESTS=ON -DFLATOUT_CUDA=ON > /dev/null
	@cmake --build $(BUILD) -j $(JOBS)
	@tools/venv.sh $(VENV) tests/requirements.txt
	@ctest --test-dir $(BUILD) --output-on-failure -L gpu
	@$(E2E) -m gpu

jobs: build ## every job of tests/jobs under flatout, about 25 minutes; `make test` runs the settled ones
	@tools/venv.sh $(VENV) tests/requirements.txt
	@FLATOUT_ALL_JOBS=1 FLATOUT_BIN=$(CURDIR)/$(BUILD)/flatout $(PY) -m pytest tests/e2e/test_jobs.py -q

bench: build ## run every benchmark once; comparisons with peers stand in bench/README.md
	@ctest --test-dir $(BUILD) --output-on-failure -R 'bench_runs'
	@sed -n '1,40p' bench/README.md

bench-feed: build ## flatout.feed against other input pipelines, on photographs made from what is installed
	@tools/setup.sh bench-feed
	@tools/venv.sh build/peers bench/feed/requirements.txt
	@build/peers/bin/python bench/feed/photos.py build/photos
	@build/peers/bin/python bench/feed/compare.py build/photos
	@build/peers/bin/python bench/feed/resnet18.py build/photos
	@build/peers/bin/python bench/feed/photos.py build/photos-large --count 64 --width 4000 --height 3000
	@build/peers/bin/python bench/feed/compare.py build/photos-large --batch 16 --peers flatout,flatout_scaled,dali,dali_no_antialias,tf_data,pillow,pillow_draft,simplejpeg_scaled

golden: build ## renew the golden files; review the diff
	@FLATOUT_RENEW_GOLDEN=1 ctest --test-dir $(BUILD) -R 'report\.|diagnose\.|screen\.' > /dev/null; git diff --stat tests/golden

format: ## clang-format
	@tools/setup.sh check
	@tools/format.sh

lint: build ## clang-tidy
	@tools/setup.sh check
	@tools/lint.sh $(BUILD)

check: ## everything that has to pass: format, layers, docs, lint, tests
	@tools/setup.sh check
	@tools/format.sh --check
	@python3 tools/check_layers.py
	@$(MAKE) --no-print-directory build
	@python3 tools/check_docs.py
	@$(MAKE) --no-print-directory lint test

asan: ## unit tests under AddressSanitizer and UBSan
	@cmake --preset asan > /dev/null && cmake --build build/asan -j $(JOBS)
	@ctest --test-dir build/asan --output-on-failure -j $(JOBS) -E bench_runs

tsan: ## unit tests under ThreadSanitizer
	@cmake --preset tsan > /dev/null && cmake --build build/tsan -j $(JOBS)
	@ctest --test-dir build/tsan --output-on-failure -j $(JOBS) -E bench_runs

fuzz: ## each fuzzer for 20 seconds
	@tools/setup.sh build fuzz
	@cmake --preset fuzz > /dev/null && cmake --build build/fuzz -j $(JOBS)
	@ctest --test-dir build/fuzz --output-on-failure -L fuzz

aarch64: ## the allocator built for aarch64, its tests under qemu-user
	@tools/setup.sh build aarch64
	@cmake --preset aarch64 > /dev/null && cmake --build build/aarch64 -j $(JOBS)
	@ctest --test-dir build/aarch64 --output-on-failure

wheel: ## a wheel in dist/
	@tools/venv.sh $(VENV) tests/requirements.txt
	@$(VENV)/bin/pip wheel . --no-deps -w dist

docs: build ## generate docs/options.md and docs/signals.md
	@python3 tools/gen_docs.py

clean: ## remove build/
	@rm -rf build dist
