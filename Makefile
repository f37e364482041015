# One command each. Everything is installed into .venv; outside the checkout the set-up writes to the installer's cache
# alone.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Versions without hashes: pip refuses hashes beside an editable checkout, and builds of torch differ between indexes.
VERSIONS := $(VENV)/versions.txt
PIP := $(BIN)/python -m pip install -q --no-compile --disable-pip-version-check
# uv resolves and unpacks in parallel, and checks the hash of every file that it installs.
UV := $(BIN)/uv pip install -q --python $(BIN)/python -c requirements.lock
# INSTALLER=pip, for an index that only pip is told of: hashes are not checked.
INSTALL := $(if $(filter pip,$(INSTALLER)),$(PIP) -c $(VERSIONS),$(UV))
# Threads that wait for each other sleep: two processes of tests, each with threads, would burn the time of the other.
# And bitsandbytes, which PEFT imports, does not load torch's compiler: a second of every process that trains.
PATIENT := OMP_WAIT_POLICY=PASSIVE TORCHDYNAMO_DISABLE=1
# Begun first, so that neither of the two processes is alone with them at the end.
LONGEST := tests/integration/orchestrator tests/integration/jobs/test_training.py

.PHONY: help setup quickstart test test-lowest test-plain test-integration test-soak docs lint types bench lock clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-17s %s\n", $$1, $$2}'

setup: $(READY) ## install the locked dependencies into .venv

# torch first, at exactly the locked version: where an index offers a CPU wheel, pip takes that, and what comes after
# finds torch there and does not ask for a build with CUDA. pip would compile on one core only, uv not at all;
# compileall fails for files that a library ships for a later Python, and leaves out large folders of which few files
# are ever imported.
$(READY): setup.cfg requirements.lock
	@echo "setting up $(VENV) (once, a few minutes)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@sed '/--hash/d; s/ *\\$$//' requirements.lock > $(VERSIONS)
	@sed -n '/^uv==/,/[^\\]$$/p' requirements.lock > $(VENV)/uv.txt
	@$(PIP) -c $(VERSIONS) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	@$(PIP) -r $(VENV)/uv.txt
	@$(INSTALL) -e '.[cluster,dev]'
	@$(BIN)/python -m compileall -q -j 0 -x '/(tests?|moto|mteb|transformers/models)/' $(VENV)/lib >/dev/null || true
	@touch $@

quickstart: $(READY) ## set up, then run an iteration on example data and write a report
	@$(BIN)/ratchet run quickstart

test: $(READY) ## set up, then run the unit tests (no Ray cluster, 90 seconds)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow and not soak" --durations=12

# The lowest versions that setup.cfg allows, of what it names itself.
test-lowest: $(READY) ## the unit tests with the lowest versions of the dependencies, in .venv-lowest
	@rm -rf $(VENV)-lowest && $(PYTHON) -m venv $(VENV)-lowest
	@$(BIN)/uv pip compile -q --python $(VENV)-lowest/bin/python --resolution lowest-direct --extra cluster --extra dev \
	    setup.cfg -o $(VENV)-lowest/versions.txt
	@$(BIN)/uv pip install -q --python $(VENV)-lowest/bin/python -r $(VENV)-lowest/versions.txt
	@$(BIN)/uv pip install -q --python $(VENV)-lowest/bin/python --no-deps -e .
	@OMP_NUM_THREADS=1 $(VENV)-lowest/bin/python -m pytest -m "not slow and not soak"

# What `pip install ratchet-train` gives. Printed: the time without torch, and the size. The weights are those of the
# extra `minilm`, since the hub may be out of reach. setuptools leaves its folder in the checkout.
test-plain: $(READY) ## the quickstart in an installation without extras, in .venv-plain
	@rm -rf $(VENV)-plain && $(PYTHON) -m venv --without-pip $(VENV)-plain
	@$(BIN)/python -m pip --python $(VENV)-plain/bin/python install -q --no-compile -c $(VERSIONS) \
	    $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	@start=$$(date +%s) && $(BIN)/uv pip install -q --python $(VENV)-plain/bin/python -c requirements.lock . && rm -rf build && \
	    echo "$$(($$(date +%s) - start)) s, $$(du -sh $(VENV)-plain | cut -f1)"
	@base=$$($(BIN)/python -c 'from ratchet.models.model_files import MINILM, resolve; print(resolve(MINILM))') && \
	    cd $(VENV)-plain && bin/ratchet run quickstart --set questions=60 --set finetune_embedder.epochs=1 --set base=$$base

# Most of these tests wait for processes that they start, so two run at once.
test-integration: $(READY) ## slow unit tests; tests on Ray and DeepSpeed, with killed processes (10 minutes)
	@$(PATIENT) $(BIN)/python -m pytest -m "slow and not soak" --no-loadscope-reorder --durations=30 \
	    $(LONGEST) tests/integration tests/unit

test-soak: $(READY) ## long tests on killed nodes and sweeps, before a release (two hours)
	@$(BIN)/python -m pytest -n 0 --durations=15 tests/soak
	@$(PATIENT) $(BIN)/python -m pytest -m soak --durations=15 tests/unit tests/integration

docs: $(READY) ## the documentation as a site, in .site; a broken link is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

lint: $(READY) ## ruff: style and formatting
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(READY) ## mypy
	@$(BIN)/mypy

bench: $(READY) ## the benchmarks, side by side with what one would use instead
	@$(INSTALL) -e '.[cluster,dev,bench]'
	@for file in inference.embedding inference.mining inference.scoring limits.roofline training.finetune training.finetune_reranker training.evaluation training.contrastive inference.metrics training.sft inference.answers quality.countdown orchestrator.overhead orchestrator.sweep; do echo "== $$file"; $(BIN)/python -m benchmarks.$$file || exit 1; done

# torch first, as in the set-up. The hashes are those of PyPI.
lock: $(READY) ## renew requirements.lock from the ranges in setup.cfg, in a fresh environment
	@rm -rf $(VENV)-lock && $(PYTHON) -m venv $(VENV)-lock
	@$(VENV)-lock/bin/python -m pip install -q --no-cache-dir "$$(sed -n 's/^ *\(torch[<>=].*\)/\1/p' setup.cfg)"
	@$(VENV)-lock/bin/python -m pip install -q --no-cache-dir '.[cluster,dev,bench,aws,math,grpo]'
	@$(VENV)-lock/bin/python -m pip freeze | sed 's/+cpu$$//' | grep -v '^ratchet' > $(VENV)-lock/versions.txt
	@(sed -n '/^#/p' requirements.lock; \
	  $(BIN)/uv pip compile -q --python $(VENV)-lock/bin/python --no-deps --generate-hashes --no-header --no-annotate \
	      $(VENV)-lock/versions.txt) > requirements.new && mv requirements.new requirements.lock
	@rm -rf $(VENV)-lock build

clean: ## remove .venv and results
	rm -rf $(VENV) $(VENV)-plain .ratchet
