# Everything a fresh machine needs: `make demo` shows taskd at work, `make test` runs every check a change has to pass.
# Both rest on `make venv`, which does its work once and again only when what it depends on has changed.
#
# PYTHON    the interpreter that .venv is made from (python3; 3.10 or newer)
# MAX_JOBS  how many compilers may run at once
# ARGS      more arguments for pytest, for instance: make test ARGS="-m 'not slow' tests/core"

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN := $(BIN)/python -m
ARGS ?=
TESTS := $(BIN)/python tools/gate.py
SLOWEST ?= --durations=15 --durations-min=1
# Called through the interpreter, like every tool here: a script's first line would hold .venv's path of birth.
CLANG_FORMAT := $(BIN)/python -c 'from clang_format import clang_format; clang_format()'

# The checkout's path is part of the stamps' names: a .venv that was copied or moved here from another one, stamps
# included, is set up again, since its editable install points at the other.
HERE := $(subst /,_,$(CURDIR))
PINS := $(VENV)/.pins$(HERE)
BUILT := $(VENV)/.built$(HERE)
SOURCES := $(shell find csrc 2>/dev/null)
CXX_FILES := $(filter %.cpp %.h %.hpp,$(SOURCES))

.DELETE_ON_ERROR:
.PHONY: help venv demo docs test test-full test-rest test-starved test-timing lint format clean

help:
	@echo "make demo    train on two simulated nodes and watch taskd look after it"
	@echo "make test    the gate: lint, then every test that a change has to pass"
	@echo "make test-full    test-rest, what the gate leaves out (storms, many seeds...); test-starved, the gate with half a core"
	@echo "make test-timing  how quick it is, on a machine that does nothing else"
	@echo "make lint    ruff, mypy, clang-format, changing nothing"
	@echo "make format  put the formatting right"
	@echo "make docs    build the site of the documentation into build/site"
	@echo "make venv    only set up .venv and build the extensions"
	@echo "make clean   remove what was built (.venv stays)"

venv: $(BUILT)

$(PINS): requirements.txt
	@tools/make_venv.sh "$(PYTHON)" "$(VENV)"
	@touch $@

$(BUILT): $(PINS) setup.py pyproject.toml taskd_compat.pth $(SOURCES)
	@echo "taskd: building the extensions (some minutes the first time, then only what changed)"
	@touch $@.begun
	$(BIN)/python setup.py -q build_ext --inplace
	$(RUN) pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
	@mv $@.begun $@  # with the time it began at: what was edited since is built next time

demo: $(BUILT)
	@$(BIN)/python samples/demo.py

docs: $(BUILT)
	NO_MKDOCS_2_WARNING=1 $(RUN) mkdocs build --quiet

test: lint
	$(RUN) tests.sanitized memory
	$(TESTS) gate -n 3 $(SLOWEST) $(ARGS)

test-full: test-rest test-starved

test-rest: lint
	$(RUN) tests.sanitized memory races
	$(TESTS) full -n 3 $(SLOWEST) $(ARGS)

test-starved: lint
	$(RUN) tests.sanitized memory
	$(TESTS) gate -n 3 --starve $(SLOWEST) $(ARGS)

test-timing: $(BUILT)
	$(TESTS) timing $(ARGS)

lint: $(BUILT)
	$(RUN) ruff check --quiet --output-format concise .
	$(RUN) ruff format --check --quiet --output-format concise .
	$(if $(CXX_FILES),$(CLANG_FORMAT) --dry-run -Werror $(CXX_FILES))
	$(RUN) mypy --no-error-summary

format: $(BUILT)
	$(RUN) ruff check --quiet --fix-only .
	$(RUN) ruff format --quiet .
	$(if $(CXX_FILES),$(CLANG_FORMAT) -i $(CXX_FILES))

clean:
	rm -rf build dist taskd.egg-info .hypothesis .ruff_cache $(VENV)/.built_*
	find taskd -name '*.so' -delete
	find taskd tests samples tools -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
