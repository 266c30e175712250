# From a bare clone, with Python and make: `make demo`, `make test`. Another Python: PYTHON=python3.12 make test

PYTHON ?= python3
BIN = .venv/bin
PYTEST = $(BIN)/python -m pytest
ARGS =
seed = 0
count = 100

.DEFAULT_GOAL = help
.PHONY: help setup demo test lint docs test-slow torture mutate reproduce clean

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1: /p' Makefile

setup:
	@command -v $(PYTHON) >/dev/null 2>&1 || { \
	  echo "set-up: there is no '$(PYTHON)' here. hopflow needs Python 3.11 to 3.14." >&2; \
	  echo "Install one, then name it: PYTHON=python3.12 make test" >&2; exit 3; }
	@$(PYTHON) tools/set_up.py

demo: setup  ## set everything up in .venv, train two small flows and compare their hops; minutes
	@$(BIN)/hopflow demo

test: setup  ## set everything up in .venv and run the fast tests; ARGS="-k name" chooses
	$(PYTEST) -n 2 $(ARGS)

lint: setup  ## ruff format, ruff, mypy
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy src

docs: setup  ## build the documentation's site into build/site, offline; every link must lead somewhere
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

test-slow: setup  ## the slow tests: wheel, long statistics
	$(PYTEST) -n 2 -m slow $(ARGS)

torture: setup  ## the torture tests: long fault and fuzz campaigns, with a table of what was lost; under an hour
	$(PYTEST) -n 2 --dist worksteal -o timeout=3000 -m torture $(ARGS)

mutate: setup  ## change the code in small ways and list what no test notices; seed=0 count=100; an hour
	$(BIN)/python tools/mutate.py run --seed $(seed) --count $(count)

reproduce: setup  ## train Table 1 again at laptop size; hours
	$(BIN)/hopflow reproduce morse --json runs/morse.json

clean:  ## remove caches and build products; .venv stays (rm -rf .venv starts afresh)
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
