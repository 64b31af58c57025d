"""Several engines behind one server (data-parallel ranks) reported as one.

Each looks its own table up with its own decode batch. The first one decides on a change, as a lone engine
does; the others adopt what it applied, so that versions have one source, whichever API server writes.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict

from specctl.contract.capabilities import Capabilities
from specctl.contract.table import AppliedTable, TablePut
from specctl.contract.telemetry import AcceptanceGroup, ShadowAcceptance, TelemetryCell
from specctl.engine.request_classes import ClassKey, EngineTelemetry, TrafficClass

__all__ = ["Adoption", "merged_capabilities", "merged_table", "merged_telemetry"]

Counted = TypeVar("Counted", AcceptanceGroup, ShadowAcceptance, TelemetryCell, TrafficClass)

_MAY_DIFFER = {
    *("boot_id", "context_max_tokens", "controllable", "why_not_controllable", "warnings"),
    *("gpu", "kv_cache_tokens"),
}
_CELL_KEY = (
    *("decode_batch_from", "decode_batch_to", "num_speculative_tokens", "tree_topk", "verify_width_tokens"),
    *("has_prefill", "after_rest"),
)
_KEYS = {*_CELL_KEY, *ClassKey._fields}


class Adoption(BaseModel):
    """A change that the deciding rank has applied, on its way to another rank."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    decider: str
    """boot_id of the rank that decided."""
    version: int
    change: TablePut


def merged_capabilities(ranks: Sequence[Capabilities]) -> Capabilities:
    """Of the whole server. Ranks that were not started alike cannot share a table."""
    first = ranks[0]
    names = [name for name in Capabilities.model_fields if name not in _MAY_DIFFER]
    differing = [name for name in names if any(getattr(r, name) != getattr(first, name) for r in ranks)]
    why = next((rank.why_not_controllable for rank in ranks if rank.why_not_controllable), None)
    if differing and why is None:
        why = f"the data-parallel ranks were not started alike: they differ in {', '.join(differing)}"
    return first.model_copy(
        update={
            "boot_id": _boot_id(rank.boot_id for rank in ranks),
            "controllable": why is None,
            "why_not_controllable": why,
            "context_max_tokens": min(rank.context_max_tokens for rank in ranks),
            "warnings": tuple(dict.fromkeys(warning for rank in ranks for warning in rank.warnings)),
            "gpu": _joined(rank.gpu for rank in ranks),
            "kv_cache_tokens": min((r.kv_cache_tokens for r in ranks if r.kv_cache_tokens), default=None),
        }
    )


def _joined(names: Iterable[str | None]) -> str | None:
    """The devices' names, each once; None where a rank does not tell its own."""
    each = list(dict.fromkeys(names))
    return None if None in each else " + ".join(map(str, each))


def merged_table(ranks: Sequence[AppliedTable], numbers: Sequence[int]) -> AppliedTable:
    """The deciding rank's, with the ``numbers`` of those ranks that hold another one.

    The same version in another state is the same table: a lease does not run out everywhere in one instant.
    """
    first = ranks[0]
    behind = [
        number
        for rank, number in zip(ranks, numbers, strict=True)
        if rank.version != first.version
        or rank.class_limits != first.class_limits
        or (rank.state is first.state and rank.rows != first.rows)
    ]
    boot_id = _boot_id(rank.boot_id for rank in ranks)
    return first.model_copy(update={"boot_id": boot_id, "ranks_behind": tuple(behind)})


def merged_telemetry(ranks: Sequence[EngineTelemetry]) -> EngineTelemetry:
    """Counters and requests are summed; the table is the deciding rank's, the KV cache the fullest one's."""
    first = ranks[0]
    busiest = max(ranks, key=lambda rank: rank.decoding)
    shadows = [rank.shadow for rank in ranks if rank.shadow is not None]
    return first.model_copy(
        update={
            "boot_id": _boot_id(rank.boot_id for rank in ranks),
            "uptime_s": min(rank.uptime_s for rank in ranks),
            "num_speculative_tokens": busiest.num_speculative_tokens,
            "running": sum(rank.running for rank in ranks),
            "waiting": sum(rank.waiting for rank in ranks),
            "decoding": sum(rank.decoding for rank in ranks),
            "kv_cache_used_ratio": max(rank.kv_cache_used_ratio for rank in ranks),
            "cells": _merged_cells(cell for rank in ranks for cell in rank.cells),
            "classes": _merged_classes([rank.classes for rank in ranks]),
            "acceptance_groups": _merged_groups([rank.acceptance_groups for rank in ranks]),
            "shadow": _summed(shadows) if shadows else None,
            "guarded_steps": sum(rank.guarded_steps for rank in ranks),
            "steering_s": sum(rank.steering_s for rank in ranks),
            "proposer": _merged_proposer([rank.proposer for rank in ranks if rank.proposer]),
            "failures": dict(sum((Counter(rank.failures) for rank in ranks), Counter())),
        }
    )


def _boot_id(boot_ids: Iterable[str]) -> str:
    """Another one as soon as any rank has another one; a lone engine's own."""
    parts = list(boot_ids)
    if len(parts) == 1:
        return parts[0]
    return hashlib.blake2b(",".join(parts).encode(), digest_size=16).hexdigest()


def _merged_cells(cells: Iterable[TelemetryCell]) -> tuple[TelemetryCell, ...]:
    by_key: dict[tuple[int, ...], list[TelemetryCell]] = {}
    for cell in cells:
        by_key.setdefault(tuple(getattr(cell, name) or 0 for name in _CELL_KEY), []).append(cell)
    return tuple(_summed(same) for _, same in sorted(by_key.items()))


def _merged_classes(ranks: Sequence[tuple[TrafficClass, ...] | None]) -> tuple[TrafficClass, ...] | None:
    """The union of the ranks' classes: folding some into others here would let counters jump and fall."""
    by_key: dict[ClassKey, list[TrafficClass]] = {}
    for classes in ranks:
        if classes is None:
            return None
        for one in classes:
            by_key.setdefault(one.key, []).append(one)
    return tuple(_summed(same) for _, same in sorted(by_key.items()))


def _merged_groups(ranks: Sequence[tuple[AcceptanceGroup, ...]]) -> tuple[AcceptanceGroup, ...]:
    """Of ranks that tell the same groups."""
    return tuple(_summed(same) for same in zip(*ranks, strict=False))


def _summed(messages: Sequence[Counted]) -> Counted:
    """Every field but a cell's or class's key: numbers are added, tuples position by position."""
    first = messages[0]
    names = [name for name in type(first).model_fields if name not in _KEYS]
    return first.model_copy(update={name: _sum([getattr(m, name) for m in messages]) for name in names})


def _sum(values: Sequence[Any]) -> Any:
    if isinstance(values[0], tuple):
        is_nested = any(isinstance(one, tuple) for value in values for one in value)
        return tuple(_sum(column) for column in zip_longest(*values, fillvalue=() if is_nested else 0))
    return sum(values)


def _merged_proposer(ranks: Sequence[dict[str, float]]) -> dict[str, float]:
    """Counters and sizes are added; of means, the mean of the ranks'."""
    merged = {}
    for name in dict.fromkeys(name for rank in ranks for name in rank):
        values = [rank[name] for rank in ranks if name in rank]
        merged[name] = sum(values) / (len(values) if name.startswith("mean_") else 1)
    return merged
