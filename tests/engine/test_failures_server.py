"""Whatever of ours raises in a step of a real vLLM server: the server goes on, and its output is right.

The entries are those that the list of patches names.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from specctl_vllm.options import Options
from specctl_vllm.patches import of_server
from support.doctor_codes import doctor_codes
from support.engine_control import PROMPTS, Control, controlled_server, wait_for

from specctl.engine.guard import FAILURES_MAX

pytestmark = pytest.mark.engine

FAILING = Path(__file__).resolve().parents[1] / "support" / "failing"
NOT_CALLED = {
    "clock.report",  # asynchronous scheduling
    "finished_output",  # Model Runner V2
    "self_check",  # verify_shadow_ratio
}
ENTRIES = [
    entry
    for patch in of_server(False, Options(method="specctl_suffix"))
    for entry in patch.entries
    if entry not in NOT_CALLED
]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("failing") / "entry"
    made.write_text("", encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def suffix(target_model: Path, logs: Path, file: Path) -> Iterator[Control]:
    config = {"method": "specctl_suffix", "num_speculative_tokens": 8, "corpus_file": str(logs / "guarded")}
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SPECCTL_FAIL", str(file))
        environment.setenv("PYTHONPATH", f"{FAILING}:{os.environ.get('PYTHONPATH', '')}")
        with controlled_server(target_model, logs / "guard.log", config) as control:
            yield control


@pytest.fixture(scope="module")
def reference(suffix: Control) -> list[list[int]]:
    assert suffix.put(suffix.change(0)).status_code == 200
    outputs = [suffix.complete(prompt) for prompt in PROMPTS]
    assert suffix.put(suffix.change(8)).status_code == 200
    return outputs


def outputs_while_failing(suffix: Control, file: Path, entry: str, times: int) -> list[list[int]]:
    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(suffix.complete, prompt) for prompt in PROMPTS * 2]
        wait_for(lambda: suffix.get("telemetry")["decoding"] > 0)
        file.write_text(f"{entry} {times}", encoding="utf-8")
        return [one.result() for one in running]


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_failure_costs_a_step_its_drafts_and_nothing_else(
    suffix: Control, reference: list[list[int]], file: Path, entry: str
) -> None:
    assert outputs_while_failing(suffix, file, entry, 1) == reference * 2
    assert file.read_text(encoding="utf-8") == "", "no step called it"
    # What the last step's worker counted comes with the next one.
    suffix.complete(PROMPTS[0])
    # The engine core's and the worker's processes count, and forget, their own.
    assert suffix.get("telemetry")["failures"][entry] == 1
    log = suffix.server.log.read_text(encoding="utf-8")
    assert f"specctl: {entry} failed; this step goes on without it" in log


def test_after_a_few_failures_nothing_is_drafted(
    suffix: Control, reference: list[list[int]], file: Path
) -> None:
    assert suffix.get("telemetry")["num_speculative_tokens"] > 0
    assert outputs_while_failing(suffix, file, "propose_step", FAILURES_MAX) == reference * 2
    assert suffix.get("telemetry")["failures"]["propose_step"] == FAILURES_MAX
    assert [suffix.complete(prompt) for prompt in PROMPTS] == reference
    assert suffix.get("telemetry")["num_speculative_tokens"] == 0
    assert doctor_codes(suffix.server.url) == {"plugin-failed"}
    assert "from now on nothing is drafted" in suffix.server.log.read_text(encoding="utf-8")
