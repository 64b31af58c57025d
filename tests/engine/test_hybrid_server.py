"""specctl_hybrid with an EAGLE-3 head on a real vLLM: both sources draft, and the output is the same."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from support.daemon_beside import assert_daemon_is_harmless, run_daemon
from support.engine_control import LISTING, PROMPTS, Control, controlled_server, wait_for

from testing.lossless import compare

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def hybrid(shared_models: Path, logs: Path) -> Iterator[Control]:
    config = {
        "method": "specctl_hybrid",
        "head": "eagle3",
        "model": str(shared_models / "reference-eagle3"),
        "num_speculative_tokens": 4,
        "specctl": {"verify_shadow_ratio": 1.0},
    }
    with controlled_server(shared_models / "reference-target", logs / "hybrid.log", config) as control:
        yield control


@pytest.fixture(scope="module")
def reference(hybrid: Control) -> list[list[int]]:
    """Greedy output of the same server without speculation."""
    assert hybrid.put(hybrid.change(0)).status_code == 200
    return [hybrid.complete(prompt, 48) for prompt in PROMPTS]


def test_capabilities(hybrid: Control) -> None:
    capabilities = hybrid.get("capabilities")
    assert capabilities["method"] == "specctl_hybrid"
    assert capabilities["num_speculative_tokens_legal"] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("concurrency", [1, 4, 8])
def test_greedy_output_is_the_same_while_the_table_changes(
    hybrid: Control, reference: list[list[int]], concurrency: int
) -> None:
    async def run() -> tuple[object, ...]:
        async with httpx.AsyncClient(base_url=hybrid.server.url, timeout=300) as client:
            result = await compare(
                client, "model", PROMPTS * 2, reference * 2,
                max_tokens=48, concurrency=concurrency, every_s=0.1,
            )  # fmt: skip
            return result.differing

    assert asyncio.run(run()) == ()


def test_a_head_that_brings_nothing_reads_nothing(hybrid: Control, reference: list[list[int]]) -> None:
    """Prompts that come again have their answers from the suffix index."""
    assert hybrid.put(hybrid.change(4)).status_code == 200

    def is_asleep() -> bool:
        assert [hybrid.complete(prompt, 48) for prompt in PROMPTS] == reference
        found: int = hybrid.get("telemetry")["proposer"].get("steps_head_asleep", 0)
        return found > 0

    wait_for(is_asleep, 240)


def test_both_sources_draft_and_their_drafts_are_accepted(
    hybrid: Control, reference: list[list[int]]
) -> None:
    assert hybrid.put(hybrid.change(4)).status_code == 200
    before = hybrid.get("telemetry")
    with ThreadPoolExecutor(4) as pool:
        outputs = list(pool.map(lambda prompt: hybrid.complete(prompt, 48), PROMPTS))
        list(pool.map(lambda row: hybrid.complete(LISTING * 2 + f"item_{row}", 48), range(4)))
    assert outputs == reference
    # A head that did not pay so far is tried in one of 64 steps, and one that is asleep wakes in fewer; each
    # of these requests takes 10 or more, and sees no other's text.
    for row in range(16):
        hybrid.complete(f"Line {row * 37} of the {row}th part", 48, cache_salt=f"tenant {row}")
    after = hybrid.get("telemetry")
    for source in ("drafts_of_suffix", "drafts_of_head", "steps_of_head"):
        assert after["proposer"][source] > before["proposer"].get(source, 0), source
    accepted = [sum(cell["accepted_at"][0] for cell in one["cells"]) for one in (before, after)]
    assert accepted[1] > accepted[0]
    assert not after["failures"]


def test_answers_are_decoded_again_without_drafts_while_the_server_is_idle(
    hybrid: Control, reference: list[list[int]]
) -> None:
    assert hybrid.put(hybrid.change(4)).status_code == 200
    before = hybrid.get("telemetry")["self_checks"]["checked"]
    assert [hybrid.complete(prompt, 48) for prompt in PROMPTS] == reference

    def checked() -> int:
        """Telemetry is what an idle server is asked for."""
        found: int = hybrid.get("telemetry")["self_checks"]["checked"]
        return found

    wait_for(lambda: checked() >= before + len(PROMPTS), 60)
    telemetry = hybrid.get("telemetry")
    checks = telemetry["self_checks"]
    assert checks["identical"] + checks["ties"] == checks["checked"]
    assert not telemetry["failures"]
    page = hybrid.client.get("/metrics").text
    assert 'specctl_engine_self_checks_total{model_name="model",result="identical"}' in page


def test_a_check_makes_way_for_the_requests_of_clients(hybrid: Control, reference: list[list[int]]) -> None:
    """Telemetry starts a check again and again while others are served."""
    for prompt, expected in zip(PROMPTS * 3, reference * 3, strict=True):
        hybrid.get("telemetry")
        assert hybrid.complete(prompt, 48) == expected
    assert not hybrid.get("telemetry")["failures"]


def test_the_daemon_beside_it(hybrid: Control, reference: list[list[int]], tmp_path: Path) -> None:
    assert hybrid.put(hybrid.change(0)).status_code == 200
    assert_daemon_is_harmless(run_daemon(hybrid, tmp_path, PROMPTS, max_tokens=48), reference)
