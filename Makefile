.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c

CONFIG ?= configs/digits.yaml
HARDWARE ?=
TARGET ?= local
ENGINE ?= tensorflow
PROCESSES ?= 4
SUITE ?= trixie
# With PYTHON given, environments of another version are made again; otherwise they are kept.
ifdef PYTHON
.PHONY: $(shell for venv in .venv .venv-engines; do [ ! -e $$venv ] || [ "$$($$venv/bin/python -V 2>&1)" = "$$($(PYTHON) -V 2>&1)" ] || echo $$venv/.installed; done)
endif
SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do $$python -c '$(SUPPORTED)' 2>/dev/null && echo $$python && break; done)

LOCK := requirements/development.txt
STAMP := .venv/.installed
BIN := .venv/bin
ENGINES_LOCK := requirements/engines.txt
ENGINES_STAMP := .venv-engines/.installed
ENGINES_BIN := .venv-engines/bin
# A dependency of PyTorch's GPU builds; importing it at the wrong moment crashes the process.
TRITON := triton==3.7.1; sys_platform == 'linux'
pinned = $(shell sed -n 's/.*"\($(1)==[^"]*\)".*/\1/p' pyproject.toml)
# An environment of another Python version is replaced, not reused.
venv = [ "$$($(1)/bin/python -V 2>&1)" = "$$($(PYTHON) -V)" ] || rm -rf $(1); $(PYTHON) -m venv $(1)
options = -c $(CONFIG) $(if $(HARDWARE),--hardware '$(HARDWARE)')

# uv trusts what the machine trusts, as pip does: a company's proxy has a certificate of its own.
export UV_SYSTEM_CERTS := true
# Runs and tests start many interpreters: let them cache their bytecode.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## List the make targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | while IFS=$$'\t' read -r name text; do printf '  %-14s %s\n' "$$name" "$$text"; done
	@echo
	@echo "  variables      CONFIG=$(CONFIG) HARDWARE=$(or $(HARDWARE),as configured) TARGET=$(TARGET) ENGINE=$(ENGINE) PROCESSES=$(PROCESSES)"

.PHONY: install
install: $(STAMP) ## Create .venv with everything that run-pipeline, test and lint need

$(STAMP): $(LOCK) pyproject.toml
	@$(or $(PYTHON),false) -c '$(SUPPORTED)' || { echo "error: Slipway needs Python 3.11, 3.12 or 3.13, and $(or $(PYTHON),python3) is none of them: make PYTHON=/path/to/python3.13" >&2; exit 1; }
	$(call venv,.venv)
	$(BIN)/python -m pip install --quiet "$$(sed -n 's/^\(uv==[^ ]*\).*/\1/p' $(LOCK))"
	$(BIN)/uv pip sync --quiet --python $(BIN)/python --compile-bytecode --require-hashes $(LOCK)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

.PHONY: run-pipeline
run-pipeline: $(STAMP) ## Run the whole pipeline (CONFIG, HARDWARE, TARGET)
	$(BIN)/slipway run $(options) --target $(TARGET)

.PHONY: rehearse
rehearse: $(STAMP) ## Run a worker layout locally for a few steps (CONFIG, HARDWARE)
	$(BIN)/slipway rehearse $(options)

.PHONY: compile
compile: $(STAMP) ## Compile the pipeline for TARGET to spec.yaml (CONFIG, HARDWARE)
	$(BIN)/slipway config compile $(options) --target $(TARGET) -o spec.yaml

.PHONY: check
check: lint ## Lint and run the fast tests, in about four minutes
	$(BIN)/python -m pytest -m 'not slow' --durations 5

.PHONY: test
test: $(STAMP) ## Run the tests, but the long ones and those of browsers, engines and containers (COSTS=FILE: their seconds)
	$(BIN)/python -m pytest -m 'not long' $(if $(COSTS),-p tests.costs --costs=$(COSTS))

.PHONY: test-long
test-long: $(STAMP) ## Run the long tests (soak tests, the wheel, notebooks), and the property tests with more examples
	$(BIN)/python -m pytest -m 'long or hypothesis' --hypothesis-profile thorough

# Of the engines and in containers, too, the long tests run with the others only.
UNLESS_LONG := -m 'not long'
.PHONY: test-all
test-all: UNLESS_LONG :=
test-all: test test-long test-browser test-engines test-containers ## Run all tests, as before a release

.PHONY: test-browser
test-browser: $(STAMP) ## Test the pages in Chromium (skips without it; SLIPWAY_CHROMIUM=PATH)
	$(BIN)/python -m pytest -n 2 tests/browser

.PHONY: test-engines
test-engines: $(ENGINES_STAMP) ## Test the jax and pytorch engines, in a separate environment
	SLIPWAY_TEST_ENGINE=jax $(ENGINES_BIN)/python -m pytest -n 2 $(UNLESS_LONG) tests/engines
	SLIPWAY_TEST_ENGINE=pytorch $(ENGINES_BIN)/python -m pytest -n 2 $(UNLESS_LONG) tests/engines

# PyTorch is installed with pip and without hashes, so that pip picks the build this machine is configured for, such as CPU-only.
$(ENGINES_STAMP): $(LOCK) $(ENGINES_LOCK) pyproject.toml | $(STAMP)
	$(call venv,.venv-engines)
	$(BIN)/uv pip sync --quiet --python $(ENGINES_BIN)/python --compile-bytecode --require-hashes $(LOCK) $(ENGINES_LOCK)
	$(ENGINES_BIN)/python -m pip --version >/dev/null 2>&1 || $(ENGINES_BIN)/python -m ensurepip >/dev/null
	$(ENGINES_BIN)/python -m pip install --quiet '$(call pinned,torch)'
	$(BIN)/uv pip install --quiet --python $(ENGINES_BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

.PHONY: chaos
chaos: $(if $(filter tensorflow,$(ENGINE)),$(STAMP),$(ENGINES_STAMP)) ## Kill training workers at random and verify that the final weights are unchanged (ENGINE, PROCESSES, SLIPWAY_SEED)
	$(if $(filter tensorflow,$(ENGINE)),$(BIN),$(ENGINES_BIN))/python -m tests.chaos --engine $(ENGINE) --processes $(PROCESSES)

.PHONY: chaos-links
chaos-links: $(if $(filter tensorflow,$(ENGINE)),$(STAMP),$(ENGINES_STAMP)) ## Cut links between replicas, freeze replicas, and verify who is blamed and that the weights are unchanged (root, ENGINE)
	$(if $(filter tensorflow,$(ENGINE)),$(BIN),$(ENGINES_BIN))/python -m tests.chaos.links --engine $(ENGINE)

.PHONY: chaos-tpus
chaos-tpus: $(STAMP) ## Kill launchers and hosts of TPUs at random while calls fail, and verify that no TPU is left (SLIPWAY_SEED)
	$(BIN)/python -m tests.chaos.tpus

.PHONY: chaos-resume
chaos-resume: $(STAMP) ## Resume runs by several commands at once for ten minutes, kill them at random, and verify that one trains, to the same weights (SLIPWAY_SEED)
	$(BIN)/python -m tests.chaos.resume --seconds 600

.PHONY: chaos-serving
chaos-serving: $(STAMP) ## Attack the prediction server for ten minutes, then move its champion for ten while reads fail, and verify every answer
	$(BIN)/python -m tests.chaos.serving --seconds 600 --attacks --restart 60
	$(BIN)/python -m tests.chaos.serving --seconds 600 --reload 5

.PHONY: chaos-disk
chaos-disk: $(STAMP) ## Fail every disk operation in turn, damage checkpoints, and cut the power 20 times during each of two runs (SLIPWAY_SEED)
	SLIPWAY_FAULTS=all SLIPWAY_CUTS=$${SLIPWAY_CUTS:-20} $(BIN)/python -m pytest -n 0 -rP --timeout 7200 tests/chaos/test_faults.py tests/trainer/checkpoint/test_store.py tests/chaos/test_power.py

.PHONY: test-containers
test-containers: $(STAMP) ## Build images and run the pipeline in containers (skips what this machine lacks)
	$(BIN)/python -m pytest -n 0 -ra --timeout 2400 $(UNLESS_LONG) tests/containers

.PHONY: test-debian
test-debian: ## Run the README's commands on a minimal Debian, as an ordinary user (SUITE, root, debootstrap)
	tests/debian $(SUITE)

.PHONY: test-cluster
test-cluster: $(STAMP) ## Run the tests of the Kubernetes API and of the rights against a real kube-apiserver (skips without KUBEBUILDER_ASSETS)
	SLIPWAY_TEST_CLUSTER=1 $(BIN)/python -m pytest -n 0 -rs tests/fidelity/test_kubernetes.py tests/fidelity/test_kubernetes_access.py tests/fidelity/test_kubernetes_objects.py tests/pipelines/platforms/kubeflow/test_access.py

.PHONY: docs
docs: | $(STAMP) ## Build the site of docs/ with search, in build/site; a broken link fails
	[ -x .venv-docs/bin/mkdocs ] || { $(call venv,.venv-docs); $(BIN)/uv pip install --quiet --python .venv-docs/bin/python '$(call pinned,mkdocs-material)'; }
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --quiet

.PHONY: test-outside
test-outside: $(STAMP) ## Test against servers that others wrote (skips without SLIPWAY_STORAGE_TESTBENCH)
	$(BIN)/python -m pytest -n 0 -ra tests/outside

.PHONY: lint
lint: $(STAMP) ## Check style, types and the import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: bench
bench: $(STAMP) ## Run the benchmarks (IMAGES=folder of split/class/*.png)
	$(BIN)/python -m benchmarks.pipeline_overhead
	$(BIN)/python -m benchmarks.pipeline_overhead --cifar
	$(BIN)/python -m benchmarks.scale
	$(BIN)/python -m benchmarks.step_rate
	$(BIN)/python -m benchmarks.write_rate $(if $(IMAGES),--images $(IMAGES))
	$(BIN)/python -m benchmarks.read_rate
ifdef IMAGES
	$(BIN)/python -m benchmarks.memory --images $(IMAGES)
else
	@echo "memory needs images, for example MNIST's: make bench IMAGES=FOLDER"
endif

.PHONY: lock
lock: $(STAMP) ## Upgrade and lock the dependencies in requirements/
	$(BIN)/uv pip compile --quiet --upgrade $(addprefix --extra ,cloud beam huggingface mcp notebook serving trees tune development) --universal --generate-hashes --python-version 3.11 pyproject.toml -o $(LOCK)
	printf '%s\n' '$(call pinned,jax)' "$(call pinned,libtpu)" "$(call pinned,jax-cuda12-pjrt)" "$(call pinned,jax-cuda12-plugin)" "$(TRITON)" | $(BIN)/uv pip compile --quiet - --constraints $(LOCK) --universal --generate-hashes --python-version 3.11 -o $(ENGINES_LOCK)

	cd requirements && for image in *.in; do ../$(BIN)/uv pip compile --quiet --upgrade --generate-hashes --no-emit-package kfp-server-api --python-version 3.11 --python-platform x86_64-manylinux_2_31 $$image -o $${image%.in}.txt; done

.PHONY: clean
clean: ## Remove caches and virtual environments; keep runs, datasets and models
	rm -rf .venv .venv-engines .venv-docs build *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
