# make docs      the documentation as a site, into build/site
# make demo      the main job, end to end, on this machine
# make pretrain-demo  pre-training from pictures to samples, with a trainer killed in each phase: three to four minutes on two cores
# make check     format, lint, types, contracts, unit tests: two minutes on two cores
# make test      the same, parts and whole jobs on real databases, storage and processes: 24 minutes
# make browser   the dashboard in Debian's Chromium: what people do, accessibility, screenshots in build/screenshots: three minutes
# make long      what takes longest, which `make test` leaves out: learning, compiled kernels, faults, pretrain: some 30 more
# make sim       of `make test`, the scenarios of the simulator, small
# make sim-night every scenario of the simulator with 30 seeds (or SEEDS=…, FIRST=…): about 40 minutes on two cores
# make faults    of `make long`: kill, cut off, lie to real processes at every phase of a job
# make pretrain  of `make long`: pre-training on a real Ray: kills, fewer trainers, every mode
# make pretrain-cluster  pre-training on clusters whose nodes come and go, and encoders on nodes of their own: some twenty minutes
# make soak      random schedules against the real store, a million operations (or OPS=…): an hour or more
# make soak-hour an hour (or MINUTES=…) of real processes with everything above at once
# make mutants   plant bugs one by one and see that those schedules find each: minutes
# make fuzz      many more requests at the HTTP API than `make test` draws (FUZZ_EXAMPLES a route and kind)
# make tiny-shapes  pre-train the small SDXL that draws shapes, from nothing: under an hour on two cores (OUT=…)
# make gpu       what a GPU shows, in parts that a second call does not repeat: 25 minutes at most a call (DEVICE=cpu rehearses it)
# make audit     ask pip-audit whether a pinned version has a known hole (AUDITED=FILE); fails where it could look nothing up
# make odd-time  what depends on a clock or a locale, in two odd time zones
# Each sets up .venv first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Two threads on a busy machine can be many times slower than one.
export OMP_NUM_THREADS ?= 1
# Images of containers set it. Each process would compile its modules anew: a quarter of a server's start.
unexport PYTHONDONTWRITEBYTECODE
FUZZ_EXAMPLES ?= 100

.PHONY: help demo pretrain-demo test check docs lint format types contracts unit unit-models unit-rest contract sim sim-night \
        system-and-sim system faults faults-and-pretrain browser long learning pretrain pretrain-cluster fuzz audit odd-time \
        soak soak-hour mutants tiny-shapes gpu clean
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

pretrain-demo: $(STAMP)
	@$(BIN)/python -m examples.pretrain_demo --json $(DEMO_FLAGS)

demo: $(STAMP)
	@$(BIN)/python -m examples.demo $(DEMO_FLAGS)

# Tests of processes that are killed wait more than they compute: for leases to run out, and for each other. Tests that
# compute run beside them, with what is left of the cores: `nice` keeps leases from running out for them. They may take
# several times as long then, and so may the longest fixture.
BESIDE_PROCESSES := BESIDE='env PYTEST_ADDOPTS=--timeout=1200 nice -n 5'

test: $(STAMP)
	@$(MAKE) --no-print-directory check
	@$(MAKE) --no-print-directory -j 2 --output-sync=target $(BESIDE_PROCESSES) system-and-sim contract

system-and-sim: $(STAMP)
	@$(MAKE) --no-print-directory system
	@$(MAKE) --no-print-directory sim

long: $(STAMP)
	@$(MAKE) --no-print-directory -j 2 --output-sync=target $(BESIDE_PROCESSES) faults-and-pretrain learning

faults-and-pretrain: $(STAMP)
	@$(MAKE) --no-print-directory faults
	@$(MAKE) --no-print-directory pretrain

# One core takes the tests of model code, and the other the rest.
check: $(STAMP)
	@$(MAKE) --no-print-directory -j 2 --output-sync=target unit-models unit-rest types docs contracts lint

lint: $(STAMP)
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check --quiet

format: $(STAMP)
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

types: $(STAMP)
	@$(BIN)/mypy

# The site, into build/site; a link or an anchor that leads nowhere is an error.
docs: $(STAMP)
	@mkdir -p build
	@$(BIN)/zensical build --strict >build/docs.log 2>&1 || { cat build/docs.log; exit 1; }

contracts: $(STAMP)
	@$(BIN)/lint-imports

# Two processes without xdist: each of its workers would collect all files, and load torch.
MODEL_TESTS := $(addprefix tests/unit/,diffusion engine pretrain workloads)
unit: unit-models unit-rest

unit-models: $(STAMP)
	@$(BIN)/python -m pytest -q $(MODEL_TESTS) tests/gpu

unit-rest: $(STAMP)
	@$(BIN)/python -m pytest -q tests/unit tests/docs $(MODEL_TESTS:%=--ignore %)

# The longest files first: xdist would begin with those of many tests, and one process would be left with the others.
# pytest joins a folder to one that holds it, and would collect in the order of names: each folder is named.
LONGEST := $(addprefix tests/contract/,workloads pretrain api model)
CONTRACT_TESTS := $(LONGEST) $(filter-out $(LONGEST) %/__pycache__,$(patsubst %/,%,$(wildcard tests/contract/*/)))
contract: $(STAMP)
	@$(BESIDE) $(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder -m 'not long' $(CONTRACT_TESTS)

# The files that have such tests: to collect all of them takes each process a quarter of a minute.
LONG_FILES = $(shell grep -rl --include='test_*.py' 'mark\.long' $(CONTRACT_TESTS) $(SYSTEM_TESTS))
learning: $(STAMP)
	@$(BESIDE) $(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder -m long $(LONG_FILES)

sim: $(STAMP)
	@$(BESIDE) $(BIN)/python -m pytest -q -n 2 tests/sim

SEEDS ?= 30
FIRST ?= 0
sim-night: $(STAMP)
	@$(BIN)/python -m tests.sim.night --seeds $(SEEDS) --first $(FIRST) --processes $(PROCESSES)

# The longest files first, whatever the number of their tests: a minute of everything at once takes a minute, and the other
# files have their turn meanwhile.
LONGEST_OF_SYSTEM := $(patsubst %,tests/system/test_%.py,soak standalone benchmarks up versions)
SYSTEM_TESTS := $(LONGEST_OF_SYSTEM) $(filter-out $(LONGEST_OF_SYSTEM),$(sort $(wildcard tests/system/test_*.py)))
system: $(STAMP)
	@$(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder -m 'not long' $(SYSTEM_TESTS)

# Skipped where there is no Chromium, with a line that says so. The longest first, and one at a time: none is left for the
# end, when the other process has nothing to do.
LONGEST_OF_BROWSER := $(patsubst %,tests/browser/test_%.py,whole_life looks)
BROWSER_TESTS := $(LONGEST_OF_BROWSER) $(filter-out $(LONGEST_OF_BROWSER),$(sort $(wildcard tests/browser/test_*.py)))
browser: $(STAMP)
	@$(BIN)/python -m pytest -q -n 2 --dist load --maxschedchunk 1 $(BROWSER_TESTS)

# Real processes killed, cut off and lied to, at every phase of a job. They wait more than they work: for leases to run
# out, and for each other.
faults: $(STAMP)
	@$(BIN)/python -m pytest -q -n 3 --dist loadfile tests/system/faults

CLUSTER_TESTS := tests/system/pretrain/test_cluster.py \
                 tests/system/pretrain/test_encoder_nodes.py tests/system/pretrain/test_platform_jobs.py

# One Ray for all, which takes as long to start as most of these tests take. It would lower its workers' priority.
pretrain: $(STAMP)
	@RAY_worker_niceness=0 $(BIN)/python -m pytest -q tests/system/pretrain $(CLUSTER_TESTS:%=--ignore %)

pretrain-cluster: $(STAMP)
	@RAY_worker_niceness=0 $(BIN)/python -m pytest -q $(CLUSTER_TESTS)

fuzz: $(STAMP)
	@GIORNATA_FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) $(BIN)/python -m pytest -q --timeout 3600 tests/contract/api/test_fuzz.py

# In an environment of its own, so that what is audited is what is pinned and nothing else.
AUDITED ?= constraints.txt
audit:
	@test -x build/audit/bin/pip-audit || { $(PYTHON) -m venv build/audit && build/audit/bin/pip install --quiet pip-audit; } \
	  || { rm -rf build/audit; echo 'pip-audit cannot be installed here: nothing was audited'; exit 1; }
	@build/audit/bin/pip-audit --no-deps --disable-pip --progress-spinner off --format json -r $(AUDITED) \
	  | $(PYTHON) -m tools.read_audit

# Kiritimati, 14 hours ahead, when 31 bits of seconds run over; St. John's, half an hour off, in the hour that is left
# out when summer begins. As rules, which need no zone files. No locale.
odd-time: $(STAMP)
	@for odd in "<+14>-14 2147483647999" "NST3:30NDT,M3.2.0,M11.1.0 1772947799000"; do \
	  set -- $$odd; echo "TZ=$$1 LC_ALL=C, the clock at $$2 ms"; \
	  for tests in "tests/unit tests/docs" "tests/contract/store tests/contract/blobs tests/contract/http tests/contract/dashboard tests/contract/cli"; do \
	    TZ=$$1 LC_ALL=C LANG=C GIORNATA_TEST_NOW_MS=$$2 $(BIN)/python -m pytest -q -n 2 --dist loadfile $$tests || exit 1; \
	  done; \
	done

OPS ?= 1000000
SEED ?= 0
PROCESSES ?= 2
soak: $(STAMP)
	@$(BIN)/python -m tests.contract.model.soak --ops $(OPS) --seed $(SEED) --processes $(PROCESSES)

MINUTES ?= 60
soak-hour: $(STAMP)
	@$(BIN)/python -m tests.system.soak --minutes $(MINUTES) --seed $(SEED)

mutants: $(STAMP)
	@$(BIN)/python -m tests.contract.model.mutants

DEVICE ?= cuda
SCRIPT ?= fetch
gpu: $(STAMP)
	@$(BIN)/python -m benchmarks.gpu --device $(DEVICE) --script $(SCRIPT) $(GPU_FLAGS)

OUT ?= build/tiny-shapes
tiny-shapes: $(STAMP)
	@$(BIN)/python -m tools.tiny_shapes.pretrain $(OUT) $(PRETRAIN_FLAGS)

clean:
	rm -rf $(VENV) demo-output pretrain-demo-output build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
