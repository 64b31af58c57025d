# Every target does all of its own set-up; a second run starts at once.
PYTHON ?= $(shell for name in python3.11 python3.12 python3.13 python3; do \
	$$name -c "" 2>/dev/null && echo $$name && break; done)
BIN := .venv/bin
# A part of a target, with its name and its seconds.
PART = @bash -c 'name=$$1; shift; started=$$SECONDS; "$$@"; code=$$?; \
	echo "make: $$name: $$((SECONDS - started)) s"; exit $$code' part

.PHONY: setup setup-sglang test test-quick lint demo demo-sglang bench bench-suffix bench-kernels clean

setup:
	@$(PYTHON) tools/setup.py

# SGLang and vLLM ask for different releases of transformers, so that each has an environment of its own.
setup-sglang:
	@$(PYTHON) tools/setup_sglang.py

test: setup setup-sglang lint
	$(PART) tests $(BIN)/python -m pytest --durations=10

test-quick: setup lint
	$(PART) tests $(BIN)/python -m pytest -m "not engine"

lint: setup
	$(PART) lint $(BIN)/ruff check --no-cache .
	$(PART) format $(BIN)/ruff format --check .
	$(PART) types $(BIN)/mypy

demo: setup
	@$(BIN)/python -m demo

demo-sglang: setup setup-sglang
	@$(BIN)/python -m demo --engine sglang

bench: setup
	@$(BIN)/python -m benchmarks.run_cpu

bench-suffix: setup
	@$(BIN)/python -m benchmarks.suffix_compare

# On one GPU; figures go to FOLDER.
bench-kernels: setup
	@$(BIN)/python -m benchmarks.gpu.kernels --folder $(or $(FOLDER),.cache/bench-kernels)

clean:
	rm -rf .venv .venv-sglang .cache build *.egg-info
