# Two commands do all the set-up on a fresh machine: `make demo` and `make test`.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
EXTRAS := mcp,openai,anthropic,postgres
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist loadfile
# These kill processes hundreds of times, drive real terminals, run CPython's own suites, or install other people's
# servers first.
INSPECTED := tests/integration/mcp/test_real_servers.py
PATIENT := tests/crash tests/terminal tests/integration/mcp/test_conformance.py $(INSPECTED) \
           tests/integration/test_cpython_long_suites.py

.PHONY: demo test mcp-servers test-patient test-all lint types contracts docs bench mutants check format clean

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Handrail needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet -e .
	touch $@

$(VENV)/.developed: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet -e '.[$(EXTRAS)]' --group dev
	touch $@

demo: $(VENV)/.installed
	$(BIN)/python -m handrail.demo

test: $(VENV)/.developed
	$(PYTEST) $(addprefix --ignore=,$(PATIENT))

# Other people's MCP servers and the conformance suite, at the versions of tests/integration/mcp/package-lock.json.
mcp-servers: $(VENV)/.developed
	$(BIN)/python tests/mcp_servers.py

# The Inspector gives each request one minute and takes no other limit, so its tests run alone.
test-patient: mcp-servers
	$(PYTEST) -n 0 $(INSPECTED)
	$(PYTEST) $(filter-out $(INSPECTED),$(PATIENT))

test-all: test test-patient

lint: $(VENV)/.developed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.developed
	$(BIN)/pyright

contracts: $(VENV)/.developed
	$(BIN)/lint-imports

docs: $(VENV)/.developed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(VENV)/.developed
	$(BIN)/python benchmarks/run.py

# Takes an hour on two cores; `mutmut run NAME*` afterwards looks at one room again.
mutants: $(VENV)/.developed
	$(BIN)/python -m pip install --quiet --group mutants
	rm -rf mutants
	PYTHONDONTWRITEBYTECODE= $(BIN)/mutmut run --max-children 2
	$(BIN)/mutmut results

check: lint types contracts test

format: $(VENV)/.developed
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis build dist mutants
