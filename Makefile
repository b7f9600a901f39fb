# Two commands on a fresh machine: `make demo` and `make test`. Both create .venv when it is missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Compiled modules are kept, whatever the surroundings say: every worker and every child would compile them anew.
export PYTHONDONTWRITEBYTECODE :=

# Tests that compare what kernels give, and examples that print it: run once more as on a processor without wide
# registers, where sums are taken in another order. What files, commands and messages do depends on no processor.
NUMERIC := $(addprefix tests/,golden hgdc methods heads covariance test_calibrate.py test_factor_gaussian.py test_ops.py \
	test_presets.py test_speed_paths.py estimators/test_classifiers.py features/test_backbones.py \
	test_docs.py::test_the_readme_prints_what_it_says) $(wildcard src/fewcal/*.py) \
	$(addprefix src/fewcal/,bank covariance estimators heads hgdc methods)
OTHER_PROCESSOR := ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2

# One process more than the two cores of a small machine: some tests wait for a server, a page or a command. What the
# tests of a file share is made once, by the process that runs the file; tests/conftest.py says which files come first.
# The second round only computes: a process for each core.
WORKERS ?= 3
CORES ?= 2
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
PYTEST := $(BIN)/python -m pytest -q --dist loadfile --no-loadscope-reorder

.PHONY: demo test coverage test-slow redteam surroundings lint format bench bench-scale bench-gpu results docs clean

demo: $(STAMP)
	$(BIN)/python -m fewcal.demo

test: $(STAMP) surroundings
	$(PYTEST) -n $(WORKERS)
	$(OTHER_PROCESSOR) $(PYTEST) -n $(CORES) $(NUMERIC)

# Pages are tested in Chromium, shared studies on PostgreSQL. Root on Debian gets them; elsewhere one line says what is
# missing.
surroundings:
	@missing=""; \
	command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
	missing="chromium fonts-dejavu-core"; \
	command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || missing="$$missing postgresql"; \
	test -z "$$missing" || { test "$$(id -u)" = 0 && timeout 60 apt-get update -qq && \
	timeout 300 apt-get install -y -qq --no-install-recommends $$missing; } >/dev/null 2>&1 || \
	echo "tests that need them are skipped: $$missing; only root with apt-get can install it here"

# Lines that no test runs; it makes the suite a quarter slower, so it is a command of its own.
coverage: $(STAMP) surroundings
	$(PYTEST) -n $(WORKERS) --cov --cov-report=term

test-slow: $(STAMP)
	$(BIN)/python -m pytest -q -m slow

# Thousands of damaged files of every format, each read in a child with limits: refused in a line, or counted. Then
# kills, full disks, races and little memory.
redteam: $(STAMP)
	PYTHONPATH=tests $(BIN)/python tests/redteam

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/house.py

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
	$(BIN)/python benchmarks/speed/extract.py

bench-gpu: $(STAMP)
	$(BIN)/python benchmarks/speed/gpu.py

# The page of results from benchmarks/results/*.json.
results: $(STAMP)
	$(BIN)/python benchmarks/record.py

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The exact pins live in constraints.txt; pyproject.toml states the ranges. pip comes first, since older ones read no
# dependency groups; then torch, so that no later requirement can pull another build of it.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("fewcal needs Python 3.11 or newer") if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	$(PIP) torch
	$(PIP) -e '.[all]' --group dev
	touch $@

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .coverage
