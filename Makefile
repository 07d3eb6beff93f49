# Two commands for a newcomer: `make demo` and `make test`. Both set up their own .venv first.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
NEWEST := .venv-newest
RUN_DIR ?= runs/demo
# For `make streaming`.
WORK ?= runs/streaming
# Where benchmarks write. Records that are there are continued: another folder measures from the start.
RESULTS ?= bench/results
# Processes that tests start read compiled modules. A shell that forbids to write them would have each one compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE
# Test processes: two more than there are cores, because some tests wait, or so many (JOBS=1). They share what they compile.
JOBS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 2)
SHARED := -n $(JOBS) --maxprocesses 8 --dist worksteal
# Threads of OpenMP that wait leave their core to the other test processes.
TOGETHER := OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -q $(SHARED)
# What failed runs once more, alone. A test that passes then is unstable.
AGAIN := $(BIN)/python -m pytest -q --last-failed --last-failed-no-failures=none
# The files of the tests that run alone: to import all others takes longer than some of these tests.
ALONE = $(shell grep -rl 'mark\.alone' tests --include='test_*.py')

.PHONY: help setup demo test thorough newest quick lint format types layers lines doctest docs accuracy epochs streaming performance clean

help:  ## Show the targets.
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

setup: $(STAMP)  ## Make .venv with exact versions.

$(STAMP): constraints.txt pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt setuptools wheel
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[dev]'
	touch $@

demo: $(STAMP)  ## Train a GCN on the embedded graph and show what it learned.
	$(BIN)/sagann train --data demo --model gcn --encoder linear --hidden 64 --epochs 60 \
		--seed 0 --out $(RUN_DIR) --overwrite

test: $(STAMP)  ## Run the tests of every change; what measures time runs last, alone. What fails runs once more, alone.
	$(TOGETHER) --durations=15 -m "not alone and not thorough" || $(AGAIN)
	$(BIN)/python -m pytest -q -m "alone and not thorough" $(ALONE) || $(AGAIN)

thorough: $(STAMP)  ## Run all tests (about an hour): before a release, after changes of compiler, engines, storage.
	$(TOGETHER) --durations=15 -m "not alone" || $(AGAIN)
	$(BIN)/python -m pytest -q -m alone $(ALONE) || $(AGAIN)
	$(MAKE) newest

newest: $(STAMP)  ## Run every command with the newest releases of what sagann needs, in an environment of its own.
	test -x $(NEWEST)/bin/python || $(PYTHON) -m venv $(NEWEST)
	# PyTorch stays the one that is tested: another release may bring gigabytes of CUDA libraries.
	grep '^torch==' constraints.txt > $(NEWEST)/torch.txt
	$(NEWEST)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --upgrade-strategy eager \
		-c $(NEWEST)/torch.txt -e '.[cuda,graphbolt,metis,pandas,plots,pyg,tensorboard]'
	$(BIN)/python -m pytest -q $(SHARED) --python $(CURDIR)/$(NEWEST)/bin/python tests/cli/test_every_command.py

quick: $(STAMP)  ## Run the tests that take under a few seconds each.
	$(TOGETHER) -m "not slow and not alone and not thorough"

lint: $(STAMP)  ## Lint and check the format.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMP)  ## Format the code.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(STAMP)  ## Check the types.
	$(BIN)/mypy

layers: $(STAMP)  ## Check that imports only go down.
	$(BIN)/lint-imports

lines: $(STAMP)  ## Print lines by folder, and kilobytes of pages, beside their budgets.
	$(BIN)/python -m tests.lines

doctest: $(STAMP)  ## Run the examples in docstrings.
	$(BIN)/python -m pytest -q --doctest-modules sagann

docs: $(STAMP)  ## Build the site of docs/ and of all public names into build/site; warnings are errors.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

accuracy: $(STAMP)  ## Reproduce the published accuracies (an hour or more; RESULTS=folder to start anew; SAGANN_DATA=folder of its graphs).
	$(BIN)/python -m bench.accuracy --results $(RESULTS)/accuracy.jsonl --out docs/accuracy.md

epochs: $(STAMP)  ## Time epochs against PyG, and DGL where DGL=path/to/its/python (some hours).
	$(BIN)/python -m bench.epochs --defaults --results $(RESULTS)/defaults.jsonl $(if $(DGL),--dgl $(DGL))
	$(BIN)/python -m bench.epochs --results $(RESULTS)/epochs.jsonl $(if $(DGL),--dgl $(DGL))

streaming: $(STAMP)  ## Time epochs within memory budgets, and count what plans move (about an hour; 40 GB below WORK=folder/on/a/disk).
	$(BIN)/python -m bench.streaming --work $(WORK) --rounds 3 --datasets reddit-middle --models gcn > $(RESULTS)/streaming.md
	$(BIN)/python -m bench.streaming --work $(WORK) --rounds 3 --datasets reddit-small --models gcn gat ggnn gated-gcn >> $(RESULTS)/streaming.md
	$(BIN)/python -m bench.streaming --work $(WORK) --rounds 2 --datasets reddit-middle --models gated-gcn >> $(RESULTS)/streaming.md
	$(BIN)/python -m bench.papers.neugraph orders --models gcn gat ggnn maxpool-gcn gated-gcn > $(RESULTS)/neugraph.md
	$(BIN)/python -m bench.papers.neugraph visits --models maxpool-gcn --simulations 30 >> $(RESULTS)/neugraph.md
	$(BIN)/python -m bench.papers.neugraph rows --datasets amazon reddit-small --by metis --models gated-gcn --share 16 --hidden 64 --host ram >> $(RESULTS)/neugraph.md
	$(BIN)/python -m bench.size --work $(WORK) --memory 3GiB --hidden 64 $(if $(DGL),--dgl $(DGL)) > $(RESULTS)/size.md

performance: $(STAMP)  ## Write docs/performance.md from bench/results.
	$(BIN)/python -m bench.performance_page

clean:  ## Remove the environment and all caches.
	rm -rf $(VENV) $(NEWEST) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache runs
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
