# Start with `make demo` and `make test`; both need only Python 3.11 and make.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP_INSTALL := $(PY) -m pip install --quiet --no-input --disable-pip-version-check

# The versions and hashes in requirements/; `LOCKED=no` installs what pyproject.toml allows, without hashes.
LOCKED ?= yes
HASHED := $(PIP_INSTALL) --require-hashes --no-build-isolation

# Coverage is measured only for the tests of the core: measuring all tests takes minutes longer.
CORE_TESTS := tests/core $(wildcard tests/test_vectors*.py)

# A stamp is touched last, so an interrupted step runs again.
MADE := $(VENV)/.made
BASE := $(VENV)/.base
DEV := $(VENV)/.dev

.DEFAULT_GOAL := help
.PHONY: help env demo test test-slow check lint types contracts bench lab dist image image-lock lock audit fmt pages clean

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

check: lint types contracts test dist ## everything that CI runs

lint: $(DEV) ## ruff: lint and formatting
	@$(PY) -m ruff check --quiet .
	@$(PY) -m ruff format --check --quiet .

types: $(DEV) ## mypy, strict
	@$(PY) -m mypy

contracts: $(DEV) ## import-linter: the arrows of pyproject.toml
	@$(VENV)/bin/lint-imports --no-logo

bench: $(DEV) ## run all measurements
	@$(PY) -m bench

SEEDS ?= 0:1000
lab: $(DEV) ## run a thousand seeds of each simulation (or SEEDS=0:10000), and plant bugs
	@$(PY) -m lab --seeds $(SEEDS)
	@$(PY) -m lab --seeds $(SEEDS) hostile
	@$(PY) -m lab --seeds $(SEEDS) corruption
	@$(PY) -m lab planted

dist: $(DEV) ## build wheel, sdist and SBOM into dist/, twice, and compare
	@$(PY) -m tools.release_files

image: $(DEV) ## build the container image as an OCI archive into dist/, without a registry or a daemon
	@$(PY) -m tools.image

image-lock: $(DEV) ## pin the newest Debian packages of the image; needs Debian
	@$(PY) -m tools.debian_packages

lock: $(DEV) ## pin what pyproject.toml requires; UPGRADE=h2 or UPGRADE=all takes newer versions
	@$(PY) -m tools.lock_files $(if $(UPGRADE),$(if $(filter all,$(UPGRADE)),--upgrade,--upgrade-package $(UPGRADE)))

audit: $(DEV) ## look for known vulnerabilities of the pinned versions
	@$(PY) -m tools.audit

fmt: $(DEV) ## format, and fix what ruff can fix
	@$(PY) -m ruff format --quiet .
	@$(PY) -m ruff check --fix --quiet .
	@$(PY) -m ruff format --quiet .

pages: $(DEV) ## regenerate the reference pages and the test vectors
	@for page in cli_page error_page wire_page schema_names openapi_page query_openapi_page; do $(PY) -m tools.$$page || exit 1; done
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

$(BASE): pyproject.toml requirements/build.txt requirements/base.txt $(MADE)
	@echo "veen: installing into $(VENV)" >&2
	@$(call INSTALL,base,.)
	@touch $@

$(DEV): pyproject.toml requirements/build.txt requirements/dev.txt $(MADE)
	@echo "veen: installing the development tools into $(VENV)" >&2
	@$(call INSTALL,dev,.[dev])
	@touch $(BASE) $@

# Packages come first, by hash; the project itself then needs none. What builds it is pinned too.
ifeq ($(LOCKED),no)
INSTALL = $(PIP_INSTALL) --editable '$(2)' || { \
  echo "veen: error: pip could not install the dependencies in pyproject.toml" >&2; \
  echo "veen: hint: it needs a package index, or a folder of wheels named in PIP_FIND_LINKS" >&2; \
  exit 1; }
else
INSTALL = { $(HASHED) --requirement requirements/build.txt \
  && $(HASHED) --requirement requirements/$(1).txt \
  && $(PIP_INSTALL) --no-deps --no-build-isolation --editable .; } || { \
  echo "veen: error: pip could not install the versions pinned in requirements/$(1).txt" >&2; \
  echo "veen: hint: it needs a package index, or a folder of wheels named in PIP_FIND_LINKS" >&2; \
  echo "veen: hint: if your index has other versions or files: make $(MAKECMDGOALS) LOCKED=no (without hashes)" >&2; \
  exit 1; }
endif
