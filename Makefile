# Two commands for users: `make run` and `make test`. Each installs what it needs, and no more, in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# Three for two cores: tests of processes wait a quarter of their time.
WORKERS ?= 3
SEEDS ?= next:200
# A worker that crashes ends the run: xdist may wait for ever for the one that replaces it.
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --max-worker-restart=0

# What `make check PKG=…` covers: a package, or a path in it, as `raft/core` or `src/raftwood/raft`.
NAME := $(patsubst %/,%,$(patsubst tests/unit/%,%,$(patsubst src/raftwood/%,%,$(PKG))))
FAST := tests/unit tests/simulation
SOURCES := $(wildcard src/raftwood/$(NAME) src/raftwood/$(NAME).py)
# Where a part of a package has no tests of its own, the package's tests cover it.
TESTS := $(or $(wildcard $(FAST:%=%/$(NAME))),$(wildcard $(FAST:%=%/$(firstword $(subst /, ,$(NAME))))))
COVERED := $(SOURCES) $(TESTS)
PACKAGES := $(patsubst src/raftwood/%/__init__.py,%,$(wildcard src/raftwood/*/__init__.py))

# Tests start a thousand processes: none of them should compile what another has compiled.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test all-tests check components damage fast-tests lint bench soak install format clean

run: install ## The main job: web-server logs through streams and Spark to figures, with a report
	$(BIN)/raftwood demo pipeline

test: $(INSTALLED)-dev ## Everything that CI runs: lint and all tests; make test WORKERS=6
	$(MAKE) --no-print-directory -j 3 components lint all-tests

components: $(INSTALLED)-dev # Servers and clients of others, fetched and built before their tests come
	@$(BIN)/python -m tests.kits.install

all-tests: $(INSTALLED)-dev
	$(PYTEST)

ifdef PKG
check: $(INSTALLED)-dev ## Lint and the fast tests; make check PKG=clogs for one package
	$(if $(SOURCES),,$(error there is no package $(PKG): name one of $(PACKAGES)))
	$(BIN)/ruff check $(COVERED)
	$(BIN)/ruff format --check $(COVERED)
	$(BIN)/mypy $(COVERED)
	$(PYTEST) $(TESTS)
else
check: $(INSTALLED)-dev
	$(MAKE) --no-print-directory -j 2 lint fast-tests

fast-tests: $(INSTALLED)-dev
	$(PYTEST) $(FAST)
endif

lint: $(INSTALLED)-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry .
	$(BIN)/python tools/remarks.py

format: $(INSTALLED)-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED)-bench ## Comparisons with peers, ratios in one run; writes benchmarks/results/
	$(BIN)/python -m benchmarks.run

damage: $(INSTALLED)-dev ## What becomes of damaged files: every class of file × damage × how many processes
	$(BIN)/python -m tests.damage

soak: $(INSTALLED)-dev ## Long runs: make soak KINDS=raft,fuzz SEEDS=1000:2000, or next:N to go on
	$(BIN)/python -m tests.soak --workers 2 --seeds $(SEEDS) $(if $(KINDS),--only $(KINDS))

install: $(INSTALLED)-demo

# Each level is an extra of pyproject.toml.
$(INSTALLED)-demo $(INSTALLED)-dev $(INSTALLED)-bench: $(INSTALLED)-%: pyproject.toml constraints.txt tools/install.py
	@$(PYTHON) tools/install.py $*
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .cache/bench
