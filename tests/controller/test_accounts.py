"""What the loop tells beside its decisions, over HTTP on a fake engine."""

from __future__ import annotations

import asyncio
import logging
import math
from pathlib import Path

import pytest
from fakes.engine import COPYING, RANDOM_TEXT, FakeEngine, Traffic
from fakes.group import Group


def figures(policy: str, traffic: Traffic, tmp_path: Path, *, seconds: int, metrics: str = "") -> Group:
    async def course() -> None:
        async with group:
            await group.run(seconds)

    with FakeEngine(traffic=traffic) as engine:
        engine.more_metrics = lambda: metrics.format(n=int(engine.time_s), s=0.25 * int(engine.time_s))
        group = Group([engine], policy, tmp_path / "audit.jsonl")
        asyncio.run(course())
    return group


def metric(group: Group, name: str) -> float | None:
    return group.exporter.registry.get_sample_value(name, {"target": group.clients[0].target})


def test_regret_is_exported(tmp_path: Path) -> None:
    group = figures("kind: goodput", COPYING, tmp_path, seconds=40)
    off, best = metric(group, "specctl_regret_off_ratio"), metric(group, "specctl_regret_best_static_ratio")
    assert off is not None
    assert off < -1.0
    assert best is not None
    assert abs(best) < 0.2
    assert metric(group, "specctl_best_static_num_speculative_tokens") == 8
    assert metric(group, "specctl_exploration_lost_ratio") is not None
    assert metric(group, "specctl_restart_advised_ratio") == 0
    assert metric(group, "specctl_predicted_cost_per_million_tokens") is None


def test_unknown_regret_is_no_number(tmp_path: Path) -> None:
    group = figures("kind: goodput", COPYING, tmp_path, seconds=2)
    assert math.isnan(metric(group, "specctl_regret_off_ratio") or 0.0)


def test_the_cost_of_a_million_tokens(tmp_path: Path) -> None:
    group = figures("kind: cost\nserver_price_per_hour: 3.6", COPYING, tmp_path, seconds=20)
    cost = metric(group, "specctl_predicted_cost_per_million_tokens")
    # 0.001 a second at about 60 tokens a second.
    assert cost == pytest.approx(0.001 / 60 * 1e6, rel=0.4)


def test_a_restart_is_advised_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="specctl")
    policy = "kind: goodput\nadvise_restart_after_s: 30"
    with pytest.MonkeyPatch.context() as patch:
        # The fake engine counts no seconds of drafting, and nobody waits there.
        patch.setattr("specctl.controller.restart_advice.SQUEEZED_MIN_RATIO", 0.0)
        group = figures(policy, RANDOM_TEXT, tmp_path, seconds=60)
    assert metric(group, "specctl_restart_advised_ratio") == 1
    (record,) = group.records("advice")
    assert record["off_s"] >= 30
    assert record["explanation"] in caplog.text
    assert caplog.text.count("restart without speculation") == 1


def test_ttft_comes_from_the_engines_own_metrics(tmp_path: Path) -> None:
    """0.25 s to the first token, one request a second: with 8 drafts that is too long."""
    page = (
        'vllm:time_to_first_token_seconds_count{{engine="0"}} {n}\n'
        'vllm:time_to_first_token_seconds_sum{{engine="0"}} {s}\n'
    )
    bounded = "kind: slo\nmax_ttft_ms: 200"
    group = figures(bounded, COPYING, tmp_path, seconds=30, metrics=page)
    changes = [record for record in group.records("change") if record["reason"] == "latency_bound"]
    assert "the present one breaks a bound" in changes[0]["explanation"]
    assert changes[0]["to"]["1-1"] < 8
