"""Two data-parallel ranks of a dense model on one real vLLM: one table, which each looks up by itself."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from support.engine_control import Control, controlled_server
from support.ranks import complete_on, grown, steps

pytestmark = pytest.mark.engine

RANKS = (0, 1)
CONFIG = {
    "method": "ngram",
    "num_speculative_tokens": 4,
    "prompt_lookup_max": 4,
    "prompt_lookup_min": 1,
    "num_speculative_tokens_per_batch_size": [[1, 8, 4]],
    "specctl": {},
}
ARGUMENTS = ["--data-parallel-size", "2", "--max-model-len", "512"]
DROPPED = "Disabling num_speculative_tokens_per_batch_size"
"""vLLM's log where it takes the batch table from the config."""
PROMPTS = ["a b c d a b c d a b c", "1, 2, 3, 4, 5, 1, 2, 3,", "x = 1\ny = 2\nx = 1\ny =", "The cat and the"]


@pytest.fixture(scope="module")
def ranks(target_model: Path, logs: Path) -> Iterator[Control]:
    """vLLM starts as many API servers as ranks; a connection stays with one of them."""
    with controlled_server(target_model, logs / "ranks.log", CONFIG, arguments=ARGUMENTS) as control:
        yield control


@pytest.fixture(scope="module")
def reference(ranks):
    """Greedy output of the same server without speculation."""
    assert ranks.put(ranks.change(0)).status_code == 200
    return [ranks.complete(prompt, 16) for prompt in PROMPTS]


def test_the_server_is_controllable_and_keeps_its_batch_table(ranks):
    capabilities = ranks.get("capabilities")
    assert capabilities["controllable"], capabilities["why_not_controllable"]
    assert capabilities["num_speculative_tokens_legal"] == [0, 1, 2, 3, 4]
    assert DROPPED not in ranks.server.log.read_text()


def test_every_api_server_tells_the_same(ranks):
    """Each new connection may reach another one."""
    assert ranks.put(ranks.change(3)).status_code == 200
    tables, boot_ids = [], set()
    for _ in range(8):
        with httpx.Client(base_url=ranks.server.url, timeout=60) as client:
            control = Control(ranks.server, client)
            tables.append(control.get("table"))
            boot_ids |= {control.get(route)["boot_id"] for route in ("capabilities", "telemetry", "table")}
    assert len(boot_ids) == 1
    assert len({table["version"] for table in tables}) == 1
    assert all(table["ranks_behind"] == [] for table in tables)


@pytest.mark.parametrize("number", [4, 2, 0])
def test_each_rank_follows_the_table(ranks, reference, number):
    assert ranks.put(ranks.change(number)).status_code == 200
    for rank in RANKS:
        before = steps(ranks)
        assert complete_on(rank, ranks, PROMPTS[0], 16) == reference[0]
        assert grown(steps(ranks), before) == {number}


def test_requests_over_both_ranks_give_the_models_own_output(ranks, reference):
    assert ranks.put(ranks.change(4)).status_code == 200
    before = steps(ranks)
    with ThreadPoolExecutor(8) as pool:
        outputs = list(pool.map(lambda prompt: ranks.complete(prompt, 16), PROMPTS * 2))
    assert outputs == reference * 2
    assert grown(steps(ranks), before) == {4}


def test_a_conflict_changes_no_rank(ranks):
    version = ranks.get("table")["version"]
    answer = ranks.put(ranks.change(1, base_version=version + 5))
    assert (answer.status_code, answer.json()["error"]) == (409, "version_conflict")
    table = ranks.get("table")
    assert (table["version"], table["ranks_behind"]) == (version, [])
