from __future__ import annotations

import pytest

from specctl.errors import TargetError
from specctl.observe.stock import parse_stock_metrics

PAGE = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="g"} 2.0
vllm:num_requests_running{engine="1",model_name="g"} 1.0
vllm:num_requests_waiting{engine="0",model_name="g"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="g",reason="capacity"} 7.0
vllm:spec_decode_num_drafts_total{engine="0",model_name="g"} 107.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="g"} 1.7e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="g"} 284.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="g"} 200.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="g",position="0"} 107.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="g",position="1"} 93.0
vllm:generation_tokens_total{engine="0",model_name="g"} 480.0
vllm:iteration_tokens_total_bucket{engine="0",le="1.0",model_name="g"} 3.0
vllm:iteration_tokens_total_count{engine="0",model_name="g"} 202.0
vllm:kv_cache_usage_perc{engine="0",model_name="g"} 0.25
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="g"} 3.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="g"} 4.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="g"} 1.5
vllm:time_to_first_token_seconds_count{engine="1",model_name="g"} 1.0
vllm:time_to_first_token_seconds_sum{engine="1",model_name="g"} 0.5
"""


def test_counters_are_summed_over_engines() -> None:
    counters = parse_stock_metrics(PAGE)
    assert (counters.running, counters.waiting, counters.drafts) == (3, 0, 107)
    assert counters.accepted_at == (107, 93)
    assert counters.engine_steps == 202
    assert (counters.started_requests, counters.first_token_wait_s) == (5, 2.0)
    assert counters.gaps == ()


def test_a_missing_counter_is_none_and_never_zero() -> None:
    counters = parse_stock_metrics('vllm:num_requests_running{engine="0"} 0.0\n')
    assert counters.running == 0
    assert counters.drafts is None
    assert counters.accepted_at is None
    assert counters.first_token_wait_s is None


@pytest.mark.parametrize("value", ["NaN", "-1.0", "+Inf"])
def test_a_value_that_cannot_be_is_none_with_a_reason(value: str) -> None:
    counters = parse_stock_metrics(PAGE.replace(" 107.0\n", f" {value}\n", 1))
    assert counters.drafts is None
    assert "spec_decode_num_drafts_total" in counters.gaps[0]


def test_positions_with_a_hole_are_none() -> None:
    counters = parse_stock_metrics(PAGE.replace('position="1"', 'position="2"'))
    assert counters.accepted_at is None
    assert "holes" in counters.gaps[0]


@pytest.mark.parametrize("page", ["", "<html>", "process_cpu_seconds_total 1\n"])
def test_a_page_of_no_engine_is_refused(page: str) -> None:
    with pytest.raises(TargetError, match="engine"):
        parse_stock_metrics(page)


def test_a_broken_line_is_refused() -> None:
    with pytest.raises(TargetError, match="not Prometheus text"):
        parse_stock_metrics("vllm:num_requests_running{engine=} x y\n")


def test_labels_may_hold_anything_and_a_timestamp_may_follow() -> None:
    odd = r'model_name="a} b{position=\"7\",c",engine="0"'
    page = PAGE.replace('engine="0",model_name="g"', odd).replace(" 202.0\n", " 202.0 1700000000000\n")
    counters = parse_stock_metrics(page)
    assert counters == parse_stock_metrics(PAGE)
    assert parse_stock_metrics("vllm:num_requests_running 3\n").running == 3


SGLANG_PAGE = """\
sglang:num_running_reqs{engine_type="unified",model_name="g",tp_rank="0"} 2.0
sglang:num_running_reqs_offline_batch{model_name="g"} 7.0
sglang:num_running_reqs{engine_type="unified",model_name="g",priority="0",tp_rank="0"} 2.0
sglang:num_queue_reqs{model_name="g",priority="",tp_rank="0"} 1.0
sglang:num_queue_reqs{model_name="g",priority="7",tp_rank="0"} 1.0
sglang:token_usage{model_name="g",tp_rank="0"} 0.25
sglang:spec_accept_length{model_name="g",tp_rank="0"} 3.1
sglang:generation_tokens_total{is_streaming="false",model_name="g"} 100.0
sglang:generation_tokens_total{is_streaming="true",model_name="g"} 40.0
sglang:time_to_first_token_seconds_count{is_streaming="true",model_name="g"} 4.0
sglang:time_to_first_token_seconds_sum{is_streaming="true",model_name="g"} 1.5
"""


def test_sglang_tells_its_load_and_nothing_of_drafts() -> None:
    """With --enable-priority-scheduling a gauge is told as a whole and by priority."""
    counters = parse_stock_metrics(SGLANG_PAGE)
    assert (counters.running, counters.waiting, counters.kv_cache_used_ratio) == (2, 1, 0.25)
    assert counters.generated_tokens == 140
    assert (counters.started_requests, counters.first_token_wait_s) == (4, 1.5)
    assert counters.drafts is counters.accepted_at is counters.engine_steps is None
    assert counters.gaps == ()
