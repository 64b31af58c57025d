"""Monotonic counters -> what they gained between two reads. A reset gives None and the reason."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from operator import attrgetter, sub
from typing import Any, NamedTuple, TypeVar

from specctl.contract.telemetry import AcceptanceGroup, ShadowAcceptance, Telemetry, TelemetryCell
from specctl.engine_api.stock_metrics import StockCounters
from specctl.types import Histogram, StockDelta

__all__ = [
    "CellKey",
    "CounterReset",
    "Gains",
    "TelemetryGains",
    "cell_deltas",
    "cell_key",
    "group_deltas",
    "levels",
    "shadow_delta",
    "stock_delta",
]

_KEY = (
    "decode_batch_from",
    "decode_batch_to",
    "num_speculative_tokens",
    "has_prefill",
    "tree_topk",
    "verify_width_tokens",
    "after_rest",
)
_AT = ("drafted_at", "accepted_at")
_COUNTS = tuple(name for name in TelemetryCell.model_fields if name not in _KEY and not name.endswith("_at"))
_counts_of = attrgetter(*_COUNTS)
_key_of = attrgetter(*_KEY)
_LEVELS = (
    "adaptivity",
    "self_checks",
    "front_end_waiting_pieces",
    "running",
    "waiting",
    "decoding",
    "kv_cache_used_ratio",
    "failures",
)
CellKey = tuple[int, int, int, bool, int, int, bool]
_Number = TypeVar("_Number", int, float)
_Counters = TypeVar("_Counters", ShadowAcceptance, AcceptanceGroup)


class CounterReset(ValueError):
    """A counter fell: the engine restarted, or it counts wrongly. The next read starts afresh."""


class Gains(NamedTuple):
    """Between two telemetries; all None where it cannot be said."""

    interval_s: float | None = None
    cells: tuple[TelemetryCell, ...] | None = None
    shadow: ShadowAcceptance | None = None
    groups: tuple[AcceptanceGroup, ...] = ()


class TelemetryGains:
    """Keeps the last telemetry of one process."""

    def __init__(self) -> None:
        self._before: tuple[float, Telemetry] | None = None

    def since_last(self, time_s: float, telemetry: Telemetry | None) -> Gains:
        """None was not read. Raises CounterReset; the next ones are then counted from this one on."""
        if telemetry is None:
            return Gains()
        before, self._before = self._before, (time_s, telemetry)
        if before is None or time_s <= before[0]:
            return Gains()
        cells = cell_deltas(before[1], telemetry)
        return Gains(
            time_s - before[0],
            cells,
            shadow_delta(before[1].shadow, telemetry.shadow),
            group_deltas(before[1].acceptance_groups, telemetry.acceptance_groups),
        )


def levels(telemetry: Telemetry | None) -> dict[str, Any]:
    """What an observation holds as the telemetry has it, and not as a difference."""
    return {} if telemetry is None else {name: getattr(telemetry, name) for name in _LEVELS}


def cell_deltas(before: Telemetry, after: Telemetry) -> tuple[TelemetryCell, ...]:
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
        delta = cell if known is None else _cell_delta(known, cell)
        if delta.steps:
            deltas.append(delta)
    return tuple(deltas)


def shadow_delta(before: ShadowAcceptance | None, after: ShadowAcceptance | None) -> ShadowAcceptance | None:
    """None without shadow counters on both sides. Raises CounterReset when one fell."""
    if before is None or after is None:
        return None
    return _gained("shadow", before, after)


def group_deltas(
    before: Sequence[AcceptanceGroup], after: Sequence[AcceptanceGroup]
) -> tuple[AcceptanceGroup, ...]:
    """Empty without the same groups on both sides. Raises CounterReset when a counter fell."""
    if len(before) != len(after):
        return ()
    return tuple(_gained("acceptance_groups", *pair) for pair in zip(before, after, strict=True))


def stock_delta(before: StockCounters, after: StockCounters) -> StockDelta:
    """A counter that is missing on one side is None. Raises CounterReset when one fell."""
    drafts = accepted_at = None
    if before.drafts is not None and after.drafts is not None:
        drafts = _rise("drafts", before.drafts, after.drafts)
    if before.accepted_at is not None and after.accepted_at is not None:
        accepted_at = _rises("accepted_per_pos", before.accepted_at, after.accepted_at)
    return StockDelta(
        drafts,
        accepted_at,
        ttft=_histogram_delta("ttft", before.ttft, after.ttft),
        tpot=_histogram_delta("tpot", before.tpot, after.tpot),
    )


def cell_key(cell: TelemetryCell) -> CellKey:
    low, high, number, has_prefill, topk, width, after_rest = _key_of(cell)
    return low, high, number, has_prefill, topk, width or 0, after_rest


def _cell_delta(before: TelemetryCell, after: TelemetryCell) -> TelemetryCell:
    old, new = _counts_of(before), _counts_of(after)
    gains = tuple(map(sub, new, old))
    if min(gains) < 0:
        for name, a, b in zip(_COUNTS, old, new, strict=True):
            _rise(name, a, b)
    by_depth = zip_longest(before.accepted_rank_at, after.accepted_rank_at, fillvalue=())
    named: dict[str, Any] = {
        **dict(zip(_COUNTS, gains, strict=True)),
        **{name: _rises(name, getattr(before, name), getattr(after, name)) for name in _AT},
        "accepted_rank_at": tuple(_rises(f"accepted_rank_at[{j}]", *at) for j, at in enumerate(by_depth)),
    }
    return after.model_copy(update=named)


def _gained(name: str, before: _Counters, after: _Counters) -> _Counters:
    """Of a message whose fields are counts, and counts by position."""
    gains: dict[str, Any] = {}
    for field, new in after:
        old, where = getattr(before, field), f"{name}.{field}"
        gains[field] = _rises(where, old, new) if isinstance(new, tuple) else _rise(where, old, new)
    return after.model_copy(update=gains)


def _histogram_delta(name: str, before: Histogram | None, after: Histogram | None) -> Histogram | None:
    if before is None or after is None or before.upper != after.upper:
        return None
    return Histogram(after.upper, _rises(name, before.counts, after.counts))


def _rise(name: str, old: _Number, new: _Number) -> _Number:
    if new < old:
        raise CounterReset(f"counter {name} fell from {old:g} to {new:g}")
    return new - old


def _rises(name: str, old: tuple[_Number, ...], new: tuple[_Number, ...]) -> tuple[_Number, ...]:
    if len(old) > len(new):
        raise CounterReset(f"counter {name} lost positions ({len(old)} -> {len(new)})")
    padded = old + (0,) * (len(new) - len(old))
    gains = tuple(map(sub, new, padded))
    if gains and min(gains) < 0:
        j = next(i for i, gain in enumerate(gains) if gain < 0)
        _rise(f"{name}[{j}]", padded[j], new[j])
    return gains
