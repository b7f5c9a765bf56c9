# The only entrance: `make` lists the targets.
PYTHON ?= python3
DATA_DIR ?= data
SEEDS ?= 10
WORKERS ?= 2
TOPOLOGY ?= v3:16x8

VENV := .venv
RUN := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
PROXIES := lars:digits nesterov:digits shampoo:digits sm3:digits

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow lint lock data report bench chaos reproduce plan test-tpu mlperf-check study-digits study-fashion

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(INSTALLED)  ## virtual environment with the locked versions (EXTRA=slurm or tpu for more)
ifdef EXTRA
	$(RUN) -m pip install --quiet --require-hashes -r requirements-$(EXTRA).lock
endif

# The stamp is written last, so an interrupted installation is taken up again.
$(INSTALLED): requirements.lock
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v < (3, 14) else f"Python {v[0]}.{v[1]} found; 3.11, 3.12 or 3.13 is needed: make setup PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	@echo "installing the locked versions: a minute or two, 2.6 GB"
	$(RUN) -m pip install --quiet --require-hashes -r requirements.lock
	@touch $@

demo: $(INSTALLED)  ## LARS, Nesterov, Shampoo and SM3 x 10 seeds on digits, ends with the table
	$(RUN) sweep.py --recipes="$(PROXIES)" --seeds=0:$(SEEDS) --out=results/demo --workers=$(WORKERS)
	$(RUN) report.py results/demo --json=results/demo/report.json --html=results/demo/report.html

test: $(INSTALLED)  ## the test suite
	$(RUN) -m pytest -n 2 --dist=loadfile -m "not slow and not tpu"

test-slow: $(INSTALLED)  ## the tests that take longer
	$(RUN) -m pytest -m slow

lint: $(INSTALLED)  ## ruff and mypy
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy .

data: $(INSTALLED)  ## ImageNet from the two ILSVRC tars: MANUAL_DIR=... [DATA_DIR=data]
	$(RUN) -m input_pipeline --name=imagenet2012 --data_dir=$(DATA_DIR) --manual_dir=$(MANUAL_DIR)

report: $(INSTALLED)  ## table, report.json and report.html of DIR=results/demo
	$(RUN) report.py $(DIR) --json=$(DIR)/report.json --html=$(DIR)/report.html
report: DIR ?= results/demo

study-digits: $(INSTALLED)  ## tune and measure the optimizers on digits, in parts if need be
	env PYTHON=$(RUN) WORKERS=$(WORKERS) bash studies/digits.sh

study-fashion: $(INSTALLED)  ## the same on Fashion-MNIST, with budget ladders and batch sizes
	env PYTHON=$(RUN) WORKERS=$(WORKERS) bash studies/fashion.sh

bench: $(INSTALLED)  ## speed as ratios [PEER=a checkout of google-research/precondition]
	nice $(RUN) -m benchmarks.optimizers
ifdef PEER
	nice $(RUN) -m benchmarks.optimizers --peer=$(PEER)
endif
	nice $(RUN) -m benchmarks.input_pipeline
	nice $(RUN) -m benchmarks.checkpoints

chaos: $(INSTALLED)  ## kills processes of sweeps at random: KILLS=30, SEED=0
	$(RUN) tests/chaos.py --kills=$(KILLS) --seed=$(SEED)
chaos: KILLS ?= 30
chaos: SEED ?= 0

reproduce: $(INSTALLED)  ## the published comparison, on every host of a pod: DATA_DIR=... [OUT= SEEDS= RECIPES= ARGS=]
	$(RUN) reproduce.py --data_dir=$(DATA_DIR) --out=$(OUT) --seeds=0:$(SEEDS) --recipes="$(RECIPES)" $(ARGS)
reproduce: SEEDS = 50
reproduce: RECIPES ?= lars:mlperf_v07 nesterov:nado shampoo:readme
reproduce: OUT ?= runs/reproduce

plan: $(INSTALLED)  ## every published recipe compiled for a TPU pod, no TPU needed [TOPOLOGY=v3:16x8]
	$(MAKE) setup EXTRA=tpu
	$(RUN) pod_plan.py --all --topology=$(TOPOLOGY)

test-tpu: $(INSTALLED)  ## the ahead-of-time tests, with the TPU compiler
	$(MAKE) setup EXTRA=tpu
	$(RUN) -m pytest -m "tpu and not slow"

mlperf-check: $(INSTALLED)  ## MLCommons' own checkers on the logs below DIR
	$(RUN) -m mlperf.check $(DIR)

lock:  ## renew the lock files from pyproject.toml (needs uv)
	$(COMPILE) --extra dev pyproject.toml -o requirements.lock
	for extra in slurm tpu; do $(COMPILE) --no-annotate -c requirements.lock --extra $$extra pyproject.toml -o requirements-$$extra.lock; done
lock: COMPILE = uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --extra harness
