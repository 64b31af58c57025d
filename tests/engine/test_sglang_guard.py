"""Whatever of ours raises in a step of a real SGLang server: the server goes on, and its output is right.

The entries are those that the list of patches names.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from specctl_sglang.patches import AT_START, CPU, PATCHES
from support.engine_control import wait_for
from support.sglang_control import NEEDS_SGLANG, PROMPTS, controlled_sglang_server

from specctl.engine.guard import FAILURES_MAX
from testing.provenance import ROOT

pytestmark = NEEDS_SGLANG
FAILING = Path(__file__).parents[1] / "support" / "failing"
ENTRIES = [
    entry
    for patch in PATCHES
    if patch.process in ("engine", "worker") and not patch.methods & {CPU} and patch.serves("specctl_suffix")
    for entry in patch.entries
    if entry not in AT_START
]


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("failing") / "entry"
    made.write_text("")
    return made


@pytest.fixture(scope="module")
def suffix(target_model: Path, logs: Path, file: Path):
    paths = [str(FAILING), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "SPECCTL_FAIL": str(file)}
    with controlled_sglang_server(
        target_model, logs / "sglang-guard.log", "SPECCTL_SUFFIX", ["--speculative-num-draft-tokens", "5"],
        {**environment, "SPECCTL_SGLANG_CPU_OVERLAP": "1"},
    ) as control:  # fmt: skip
        yield control


@pytest.fixture(scope="module")
def reference(suffix):
    assert suffix.put(suffix.change(0)).status_code == 200
    outputs = [suffix.complete(prompt, 48) for prompt in PROMPTS]
    assert suffix.put(suffix.change(4)).status_code == 200
    return outputs


def outputs_while_failing(suffix, file, entry, times):
    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(suffix.complete, prompt, 48) for prompt in PROMPTS * 2]
        wait_for(lambda: suffix.get("telemetry")["decoding"] > 0)
        file.write_text(f"{entry} {times}")
        outputs = [one.result() for one in running]
    if file.read_text():  # an entry of the control path
        suffix.client.get("/specctl/v1/telemetry")
    return outputs


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_failure_costs_a_step_its_drafts_and_nothing_else(suffix, reference, file, entry):
    assert outputs_while_failing(suffix, file, entry, 1) == reference * 2
    assert file.read_text() == "", "no step called it"
    telemetry = suffix.get("telemetry")
    assert telemetry["failures"] == {entry: 1}
    assert f"specctl: {entry} failed; this step goes on without it" in suffix.server.log.read_text()


def test_after_a_few_failures_nothing_is_drafted(suffix, reference, file):
    assert outputs_while_failing(suffix, file, "draft", FAILURES_MAX) == reference * 2
    assert suffix.get("telemetry")["failures"] == {"draft": FAILURES_MAX}
    answers = [suffix.generate(prompt, 48) for prompt in PROMPTS]
    assert [one["output_ids"] for one in answers] == reference
    assert {one["meta_info"]["spec_verify_ct"] for one in answers} == {47}
    assert "from now on nothing is drafted" in suffix.server.log.read_text()


def test_what_is_changed_in_sglang_is_reported(suffix):
    targets = set(suffix.get("capabilities")["patches"])
    assert targets <= {patch.target for patch in PATCHES}
    assert {
        patch.target for patch in PATCHES if set(patch.entries) & set(ENTRIES) and not patch.methods
    } <= targets
