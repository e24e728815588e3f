# Two commands do everything on a fresh machine: `make demo` and `make test`.  Both install into .venv by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

export OMP_NUM_THREADS ?= 1

.PHONY: demo test test-all bench lint help clean

help:  ## what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(STAMP)  ## compare Apollo, ablations and peers on real data, in a few minutes
	$(BIN)/apollo-sandbox show apollo
	$(BIN)/apollo-sandbox compare apollo scale-invariant hessian-ema adamw sgd --task digits-mlp --out results/demo

test: $(STAMP) lint  ## all tests but the long ones
	$(BIN)/python -m pytest -m "not slow"

test-all: $(STAMP) lint  ## the long ones too
	$(BIN)/python -m pytest

lint: $(STAMP)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:  ## remove what was installed and computed
	rm -rf $(VENV) results build *.egg-info
