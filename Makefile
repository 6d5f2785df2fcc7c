# make demo   train a GUI agent with stock veRL on this machine, without a GPU
# make test   the test suite
# make test-slow  the tests that take minutes each, which `make test` leaves out
# make test-pure  the tests that need no veRL, no Ray, no Torch and no desktop, on PYTHON in an environment of their own
# make mutants  changes of the code that no test notices; MUTANTS='arpo_verl.replay.choice*' takes some of them
# make docs   the documents and the public docstrings as a site, in site/
# make setup  what both need: Debian packages and a virtual environment; a second run repeats nothing
# make osworld-packages  the programs that OSWorld's own tasks work with; `make test` installs them, `make demo` does not
# make dist   the wheel and the source archive, checked, in dist/
# Variables: PYTHON (3.10 or newer) makes the virtual environment; RUN_DIR takes the demo's output, and an interrupted
# demo goes on when given its RUN_DIR again; RECIPE_ARGS are added to the training command.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PURE = .cache/pure-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
PURE_TESTS := $(addprefix tests/,actions environments records replay rollout tasks viewer test_reward.py)
POLICY := .cache/policy
RUN_DIR ?= runs/demo-$(shell date +%Y%m%d-%H%M%S)
RECIPE_ARGS ?=
PYTEST_ARGS ?=
MUTANTS ?=
# Container images often set it. Without bytecode each of the trainer's dozen processes compiles thousands of modules anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup packages osworld-packages demo test test-slow test-pure mutants lint docs dist clean

help:
	@sed -n 's/^# //p; /^$$/q' Makefile

setup: packages $(READY)

packages:
	@$(PYTHON) arpo_verl/desktop/packages.py install

osworld-packages:
	@$(PYTHON) arpo_verl/desktop/packages.py install osworld

$(READY): setup.py pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python -e ".[trainer,osworld,desktop,view,dev]"
	$(BIN)/arpo-verl install-osworld
	touch $@

$(POLICY): setup
	$(BIN)/python -m arpo_verl.policy --out $(POLICY)

demo: $(POLICY)
	VERL_PLATFORM=cpu $(BIN)/python -m verl.trainer.main_ppo --config-dir recipes --config-name embedded \
		run_dir=$(RUN_DIR) $(RECIPE_ARGS)

test: setup
	-@$(MAKE) --silent osworld-packages  # without them, the tests that need them are skipped
	$(BIN)/python -m pytest -n 2 $(PYTEST_ARGS)  # much of a test is waiting for a desktop or for Ray

test-slow: setup
	$(BIN)/python -m pytest -m slow $(PYTEST_ARGS)

test-pure:
	$(PYTHON) -m venv $(PURE)
	$(PURE)/bin/python -m pip install --quiet --disable-pip-version-check -e ".[view]" pytest hypothesis omegaconf lxml pandas
	$(PURE)/bin/python -m pytest -m "not desktop" $(PURE_TESTS) $(PYTEST_ARGS)

mutants: setup
	$(BIN)/mutmut run $(MUTANTS)
	$(BIN)/mutmut results

lint: setup
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy

docs: setup
	$(BIN)/uv pip install --quiet --python $(BIN)/python -r setup.py --extra docs
	$(BIN)/mkdocs build --strict --config-file docs/mkdocs/mkdocs.yml

dist: setup
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*

clean:
	rm -rf $(VENV) .cache runs mutants site build dist *.egg-info
