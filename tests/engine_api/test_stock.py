from __future__ import annotations

import importlib.util
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from specctl.engine_api.deltas import CounterReset, stock_delta
from specctl.engine_api.stock_metrics import parse_stock_metrics
from specctl.errors import TargetError
from specctl.types import Histogram

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
vllm:kv_cache_usage_perc{engine="0",model_name="g"} 0.25
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="g"} 3.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.5",model_name="g"} 4.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="g"} 4.0
vllm:time_to_first_token_seconds_bucket{engine="1",le="0.1",model_name="g"} 0.0
vllm:time_to_first_token_seconds_bucket{engine="1",le="0.5",model_name="g"} 0.0
vllm:time_to_first_token_seconds_bucket{engine="1",le="+Inf",model_name="g"} 1.0
vllm:request_time_per_output_token_seconds_bucket{engine="0",le="0.01",model_name="g"} 2.0
vllm:request_time_per_output_token_seconds_bucket{engine="0",le="+Inf",model_name="g"} 2.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="g"} 4.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="g"} 1.5
vllm:time_to_first_token_seconds_count{engine="1",model_name="g"} 1.0
vllm:time_to_first_token_seconds_sum{engine="1",model_name="g"} 0.5
"""


def test_counters_are_summed_over_engines() -> None:
    counters = parse_stock_metrics(PAGE)
    assert (counters.load.running, counters.load.waiting, counters.drafts) == (3, 0, 107)
    assert counters.accepted_at == (107, 93)
    assert (counters.load.started_requests, counters.load.first_token_wait_s) == (5, 2.0)
    assert counters.gaps == ()


def test_a_missing_counter_is_none_and_never_zero() -> None:
    counters = parse_stock_metrics('vllm:num_requests_running{engine="0"} 0.0\n')
    assert counters.load.running == 0
    assert counters.drafts is None
    assert counters.accepted_at is None
    assert counters.load.first_token_wait_s is None


@pytest.mark.parametrize("value", ["NaN", "-1.0", "+Inf"])
def test_a_value_that_cannot_be_is_none_with_a_reason(value: str) -> None:
    counters = parse_stock_metrics(PAGE.replace(" 107.0\n", f" {value}\n", 1))
    assert counters.drafts is None
    assert counters.gaps[0].startswith("drafts is ")


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
    page = PAGE.replace('engine="0",model_name="g"', odd).replace(" 284.0\n", " 284.0 1700000000000\n")
    counters = parse_stock_metrics(page)
    assert counters == parse_stock_metrics(PAGE)
    assert parse_stock_metrics("vllm:num_requests_running 3\n").load.running == 3


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
    """With --enable-priority-scheduling a gauge is exported as a whole and by priority."""
    counters = parse_stock_metrics(SGLANG_PAGE)
    load = counters.load
    assert (load.running, load.waiting, counters.kv_cache_used_ratio) == (2, 1, 0.25)
    assert load.generated_tokens == 140
    assert (load.started_requests, load.first_token_wait_s) == (4, 1.5)
    assert counters.drafts is counters.accepted_at is counters.tpot is None
    assert counters.gaps == ()


def test_histograms_are_summed_over_engines() -> None:
    counters = parse_stock_metrics(PAGE)
    assert counters.ttft == Histogram((0.1, 0.5), (3, 1, 1))
    assert counters.tpot == Histogram((0.01,), (2, 0))


def test_a_delta_of_histograms_has_quantiles() -> None:
    before = parse_stock_metrics(PAGE)
    after = parse_stock_metrics(
        PAGE.replace('le="0.5",model_name="g"} 4.0', 'le="0.5",model_name="g"} 14.0').replace(
            'le="+Inf",model_name="g"} 4.0', 'le="+Inf",model_name="g"} 14.0'
        )
    )
    delta = stock_delta(before, after)
    assert delta.ttft == Histogram((0.1, 0.5), (0, 10, 0))
    assert delta.ttft.quantile(0.5) == pytest.approx(0.3)
    assert delta.tpot is not None
    assert delta.tpot.quantile(0.5) is None, "nothing finished"
    other = replace(after, ttft=Histogram((0.1,), (1, 2)))
    assert stock_delta(before, other).ttft is None, "other edges: another server"
    with pytest.raises(CounterReset):
        stock_delta(after, before)


def test_quantiles() -> None:
    histogram = Histogram((0.1, 0.2, 0.4), (2, 0, 2, 4))
    assert histogram.quantile(0.125) == pytest.approx(0.05)
    assert histogram.quantile(0.25) == pytest.approx(0.1)
    assert histogram.quantile(0.5) == pytest.approx(0.4)
    assert histogram.quantile(0.95) == 0.4, "above the last edge nothing is known but that edge"
    assert Histogram((), (3,)).quantile(0.5) is None


@pytest.mark.parametrize(
    "page",
    [
        'vllm:num_requests_running{a="1"} 1e308\nvllm:num_requests_running{a="2"} 1e308\n',
        "vllm:spec_decode_num_drafts_total 1e300\n",
        "vllm:time_to_first_token_seconds_sum 1e999\n",
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 1e300\n',
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="\u00b2"} 1\n',
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="99999999999"} 1\n',
        'vllm:time_to_first_token_seconds_bucket{le="nan"} 1\n',
        'vllm:time_to_first_token_seconds_bucket{le="+Inf"} 1e300\n',
        "".join(f'vllm:time_to_first_token_seconds_bucket{{le="{i}"}} 1\n' for i in range(5000)),
    ],
)
def test_numbers_that_cannot_be_are_not_measured(page: str) -> None:
    counters = parse_stock_metrics(page)
    assert counters.load.running is None
    assert counters.drafts is counters.accepted_at is counters.ttft is None
    assert counters.load.first_token_wait_s is None


@pytest.mark.parametrize(
    "page",
    [
        "vllm:x 1\n" + "\n" * 200_000,
        "vllm:num_requests_running 1\n" * 20_000,
        'vllm:num_requests_running{model_name="' + "x" * 100_000 + '"} 1\n',
        'vllm:time_to_first_token_seconds_bucket{le="x"} 1\n',
        'vllm:time_to_first_token_seconds_bucket{le="1" b} 1\n',
        "vllm:num_requests_running{} 1" + " " * 9000 + "x\n",
    ],
    ids=["lines", "samples", "label", "edge", "labels", "spaces"],
)
def test_a_page_over_a_bound_is_refused_at_once(page: str) -> None:
    started_s = time.perf_counter()
    with pytest.raises(TargetError, match="not Prometheus text"):
        parse_stock_metrics(page)
    assert time.perf_counter() - started_s < 1.0


def test_nothing_is_kept_of_a_page() -> None:
    """A server may send other labels each time."""
    tracemalloc.start()
    try:
        for i in range(20):
            label = f"{i}" + "x" * 7000
            parse_stock_metrics(f'vllm:num_requests_running{{model_name="{label}"}} 1\n' * 100)
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()


def test_the_names_are_those_of_the_installed_vllm() -> None:
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("vllm is not installed")
    folder = Path(spec.submodule_search_locations[0])
    source = "".join(
        path.read_text() for path in (*folder.glob("v1/metrics/*.py"), *folder.glob("v1/spec_decode/*.py"))
    )
    names = {name for name in PAGE.replace("{", " ").split() if name.startswith("vllm:")}
    for name in names:
        plain = name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum")
        plain = plain.removesuffix("_created").removesuffix("_total")
        assert plain in source, name
