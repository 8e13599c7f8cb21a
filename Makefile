# `make` lists the targets. `make test` does all set-up itself.
# Another interpreter (3.11 or newer) than python3.11: make env PYTHON=python3.12

BIN := .venv/bin

# Has to be set before a Python starts: block hashes must be the same in every
# process of an engine and after a restart.
export PYTHONHASHSEED := 0

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help env demo test test-unit test-compat test-engine test-gpu test-v100 lint types format \
	bench-restore bench-index compat compat-engine bench-elastic bench-balance bench-disk \
	bench-transfer clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

env:  ## build .venv from .ci/pins.txt, or keep it when nothing changed
	@.ci/make-env

demo: env  ## store, reset and restore a hybrid model's prefix, on CPU
	$(BIN)/python -m lmc_grouped.tools.demo

test: lint types test-unit test-compat test-engine  ## every check

test-unit: env  ## tests that start no engine
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not engine and not compat" --ignore=tests/compat --ignore=tests/gpu

test-compat: env  ## three LMCache releases, two schedulers, a kernel (downloads them once)
	$(BIN)/python -m pytest -m "not engine and not compat" tests/compat

test-engine: env  ## tests that start vLLM
	$(BIN)/python -m pytest -m "engine and not compat" tests/engine

GPU_PYTHON ?= python3

test-gpu:  ## copies on a CUDA device: GPU_PYTHON has torch, numpy, msgspec and pytest
	$(GPU_PYTHON) -m pytest -c tests/gpu/pytest.ini --rootdir=. -p no:cacheprovider -q -rs tests/gpu

test-v100: env  ## pool sizes against the V100 engine's own code (downloads it)
	$(BIN)/python -m tests.v100

compat: env  ## ask every LMCache release and drive every scheduler (downloads them)
	$(BIN)/python -m pytest -m "not engine" tests/compat tests/patches

compat-engine: env  ## LMCache's own connector on a ring model, with and without patches
	$(BIN)/python -m pytest -m engine tests/compat

lint: env  ## ruff: rules and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: env  ## mypy: strict for core and host
	$(BIN)/mypy

format: env  ## let ruff sort imports and format
	$(BIN)/ruff check --select I --fix .
	$(BIN)/ruff format .

bench-restore: env  ## time to restore a prefix against computing it
	$(BIN)/python -m lmc_grouped.tools.bench_restore

bench-index: env  ## cost of the index: store, evict, look up, memory
	$(BIN)/python -m lmc_grouped.tools.bench_index

bench-elastic: env  ## how much of the ceiling elastic pools hold, six layouts (many minutes)
	$(BIN)/python -m tests.elastic

bench-balance: env  ## cost of moving extents between groups while requests change
	$(BIN)/python -m lmc_grouped.tools.bench_balance

bench-transfer: env  ## copies between cache and pool against memcpy and LMCache's torch operations
	$(BIN)/python -m lmc_grouped.tools.bench_transfer

bench-disk: env  ## the disk tier against plain I/O and LMCache's disk backend
	$(BIN)/python -m lmc_grouped.tools.bench_disk

clean:  ## remove the environment, caches and built models
	rm -rf .venv .venv.* .compat .models .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
