# Two targets do everything: `make demo` and `make test`. Both make .venv when it is missing. `make experiments` draws
# the paper's figures, quickly; with ARGS=--full in the paper's size.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

SHELL := /bin/bash
.SHELLFLAGS := -e -o pipefail -c
.DELETE_ON_ERROR:
ARGS ?=

.PHONY: demo experiments test lint types layers unit wheel clean

# pip says one line for each package that it fetches, and nothing else unless it fails.
PIP := $(BIN)/python -m pip install --disable-pip-version-check --no-input --progress-bar off
PROGRESS := sed -u -n -e 's/^Collecting \([^ ]*\).*/  \1/p' -e 's/^Installing collected packages.*/  unpacking .../p'

demo: $(VENV)/.installed
	$(BIN)/ekya run

experiments: $(VENV)/.installed
	PYTHONUNBUFFERED=1 $(BIN)/python experiments/all.py $(ARGS)

test: lint types layers unit

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-test
	$(BIN)/mypy --strict ekya

layers: $(VENV)/.installed-test
	$(BIN)/lint-imports

# One thread a process: torch on many threads is slower on small crops, and tests measure thread time.
unit: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest

wheel: $(VENV)/.made
	$(BIN)/python -m pip wheel --disable-pip-version-check --no-deps --quiet --wheel-dir dist .

clean:
	rm -rf $(VENV) dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

# Stamps: what was installed, and from which pyproject.toml.

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' || \
	  { echo "Ekya needs Python 3.11 or 3.12, and $(PYTHON) is another; try: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "Making a virtual environment in $(VENV)"
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.made pyproject.toml
	@echo "Installing Ekya and what it needs (several GB with torch; a few minutes the first time)"
	@$(PIP) -e . | $(PROGRESS)
	@touch $@

$(VENV)/.installed-test: $(VENV)/.made pyproject.toml
	@echo "Installing Ekya, what it needs and its test tools (several GB with torch; a few minutes the first time)"
	@$(PIP) -e '.[test]' | $(PROGRESS)
	@touch $(VENV)/.installed $@
