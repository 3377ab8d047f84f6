# Everything a developer does, from a fresh clone. `make help` lists it.
# Each step leaves a stamp in .venv, so that what is done is not done again.

VENV := .venv
BIN := $(VENV)/bin
# Test files run side by side, in two processes more than there are cores (tests/sharing.py says why).
# JOBS=0: one after another.
JOBS ?= auto
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check --no-input

# Embedded brokers have no connections, so that neither TLS nor a login changes anything for them; and
# a connection that is cut again and again shakes hands again and again, which takes minutes.
SECURED := FANLOG_TESTS=secured $(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile \
	-m "not long and not plain" -k "not embedded and not through_cuts" $$($(BIN)/python -m tests.secured)

# The wrapper of pyright would ask the network for a newer one at each run.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
# Images of Python set it. Each of the many processes that tests start would compile all of its
# modules again, which takes longer than the rest of its start.
unexport PYTHONDONTWRITEBYTECODE
# mkdocs-material would advertise its successor at each build.
export NO_MKDOCS_2_WARNING := 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run cluster test test-fast test-long test-secured check style format docs docs-serve power simulate bench dist servers clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(VENV)/.core ## Install the broker and start it (ARGS="--port 7000" is passed on)
	$(BIN)/fanlog serve $(ARGS)

cluster: $(VENV)/.core servers ## Start an etcd and three nodes of a cluster, until Ctrl-C (PORT=7500 is the first port)
	@scripts/cluster $(ARGS)

test: style servers ## Run every check and every test but the long ones (ARGS="-k batch" is passed on to pytest)
	@# Types are checked beside the tests: that takes one core most of a minute.
	@$(BIN)/pyright >$(VENV)/types.txt 2>&1 & types=$$!; \
	status=0; \
	$(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile $(ARGS) || status=$$?; \
	$(if $(strip $(ARGS)),,$(SECURED) || status=$$?;) \
	wait $$types || status=$$?; \
	cat $(VENV)/types.txt; \
	exit $$status

test-fast: style ## Run every check but types, and the tests that take seconds and start no other program
	$(BIN)/python -m pytest --fast --numprocesses $(JOBS) --dist loadfile $(ARGS)

test-long: style servers ## Run the tests that take minutes each, most of them with Sparks of their own
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile -m long $(ARGS)

test-secured: style servers ## Run the suites of all listeners once more, with TLS and logins (a part of make test)
	$(SECURED) $(ARGS)

check: style ## Lint, formatting, layers and types
	$(BIN)/pyright

style: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports

format: $(VENV)/.dev ## Format the code, and fix what ruff can fix
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: $(VENV)/.docs ## Build the documentation into site/, and check its links
	$(BIN)/python -m mkdocs --quiet build --strict $(ARGS)
	@echo "The documentation is built: open site/index.html"

docs-serve: $(VENV)/.docs ## Show the documentation on http://127.0.0.1:8000 as you write it
	$(BIN)/python -m mkdocs serve --strict --watch src --watch scripts/docs $(ARGS)

power: $(VENV)/.dev servers ## Cut the power under a broker (ARGS="--minutes 10 --seed 1")
	$(BIN)/python -m tests.power.run $(ARGS)

# How many seeds `make simulate` runs, and the first of them.
SEEDS ?= 1000
SEED ?= 0
simulate: $(VENV)/.dev ## Simulate clients, network, disk and broker (SEEDS=100000 for more; SEED=7 begins there)
	PYTHONHASHSEED=0 $(BIN)/python -m tests.simulation --seed $(SEED) --seeds $(SEEDS) $(ARGS)

bench: $(VENV)/.dev servers ## Run every benchmark
	$(BIN)/fanlog bench all $(ARGS)

dist: $(VENV)/.dev ## Build the sdist and the wheel into dist/
	rm -rf dist
	$(BIN)/python -m build --outdir dist .

servers:
	@scripts/install-test-servers

clean: ## Remove the environment, and all that was built
	rm -rf $(VENV) build dist site .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests -type d -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/.made:
	@scripts/setup-venv $(VENV)
	@touch $@

$(VENV)/.core: $(VENV)/.made pyproject.toml
	$(PIP) install --editable .
	@touch $@

$(VENV)/.docs: $(VENV)/.made pyproject.toml
	$(PIP) install --editable '.[docs]'
	@touch $(VENV)/.core $@

$(VENV)/.dev: $(VENV)/.made pyproject.toml
	$(PIP) install --no-compile --editable '.[dev]'
	@touch $(VENV)/.core $(VENV)/.docs $@
