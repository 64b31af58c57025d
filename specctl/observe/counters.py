"""Monotonic counters -> what they gained between two reads. A reset gives None and the reason."""

from __future__ import annotations

from operator import attrgetter, sub
from typing import Any, TypeVar

from specctl.contract.classes import TrafficClass
from specctl.contract.telemetry import ShadowAcceptance, Telemetry, TelemetryCell
from specctl.observe.stock import StockCounters
from specctl.types import CellDelta, ClassDelta, ShadowDelta, StockDelta

__all__ = [
    "CellKey",
    "CounterReset",
    "cell_deltas",
    "cell_key",
    "class_deltas",
    "shadow_delta",
    "stock_delta",
]

_COUNTS = (
    "steps",
    "request_steps",
    "emitted_tokens",
    "verified_tokens",
    "context_tokens",
    "prefill_tokens",
    "step_s",
    "step_s_squared",
    "verified_tokens_squared",
    "step_s_by_verified_tokens",
    "draft_s",
    "verify_s",
)
_NO_COUNTS = (0,) * len(_COUNTS)
_counts_of = attrgetter(*_COUNTS)
_key_of = attrgetter("decode_batch_from", "decode_batch_to", "num_speculative_tokens", "has_prefill")
CellKey = tuple[int, int, int, bool]
_Number = TypeVar("_Number", int, float)


class CounterReset(ValueError):
    """A counter fell: the engine restarted, or it counts wrongly. The next read starts afresh."""


def cell_deltas(before: Telemetry, after: Telemetry) -> tuple[CellDelta, ...]:
    """Cells that gained steps. Raises CounterReset when any counter fell or a cell vanished."""
    if before.boot_id != after.boot_id:
        raise CounterReset(f"boot_id changed from {before.boot_id} to {after.boot_id}")
    old, keys = {cell_key(cell): cell for cell in before.cells}, [cell_key(cell) for cell in after.cells]
    if old.keys() != set(keys) and (vanished := old.keys() - set(keys)):
        raise CounterReset(f"telemetry cell {min(vanished)} vanished")
    deltas = []
    for key, cell in zip(keys, after.cells, strict=True):
        known = old.get(key)
        # Most cells rest: a server runs in one bucket or two at a time.
        if known is not None and known.__dict__ == cell.__dict__:
            continue
        delta = _cell_delta(known, cell)
        if delta.steps:
            deltas.append(delta)
    return tuple(deltas)


def shadow_delta(before: ShadowAcceptance | None, after: ShadowAcceptance | None) -> ShadowDelta | None:
    """None without shadow counters on both sides. Raises CounterReset when one fell."""
    if before is None or after is None:
        return None
    return ShadowDelta(
        drafts=_rise("shadow.drafts", before.drafts, after.drafts),
        drafted_at=_rises("shadow.drafted_at", before.drafted_at, after.drafted_at),
        accepted_at=_rises("shadow.accepted_at", before.accepted_at, after.accepted_at),
    )


def class_deltas(before: Telemetry, after: Telemetry) -> tuple[ClassDelta, ...] | None:
    """Classes that gained request-steps or decode now; None where the plugin does not tell them.

    A class comes and goes while the engine lives. One whose counters fell, or that tells what cannot be, is
    left out alone: what it did in the interval is not known.
    """
    if after.classes is None or before.classes is None or before.boot_id != after.boot_id:
        return None
    old = {one.key: one for one in before.classes}
    deltas = []
    for one in after.classes:
        try:
            delta = _class_delta(old.get(one.key), one)
        except CounterReset:
            continue
        if (delta.request_steps or delta.decoding) and _is_possible(delta):
            deltas.append(delta)
    return tuple(deltas)


def stock_delta(before: StockCounters, after: StockCounters) -> StockDelta:
    """A counter that is missing on one side is None. Raises CounterReset when one fell."""

    def rise(name: str) -> Any:
        old, new = getattr(before, name), getattr(after, name)
        return None if old is None or new is None else _rise(name, old, new)

    accepted_at = None
    if before.accepted_at is not None and after.accepted_at is not None:
        accepted_at = _rises("accepted_per_pos", before.accepted_at, after.accepted_at)
    return StockDelta(
        drafts=rise("drafts"),
        drafted_tokens=rise("drafted_tokens"),
        accepted_tokens=rise("accepted_tokens"),
        accepted_at=accepted_at,
        generated_tokens=rise("generated_tokens"),
        engine_steps=rise("engine_steps"),
        started_requests=rise("started_requests"),
        first_token_wait_s=rise("first_token_wait_s"),
    )


def cell_key(cell: TelemetryCell) -> CellKey:
    key: CellKey = _key_of(cell)
    return key


def _cell_delta(before: TelemetryCell | None, after: TelemetryCell) -> CellDelta:
    old, new = _NO_COUNTS if before is None else _counts_of(before), _counts_of(after)
    gains = tuple(map(sub, new, old))
    if min(gains) < 0:
        for name, a, b in zip(_COUNTS, old, new, strict=True):
            _rise(name, a, b)
    drafted_at = _rises("drafted_at", () if before is None else before.drafted_at, after.drafted_at)
    accepted_at = _rises("accepted_at", () if before is None else before.accepted_at, after.accepted_at)
    steps, request_steps, emitted_tokens, verified_tokens, *rest = gains
    # By place: names take twice the time, and every look makes some.
    return CellDelta(
        *_key_of(after), steps, request_steps, emitted_tokens, verified_tokens, drafted_at, accepted_at, *rest
    )


def _class_delta(before: TrafficClass | None, after: TrafficClass) -> ClassDelta:
    def rises(name: str) -> tuple[int, ...]:
        return _rises(name, () if before is None else getattr(before, name), getattr(after, name))

    return ClassDelta(
        key=after.key,
        decoding=after.decoding,
        request_steps=_rise(
            "request_steps", 0 if before is None else before.request_steps, after.request_steps
        ),
        watched_at=rises("watched_at"),
        drafted_at=rises("drafted_at"),
        reached_at=rises("reached_at"),
        accepted_at=rises("accepted_at"),
    )


def _is_possible(delta: ClassDelta) -> bool:
    parts = (delta.watched_at, delta.drafted_at, delta.reached_at, delta.accepted_at)
    if len({len(part) for part in parts}) != 1:
        return False
    return all(
        accepted <= min(reached, drafted) and max(reached, drafted) <= watched <= delta.request_steps
        for watched, drafted, reached, accepted in zip(*parts, strict=True)
    )


def _rise(name: str, old: _Number, new: _Number) -> _Number:
    if new < old:
        raise CounterReset(f"counter {name} fell from {old:g} to {new:g}")
    return new - old


def _rises(name: str, old: tuple[int, ...], new: tuple[int, ...]) -> tuple[int, ...]:
    if len(old) > len(new):
        raise CounterReset(f"counter {name} lost positions ({len(old)} -> {len(new)})")
    padded = old + (0,) * (len(new) - len(old))
    gains = tuple(map(sub, new, padded))
    if gains and min(gains) < 0:
        j = next(i for i, gain in enumerate(gains) if gain < 0)
        _rise(f"{name}[{j}]", padded[j], new[j])
    return gains
