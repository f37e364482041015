# One command each. Everything is installed into .venv; nothing is written outside the checkout by the set-up.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
EXTRA ?= cpu
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready-$(EXTRA)
# Threads that wait for each other sleep: two processes of tests, each with threads, would burn the time of the other.
PATIENT := OMP_WAIT_POLICY=PASSIVE

.PHONY: help setup quickstart test test-slow test-soak lint types bench lock clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(READY) ## install the locked dependencies into .venv (EXTRA=gpu for faiss-gpu)

# torch by itself and first, at exactly the locked version: where an index offers a CPU wheel, pip takes that, and
# what comes after finds torch there and does not ask for a build with CUDA.
$(READY): setup.cfg requirements.lock
	@echo "setting up $(VENV) (once, a few minutes)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --no-cache-dir --disable-pip-version-check -c requirements.lock torch
	@$(BIN)/python -m pip install -q --no-cache-dir --disable-pip-version-check -c requirements.lock -e '.[$(EXTRA),dev]'
	@touch $@

quickstart: $(READY) ## set up, then run two iterations on generated data and write a report
	@$(BIN)/ratchet run quickstart

test: $(READY) ## set up, then run the tests
	@$(PATIENT) $(BIN)/python -m pytest --durations=12

# Those that start and kill processes wait most of the time, so two run at once; those that train have all cores.
test-slow: $(READY) ## the tests that take minutes
	@$(PATIENT) $(BIN)/python -m pytest -m slow -n 2 --durations=6 tests/orchestrator
	@$(BIN)/python -m pytest -m slow -n 0 --durations=12 --ignore=tests/orchestrator

test-soak: $(READY) ## long tests on killed processes and sweeps, for before a release
	@$(BIN)/python -m pytest -m soak -n 0 --durations=12

lint: $(READY) ## ruff: style and formatting
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(READY) ## mypy
	@$(BIN)/mypy

bench: $(READY) ## the benchmarks, side by side with what one would use instead
	@$(BIN)/python -m pip install -q --no-cache-dir --disable-pip-version-check -c requirements.lock -e '.[$(EXTRA),dev,bench]'
	@for file in embedding mining scoring finetune finetune_reranker contrastive metrics sft answers countdown overhead sweep; do echo "== $$file"; $(BIN)/python -m benchmarks.$$file || exit 1; done

lock: ## renew requirements.lock from setup.cfg, in a fresh environment
	@rm -rf $(VENV)-lock && $(PYTHON) -m venv $(VENV)-lock
	@$(VENV)-lock/bin/python -m pip install -q --no-cache-dir torch==$$(sed -n 's/^ *torch==//p' setup.cfg)
	@$(VENV)-lock/bin/python -m pip install -q --no-cache-dir '.[cpu,dev,bench,aws]'
	@(sed -n '/^#/p' requirements.lock; \
	  $(VENV)-lock/bin/python -m pip freeze | sed 's/+cpu$$//' | grep -v '^ratchet'; \
	  sed -n 's/^gpu = //p' setup.cfg) > requirements.new && mv requirements.new requirements.lock
	@rm -rf $(VENV)-lock build

clean: ## remove .venv and results
	rm -rf $(VENV) .ratchet
