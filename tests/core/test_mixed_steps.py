"""What drafts add to steps that hold prompts, from such steps of two settings in the same intervals."""

from __future__ import annotations

import numpy as np
import pytest
from fakes.observations import capabilities, cell, chains

from specctl.contract.telemetry import TelemetryCell
from specctl.core.mixed_steps import MixedSteps
from specctl.core.space import Floats, Space

SPACE = Space.of(capabilities(chains(0, 1, 2, 4, 8), (1, 2, 4, 8)))
POSITIONS = np.arange(1.0, 5.0)[:, None] * (1.0 + SPACE.depth)[None, :]
EXPECTED: Floats = 0.001 * POSITIONS
"""Seconds of decoding."""
BUCKET, OFF, FOUR, EIGHT = 3, 0, 3, 4


def mixed(tokens: int, step_s: float, prompt_tokens: int = 100, count: int = 10) -> TelemetryCell:
    """Steps that scatter by 5 %."""
    seconds = (0.95 * step_s, 1.05 * step_s) * (count // 2)
    return cell(
        tokens=tokens, decode_batch=8, has_prefill=True, seconds=seconds, accepted_at=(0,) * tokens,
        prefill_tokens=prompt_tokens * count,
    )  # fmt: skip


def after(*intervals: tuple[TelemetryCell, ...], token_s: float = 1e-5) -> MixedSteps:
    found = MixedSteps(SPACE)
    for cells in intervals:
        found.forget(0.5)
        found.add(BUCKET, cells, token_s)
    return found


def test_nothing_is_known_of_one_setting() -> None:
    assert not after(*((mixed(8, 0.03),),) * 20).beyond(EXPECTED, POSITIONS)[0].any()


def test_steps_of_different_intervals_are_not_compared() -> None:
    """The machine may have become slower between them."""
    found = after(*((mixed(0, 0.02),),) * 20, *((mixed(8, 0.05),),) * 20)
    assert not found.beyond(EXPECTED, POSITIONS)[0].any()


@pytest.mark.parametrize("own", [0, 8])
def test_what_was_measured_takes_the_place_of_what_was_expected(own: int) -> None:
    """Drafts add nothing to a step that waits for its launches, whichever setting most steps have."""
    counts = {0: 4, 8: 4, own: 40}
    steps = tuple(mixed(tokens, 0.03, count=counts[tokens]) for tokens in (0, 8))
    beyond = after(*(steps,) * 40).beyond(EXPECTED, POSITIONS)[0]
    seconds = (EXPECTED + beyond)[BUCKET]
    assert seconds[EIGHT] - seconds[OFF] == pytest.approx(0.0, abs=0.1 * 0.032)
    assert beyond[BUCKET, FOUR] == pytest.approx(np.mean(beyond[BUCKET, [OFF, EIGHT]])), (
        "half of the positions"
    )
    assert not beyond[:BUCKET].any(), "nothing was measured there"


def test_a_few_steps_tell_little() -> None:
    few, many = (
        after(*((mixed(0, 0.03, count=2), mixed(8, 0.03)),) * intervals).beyond(0.1 * EXPECTED, POSITIONS)[0]
        for intervals in (1, 60)
    )
    assert np.ptp(few[BUCKET]) < 0.5 * np.ptp(many[BUCKET])


def test_the_error_falls_with_the_steps_and_begins_at_what_may_be_missed() -> None:
    pair = (mixed(0, 0.03, count=2), mixed(8, 0.03))
    few, many = (after(*(pair,) * intervals).beyond(EXPECTED, POSITIONS)[1][BUCKET] for intervals in (2, 60))
    assert few[EIGHT] > 2.0 * many[EIGHT] > 0.0
    assert few[FOUR] == pytest.approx(0.5 * EXPECTED[BUCKET, FOUR] - 0.5 * EXPECTED[BUCKET, OFF], rel=0.01)


def test_more_prompt_tokens_are_no_slower_setting() -> None:
    """A prompt token takes 50 us here, and 10 us were expected: the steps of a setting tell."""
    rng = np.random.default_rng(0)
    intervals = []
    for _ in range(60):
        off, drafts = int(rng.integers(50, 250)), int(rng.integers(150, 350))
        intervals.append((mixed(0, 0.01 + 5e-5 * off, off), mixed(8, 0.042 + 5e-5 * drafts, drafts)))
    beyond = after(*intervals).beyond(EXPECTED, POSITIONS)[0]
    assert abs(beyond[BUCKET, OFF] - beyond[BUCKET, EIGHT]) < 0.1 * 0.032, "0.032 s were expected"
