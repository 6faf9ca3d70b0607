# make train and make test need only Python 3.10 to 3.13 with pip; each sets up .venv first, once.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: train test long horovod parity chaos engines gpu coverage docs image image-serve lint clean help

# The newest Python from 3.10 to 3.13 (Hydra cannot do 3.14 yet); make train PYTHON=/path/to/python3.12 chooses another.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3.10 python3 python; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
RUN := $(VENV)/bin/python
# Without bytecode each process compiles torch and torchvision anew, which doubles the seconds of its start.
unexport PYTHONDONTWRITEBYTECODE
# A change of the dependencies, of the Makefile or of the Python installs anew.
KEY := $(shell cat setup.cfg pyproject.toml Makefile 2>/dev/null | cksum | cut -d' ' -f1)
# Horovod gets NCCL where a GPU is or was asked for by make horovod; for tests without one it would only lengthen the build.
HOROVOD_GPU ?= $(if $(filter horovod,$(MAKECMDGOALS))$(wildcard /dev/nvidia[0-9]* $(VENV)/horovod-auto-$(KEY)),auto,no)
HOROVOD := $(VENV)/horovod-$(HOROVOD_GPU)-$(KEY)

# make takes data.root=/data/mine for a variable of its own and passes nothing on.
CAPITALS := A% B% C% D% E% F% G% H% I% J% K% L% M% N% O% P% Q% R% S% T% U% V% W% X% Y% Z%
GIVEN := $(foreach name,$(.VARIABLES),$(if $(filter command,$(origin $(name))),$(name)))
OTHERS := $(filter-out $(CAPITALS) %_proxy _%,$(GIVEN))
ifneq ($(OTHERS),)
SETTINGS := $(foreach name,$(OTHERS),$(if $(filter args,$(name)),,$(name)=)$(value $(name)))
$(error write settings into ARGS: make $(MAKECMDGOALS) ARGS="$(SETTINGS)")
endif

train: $(VENV)/installed-$(KEY)  ## Set up, draw the shapes data set, train on it (ARGS="..." are passed on)
	@$(if $(ARGS),,echo "training: about 3.5 minutes on a quiet core; the first steps show how long it takes here")
	$(RUN) -m retina_dist.train $(ARGS)

test: $(HOROVOD)  ## Set up, build Horovod, run all tests (ARGS="-k name" are passed on)
	$(RUN) -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

long: $(HOROVOD)  ## The tests that make test leaves out because others say nearly the same in less time
	$(RUN) -m pytest -m long $(ARGS)

horovod: $(HOROVOD)  ## Set up and build Horovod

parity: $(HOROVOD)  ## Compare all launchers with one process, 1, 2 and 4 processes, in fp64
	$(RUN) -m retina_dist.parity processes=[1,2,4] steps=3 $(ARGS)

chaos: $(HOROVOD)  ## Kill, stop and damage small trainings 100 times; each must end with the weights of an undisturbed one
	$(RUN) -m tests.chaos $(ARGS)

engines: $(VENV)/installed-$(KEY)  ## Try the files of scripts/ with Ray Train and SkyPilot (1 GB of packages more)
	$(RUN) -m pip install --quiet --no-compile -e ".[ray]"
	test -x $(VENV)/skypilot/bin/sky || { $(RUN) -m venv $(VENV)/skypilot && $(VENV)/skypilot/bin/pip install --quiet "skypilot>=0.14.1"; }
	PATH="$$PATH:$(abspath $(VENV)/skypilot/bin)" $(RUN) -m pytest tests/e2e/test_ray.py tests/unit/scripts/test_job_files.py $(ARGS)

gpu: $(VENV)/installed-$(KEY)  ## Test this machine's GPU, then measure a step and the scaling over its GPUs
	$(RUN) -m pytest tests/gpu
	$(RUN) -m retina_dist.benchmark step model=retinanet_r50 strategy.device=cuda canvases=[[800,1088]] $(ARGS)
	$(RUN) -m retina_dist.benchmark scaling data=synthetic strategy.device=cuda processes=[1,2]

coverage: $(HOROVOD)  ## Lines that the unit tests and the plugins' tests reach; fails below 90 %
	$(RUN) -m pytest -n 2 --dist loadfile --cov=retina_dist --cov-report=term:skip-covered --cov-fail-under=90 tests/unit tests/plugins $(ARGS)

docs: $(VENV)/installed-$(KEY)  ## The documentation as web pages in build/site/html, with every link checked
	$(RUN) scripts/docs_site.py build/site
	$(VENV)/bin/zensical build --strict -f build/site/mkdocs.yml

# docker, podman or buildah; scripts/image/README.md
image image-serve:  ## Build the container image for training or serving (CUDA=12.6 RAY=yes IMAGE=name:tag)
	@CUDA="$(CUDA)" RAY="$(RAY)" RUN_AS="$(RUN_AS)" IMAGE="$(IMAGE)" scripts/image/build.sh $(if $(filter image,$@),train,serve)

lint: $(VENV)/installed-$(KEY)  ## Style, types and spelling
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/codespell

# torchvision first: it brings the one torch that fits it, where a range could pick a lone torch wheel lying about.
$(VENV)/installed-$(KEY):
	@test -n "$(PYTHON)" || { echo "No Python 3.10 to 3.13 with venv and ensurepip was found; install one (Debian: apt-get install python3 python3-venv) or name it: make PYTHON=/path/to/python3."; exit 1; }
	@echo "set-up 1 of 3: the Python environment $(VENV) of $(PYTHON)"
	@$(RUN) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	@$(RUN) -m pip install --quiet --no-compile --upgrade pip
	@echo "set-up 2 of 3: torch and torchvision, a download of some GB"
	@$(RUN) -m pip install --quiet --no-compile "torchvision>=0.26,<0.30"
	@echo "set-up 3 of 3: retina_dist with its extras and tools"
	@$(RUN) -m pip install --quiet --no-compile -e ".[dev]"
	rm -f $(VENV)/installed-*
	touch $@

# Without a compiler the build fails with what is missing, and the tests of Horovod are skipped with that reason.
$(HOROVOD): $(VENV)/installed-$(KEY) scripts/install_horovod.py scripts/horovod.patch
	-$(RUN) scripts/install_horovod.py --gpu $(HOROVOD_GPU) && rm -f $(VENV)/horovod-* && touch $@

clean:  ## Remove the virtual environment and caches; data sets and runs stay
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

.DEFAULT:
	@test -e $@ || { echo "error: there is no target $@; make help lists them, and all else is a command, as in $(RUN) -m retina_dist evaluate …."; exit 2; }

help:  ## This list
	@grep -E '^[a-z -]+:.*##' Makefile | sed -E 's/^([a-z -]+):.*## /  make \1\t/'
