from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specctl.contract.telemetry import AcceptanceGroup, ShadowAcceptance, Telemetry
from specctl.engine_api.deltas import CounterReset, cell_deltas, group_deltas, shadow_delta


def telemetry(boot_id: str = "a", **counts: object) -> Telemetry:
    cell = {
        "decode_batch_from": 1,
        "decode_batch_to": 1,
        "num_speculative_tokens": 2,
        "has_prefill": False,
        "steps": 10,
        "request_steps": 10,
        "emitted_tokens": 20,
        "verified_tokens": 30,
        "drafted_at": (10, 10),
        "accepted_at": (6, 4),
        "context_tokens": 100,
        "prefill_tokens": 0,
        "step_s": 1.0,
        "step_s_squared": 0.1,
        "verified_tokens_squared": 90.0,
        "step_s_by_verified_tokens": 3.0,
        "draft_s": 0.1,
        "verify_s": 0.9,
        **counts,
    }
    return Telemetry.model_validate(
        {
            "contract_version": 2,
            "boot_id": boot_id,
            "uptime_s": 1.0,
            "table_version": 1,
            "table_state": "live",
            "num_speculative_tokens": 2,
            "running": 1,
            "waiting": 0,
            "decoding": 1,
            "kv_cache_used_ratio": 0.0,
            "cells": [cell],
        }
    )


def test_gain_between_two_reads() -> None:
    before = telemetry()
    after = telemetry(steps=15, request_steps=15, emitted_tokens=35, accepted_at=(9, 6), step_s=1.5)
    (delta,) = cell_deltas(before, after)
    assert (delta.steps, delta.emitted_tokens, delta.accepted_at) == (5, 15, (3, 2))
    assert delta.step_s == pytest.approx(0.5)


def test_a_cell_seen_first_counts_from_zero() -> None:
    before = telemetry().model_copy(update={"cells": ()})
    (delta,) = cell_deltas(before, telemetry())
    assert delta.steps == 10


def test_a_cell_without_new_steps_is_left_out() -> None:
    assert cell_deltas(telemetry(), telemetry()) == ()


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (telemetry(boot_id="b"), "boot_id changed"),
        (telemetry(steps=9), "steps fell"),
        (telemetry(step_s=0.5), "step_s fell"),
        (telemetry(accepted_at=(5, 4)), r"accepted_at\[0\] fell"),
        (telemetry(accepted_at=(6,)), "lost positions"),
        (telemetry().model_copy(update={"cells": ()}), "vanished"),
    ],
    ids=["restart", "count", "seconds", "position", "positions", "cell"],
)
def test_a_reset_is_no_difference(after: Telemetry, words: str) -> None:
    with pytest.raises(CounterReset, match=words):
        cell_deltas(telemetry(), after)


@given(
    st.lists(st.integers(0, 9), min_size=3, max_size=3), st.lists(st.integers(0, 9), min_size=3, max_size=3)
)
def test_shadow_never_gains_a_negative_count(first: list[int], second: list[int]) -> None:
    before = ShadowAcceptance(drafts=9, drafted_at=(9, 9, 9), accepted_at=tuple(first))
    after = ShadowAcceptance(drafts=12, drafted_at=(9, 9, 9), accepted_at=tuple(second))
    try:
        delta = shadow_delta(before, after)
    except CounterReset:
        assert any(b < a for a, b in zip(first, second, strict=True))
    else:
        assert delta is not None
        assert min(delta.accepted_at) >= 0


def group(steps: int, reached: tuple[int, ...], accepted: tuple[int, ...]) -> AcceptanceGroup:
    return AcceptanceGroup(request_steps=steps, reached_at=reached, accepted_at=accepted)


def test_what_groups_of_requests_gain() -> None:
    before = (group(0, (), ()), group(9, (9, 5), (5, 2)))
    after = (group(2, (2, 1), (1, 0)), group(10, (10, 6), (6, 3)))
    assert group_deltas(before, after) == (
        group(2, (2, 1), (1, 0)),
        group(1, (1, 1), (1, 1)),
    )


def test_an_engine_that_told_no_groups_before() -> None:
    assert group_deltas((), (group(2, (2,), (1,)),)) == ()
    assert group_deltas((group(2, (2,), (1,)),), ()) == ()


def test_a_groups_counter_that_fell_is_a_reset() -> None:
    with pytest.raises(CounterReset, match=r"acceptance_groups.accepted_at\[0\] fell"):
        group_deltas((group(2, (2,), (2,)),), (group(3, (3,), (1,)),))
