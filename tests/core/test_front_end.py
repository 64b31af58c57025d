"""What the HTTP server takes of a step, from the steps that wait for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fakes.observations import capabilities, cell, chains, observation

from specctl.contract.telemetry import TelemetryCell
from specctl.core.front_end import BEHIND_STEPS, OVER_AFTER_S, SAID_AFTER_S, FrontEnd
from specctl.core.messages import Event
from specctl.core.space import Space
from specctl.core.step_cost import StepCostEstimate
from specctl.types import Observation

PIECE_S = 100e-6
BATCH, STEPS = 200, 80
SPACE = Space.of(capabilities(chains(0, 2), (BATCH,)))
PLAIN = cell(decode_batch=BATCH, steps=STEPS, tokens=0, accepted_at=(), step_s=0.01)


def poll(waiting: int | None, *cells: TelemetryCell) -> Observation:
    return replace(observation(*(cells or (PLAIN,))), interval_s=1.0, front_end_waiting_pieces=waiting)


def behind(polls: int, start: int = BEHIND_STEPS * BATCH) -> list[Observation]:
    """16,000 pieces a second are made, 10,000 delivered."""
    more = round(BATCH * STEPS - 1.0 / PIECE_S)
    return [poll(start + more * i) for i in range(polls)]


def after(*polls: Observation) -> tuple[FrontEnd, list[Event]]:
    """Decoding is known to take 10 ms of each step."""
    front_end = FrontEnd(SPACE)
    events = []
    for one in polls:
        front_end.paced(cost(0.01))
        events.append(front_end.update(one))
    return front_end, [event for event in events if event is not None]


def cost(step_s: float) -> StepCostEstimate:
    one = np.full((len(SPACE.buckets), len(SPACE.settings)), step_s)
    batch, none = np.full(len(SPACE.buckets), float(BATCH)), np.zeros(len(SPACE.buckets))
    return StepCostEstimate(one, one, one > 0, one, one, batch, none, one, np.zeros_like(one))


def test_a_piece_takes_what_the_busy_front_end_delivered() -> None:
    front_end, _ = after(*behind(8))
    assert front_end.piece_s == pytest.approx(PIECE_S, rel=0.02)
    assert front_end.is_behind


def test_no_step_is_shorter_than_its_pieces() -> None:
    front_end, _ = after(*behind(8))
    paced = front_end.paced(cost(0.01))
    assert paced.step_s == pytest.approx(BATCH * PIECE_S, rel=0.02)
    assert paced.decoding_s == pytest.approx(BATCH * PIECE_S, rel=0.02)
    assert front_end.paced(cost(0.05)).step_s == pytest.approx(0.05)


def test_pieces_are_delivered_beside_prompts_too() -> None:
    """Half of the steps hold prompts and take 30 ms more: 15 of the 20 ms of a step's pieces are theirs."""
    half = PLAIN.model_copy(
        update={"steps": STEPS // 2, "request_steps": PLAIN.request_steps // 2, "step_s": 0.01 * STEPS / 2}
    )
    mixed = half.model_copy(update={"has_prefill": True, "prefill_tokens": 1000, "step_s": 0.04 * STEPS / 2})
    polls = [replace(one, cells=(half, mixed)) for one in behind(30)]
    paced = after(*polls)[0].paced(cost(0.001))
    assert paced.decoding_s == pytest.approx(BATCH * PIECE_S - 0.015, rel=0.1)


@pytest.mark.parametrize("waiting", [None, 0, BEHIND_STEPS * BATCH - 1])
def test_a_front_end_that_keeps_up_is_no_part_of_a_step(waiting: int | None) -> None:
    front_end, events = after(*[poll(waiting)] * 30)
    assert front_end.piece_s == 0.0
    assert events == []
    known = cost(0.01)
    assert front_end.paced(known) is known


def test_a_piece_takes_no_longer_than_it_is_seen_to_take() -> None:
    """Clients that stop streaming: as many pieces a second as before, and none waits."""
    front_end, _ = after(*behind(8), poll(0), poll(0))
    assert front_end.piece_s <= 1.0 / (BATCH * STEPS)


def test_gaps_in_the_telemetry_change_nothing() -> None:
    front_end, _ = after(*behind(8))
    known = front_end.piece_s
    front_end.update(replace(poll(50 * BATCH), cells=None))
    front_end.update(replace(poll(50 * BATCH), interval_s=None))
    assert front_end.piece_s == known


def test_being_behind_is_said_once_and_its_end() -> None:
    long = behind(int(SAID_AFTER_S) + 20)
    caught_up = [poll(0)] * (int(OVER_AFTER_S) + 20)
    events = after(*long, *caught_up)[1]
    assert [event.name for event in events] == ["front_end_behind", "front_end_caught_up"]
    assert "--api-server-count" in events[0].words
    assert events[0].is_warning
    assert events[0].record["piece_us"] == pytest.approx(100.0, rel=0.05)


def test_a_short_delay_is_not_said() -> None:
    assert after(*(behind(4) + [poll(0)] * 4) * 10)[1] == []


def test_steps_of_prompts_alone_are_no_batch() -> None:
    alone = PLAIN.model_copy(
        update={"request_steps": 0, "steps": 3, "prefill_tokens": 3000, "has_prefill": True}
    )
    events = after(*[poll(40, alone)] * (int(SAID_AFTER_S) + 2))[1]
    assert "by 40 steps" in events[0].words
