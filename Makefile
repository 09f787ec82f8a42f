# Everything runs in .venv, which the first target that needs it makes. Targets may be given together and in parallel.

PYTHON ?= python3
# Test processes. Two, since the slow tests wait for workers and servers more than they compute.
WORKERS ?= 2
# Further arguments for pytest, the demo or the benchmark, as in: make test ARGS="-k lease"
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
SOURCES := agent_tasks checkpoint
CHECKED := $(SOURCES) tests celeryconfig.py $(wildcard benchmarks)

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint types model mutants attack storm backlog bench versions check format clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(INSTALLED) ## make .venv with the packages, the tools and the servers for tests

# pip learned dependency groups in 25.1, and a fresh environment may bring an older one.
$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
		|| { echo "$(PYTHON) is older than Python 3.10; name another one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) \
		|| { rm -rf $(VENV); echo "$(PYTHON) cannot make an environment; on Debian: apt install python3-venv" >&2; exit 1; }
	@echo "setting up $(VENV), which takes about half a minute" >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --group dev --editable '.[postgres,mysql,redis,flower,zstd]'
	@touch $@

demo: $(INSTALLED) ## kill workers at the worst moments and see what the outside world got (ARGS=--help has its options)
	@$(BIN)/python -m agent_tasks.demo $(ARGS)

test: $(INSTALLED) ## run all tests on real services
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

lint: $(INSTALLED) ## style, and who may import whom
	$(BIN)/python -m ruff check $(CHECKED)
	$(BIN)/python -m ruff format --check $(CHECKED)
	$(BIN)/lint-imports --no-cache

types: $(INSTALLED) ## mypy --strict on both packages
	$(BIN)/python -m mypy

model: $(INSTALLED) ## check the protocol, as designed and with each part taken out
	$(BIN)/python -m tests.model

mutants: $(INSTALLED) ## take one protection after another out of the code, and see that tests notice
	$(BIN)/python -m tests.mutants $(ARGS)

attack: $(INSTALLED) ## pairs of crashes, zombies and wrong step bodies, in process: ARGS="pairs --full --seed 7"
	$(BIN)/python -m tests.attack $(ARGS)

storm: $(INSTALLED) ## kill, freeze, restart and cut off everything around a fleet, by chance: ARGS="--seed 7 --broker rabbitmq"
	$(BIN)/python -m tests.storm $(ARGS)

backlog: $(INSTALLED) ## 20,000 runs that nobody works on for an hour, and then somebody does
	$(BIN)/python -m tests.backlog $(ARGS)

bench: $(INSTALLED) ## measure recovery and speed against their budgets: ARGS="--quick", ARGS="--only trips" are for speed
	$(BIN)/python benchmarks/recovery.py --check
	$(BIN)/python benchmarks/engine.py $(ARGS)

versions: $(INSTALLED) ## the tests that know Celery's insides, on its other versions: ARGS="--celery 5.5 --python python3.13"
	$(BIN)/python -m tests.versions $(ARGS)

check: lint types test ## what a change has to pass

format: $(INSTALLED) ## let ruff rewrite what it can
	$(BIN)/python -m ruff check --fix $(CHECKED)
	$(BIN)/python -m ruff format $(CHECKED)

clean: ## remove .venv and everything that tools and workers left behind
	rm -rf $(VENV) $(VENV)-celery-* build dist agent-data .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
