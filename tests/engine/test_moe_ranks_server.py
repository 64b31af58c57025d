"""Two data-parallel ranks of a mixture-of-experts model with a head, which run every step together."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.engine_control import Control, controlled_server
from support.random_models import write_tiny_mtp
from support.ranks import complete_on, grown, steps

CPU_EXPERTS = Path(__file__).resolve().parents[1] / "support" / "cpu_experts"
pytestmark = pytest.mark.engine

CONFIG = {"method": "mtp", "num_speculative_tokens": 3, "specctl": {}}
ARGUMENTS = ["--data-parallel-size", "2", "--max-model-len", "512", "--load-format", "dummy"]
PROMPTS = ["a b c d a b c d a b c", "1, 2, 3, 4, 5, 1, 2, 3,", "x = 1\ny = 2\nx = 1\ny =", "The cat and the"]
TOKENS = 24


@pytest.fixture(scope="module")
def ranks(shared_models: Path, logs: Path) -> Iterator[Control]:
    model = write_tiny_mtp(shared_models / "reference-target", logs / "tiny-moe", expert_layers=1)
    environment = {"PYTHONPATH": f"{CPU_EXPERTS}:{os.environ.get('PYTHONPATH', '')}"}
    log = logs / "moe-ranks.log"
    with controlled_server(model, log, CONFIG, arguments=ARGUMENTS, environment=environment) as control:
        yield control


@pytest.fixture(scope="module")
def reference(ranks):
    """Greedy output of the same server without speculation."""
    assert ranks.put(ranks.change(0)).status_code == 200
    return [ranks.complete(prompt, TOKENS) for prompt in PROMPTS]


def test_the_server_is_controllable(ranks):
    capabilities = ranks.get("capabilities")
    assert capabilities["controllable"], capabilities["why_not_controllable"]
    assert capabilities["experts"] == 4


@pytest.mark.parametrize("number", [3, 1, 0, 2])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_alone_drafts_by_the_table(ranks, reference, rank, number):
    """The other rank has no request, and runs the passes of the model and of the head all the same."""
    assert ranks.put(ranks.change(number)).status_code == 200
    before = steps(ranks)
    assert complete_on(rank, ranks, PROMPTS[0], TOKENS) == reference[0]
    assert grown(steps(ranks), before) == {number}


def test_the_busiest_rank_decides_and_outputs_stay_the_same_while_the_table_changes(ranks, reference):
    """Three requests on one rank and one on the other, whose rows differ; then another table, and so on."""
    rows = [
        {"decode_batch_from": 1, "decode_batch_to": 1, "num_speculative_tokens": 3},
        {"decode_batch_from": 2, "num_speculative_tokens": 1},
    ]

    def ask(number):
        return complete_on(int(number % 4 == 0), ranks, PROMPTS[number % 4], TOKENS)

    with ThreadPoolExecutor(4) as pool:
        for change in (rows, None, 0, rows, 3, None):
            put = ranks.change(2 if change is None else 0)
            if change is not None:
                put = ranks.change(change) if isinstance(change, int) else ranks.change(0, rows=change)
            assert ranks.put(put).status_code == 200
            assert list(pool.map(ask, range(8))) == reference * 2
    assert ranks.get("table")["ranks_behind"] == []


def test_a_sample_runs_on_both_ranks(ranks, reference):
    sample = {"setting": {"num_speculative_tokens": 3}, "every_steps": 4}
    row = {"decode_batch_from": 1, "num_speculative_tokens": 1, "sample": sample}
    assert ranks.put(ranks.change(0, rows=[row])).status_code == 200
    before = steps(ranks)
    with ThreadPoolExecutor(4) as pool:
        outputs = list(pool.map(lambda prompt: ranks.complete(prompt, TOKENS), PROMPTS * 2))
    assert outputs == reference * 2
    assert {1, 3} <= grown(steps(ranks), before)
