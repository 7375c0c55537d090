# Two commands for users: `make run` and `make test`. Each sets up all it needs in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SEEDS ?= next:200

# Tests start a thousand processes: none of them should compile what another has compiled.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test all-tests check lint bench soak install format clean

run: install ## The main job: web-server logs through streams and Spark to figures, with a report
	$(BIN)/raftwood demo pipeline

# Three workers for two cores: tests of processes wait a quarter of their time.
test: install ## Everything that CI runs: lint and all tests
	$(MAKE) --no-print-directory -j 2 lint all-tests

all-tests: install
	$(BIN)/python -m pytest -n 3 --dist worksteal

check: install ## Lint and the fast tests, below three minutes
	$(MAKE) --no-print-directory lint
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "not slow"

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry .

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: install ## Comparisons with peers, ratios in one run; writes benchmarks/results/
	$(BIN)/python -m benchmarks.run

soak: install ## Long runs: make soak SEEDS=1000:2000, or next:N; tallies are kept in .soak/
	$(BIN)/python -m tests.soak --seeds $(SEEDS)

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Raftwood needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 …")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
		{ echo "cannot make a virtual environment: install Python's venv module (python3-venv)"; exit 1; }
	@echo "installing into $(VENV) …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $(STAMP)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .cache/bench
