"""A real SGLang on the CPU with ``--speculative-adaptive``, EAGLE3: the table takes its policy's place."""

from itertools import cycle
from pathlib import Path

import pytest
from support.daemon_beside import assert_daemon_is_harmless, run_daemon
from support.sglang_control import (
    NEEDS_SGLANG,
    PROMPTS,
    cells_by_number,
    controlled_sglang_server,
    greedy_while_changing,
)

pytestmark = NEEDS_SGLANG
STEPS = (0, 1, 3, 5, 7)
"""Between which SGLang's policy moves where no file names others."""
ARGUMENTS = ["--speculative-adaptive", "--speculative-num-steps", "3", "--speculative-eagle-topk", "1"]


@pytest.fixture(scope="module")
def adaptive(shared_models: Path, logs: Path):
    head = ["--speculative-draft-model-path", str(shared_models / "reference-eagle3")]
    with controlled_sglang_server(
        shared_models / "reference-target", logs / "sglang-adaptive.log", "EAGLE3", [*head, *ARGUMENTS],
        {"SPECCTL_SGLANG_OPTIONS": "{}", "SPECCTL_SGLANG_CPU_OVERLAP": "1"},
    ) as control:  # fmt: skip
        yield control


@pytest.fixture(scope="module")
def reference(adaptive):
    """Greedy output of the same server without speculation."""
    assert adaptive.put(adaptive.change(0)).status_code == 200
    return [adaptive.complete(prompt) for prompt in PROMPTS]


def test_the_server_says_what_it_adapts_and_that_the_table_decides(adaptive):
    capabilities = adaptive.get("capabilities")
    assert capabilities["controllable"], capabilities["why_not_controllable"]
    assert capabilities["adaptivity"] == {
        "name": "speculative_adaptive", "decides": "drafted", "is_bounded": False, "is_replaced": True,
    }  # fmt: skip
    assert set(STEPS) <= set(capabilities["num_speculative_tokens_legal"])
    assert not adaptive.get("telemetry")["adaptivity"]["is_on"]
    log = adaptive.server.log.read_text(encoding="utf-8")
    assert "the table takes the place of --speculative-adaptive, with its steps: 0, 1, 3, 5, 7" in log


def test_each_step_runs_what_the_table_says(adaptive, reference):
    for steps in STEPS:
        assert adaptive.put(adaptive.change(steps)).status_code == 200
        before = cells_by_number(adaptive)
        assert [adaptive.complete(prompt) for prompt in PROMPTS] == reference
        after = cells_by_number(adaptive)
        ran = {number for number, cells in after.items() if cells != before.get(number)}
        assert ran == {steps}, "SGLang's policy changes nothing behind the table"
    outputs = greedy_while_changing(adaptive, 4, cycle([(steps,) for steps in STEPS]))
    assert outputs == reference * 3


def test_the_daemon_beside_it(adaptive, reference, tmp_path):
    assert adaptive.put(adaptive.change(3)).status_code == 200
    assert_daemon_is_harmless(run_daemon(adaptive, tmp_path, PROMPTS), reference)
