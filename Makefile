# Two commands for users: `make run` and `make test`. Each installs what it needs, and no more, in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
SEEDS ?= next:200

# Tests start a thousand processes: none of them should compile what another has compiled.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test all-tests check lint bench soak install format clean

run: install ## The main job: web-server logs through streams and Spark to figures, with a report
	$(BIN)/raftwood demo pipeline

# Three workers for two cores: tests of processes wait a quarter of their time.
test: $(INSTALLED)-dev ## Everything that CI runs: lint and all tests
	$(MAKE) --no-print-directory -j 2 lint all-tests

all-tests: $(INSTALLED)-dev
	$(BIN)/python -m pytest -n 3 --dist worksteal

check: $(INSTALLED)-dev ## Lint and the fast tests, below three minutes
	$(MAKE) --no-print-directory lint
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "not slow"

lint: $(INSTALLED)-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry .

format: $(INSTALLED)-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED)-bench ## Comparisons with peers, ratios in one run; writes benchmarks/results/
	$(BIN)/python -m benchmarks.run

soak: $(INSTALLED)-dev ## Long runs: make soak SEEDS=1000:2000, or next:N; tallies are kept in .soak/
	$(BIN)/python -m tests.soak --seeds $(SEEDS)

install: $(INSTALLED)-demo

# Each level is an extra of pyproject.toml.
$(INSTALLED)-demo $(INSTALLED)-dev $(INSTALLED)-bench: $(INSTALLED)-%: pyproject.toml constraints.txt tools/install.py
	@$(PYTHON) tools/install.py $*
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .cache/bench
