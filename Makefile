# Everything a developer types. `make` alone says what there is.

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= $(shell test -x $(BIN)/python && echo $(BIN)/python || echo python3)
RUNTIME := $(VENV)/.runtime
DEV := $(VENV)/.dev
# One for each core: a further one collects and imports all once more, which takes longer than others wait. Each has a gigabyte.
WORKERS := $(shell cores=$$(getconf _NPROCESSORS_ONLN); echo $$((cores < 16 ? cores : 16)))
PYTEST = $(BIN)/pytest -n $(WORKERS) --dist worksteal --store-durations
BROWSERS := chromium-headless-shell chromium chromium-browser google-chrome google-chrome-stable

# Tests start many interpreters. Each of them would compile the package again where the environment forbids compiled files.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo test test-all thorough test-lowest torture features fuzz package site check browser all-models benchmark samples shapesnet \
	pictures constraints clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# An older Python could not even read install.py.
INSTALL = found=$$($(PYTHON) -c 'import platform; print(platform.python_version())' 2> /dev/null); \
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null || { \
		echo "fmapviz needs Python 3.11 or newer, and $(PYTHON) is $${found:-missing}:" \
			"name another, as in make $(or $(firstword $(MAKECMDGOALS)),demo) PYTHON=python3.12."; exit 1; }; \
	$(PYTHON) .ci/install.py

# Installed again only when one of these files changes: the runtime for `make demo`, everything for the tests.
$(RUNTIME) $(DEV) $(VENV)/.fuzz: pyproject.toml .constraints.txt .ci/install.py
	@$(INSTALL) $(VENV) $(filter-out runtime,$(@:$(VENV)/.%=%))
	@touch $@

$(DEV) $(VENV)/.fuzz: $(RUNTIME)

demo: $(RUNTIME) ## draw what a trained network sees in six sample pictures, offline, and say where to look
	$(BIN)/fmapviz shapesnet sample_images/shapes --out runs --to tensorboard,html

# Keep freed memory in the process: the next test needs it, and a virtual machine is slow to provide it.
test thorough torture: export MALLOC_TRIM_THRESHOLD_ := 1073741824
test thorough torture: export MALLOC_MMAP_THRESHOLD_ := 33554432

test: $(if $(K),$(DEV),check) ## run every check and test each feature, format and option; K=word: only the tests with the word in their name
	$(PYTEST) $(if $(K),-m "not zoo" -k "$(K)",-m "not thorough and not zoo")

test-all: test thorough ## run every check and all tests

# Ray's processes lose each other's messages beside other tests. A process that has started a Ray of its own cannot use another.
thorough: $(DEV) ## test what `make test-all` adds: more examples, rare ways, killed commands, browsers, Ray
	$(PYTEST) -m "thorough and not ray"
	$(BIN)/pytest -m "thorough and ray" tests/whole/test_ray.py
	$(BIN)/pytest -m "thorough and ray" --ignore tests/whole/test_ray.py

# Old versions warn of what has changed since, which is no failure here.
test-lowest: ## test with the oldest versions that pyproject.toml allows, in an environment of its own (7 GB)
	@$(INSTALL) build/lowest dev --lowest
	build/lowest/bin/pytest -n $(WORKERS) --dist worksteal -W default -m "not thorough and not zoo"

torture: $(DEV) ## let every operation on the disk fail, kill 200 commands at random moments (minutes)
	$(BIN)/pytest -n 2 --dist worksteal tests/torture.py

features: $(DEV) ## delete each feature in a copy, and test what is left (minutes)
	$(BIN)/pytest tests/without_features.py

fuzz: $(DEV) $(VENV)/.fuzz ## feed every reader of files with damaged ones, led by the code that they reach (FUZZ=seconds each)
	for target in images arrays checkpoints records; do PYTHONPATH=tests/support:tests/whole $(BIN)/python tests/fuzz.py $$target --seconds $(or $(FUZZ),120) || exit 1; done

package: $(DEV) ## build wheel and sdist in dist/, and use the wheel in empty environments, also with the lowest versions (minutes)
	PYTHONPATH=tests/support $(BIN)/python tests/package.py

site: export NO_MKDOCS_2_WARNING := 1
site: $(DEV) ## make a site of the guide in build/site
	$(BIN)/python -m mkdocs build --strict --config-file .mkdocs.yml
	@echo "build/site/index.html; with its search: $(BIN)/python -m http.server --directory build/site"

browser: ## install Chromium and GNU parallel for the tests, unless they are there (Debian and Ubuntu: apt, sudo)
	@wanted=; command -v parallel > /dev/null || wanted=parallel; \
	found=; for name in $(BROWSERS); do command -v $$name > /dev/null && found=1; done; \
	test -n "$$found" || wanted="$$wanted chromium-headless-shell"; \
	test -n "$$wanted" || { echo "Chromium or Chrome, and GNU parallel are there."; exit 0; }; \
	command -v apt-get > /dev/null || { echo "There is no apt-get here: install Chromium or Chrome, and GNU parallel."; exit 1; }; \
	as_root=$$([ "$$(id -u)" = 0 ] || echo sudo); \
	echo "Installing Debian's $$wanted with $$as_root apt-get."; \
	$$as_root apt-get update -qq; \
	for each in $$wanted; do \
		$$as_root apt-get install -qq -y --no-install-recommends $$each > /dev/null || \
		$$as_root apt-get install -qq -y --no-install-recommends $${each%-headless-shell} > /dev/null || exit 1; \
	done

# In a fresh clone the tests are compiled meanwhile; otherwise each of pytest's workers would do it.
check: $(DEV) ## ruff, mypy, deno, zizmor, the order of imports and the measures of the architecture
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	@found=$$($(BIN)/lint-imports --no-cache) || { echo "$$found"; exit 1; }
	$(BIN)/python tests/architecture.py
	$(BIN)/zizmor --offline --quiet --no-progress --min-severity medium .github
	DENO_DIR=build/deno $(BIN)/deno check --quiet --config .ci/deno.jsonc $$(find fmapviz -name '*.js')
	@test -d tests/__pycache__ || $(BIN)/pytest --collect-only -q > /dev/null 2>&1 & $(BIN)/mypy; code=$$?; wait; exit $$code

all-models: $(DEV) ## draw one picture with every torchvision model (some minutes, 8 GB) and print N/121; the slow ones' fields
	PYTHONPATH=tests/support $(BIN)/python tests/all_models.py
	$(PYTEST) -m zoo

samples: $(DEV) ## paint the pictures in sample_images/ again
	$(BIN)/python sample_images/make.py

shapesnet: $(DEV) ## train the network that comes with the package again (some minutes); WATCH=DIR draws it while it learns
	$(BIN)/python sample_images/train_shapesnet.py $(if $(WATCH),--watch $(WATCH))

pictures: $(DEV) ## draw the README's pictures again
	$(BIN)/python tests/support/readme_pictures.py build/pictures .readme

benchmark: $(DEV) ## time a run beside the tutorials' way and the forward pass alone; QUICK=1: one minute; SCALE=1: many images
	$(BIN)/python $(if $(SCALE),tests/benchmarks/scale.py $(if $(QUICK),--quick,--out .readme/scale.json),\
		tests/benchmarks/run.py $(if $(QUICK),--quick,--out .readme))

constraints: ## take the newest versions of all packages into .constraints.txt, for every platform and Python (needs uv)
	mkdir -p build
	sed '/^[^#]/,$$d' .constraints.txt > build/constraints.txt
	PATH="$(BIN):$$PATH" uv pip compile --quiet --universal --python-version 3.11 --all-extras --no-header --no-annotate \
		pyproject.toml >> build/constraints.txt
	mv build/constraints.txt .constraints.txt

clean: ## remove what the targets made, the virtual environment too, but not the results in runs/
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .test_durations *.egg-info
	find fmapviz tests sample_images -name __pycache__ -prune -exec rm -rf {} +
