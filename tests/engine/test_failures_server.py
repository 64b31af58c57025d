"""specctl_suffix on a real vLLM whose entries raise, with requests in flight: outputs stay right."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.engine_control import PROMPTS, controlled_server, wait_for

from specctl.engine.guard import FAILURES_MAX

pytestmark = pytest.mark.engine

FAILING = Path(__file__).resolve().parents[1] / "support" / "failing"
ENTRIES = (
    *("propose_step", "stats", "note_namespaces"),
    *("finish", "note_batch", "shadow_counts"),
    *("after_schedule", "before_update", "after_update"),
)
SERVERS = [ENTRIES[first : first + FAILURES_MAX] for first in range(0, len(ENTRIES), FAILURES_MAX)]
"""As many on each as put the method to rest."""


@pytest.mark.parametrize("entries", SERVERS, ids=", ".join)
def test_what_raises_costs_drafts_only(
    gemma_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entries: tuple[str, ...]
) -> None:
    to_fail = tmp_path / "fail"
    to_fail.write_text("", encoding="utf-8")
    monkeypatch.setenv("SPECCTL_FAIL", str(to_fail))
    monkeypatch.setenv("PYTHONPATH", f"{FAILING}:{os.environ.get('PYTHONPATH', '')}")
    config = {"method": "specctl_suffix", "num_speculative_tokens": 8}
    with controlled_server(gemma_model, tmp_path / "server.log", config) as control:
        expected = [control.complete(prompt) for prompt in PROMPTS]
        assert control.get("telemetry")["failures"] == {}
        for count, entry in enumerate(entries, 1):
            assert control.get("telemetry")["num_speculative_tokens"] > 0
            to_fail.write_text(f"{entry} 1 keep", encoding="utf-8")
            with ThreadPoolExecutor(4) as pool:
                assert list(pool.map(control.complete, PROMPTS)) == expected
            wait_for(lambda: sum(control.get("telemetry")["failures"].values()) >= count)  # noqa: B023
            assert control.get("telemetry")["failures"][entry] == 1
        assert [control.complete(prompt) for prompt in PROMPTS] == expected
        assert control.get("telemetry")["num_speculative_tokens"] == 0
