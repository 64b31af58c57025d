"""An engine's own Prometheus text, as counters."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from specctl.errors import TargetError
from specctl.observe.engine_metrics import EngineMetrics, metrics_of

__all__ = ["StockCounters", "engine_samples", "parse_stock_metrics"]

_POSITIONS_MAX = 1024


@dataclass(frozen=True, slots=True)
class StockCounters:
    """Summed over engines (data-parallel ranks). None: missing, negative or not a number.

    ``started_requests`` got their first token; ``first_token_wait_s``: from arrival until then, summed.
    """

    drafts: int | None
    drafted_tokens: int | None
    accepted_tokens: int | None
    accepted_at: tuple[int, ...] | None
    generated_tokens: int | None
    engine_steps: int | None
    started_requests: int | None
    first_token_wait_s: float | None
    running: int | None
    waiting: int | None
    kv_cache_used_ratio: float | None
    gaps: tuple[str, ...]


@contextmanager
def engine_samples(text: str, wanted: tuple[str, ...]) -> Iterator[Iterator[Sample]]:
    """Samples of an engine's page whose lines begin with one of ``wanted``.

    Raises TargetError when the text is no Prometheus text, the reading of its labels included.
    """
    # Only the wanted lines: the parser is pure Python and a server's page has hundreds of histogram lines.
    lines = [line for line in text.splitlines() if line.startswith(wanted)]
    try:
        yield (sample for line in lines for sample in _samples(line))
    except ValueError as error:
        raise TargetError(f"/metrics is not Prometheus text ({error})") from error


def _samples(line: str) -> tuple[Sample, ...]:
    """As the library reads the line. What is before the value is the same at every look."""
    head, _, value = line.rstrip().rpartition(" ")
    if not head.endswith("}"):
        return _parsed(line)
    value_as_read = float(value)
    return tuple(sample._replace(value=value_as_read) for sample in _labelled(head))


@lru_cache(maxsize=4096)
def _labelled(head: str) -> tuple[Sample, ...]:
    return _parsed(f"{head} 0")


def _parsed(line: str) -> tuple[Sample, ...]:
    return tuple(
        sample for family in text_string_to_metric_families(f"{line}\n") for sample in family.samples
    )


def parse_stock_metrics(text: str) -> StockCounters:
    """Raises TargetError when the text is no Prometheus text or holds no metric of an engine."""
    names = metrics_of(text)
    sums: dict[str, float] = {}
    positions: dict[int, float] = {}
    gaps: list[str] = []
    wanted = _wanted(names)
    with engine_samples(text, wanted) as samples:
        for sample in samples:
            if sample.name == names.accepted_at:
                _add_position(sample, positions)
            elif sample.name in wanted and not names.is_share(sample.name, sample.labels):
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    checked = {name: _checked(name, value, gaps) for name, value in sums.items()}

    def count(name: str | None) -> int | None:
        value = None if name is None else checked.get(name)
        return None if value is None else int(value)

    return StockCounters(
        drafts=count(names.drafts),
        drafted_tokens=count(names.drafted_tokens),
        accepted_tokens=count(names.accepted_tokens),
        accepted_at=_by_position(names.accepted_at, positions, gaps),
        generated_tokens=count(names.generated_tokens),
        engine_steps=count(names.engine_steps),
        started_requests=count(f"{names.first_token_wait}_count"),
        first_token_wait_s=checked.get(f"{names.first_token_wait}_sum"),
        running=count(names.running),
        waiting=count(names.waiting),
        kv_cache_used_ratio=checked.get(names.kv_cache_used_ratio),
        gaps=tuple(gaps),
    )


def _wanted(names: EngineMetrics) -> tuple[str, ...]:
    told = (
        names.drafts,
        names.drafted_tokens,
        names.accepted_tokens,
        names.accepted_at,
        names.generated_tokens,
        names.engine_steps,
        names.running,
        names.waiting,
        names.kv_cache_used_ratio,
        f"{names.first_token_wait}_count",
        f"{names.first_token_wait}_sum",
    )
    return tuple(name for name in told if name is not None)


def _add_position(sample: Sample, positions: dict[int, float]) -> None:
    position = sample.labels.get("position", "")
    if position.isdigit() and int(position) < _POSITIONS_MAX:
        positions[int(position)] = positions.get(int(position), 0.0) + sample.value


def _checked(name: str, value: float, gaps: list[str]) -> float | None:
    if math.isfinite(value) and value >= 0:
        return value
    gaps.append(f"{name} is {value:g}")
    return None


def _by_position(name: str | None, positions: dict[int, float], gaps: list[str]) -> tuple[int, ...] | None:
    if not positions:
        return None
    if sorted(positions) != list(range(len(positions))):
        gaps.append(f"{name} has holes in its positions")
        return None
    values = [_checked(f"{name}[{j}]", positions[j], gaps) for j in range(len(positions))]
    if any(value is None for value in values):
        return None
    return tuple(int(value) for value in values if value is not None)
