"""Above an engine that adapts by itself: the daemon sets its bound, turns it off where drafting does not pay,
and leaves the number to it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specctl.contract.adaptivity import AdaptivityState, EngineAdaptivity
from specctl.contract.telemetry import TelemetryCell
from specctl.core.messages import Choice, Event, Reason
from specctl.core.rails import Constraint
from specctl.core.space import Bools, Space
from specctl.types import Observation

__all__ = ["Switches", "adaptivity_words", "decided_by", "stepped_back", "supervised", "two_settings"]


def supervised(observation: Observation) -> EngineAdaptivity | None:
    """What takes the number from a daemon that supervises; None: nothing that the table bounds."""
    known, state = _adaptivity(observation), observation.adaptivity
    if known is None or known.is_replaced or not known.is_bounded or state is None or not state.is_on:
        return None
    return known


def two_settings(engine: EngineAdaptivity, space: Space, eligible: Bools) -> Constraint:
    """Off, and the largest setting within the policy's bounds."""
    may = np.zeros(len(space.settings), np.bool_)
    may[0] = eligible[0]
    if eligible.any():
        may[int(eligible.nonzero()[0][-1])] = True
    words = f"the number is left to the engine's {engine.name}"
    return Constraint(np.tile(may, (len(space.buckets), 1)), Reason.SUPERVISED, words)


def stepped_back(choice: Choice, engine: EngineAdaptivity) -> Choice:
    """A bucket that stays at its bound does so because another decides; one that is off does not."""
    drafts = choice.after.num_speculative_tokens
    if not drafts and choice.reason is Reason.SUPERVISED:
        return choice._replace(reason=Reason.OFF_NO_GAIN, detail="")
    if drafts and choice.reason is Reason.NO_BETTER:
        words = f"the number is left to the engine's {engine.name}"
        return choice._replace(reason=Reason.SUPERVISED, detail=words)
    return choice


def decided_by(state: AdaptivityState, cells: Sequence[TelemetryCell]) -> float | None:
    """Mean tokens that the engine let a request draft or verify in a step; None: not known."""
    if state.num_speculative_tokens is not None:
        return float(state.num_speculative_tokens)
    able = [cell for cell in cells if cell.num_speculative_tokens and cell.request_steps]
    steps = sum(cell.request_steps for cell in able)
    return sum(sum(cell.drafted_at) for cell in able) / steps if steps else None


def adaptivity_words(
    engine: EngineAdaptivity, state: AdaptivityState | None, cells: Sequence[TelemetryCell]
) -> str:
    """For people: "enable_adaptive_verification is on, 2.3 tokens verified, bounded by the rows"."""
    if engine.is_replaced:
        return f"{engine.name}: the table has taken its place"
    if state is None or not state.is_on:
        return f"{engine.name} is off"
    tokens = decided_by(state, cells)
    words = [f"{engine.name} is on"]
    if tokens is not None:
        words.append(f"{tokens:.1f} tokens {engine.decides}")
    words.append("bounded by the rows" if engine.is_bounded else "not bounded by the table")
    return ", ".join(words)


class Switches:
    """Of one target: what a start of the engine adapts, and every time that it is switched at run time."""

    def __init__(self) -> None:
        self._boot_id: str | None = None
        self._is_on: bool | None = None

    def update(self, observation: Observation, *, supervises: bool) -> Event | None:
        """Take in a poll, once; what there is to say."""
        capabilities, state = observation.capabilities, observation.adaptivity
        if capabilities is None:
            return None
        is_start = observation.boot_id != self._boot_id
        if not is_start and (state is None or state.is_on is self._is_on):
            return None
        self._boot_id, self._is_on = observation.boot_id, None if state is None else state.is_on
        known, is_on = capabilities.adaptivity, bool(self._is_on)
        if known is None or known.is_replaced or (is_start and not is_on):
            return _nothing_to_supervise(observation.target, known) if is_start and supervises else None
        since = "" if is_start else ", switched at run time"
        words = f"the engine's {known.name} is {'on' if is_on else 'off'}{since}: " + (
            _follows(known, supervises=supervises) if is_on else "the daemon chooses the number"
        )
        record = {"adaptivity": known.name, "is_on": is_on, "at_run_time": not is_start}
        name = "adaptivity_on" if is_on else "adaptivity_off"
        return Event(name, observation.target, words, record, is_warning=not is_start)


def _nothing_to_supervise(target: str, known: EngineAdaptivity | None) -> Event:
    if known is None:
        why = "the engine adapts nothing by itself"
    elif known.is_replaced:
        why = f"the table has taken the place of the engine's {known.name}"
    else:
        why = f"the engine's {known.name} is off"
    return Event("not_supervised", target, f"mode supervise: {why}, the daemon chooses the number")


def _follows(known: EngineAdaptivity, *, supervises: bool) -> str:
    if not known.is_bounded:
        return "the table does not bound it, the daemon only watches"
    if supervises:
        return "the daemon steps back, and sets its bound or turns drafting off"
    return "the daemon chooses the most that it may decide on (mode: supervise leaves that to it)"


def _adaptivity(observation: Observation) -> EngineAdaptivity | None:
    return None if observation.capabilities is None else observation.capabilities.adaptivity
