import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.engine_control import CONTROL_TOKEN, READ_TOKEN, Control, controlled_server, suffix_with_corpus
from support.random_models import write_sliding_gemma, write_tiny_mtp

from testing.servers import FORKS_ENV

# Two modules run at a time, each with its servers: vLLM would bind all of them to one and the same core.
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault(FORKS_ENV, "1")

_LONGEST = (
    "sglang_server", "suffix_server", "stock_server", "sglang_eagle_server", "two_engines",
    "sglang_sampled_law", "features_server", "sglang_features", "faults_server", "sglang_peagle",
    "doctor_server", "embedded_engines", "peagle_server", "moe_ranks_server", "hybrid_server",
    "misfit_server",
)  # fmt: skip
"""Modules that begin before all others, about by how long they take."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Modules run side by side: no long one begins when the others are done (--no-loadscope-reorder)."""
    places = {f"test_{name}.py": place for place, name in enumerate(_LONGEST, -len(_LONGEST))}
    items.sort(key=lambda item: places.get(item.path.name, 0))


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("servers")


@pytest.fixture(scope="session")
def tiny_mtp(target_model: Path, logs: Path) -> Path:
    """A model with a head of its own, for ``--load-format dummy``: the weights of both are random."""
    return write_tiny_mtp(target_model, logs / "tiny-mtp")


@pytest.fixture(scope="module")
def suffix(target_model: Path, logs: Path) -> Iterator[Control]:
    """specctl_suffix, started as users start it; loopback is let in without a token."""
    config = suffix_with_corpus(logs / "corpus")
    environment = {FORKS_ENV: ""}
    with controlled_server(target_model, logs / "suffix.log", config, environment=environment) as control:
        yield control


@pytest.fixture(scope="module")
def token_file(logs: Path) -> Path:
    path = logs / "tokens"
    path.write_text(f"read:{READ_TOKEN}\ncontrol:{CONTROL_TOKEN}\n")
    return path


@pytest.fixture(scope="module")
def ngram(target_model: Path, logs: Path, token_file: Path) -> Iterator[Control]:
    """The stock method ngram on a Gemma with sliding windows, with a token file, one server for a module."""
    model = write_sliding_gemma(target_model, logs / "sliding-gemma")
    config = {
        "method": "ngram",
        "num_speculative_tokens": 4,
        "prompt_lookup_max": 4,
        "prompt_lookup_min": 2,
        "specctl": {"token_file": str(token_file)},
    }
    headers = {"Authorization": f"Bearer {CONTROL_TOKEN}"}
    with controlled_server(model, logs / "ngram.log", config, headers) as control:
        yield control


@pytest.fixture(scope="module")
def eagle3(shared_models: Path, logs: Path) -> Iterator[Control]:
    """The stock method eagle3 on the reference target, one server for a module."""
    config = {
        "method": "eagle3",
        "model": str(shared_models / "reference-eagle3"),
        "num_speculative_tokens": 4,
        "specctl": {},
    }
    with controlled_server(shared_models / "reference-target", logs / "eagle3.log", config) as control:
        yield control
