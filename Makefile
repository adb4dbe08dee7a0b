# One command index, the same on a laptop and in CI. `make help` lists it.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/bash
BIN := .venv/bin
STAMP := .venv/.weir-setup
PYTEST_ARGS ?=
WORKERS ?= 3

.PHONY: help setup check binaries test cluster e2e coverage demo bench faults claims docs crds images lock compiled clean

help:  ## list the commands
	@sed -nE 's/^([a-z0-9]+):.*  ## (.*)/\1\t\2/p' Makefile | expand -t 12

setup: $(STAMP)  ## make the environment (every other command does it first)

$(STAMP): requirements/dev.txt requirements/bootstrap.txt pyproject.toml scripts/setup.sh
	@scripts/setup.sh

check: $(STAMP)  ## lint, format, types, layering, and the tests that hold the documentation
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m weir_operator.api.generate crds --check
	$(BIN)/pytest -q tests/docs

binaries: $(STAMP)  ## what a Kubernetes API server needs, built once from Go modules (tests need it)
	$(BIN)/python -m e2e.cluster.binaries api helm

test: $(STAMP) binaries  ## all tests, three at a time (WORKERS for more, PYTEST_ARGS for options)
	$(BIN)/pytest -q --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

cluster: $(STAMP)  ## a real Kubernetes of one node on this machine, until Ctrl-C (needs root)
	$(BIN)/python -m e2e.cluster.binaries api helm node
	$(BIN)/python -m e2e.cluster

e2e: $(STAMP)  ## the whole path on such a cluster: chart, vLLM pods, batches (needs root)
	$(BIN)/python -m e2e.cluster.binaries api helm node
	$(BIN)/pytest -q e2e $(PYTEST_ARGS)

coverage: $(STAMP) binaries  ## all tests with branch coverage; the engine must be at 100%
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -q $(PYTEST_ARGS)
	$(BIN)/coverage report
	$(BIN)/coverage report --include='*/weir_engine/*' --fail-under=100

demo: $(STAMP)  ## batch beside online traffic on a real engine, live, then a table (ARGS for options)
	$(BIN)/weir demo $(ARGS)

bench: $(STAMP)  ## every benchmark; writes benchmarks/results/*.json
	scripts/bench.sh

faults: $(STAMP)  ## kill each process ten times at random moments of a batch; print a table
	$(BIN)/python -m benchmarks.faults

claims: $(STAMP)  ## what the benchmarks claim, the unmet first
	$(BIN)/python -m benchmarks.claims

docs: $(STAMP)  ## regenerate the generated parts of README.md, docs/ and the chart
	$(BIN)/python -m scripts.generate_chart
	$(BIN)/python -m scripts.generate_docs

crds: $(STAMP)  ## regenerate crds/ from the operator's object models
	$(BIN)/python -m weir_operator.api.generate crds

images:  ## build the images of operator, control plane and agent (images/build.sh has the options)
	images/build.sh

compiled: $(STAMP)  ## the engine in C, for simulations and benchmarks (needs a C compiler)
	$(BIN)/python -m scripts.compile_engine

lock: $(STAMP)  ## compile requirements/*.txt from pyproject.toml
	scripts/lock.sh

clean:  ## remove everything that these commands made
	rm -rf .venv .cache .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis \
	    .import_linter_cache dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
