# The only entrance: `make` lists the targets.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup lock lint test demo report

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(INSTALLED)  ## virtual environment with the locked versions

# The stamp is written last, so an interrupted installation is taken up again.
$(INSTALLED): requirements.lock
	$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info < (3, 14) else f"Python {sys.version.split()[0]} found; 3.11, 3.12 or 3.13 is needed: make setup PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --require-hashes -r requirements.lock
	@touch $@
