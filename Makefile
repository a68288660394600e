# Everything a developer types. `make` alone says what there is.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# One more than the two cores that this is tuned for: each waits a while for processes that it has started.
WORKERS := 3
BROWSERS := chromium-headless-shell chromium chromium-browser google-chrome google-chrome-stable

# Tests start many interpreters, each of which would compile the package anew where the environment forbids to keep what it
# has compiled.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo test torture fuzz check browser all-models benchmark samples shapesnet pictures clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Made again only when pyproject.toml changes.
$(INSTALLED): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(INSTALLED) ## draw what a trained network sees in six sample pictures, offline, and say where to look
	$(BIN)/fmapviz shapesnet sample_images/shapes --out runs --to tensorboard,html

# What a test gives back to the system the next one wants again, and a virtual machine takes its time to hand it out.
test torture: export MALLOC_TRIM_THRESHOLD_ := 1073741824
test torture: export MALLOC_MMAP_THRESHOLD_ := 33554432

test: check browser ## run every check and every test
	$(BIN)/pytest -n $(WORKERS) --dist worksteal

torture: $(INSTALLED) ## let every operation on the disk fail, kill 200 commands at random moments (minutes)
	$(BIN)/pytest -n 2 --dist worksteal tests/torture.py

fuzz: $(INSTALLED) ## feed every reader of files with damaged ones, led by the code that they reach (FUZZ=seconds each)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fuzz]'
	for target in images arrays checkpoints records; do PYTHONPATH=tests/support:tests/whole $(BIN)/python tests/fuzz.py $$target --seconds $(or $(FUZZ),120) || exit 1; done

browser: ## make sure that there are a Chromium or Chrome and GNU parallel for the tests, if they can be had
	@wanted=; command -v parallel > /dev/null || wanted=parallel; \
	found=; for name in $(BROWSERS); do command -v $$name > /dev/null && found=1; done; \
	test -n "$$found" || wanted="$$wanted chromium-headless-shell"; \
	test -n "$$wanted" || exit 0; \
	as_root=$$([ "$$(id -u)" = 0 ] || echo sudo -n); \
	if command -v apt-get > /dev/null && $$as_root true 2> /dev/null; then \
		echo "installing Debian's $$wanted"; \
		$$as_root apt-get update -qq; \
		for each in $$wanted; do \
			$$as_root apt-get install -qq -y --no-install-recommends $$each > /dev/null || \
			$$as_root apt-get install -qq -y --no-install-recommends $${each%-headless-shell} > /dev/null || true; \
		done; \
	fi

# A fresh clone's tests are compiled meanwhile, or each of pytest's workers would do it.
check: $(INSTALLED) ## ruff, mypy, the order of imports and the measures of the architecture
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	@found=$$($(BIN)/lint-imports --no-cache) || { echo "$$found"; exit 1; }
	$(BIN)/python tests/architecture.py
	@test -d tests/__pycache__ || $(BIN)/pytest --collect-only -q > /dev/null 2>&1 & $(BIN)/mypy; code=$$?; wait; exit $$code

all-models: $(INSTALLED) ## draw one picture with every torchvision model (some minutes, 8 GB) and print N/121
	PYTHONPATH=tests/support $(BIN)/python tests/all_models.py

samples: $(INSTALLED) ## paint the pictures in sample_images/ anew
	$(BIN)/python sample_images/make.py

shapesnet: $(INSTALLED) ## train the network that comes with the package anew (some minutes)
	$(BIN)/python sample_images/train_shapesnet.py

pictures: $(INSTALLED) browser ## draw the README's pictures anew
	$(BIN)/python tests/support/readme_pictures.py build/pictures .readme

benchmark: $(INSTALLED) ## time a run beside the tutorials' way and the forward pass alone; QUICK=1: one minute; SCALE=1: many images
	$(BIN)/python $(if $(SCALE),tests/benchmarks/scale.py $(if $(QUICK),--quick,--out .readme/scale.json),\
		tests/benchmarks/run.py $(if $(QUICK),--quick,--out .readme))

clean: ## remove what the targets made, the virtual environment too
	rm -rf $(VENV) runs build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info
	find fmapviz tests sample_images -name __pycache__ -prune -exec rm -rf {} +
