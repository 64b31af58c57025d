"""A real SGLang on the CPU with SPECCTL_PEAGLE: the daemon beside it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.daemon_beside import assert_daemon_is_harmless, run_daemon
from support.engine_control import Control
from support.sglang_control import NEEDS_SGLANG, PROMPTS, controlled_sglang_server

pytestmark = NEEDS_SGLANG
FULL = 5


@pytest.fixture(scope="module")
def peagle(shared_models: Path, logs: Path) -> Iterator[Control]:
    head = ["--speculative-draft-model-path", str(shared_models / "reference-peagle")]
    with controlled_sglang_server(
        shared_models / "reference-target", logs / "sglang-peagle.log", "SPECCTL_PEAGLE",
        [*head, "--speculative-num-steps", str(FULL), "--speculative-num-draft-tokens", str(FULL + 1)],
    ) as control:  # fmt: skip
        yield control


def test_the_daemon_beside_it(peagle: Control, tmp_path: Path) -> None:
    """Its head drafts well, and the daemon finds it at off."""
    capabilities = peagle.get("capabilities")
    assert (capabilities["method"], capabilities["controllable"]) == ("specctl_peagle", True)
    assert peagle.put(peagle.change(0)).status_code == 200
    reference = [peagle.complete(prompt) for prompt in PROMPTS]
    found = run_daemon(peagle, tmp_path, PROMPTS, until=lambda found: found.changes)
    assert_daemon_is_harmless(found, reference)
    assert found.changes
    assert peagle.get("telemetry")["failures"] == {}
