"""A real SGLang on the CPU with STANDALONE, whose draft model is the target itself: the daemon beside it."""

from pathlib import Path

import pytest
from support.daemon_beside import assert_daemon_is_harmless, run_daemon
from support.sglang_control import NEEDS_SGLANG, PROMPTS, controlled_sglang_server

pytestmark = NEEDS_SGLANG
ARGUMENTS = [
    *("--speculative-num-steps", "3"),
    *("--speculative-eagle-topk", "1"),
    *("--speculative-num-draft-tokens", "4"),
]


@pytest.fixture(scope="module")
def standalone(shared_models: Path, logs: Path):
    model = shared_models / "reference-target"
    with controlled_sglang_server(
        model, logs / "sglang-standalone.log", "STANDALONE",
        ["--speculative-draft-model-path", str(model), *ARGUMENTS],
        {"SPECCTL_SGLANG_OPTIONS": "{}", "SPECCTL_SGLANG_CPU_OVERLAP": "1"},
    ) as control:  # fmt: skip
        yield control


def test_the_daemon_beside_it(standalone, tmp_path):
    """Each draft is right, and takes as long as a token of the target: drafting does not pay."""
    capabilities = standalone.get("capabilities")
    assert (capabilities["method"], capabilities["controllable"]) == ("standalone", True)
    assert standalone.put(standalone.change(0)).status_code == 200
    reference = [standalone.complete(prompt) for prompt in PROMPTS]
    assert standalone.put(standalone.change(3)).status_code == 200
    assert_daemon_is_harmless(run_daemon(standalone, tmp_path, PROMPTS), reference)
