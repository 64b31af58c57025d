from __future__ import annotations

import pytest
from fakes.observations import cell

from specctl.contract.telemetry import TelemetryCell
from specctl.core.position_cost import PositionCost, Spread

BASE_S, POSITION_S = 0.020, 0.0005


def steps(*positions: int, base_s: float = BASE_S, drafted: int = 10, **more: object) -> TelemetryCell:
    seconds = tuple(base_s + POSITION_S * one for one in positions)
    return cell(
        tokens=4, decode_batch=8, verified=positions, seconds=seconds, accepted_at=(0,) * 4,
        drafted_at=(drafted,) * 4, **more,
    )  # type: ignore[arg-type]  # fmt: skip


def add(found: PositionCost, bucket: int, one: TelemetryCell) -> None:
    found.add(bucket, one, Spread.of(one))


VARIED = (8, 12, 8, 20, 40, 8, 16, 8) * 4


def test_steps_with_more_positions_tell_what_one_takes() -> None:
    found = PositionCost(2)
    add(found, 1, steps(*VARIED))
    assert found.seconds()[1] == pytest.approx(POSITION_S, rel=0.02)


def test_a_slower_machine_is_no_more_positions() -> None:
    """Intervals are not compared: here the one with few positions is slow."""
    found = PositionCost(1)
    for base_s, positions in ((0.1, (8, 9, 8, 9, 10, 8)), (0.02, (38, 40, 36, 40, 38, 40))):
        add(found, 0, steps(*positions * 20, base_s=base_s))
    assert found.seconds()[0] == pytest.approx(POSITION_S, rel=0.6)


def test_many_requests_take_less_for_a_position_than_one() -> None:
    """Of eight no poll holds steps enough; from one, it follows by how many percent a step is longer."""
    found = PositionCost(2)
    for _ in range(20):
        one, eight = steps(1, 9, 1, 9, 3, 9, base_s=0.004), steps(72, base_s=-0.018)
        for bucket, met in enumerate((one, eight)):
            found.meet(bucket, met)
        add(found, 0, one)
    of_one, of_eight = found.seconds()
    assert of_one == pytest.approx(POSITION_S, rel=0.2)
    assert 0.0 < of_eight < eight.step_s / eight.verified_tokens < 0.6 * of_one


def test_what_was_never_met_is_not_known() -> None:
    found = PositionCost(2)
    add(found, 0, steps(*VARIED))
    assert found.seconds()[1] == 0.0


@pytest.mark.parametrize(
    "silent",
    [
        steps(*VARIED, drafted=8 * len(VARIED)),
        steps(8, 40),
        steps(*(16,) * 20),
        steps(*VARIED, topk=2, width=8),
    ],
    ids=["full drafts", "two steps", "all alike", "a tree"],
)
def test_what_tells_nothing(silent: TelemetryCell) -> None:
    found = PositionCost(1)
    add(found, 0, silent)
    assert found.seconds()[0] == 0.0


@pytest.mark.parametrize(
    "impossible",
    [
        {"verified_tokens": 0},
        {"verified_tokens_squared": 1e308},
        {"step_s_by_verified_tokens": 1e308},
        {"step_s_squared": 1e308, "step_s_by_verified_tokens": 1e150},
        {"step_s_squared": 0.0},
    ],
    ids=lambda one: ", ".join(one),
)
def test_sums_that_no_steps_have_tell_nothing(impossible: dict[str, float]) -> None:
    found = PositionCost(1)
    add(found, 0, steps(*VARIED).model_copy(update=impossible))
    assert found.seconds()[0] == 0.0


def test_shorter_steps_with_more_positions_are_luck() -> None:
    found = PositionCost(1)
    falling = tuple(0.05 - 0.001 * one for one in VARIED)
    add(found, 0, cell(tokens=4, decode_batch=8, verified=VARIED, seconds=falling, accepted_at=(0,) * 4,
                      drafted_at=(10,) * 4))  # fmt: skip
    assert found.seconds()[0] == 0.0
