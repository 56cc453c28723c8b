# Start with `make demo` and `make test`; both need only Python 3.11 and make.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP_INSTALL := $(PY) -m pip install --quiet --no-input --disable-pip-version-check

# Coverage is measured only for the tests of the core: measuring all tests takes minutes longer.
CORE_TESTS := tests/core $(wildcard tests/test_vectors*.py)

# A stamp is touched last, so an interrupted step runs again.
MADE := $(VENV)/.made
BASE := $(VENV)/.base
DEV := $(VENV)/.dev

.DEFAULT_GOAL := help
.PHONY: help env demo test test-slow check lint types contracts bench fmt pages clean

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

env: $(DEV) ## create .venv with the development tools

demo: $(BASE) ## run a hub with three clients and a verifier, step by step
	@$(PY) -m veen.cli demo

test: $(DEV) ## run the tests with the coverage of the core
	@$(PY) -m pytest -q -n auto --cov=veen.core --cov-branch --cov-fail-under=98 --cov-report=term-missing:skip-covered $(CORE_TESTS)
	@$(PY) -m pytest -q -n auto --dist loadgroup $(CORE_TESTS:%=--ignore=%)

test-slow: $(DEV) ## run the slow tests and the fuzzers
	@$(PY) -m pytest -q -m slow --hypothesis-profile=thorough $(wildcard tests fuzz)

check: lint types contracts test ## everything that CI runs

lint: $(DEV) ## ruff: lint and formatting
	@$(PY) -m ruff check --quiet .
	@$(PY) -m ruff format --check --quiet .

types: $(DEV) ## mypy, strict
	@$(PY) -m mypy

contracts: $(DEV) ## import-linter: the arrows of pyproject.toml
	@$(VENV)/bin/lint-imports --no-logo

bench: $(DEV) ## run all measurements
	@$(PY) -m bench

fmt: $(DEV) ## format, and fix what ruff can fix
	@$(PY) -m ruff format --quiet .
	@$(PY) -m ruff check --fix --quiet .
	@$(PY) -m ruff format --quiet .

pages: $(DEV) ## regenerate the reference pages and the test vectors
	@for page in cli_page error_page wire_page openapi_page query_openapi_page; do $(PY) -m tools.$$page || exit 1; done
	@for vectors in vectors vectors.overlays vectors.veil; do $(PY) -m $$vectors.generate || exit 1; done

clean: ## remove .venv and everything that the other targets created
	@rm -rf $(VENV) .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(MADE):
	@command -v $(PYTHON) >/dev/null || { \
	  echo "veen: error: $(PYTHON) not found" >&2; \
	  echo "veen: hint: install Python 3.11 or newer, or set its path: make $(MAKECMDGOALS) PYTHON=/path/to/python" >&2; \
	  exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "veen: error: $(PYTHON) is $$($(PYTHON) --version 2>&1), but veen needs 3.11 or newer" >&2; \
	  echo "veen: hint: choose a newer one: make $(MAKECMDGOALS) PYTHON=python3.11" >&2; \
	  exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "veen: error: $(PYTHON) cannot create a virtual environment: venv or ensurepip is missing" >&2; \
	  echo "veen: hint: install your system's venv package, often called python3-venv" >&2; \
	  exit 1; }
	@echo "veen: creating $(VENV) with $$($(PYTHON) --version)" >&2
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

INSTALL_FAILED = echo "veen: error: pip could not install the dependencies in pyproject.toml" >&2; \
  echo "veen: hint: it needs a package index, or a folder of wheels named in PIP_FIND_LINKS" >&2; \
  exit 1
