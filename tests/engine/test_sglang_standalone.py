"""A real SGLang on the CPU with STANDALONE, whose draft model is the target itself: the daemon beside it, and
answers that are decoded again without drafts while the server is idle."""

from pathlib import Path

import pytest
from support.daemon_beside import assert_daemon_is_harmless, run_daemon
from support.engine_control import wait_for
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
        {"SPECCTL_SGLANG_OPTIONS": '{"verify_shadow_ratio": 1.0}', "SPECCTL_SGLANG_CPU_OVERLAP": "1"},
    ) as control:  # fmt: skip
        yield control


def test_answers_are_decoded_again_while_the_server_is_idle(standalone):
    """Each time that telemetry is read the next one begins."""
    for prompt in PROMPTS[:2]:
        standalone.complete(prompt)

    def checked():
        return standalone.get("telemetry")["self_checks"]["checked"] >= 2

    wait_for(checked, 60)
    telemetry = standalone.get("telemetry")
    assert telemetry["self_checks"] == {"checked": 2, "identical": 2, "ties": 0, "differing": 0}
    assert telemetry["failures"] == {}


def test_the_daemon_beside_it(standalone, tmp_path):
    """Each draft is right, and takes as long as a token of the target: drafting does not pay."""
    capabilities = standalone.get("capabilities")
    assert (capabilities["method"], capabilities["controllable"]) == ("standalone", True)
    assert standalone.put(standalone.change(0)).status_code == 200
    reference = [standalone.complete(prompt) for prompt in PROMPTS]
    assert standalone.put(standalone.change(3)).status_code == 200
    assert_daemon_is_harmless(run_daemon(standalone, tmp_path, PROMPTS), reference)
