# Two commands on a fresh machine: `make demo` and `make test`. Both create .venv when it is missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-slow lint format bench bench-scale bench-gpu docs clean

demo: $(STAMP)
	$(BIN)/python -m fewcal.demo

test: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 --cov --cov-report=term

test-slow: $(STAMP)
	$(BIN)/python -m pytest -q -m slow

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP)
	$(BIN)/python benchmarks/speed/run.py

# Banks of 20,000 classes, 1000 ways, growth with every size, floors of each stage: about ten minutes on two cores.
bench-scale: $(STAMP)
	$(BIN)/python benchmarks/speed/bigbank.py
	$(BIN)/python benchmarks/speed/ways.py
	$(BIN)/python benchmarks/speed/floors.py
	$(BIN)/python benchmarks/speed/growth.py

bench-gpu: $(STAMP)
	$(BIN)/python benchmarks/speed/gpu.py

docs: $(STAMP)
	$(BIN)/mkdocs build --strict

# The exact pins live in constraints.txt; pyproject.toml states the ranges. torch comes first and pinned, so that
# no later requirement can pull another build of it.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("fewcal needs Python 3.11 or newer") if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all,dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .coverage
