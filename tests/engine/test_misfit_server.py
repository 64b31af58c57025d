"""A real vLLM that ours must not touch: stock behaviour, and one line that says why."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.doctor_codes import doctor_codes
from support.engine_control import PROMPTS, controlled_server

from specctl.engine.releases import TESTED

pytestmark = pytest.mark.engine

SUPPORT = Path(__file__).resolve().parents[1] / "support"
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
CASES = {
    "other_plugin": (
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner.propose_draft_token_ids has been replaced by "
        "other_plugin"
    ),
    "untested": "was not tested with this version of specctl (tested: 0.31.0)",
}
DOCTORS = {
    "other_plugin": {"plugin-not-loaded"},
    "untested": {"plugin-not-loaded", "engine-untested"},
}


@pytest.mark.parametrize("folder", CASES)
def test_it_runs_as_stock_and_the_log_says_why(
    target_model: Path, logs: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{SUPPORT / folder}:{os.environ.get('PYTHONPATH', '')}")
    with controlled_server(target_model, logs / f"{folder}.log", {**NGRAM, "specctl": {}}) as control:
        assert control.client.get("/specctl/v1/capabilities").status_code == 404
        outputs = [control.complete(prompt) for prompt in PROMPTS]
        assert all(len(output) == 32 for output in outputs)
        metrics = control.client.get("/metrics").text
        assert any(line.startswith("vllm:spec_decode_num_drafts") for line in metrics.splitlines())
        log = control.server.log.read_text(encoding="utf-8")
        if folder == "untested":
            monkeypatch.setitem(TESTED, "vllm", ("0.31.0",))
        assert doctor_codes(control.server.url) == DOCTORS[folder]
    (line,) = (one for one in log.splitlines() if "The server runs without specctl." in one)
    assert CASES[folder] in line
