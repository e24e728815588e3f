# Two commands do everything on a fresh machine: `make demo` and `make test`.  What they need is installed into .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# A worker for each core; each takes over tests that another has not begun.  The notebooks, which take longest, come first.
PYTEST := $(BIN)/python -m pytest -n logical --dist worksteal --nbmake --nbmake-kernel=python3 --nbmake-timeout=-1 notebooks tests

# The name under which `make bench` keeps its results, as in cpu-intel-r-xeon-r-processor.
PROCESSOR := cpu-$(shell (sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo 2>/dev/null | head -n 1 | grep . || uname -m) \
	| tr 'A-Z' 'a-z' | tr -cs 'a-z0-9\n' '-' | sed 's/-*$$//')

export OMP_NUM_THREADS ?= 1
bench: SHELL := bash

.PHONY: demo test tests-in-minutes test-all notebooks docs bench bench-gpu lint help clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(STAMP)  ## compare Apollo, ablations and peers on real data, then refute a theorem, in a few minutes
	$(BIN)/apollo-sandbox show apollo
	$(BIN)/apollo-sandbox compare apollo scale-invariant hessian-ema adamw sgd --task digits-mlp --out results/demo
	$(BIN)/apollo-sandbox check counterexamples

test: $(STAMP)  ## ruff, mypy, all tests but the long ones, and the notebooks
	+$(MAKE) --no-print-directory --jobs=2 lint tests-in-minutes

# The examples of hypothesis are the same in each `make test`; `make test-all` draws others each time.
tests-in-minutes: $(STAMP)
	$(PYTEST) -m "not slow" --hypothesis-profile=ci

test-all: $(STAMP) lint  ## the long tests too
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[theory,cluster,docs,trainers]'
	$(PYTEST)

notebooks: $(STAMP)  ## run the notebooks and save their outputs
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[notebooks]'
	$(BIN)/jupyter nbconvert --to notebook --execute --inplace --ExecutePreprocessor.record_timing=False notebooks/*.ipynb

bench: $(STAMP)  ## speed and memory on the CPU, all cores and one, against torch and published peers; kept under the processor's name
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[bench]'
	set -o pipefail; OMP_NUM_THREADS=$$(nproc) $(BIN)/python -m pytest tests/benchmarks --benchmark-only -W ignore \
		--benchmark-json=tests/benchmarks/results/$(PROCESSOR).json | tee tests/benchmarks/results/$(PROCESSOR).txt

bench-gpu: $(STAMP)  ## checks and speed on a GPU, about eight minutes
	OMP_NUM_THREADS=$$(nproc) $(BIN)/python -m tests.benchmarks.gpu

docs: $(STAMP)  ## the site, in build/docs: tutorials, guides, explanation, reference
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	$(BIN)/python -m sphinx -W --keep-going -q -b html -d build/doctrees docs build/docs

lint: $(STAMP)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:  ## remove everything that was installed or computed
	rm -rf $(VENV) results build *.egg-info docs/notebooks docs/reference/generated
