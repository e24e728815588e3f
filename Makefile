# Two commands do everything on a fresh machine: `make demo` and `make test`.  Both install into .venv by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
NBMAKE := $(BIN)/python -m pytest --nbmake --nbmake-kernel=python3 --nbmake-timeout=300

export OMP_NUM_THREADS ?= 1

.PHONY: demo test test-all notebooks bench bench-gpu lint help clean

help:  ## what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(STAMP)  ## compare Apollo, ablations and peers on real data, then check a theorem, in a few minutes
	$(BIN)/apollo-sandbox show apollo
	$(BIN)/apollo-sandbox compare apollo scale-invariant hessian-ema adamw sgd --task digits-mlp --out results/demo
	$(BIN)/apollo-sandbox check counterexamples

test: $(STAMP) lint  ## all tests but the long ones, and the notebooks from top to bottom
	$(BIN)/python -m pytest -m "not slow"
	$(NBMAKE) notebooks

test-all: $(STAMP) lint  ## the long ones too
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[theory]'
	$(BIN)/python -m pytest
	$(NBMAKE) notebooks

notebooks: $(STAMP)  ## run the notebooks and keep their outputs
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[notebooks]'
	$(BIN)/jupyter nbconvert --to notebook --execute --inplace --ExecutePreprocessor.record_timing=False notebooks/*.ipynb

bench: $(STAMP)  ## speed and memory on the CPU, against torch and published peers; the table is kept in tests/benchmarks/results
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[bench]'
	OMP_NUM_THREADS=$$(nproc) $(BIN)/python -m pytest tests/benchmarks --benchmark-only --benchmark-json=tests/benchmarks/results/cpu.json -W ignore

bench-gpu: $(STAMP)  ## checks and speed on a GPU, about eight minutes
	OMP_NUM_THREADS=$$(nproc) $(BIN)/python -m tests.benchmarks.gpu

lint: $(STAMP)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:  ## remove what was installed and computed
	rm -rf $(VENV) results build *.egg-info
