"""Files of vLLM's and SGLang's own benchmarks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specctl.bench.interchange import read_runs
from specctl.errors import BenchInputError

VLLM = {
    "backend": "openai",
    "duration": 4.0,
    "completed": 3,
    "failed": 1,
    "total_input_tokens": 30,
    "total_output_tokens": 200,
    "output_throughput": 50.0,
    "mean_ttft_ms": 20.0,
    "median_ttft_ms": 18.0,
    "p99_ttft_ms": 40.0,
    "mean_e2el_ms": 900.0,
    "median_e2el_ms": 800.0,
    "spec_decode_acceptance_rate": 50.0,
    "spec_decode_num_drafts": 40,
    "spec_decode_draft_tokens": 160,
    "spec_decode_accepted_tokens": 80,
    "spec_decode_per_position_acceptance_rates": [0.8, 0.6],
}
SGLANG = {
    "backend": "sglang-oai",
    "duration": 2.0,
    "completed": 3,
    "total_input_tokens": 30,
    "total_output_tokens": 200,
    "mean_e2e_latency_ms": 500.0,
    "median_e2e_latency_ms": 400.0,
    "p99_e2e_latency_ms": 700.0,
    "accept_length": 2.5,
}


def test_a_file_of_vllm(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps(VLLM))
    (run,) = read_runs(file, "off")
    assert (run.tokens_per_s, run.requests, run.failed) == (50.0, 3, 1)
    assert run.ttft is not None
    assert (run.ttft.p50_s, run.ttft.p95_s, run.ttft.p99_s) == (0.018, None, 0.04)
    assert run.tpot is None
    assert run.acceptance is not None
    assert (run.acceptance.acceptance_rate, run.acceptance.drafting_acceptance_length) == (0.5, 3.0)
    assert run.acceptance.acceptance_length is None


def test_lines_of_sglang_are_rounds(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text((json.dumps(SGLANG) + "\n") * 3)
    runs = read_runs(file, "eagle", first_round=2)
    assert [run.round for run in runs] == [2, 3, 4]
    assert runs[0].e2el is not None
    assert runs[0].e2el.p50_s == 0.4
    assert runs[0].acceptance is not None
    assert runs[0].acceptance.drafting_acceptance_length == 2.5


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "nothing", '{"duration": 0, "total_output_tokens": 1}', "1"]
)
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "a.json"
    file.write_text(text)
    with pytest.raises(BenchInputError, match=r"a\.json"):
        read_runs(file, "off")
