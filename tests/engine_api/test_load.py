from __future__ import annotations

from pathlib import Path

import pytest
from fakes.load import FakeLoad

from specctl.engine_api.stock_metrics import LoadCounters, parse_stock_metrics
from specctl.errors import TargetError

SGLANG_PAGE = (Path(__file__).parent / "sglang_0.5.21_metrics.txt").read_text()
"""What is read of a real page, with --enable-priority-scheduling, after twelve requests of 1,806 and 720
tokens, every second one streamed."""


def parse_load(text: str) -> LoadCounters:
    return parse_stock_metrics(text).load


def text() -> str:
    load = FakeLoad(wait_s=0.25)
    for prompt, output in ((3, 40), (700, 5000)):
        load.start(prompt)
        load.finish(prompt, output)
    return load.text()


def test_counts_and_lengths() -> None:
    load = parse_load(text() + 'vllm:num_requests_running{engine="0"} 2.0\n')
    assert (load.started_requests, load.first_token_wait_s, load.prompt_tokens) == (2, 0.5, 703)
    assert (load.finished_requests, load.finished_prompt_tokens, load.finished_output_tokens) == (
        2,
        703,
        5040,
    )
    assert (load.running, load.waiting) == (2, None)
    assert load.prompt_lengths is not None
    assert load.output_lengths is not None
    assert load.prompt_lengths.counts[2] == 1
    assert load.output_lengths.counts[-1] == 1, "longer than every edge"


def test_ranks_are_summed() -> None:
    load = parse_load(text() + text().replace('engine="0"', 'engine="1"'))
    assert load.started_requests == 4
    assert load.prompt_lengths is not None
    assert sum(load.prompt_lengths.counts) == 4


@pytest.mark.parametrize("value", ["NaN", "-1", "+Inf"])
def test_absurd_numbers_are_left_out(value: str) -> None:
    load = parse_load(f"vllm:prompt_tokens_total {value}\nvllm:num_requests_waiting 1\n")
    assert load.prompt_tokens is None
    assert load.waiting == 1


def test_a_histogram_that_falls_or_has_no_end_is_left_out() -> None:
    falling = (
        'vllm:request_prompt_tokens_bucket{le="1.0"} 5\nvllm:request_prompt_tokens_bucket{le="+Inf"} 4\n'
    )
    assert parse_load(falling).prompt_lengths is None
    assert parse_load('vllm:request_prompt_tokens_bucket{le="1.0"} 5\n').prompt_lengths is None


def test_what_is_no_engine_is_refused() -> None:
    with pytest.raises(TargetError, match="holds no metric"):
        parse_load("up 1\n")
    with pytest.raises(TargetError, match="is not Prometheus text"):
        parse_load("vllm:prompt_tokens_total{ 1\n")


def test_sglang_counts_lengths_of_finished_requests() -> None:
    page = """\
sglang:num_running_reqs{model_name="g"} 2.0
sglang:prompt_tokens_histogram_bucket{le="100.0",model_name="g"} 1
sglang:prompt_tokens_histogram_bucket{le="+Inf",model_name="g"} 3
sglang:prompt_tokens_histogram_sum{model_name="g"} 900
sglang:generation_tokens_histogram_bucket{le="+Inf",model_name="g"} 3
sglang:generation_tokens_histogram_count{model_name="g"} 3
sglang:generation_tokens_histogram_sum{model_name="g"} 300
sglang:prompt_tokens_total{is_streaming="true",model_name="g"} 900
sglang:time_to_first_token_seconds_count{is_streaming="true",model_name="g"} 5
"""
    load = parse_load(page)
    assert (load.started_requests, load.finished_requests, load.running) == (5, 3, 2)
    assert (load.finished_prompt_tokens, load.finished_output_tokens) == (900, 300)
    assert load.prompt_lengths is not None
    assert load.prompt_lengths.counts == (1, 2)
    assert load.prompt_tokens is None, "SGLang counts them when a request has finished"


def test_a_page_of_a_real_sglang() -> None:
    load = parse_load(SGLANG_PAGE)
    assert (load.started_requests, load.finished_requests, load.running, load.waiting) == (12, 12, 0, 0)
    assert (load.prompt_tokens, load.finished_prompt_tokens) == (None, 1806)
    assert load.finished_output_tokens == load.generated_tokens == 720
    assert load.first_token_wait_s == pytest.approx(40.607, abs=1e-3)
    assert load.prompt_lengths is not None
    assert load.output_lengths is not None
    assert load.prompt_lengths.counts[:3] == (4, 8, 0)
    assert sum(load.output_lengths.counts) == 12
    ttft = parse_stock_metrics(SGLANG_PAGE).ttft
    assert ttft is not None
    assert (ttft.upper[0], ttft.upper[-1], sum(ttft.counts)) == (0.1, 400.0, 12), "streamed and not"


def test_before_its_first_request_sglang_has_counted_none() -> None:
    """Its page has gauges then, and no counter of requests; one that is missing later is not known."""
    gauges = [line for line in SGLANG_PAGE.splitlines() if "_reqs" in line or "max_total" in line]
    load = parse_load("\n".join(gauges) + "\n")
    assert (load.started_requests, load.first_token_wait_s, load.finished_requests) == (0, 0.0, 0)
    assert (load.finished_prompt_tokens, load.finished_output_tokens) == (0, 0)
    assert (load.prompt_tokens, load.prompt_lengths) == (None, None)
    first = [line for line in SGLANG_PAGE.splitlines() if "time_to_first" in line]
    load = parse_load("\n".join([*gauges, *first]) + "\n")
    assert (load.started_requests, load.finished_requests) == (12, 0)
    rest = [line for line in SGLANG_PAGE.splitlines() if "time_to_first" not in line]
    assert parse_load("\n".join(rest) + "\n").started_requests is None
    assert parse_load("vllm:num_requests_running 1\n").started_requests is None
