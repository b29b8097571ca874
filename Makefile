# Seven commands, each complete on a fresh machine with Python >= 3.10:
#   make demo            train Duo on real prose, measure its perplexity, distill it, watch it write in 8 steps (ten
#                        minutes on 2 CPU cores)
#   make demo-molecules  the same on molecules, which are checked and drawn
#   make test            lint, types, tests
#   make test-fast       the identities and a smoke run, in less than a minute
#   make bench           what everything costs beside the bare network: a table, build/bench.json, build/bench.png (ten
#                        minutes)
#   make docs            the documentation as a site: build/site/index.html
#   make dist            a wheel and an sdist in dist/, each installed into a fresh environment and tried
# And make test-gpu, which installs triton and tries the kernels of a GPU without one, in its interpreter and compiler (two
# minutes), and make browser, which installs Chromium for the tests of the studio's page, where it may.
PYTHON ?= python3
BIN := .venv/bin
RUN ?= runs/demo
MOLECULES ?= runs/molecules
FAST := tests/diffusion tests/fused tests/denoisers/test_composition.py tests/objectives tests/networks \
	tests/test_package.py tests/test_noise.py tests/test_registries.py
# Threads that wait for each other by spinning are slow when the machine is shared, by sleeping always a little: spin shortly.
export OMP_WAIT_POLICY ?= passive
export GOMP_SPINCOUNT ?= 10000

.PHONY: demo demo-molecules test test-fast test-gpu bench docs dist browser lint types tests format clean

demo: .venv/installed
	$(BIN)/duality train duo-laptop --out $(RUN) --resume
	$(BIN)/duality eval $(RUN)
	$(BIN)/duality distill $(RUN) --for-steps 8 --rounds 4 --out $(RUN)-8-steps --resume
	$(BIN)/duality sample $(RUN)-8-steps --num 4 --watch
	@echo "The models are in $(RUN) and $(RUN)-8-steps: recipe.json, metrics.jsonl, loss.png, samples/, checkpoints/"

demo-molecules: .venv/installed
	$(BIN)/duality train duo-molecules --steps 5000 --out $(MOLECULES) --resume
	$(BIN)/duality distill $(MOLECULES) --for-steps 8 --rounds 4 --out $(MOLECULES)-8-steps --resume
	$(BIN)/duality sample $(MOLECULES)-8-steps --num 8 --steps 4 --temperature 0.5 --watch
	$(BIN)/duality quality $(MOLECULES) $(MOLECULES)-8-steps --steps 4 --temperature 0.5 --num 256 --score molecules --out $(MOLECULES)-quality
	@echo "The molecules are drawn in $(MOLECULES)-quality/molecules.png"

test: lint types tests

test-fast: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" $(FAST)

# The interpreter and the compiler cannot be in one process.
test-gpu: .venv/gpu
	TRITON_INTERPRET=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal tests/gpu/test_interpreted_*.py
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal tests/gpu/test_compiled_*.py

bench: .venv/installed
	$(BIN)/python -m benchmarks.bench --json build/bench.json --figure build/bench.png

# Every warning is an error: a link that leads nowhere, a page that is not in the navigation, a name that does not exist.
docs: .venv/complete
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "The documentation is build/site/index.html; with its search: python3 -m http.server --directory build/site"

dist:
	rm -rf dist build/tools
	$(PYTHON) -m venv build/tools
	PIP_CONSTRAINT=constraints.txt build/tools/bin/python -m pip install --quiet --disable-pip-version-check build
	PIP_CONSTRAINT=constraints.txt build/tools/bin/python -m build
	for file in dist/*; do .ci/check-dist "$$file" $(PYTHON) || exit 1; done

# The tests of the page skip without a browser: this says what to do, and is no error.
browser:
	@if command -v chromium || command -v chromium-browser || command -v google-chrome; then true; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  (apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
	    chromium fonts-dejavu-core >/dev/null) || echo "apt-get cannot install Chromium: the tests of the page will be skipped"; \
	else echo "There is no Chromium: install it (sudo apt-get install chromium), or the tests of the page are skipped"; fi

lint: .venv/complete
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/complete
	$(BIN)/mypy

tests: .venv/complete
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

format: .venv/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# torch first and alone: with it in place, nothing that follows can pull another build of it. The variable, unlike the
# flag, also holds in the environment in which pip builds this package.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check torch
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,molecules,data]'
	touch $@

# What the tests and the documentation need beside it, and the demos do not.
.venv/complete: .venv/installed
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[hf,lora,tensorboard,wandb,studio,docs,notebook]'
	touch $@

.venv/gpu: .venv/installed
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[gpu]'
	touch $@

clean:
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
