# make train | test | bench | conformance | lint | clean
#
# Each target sets up .venv and builds first, so that it can be the first command on a fresh clone. Stamp files in
# .venv make the repeated set-up instant. PYTHON chooses the interpreter; PIP_ARGS goes to every `pip install`.

SHELL := /bin/bash
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
PIP_ARGS ?=
RANKS ?=
RECIPE ?= configs/recipes/llama3_debug.yaml
ARGS ?=
# processes that `make test` shares its files among; each starts ranks of its own
JOBS ?= 2
# what `make bench` measures, of benchmarks/; ARGS alone is for process_group
BENCH ?= $(if $(ARGS),process_group,device process_group)

TORCH := torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --no-compile --quiet $(PIP_ARGS)

NATIVE := $(shell find neuron_dist/csrc -type f) setup.py

.PHONY: help train test bench conformance lint build clean

help:
	@sed -n '1p' $(firstword $(MAKEFILE_LIST)) | sed 's/# /usage: /'

train: build
	$(BIN)/neuron-dist train $(RECIPE) $(if $(RANKS),-n $(RANKS)) $(ARGS)

test: build
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

bench: build
	@set -e; for each in $(BENCH); do \
	    echo "benchmarks/$$each.py $(ARGS)"; $(BIN)/python benchmarks/$$each.py $(ARGS); done

# PyTorch's own distributed suite in all profiles, with its numbers.
conformance: build
	$(BIN)/python -m pytest tests/conformance -s -m '' $(ARGS)

lint: build
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy --explicit-package-bases benchmarks

build: $(VENV)/.native

# 1. an environment of our own; what is missing on the machine is said here, before anything is downloaded
$(VENV)/.venv:
	@PYTHON=$(PYTHON) bash .ci/check-machine
	$(PYTHON) -m venv $(VENV)
	@touch $@

# 2. torch first and alone: everything after it builds against it
$(VENV)/.torch: $(VENV)/.venv
	$(PIP) $(TORCH)
	$(PIP) ninja 'setuptools>=77' wheel numpy
	@touch $@

# 3. the package in place, with what it needs to train and to be tested; builds the native core
$(VENV)/.package: $(VENV)/.torch pyproject.toml
	$(PIP) --no-build-isolation -e '.[titan,dev,ecosystem]'
	@touch $@ $(VENV)/.native

# 4. the native core again where its sources have changed since
$(VENV)/.native: $(VENV)/.package $(NATIVE)
	$(BIN)/python setup.py --quiet build_ext --inplace
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info neuron_dist/_C*.so outputs
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
