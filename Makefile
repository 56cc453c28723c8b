# Everything a newcomer needs is `make demo` and `make test`; both start from a bare Python 3.11 and make.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP_INSTALL := $(PY) -m pip install --quiet --no-input --disable-pip-version-check

# Coverage is traced where the core is tried by itself: tracing everything else costs minutes.
CORE_TESTS := tests/core $(wildcard tests/test_vectors*.py)

# A stamp is touched last, so what was interrupted is done again.
MADE := $(VENV)/.made
BASE := $(VENV)/.base
DEV := $(VENV)/.dev

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow check lint types contracts bench fmt clean

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(BASE) ## a hub, three people and a stranger: see all of it work
	@$(PY) -m veen.cli demo

test: $(DEV) ## run the tests, with the coverage of the core
	@$(PY) -m pytest -q -n auto --cov=veen.core --cov-branch --cov-fail-under=98 --cov-report=term-missing:skip-covered $(CORE_TESTS)
	@$(PY) -m pytest -q -n auto --dist loadgroup $(CORE_TESTS:%=--ignore=%)

test-slow: $(DEV) ## run the slow tests and the fuzzers
	@$(PY) -m pytest -q -m slow --hypothesis-profile=thorough $(wildcard tests fuzz)

check: lint types contracts test ## all that CI does

lint: $(DEV) ## ruff: faults and formatting
	@$(PY) -m ruff check --quiet .
	@$(PY) -m ruff format --check --quiet .

types: $(DEV) ## mypy, strict
	@$(PY) -m mypy

contracts: $(DEV) ## import-linter: the arrows of pyproject.toml
	@$(VENV)/bin/lint-imports --no-logo

bench: $(DEV) ## measure the core against the primitives it is made of
	@$(PY) -m bench

fmt: $(DEV) ## format, and mend what ruff can mend
	@$(PY) -m ruff check --fix --quiet .
	@$(PY) -m ruff format --quiet .

clean: ## remove .venv and everything the other commands left behind
	@rm -rf $(VENV) .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(MADE):
	@command -v $(PYTHON) >/dev/null || { \
	  echo "veen: error: no $(PYTHON) on this machine" >&2; \
	  echo "veen: hint: install Python 3.11 or newer, or name one: make $(MAKECMDGOALS) PYTHON=/path/to/python" >&2; \
	  exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "veen: error: $(PYTHON) is $$($(PYTHON) --version 2>&1), and veen needs 3.11 or newer" >&2; \
	  echo "veen: hint: name a newer one: make $(MAKECMDGOALS) PYTHON=python3.11" >&2; \
	  exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "veen: error: $(PYTHON) cannot make a virtual environment: venv or ensurepip is missing" >&2; \
	  echo "veen: hint: some systems package it apart, often as python3-venv; install that" >&2; \
	  exit 1; }
	@echo "veen: making $(VENV) with $$($(PYTHON) --version)" >&2
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(BASE): pyproject.toml $(MADE)
	@echo "veen: installing into $(VENV)" >&2
	@$(PIP_INSTALL) --editable . || { $(INSTALL_FAILED); }
	@touch $@

$(DEV): pyproject.toml $(MADE)
	@echo "veen: installing the development tools into $(VENV)" >&2
	@$(PIP_INSTALL) --editable '.[dev]' || { $(INSTALL_FAILED); }
	@touch $(BASE) $@

INSTALL_FAILED = echo "veen: error: pip could not install what pyproject.toml lists" >&2; \
  echo "veen: hint: it needs a package index, or a folder of wheels named in PIP_FIND_LINKS" >&2; \
  exit 1
