# make demo   the main job, end to end, on this machine
# make test   every test
# make check  format, lint, types, contracts, unit tests: under two minutes
# make fuzz   many more requests at the HTTP API than `make test` draws (FUZZ_EXAMPLES a route and kind)
# make odd-time  what depends on a clock or a locale, in two odd time zones
# Each sets up .venv first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Two threads on a busy machine can be many times slower than one.
export OMP_NUM_THREADS ?= 1
FUZZ_EXAMPLES ?= 100

.PHONY: help demo test check lint format types contracts unit contract system fuzz odd-time clean
.DEFAULT_GOAL := help

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo 'giornata needs Python 3.11 or newer with its venv module (Debian, Ubuntu: apt install python3-venv)'; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo 'installing into $(VENV) ...'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(STAMP)
	@$(BIN)/giornata demo $(DEMO_FLAGS)

test: lint types contracts unit contract system

check: lint types contracts unit

lint: $(STAMP)
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check --quiet

format: $(STAMP)
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

types: $(STAMP)
	@$(BIN)/mypy

contracts: $(STAMP)
	@$(BIN)/lint-imports

unit: $(STAMP)
	@$(BIN)/python -m pytest -q -n 2 --dist loadfile tests/unit tests/docs

contract: $(STAMP)
	@$(BIN)/python -m pytest -q -n 2 --dist loadfile tests/contract

system: $(STAMP)
	@$(BIN)/python -m pytest -q tests/system tests/gpu

fuzz: $(STAMP)
	@GIORNATA_FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) $(BIN)/python -m pytest -q --timeout 3600 tests/contract/api/test_fuzz.py

# 14 hours ahead of UTC, and half an hour off; no locale; every test on its own clock is also run at other instants.
odd-time: $(STAMP)
	@for zone in Pacific/Kiritimati America/St_Johns; do \
	  echo "TZ=$$zone LC_ALL=C"; \
	  TZ=$$zone LC_ALL=C LANG=C $(BIN)/python -m pytest -q -n 2 --dist loadfile \
	    tests/unit tests/contract/store tests/contract/blobs tests/docs || exit 1; \
	done

clean:
	rm -rf $(VENV) demo-output build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
