# Every target does its own set-up: a virtual environment in $(VENV), renewed when pyproject.toml or constraints.txt changes.
#
#   make demo            train letters → sounds on real data
#   make demo-baselines  the same with the recurrent model that it is compared with
#   make test            every test            make unit   the fast ones
#   make bench           every engine's speed beside ours on this processor: docs/performance.md (ONLY=decode,encode for some)
#   make lint            every check of style, types, imports, docstrings, spelling
#   make slow            slow and network tests alone
#   make lm-eval         the tests beside EleutherAI's lm-eval, in an environment of its own
#   make parity          our ViT and Swin beside timm's, in an environment of its own
#   make format          let ruff lay out the code
#   make web             build the page of maps from web/ (needs Node 20 or newer); its files are committed
#   make web-check       see that the committed files are what web/ builds
#   make clean           remove caches and builds (runs/ and the environments stay)

VENV ?= .venv
# pydoclint lives apart: docstring_parser_fork, which it needs, overwrites files of docstring_parser, which cyclopts needs.
VENV_PYDOCLINT := $(VENV)-pydoclint
# lm-eval brings thirty packages that nothing else needs, and more than a minute of installing.
VENV_LM_EVAL := $(VENV)-lm-eval
# timm needs torchvision, which works with the torch of its own release alone: a CUDA build, 6 GB.
VENV_PARITY := $(VENV)-parity
PARITY_PINS := torch==2.14.1 torchvision==0.29.1 timm==1.0.31
BIN := $(VENV)/bin
BASE := $(VENV)/.ready
DEV := $(VENV)/.ready-dev
BENCH := $(VENV)/.ready-bench
PYDOCLINT := $(VENV_PYDOCLINT)/.ready
LM_EVAL := $(VENV_LM_EVAL)/.ready
PARITY := $(VENV_PARITY)/.ready
PIP_INSTALL := -m pip install -qq --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo demo-baselines test unit slow lm-eval parity bench lint lint-style lint-types lint-imports lint-docstrings lint-spelling format web web-check clean

help:
	@sed -n 's/^#   //p' Makefile

demo: $(BASE)
	$(BIN)/regard train translate --recipe letters-to-sounds --out runs/letters-to-sounds

demo-baselines: $(BASE)
	$(BIN)/regard train translate --recipe letters-to-sounds-rnn --out runs/letters-to-sounds-rnn

test: $(DEV)
	@tools/install-browser
	$(BIN)/python -m pytest -q

# A worker a core, each of one thread: threads that share a core wait for one another.
unit: $(DEV)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto -m "not slow and not network and not peer"

slow: $(DEV)
	@tools/install-browser
	$(BIN)/python -m pytest -q -m "slow or network"

lm-eval: $(LM_EVAL)
	$(VENV_LM_EVAL)/bin/python -m pytest -q tests/test_lm_eval.py

parity: $(PARITY)
	OMP_NUM_THREADS=1 $(VENV_PARITY)/bin/python -m benchmarks.timm_peer

bench: $(BENCH)
	$(BIN)/python -m benchmarks cpu $(if $(ONLY),--only $(ONLY))

lint: lint-style lint-types lint-imports lint-docstrings lint-spelling

lint-style: $(DEV)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

lint-types: $(DEV)
	$(BIN)/pyrefly check --python-interpreter-path $(BIN)/python --progress-bar no

lint-imports: $(DEV)
	$(BIN)/lint-imports --no-logo

lint-docstrings: $(PYDOCLINT)
	$(VENV_PYDOCLINT)/bin/pydoclint --quiet src

lint-spelling: $(DEV)
	$(BIN)/codespell

format: $(DEV)
	$(BIN)/ruff check --fix --exit-zero
	$(BIN)/ruff format

WEB_ASSETS := src/regard/looking/assets
web: web/node_modules/.ready
	cd web && npm run --silent check && npm run --silent build

web-check: web/node_modules/.ready
	@built=$$(mktemp -d) && trap 'rm -rf "$$built"' EXIT && cd web && npm run --silent check \
	  && LOOK_OUT="$$built" npm run --silent build && diff -rq "$$built" ../$(WEB_ASSETS) && echo "$(WEB_ASSETS) is what web/ builds"

web/node_modules/.ready: web/package.json web/package-lock.json
	cd web && npm ci --no-audit --no-fund
	@touch $@

clean:
	rm -rf build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests tools benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# --------------------------------------------------------------------------------------------------------------- set-up

# $(call make-venv,FOLDER): keep a working environment, make one otherwise, with the first Python of 3.11 or newer that runs.
define make-venv
if ! $(1)/bin/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
  found=; for python in $(PYTHON) python3.11 python3.12 python3.13 python3; do \
    if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$python; break; fi; \
  done; \
  if [ -z "$$found" ]; then \
    echo "regard needs Python 3.11 or newer, and none was found; install one, or say where it is: make PYTHON=/path/to/python3" >&2; exit 1; \
  fi; \
  echo "· $(1): a new environment with $$($$found --version)"; \
  if ! $$found -m venv $(1); then \
    echo "$$found cannot make a virtual environment in $(1); on Debian install python3-venv, and remove $(1) if it is there" >&2; exit 1; \
  fi; \
fi
endef

# torch goes first, so that the build which the constraints name is there before anything asks for a range of versions.
define install
@$(call make-venv,$(VENV))
@echo "· $(VENV): torch (the one large download)"
@$(BIN)/python $(PIP_INSTALL) torch
@echo "· $(VENV): $(2)"
@$(BIN)/python $(PIP_INSTALL) -e '$(1)'
endef

$(BASE): pyproject.toml constraints.txt
	$(call install,.,regard and what it needs)
	@touch $@

$(DEV): pyproject.toml constraints.txt
	$(call install,.[dev],regard$(comma) what it needs and the tools of development)
	@touch $(BASE) $@

$(BENCH): pyproject.toml constraints.txt
	$(call install,.[bench],regard$(comma) what it needs and its peers)
	@touch $(BASE) $@

$(PYDOCLINT): constraints.txt
	@$(call make-venv,$(VENV_PYDOCLINT))
	@$(VENV_PYDOCLINT)/bin/python $(PIP_INSTALL) pydoclint
	@touch $@

$(LM_EVAL): pyproject.toml constraints.txt
	@$(call make-venv,$(VENV_LM_EVAL))
	@echo "· $(VENV_LM_EVAL): torch, regard, lm-eval and what they need"
	@$(VENV_LM_EVAL)/bin/python $(PIP_INSTALL) torch
	@$(VENV_LM_EVAL)/bin/python $(PIP_INSTALL) -e '.[lm-eval]' pytest hypothesis transformers accelerate
	@touch $@

# All pins but that of torch, which is another one here.
$(PARITY): pyproject.toml constraints.txt Makefile
	@$(call make-venv,$(VENV_PARITY))
	@echo "· $(VENV_PARITY): torch and torchvision (6 GB), timm, regard and what they need"
	@grep -v '^torch==' constraints.txt > $(VENV_PARITY)/constraints.txt
	@$(VENV_PARITY)/bin/python -m pip install -qq --disable-pip-version-check -c $(VENV_PARITY)/constraints.txt $(PARITY_PINS) -e .
	@touch $@

comma := ,
