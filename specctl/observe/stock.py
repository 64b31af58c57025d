"""The engine's own Prometheus text. Names as in vLLM 0.32, one place for them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from specctl.errors import TargetError

__all__ = ["FIRST_TOKEN_WAIT", "StockCounters", "engine_samples", "parse_stock_metrics"]

DRAFTS = "vllm:spec_decode_num_drafts_total"
DRAFTED_TOKENS = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED_TOKENS = "vllm:spec_decode_num_accepted_tokens_total"
ACCEPTED_AT = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
GENERATED_TOKENS = "vllm:generation_tokens_total"
ENGINE_STEPS = "vllm:iteration_tokens_total_count"
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
KV_CACHE_USED_RATIO = "vllm:kv_cache_usage_perc"
FIRST_TOKEN_WAIT = "vllm:time_to_first_token_seconds"
STARTED_REQUESTS = f"{FIRST_TOKEN_WAIT}_count"
FIRST_TOKEN_WAIT_S = f"{FIRST_TOKEN_WAIT}_sum"

_WANTED = (
    DRAFTS,
    DRAFTED_TOKENS,
    ACCEPTED_TOKENS,
    ACCEPTED_AT,
    GENERATED_TOKENS,
    ENGINE_STEPS,
    RUNNING,
    WAITING,
    KV_CACHE_USED_RATIO,
    STARTED_REQUESTS,
    FIRST_TOKEN_WAIT_S,
)
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

    Raises TargetError when the text holds no metric of an engine or is no Prometheus text, the reading of
    its labels included.
    """
    if "vllm:" not in text:
        raise TargetError("/metrics holds no metric whose name starts with vllm: (is this an engine?)")
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
    sums: dict[str, float] = {}
    positions: dict[int, float] = {}
    gaps: list[str] = []
    with engine_samples(text, _WANTED) as samples:
        for sample in samples:
            _add(sample.name, sample.labels, sample.value, sums, positions)
    checked = {name: _checked(name, value, gaps) for name, value in sums.items()}

    def count(name: str) -> int | None:
        value = checked.get(name)
        return None if value is None else int(value)

    return StockCounters(
        drafts=count(DRAFTS),
        drafted_tokens=count(DRAFTED_TOKENS),
        accepted_tokens=count(ACCEPTED_TOKENS),
        accepted_at=_by_position(positions, gaps),
        generated_tokens=count(GENERATED_TOKENS),
        engine_steps=count(ENGINE_STEPS),
        started_requests=count(STARTED_REQUESTS),
        first_token_wait_s=checked.get(FIRST_TOKEN_WAIT_S),
        running=count(RUNNING),
        waiting=count(WAITING),
        kv_cache_used_ratio=checked.get(KV_CACHE_USED_RATIO),
        gaps=tuple(gaps),
    )


def _add(
    name: str, labels: dict[str, str], value: float, sums: dict[str, float], positions: dict[int, float]
) -> None:
    if name == ACCEPTED_AT:
        position = labels.get("position", "")
        if position.isdigit() and int(position) < _POSITIONS_MAX:
            positions[int(position)] = positions.get(int(position), 0.0) + value
    elif name in _WANTED:
        sums[name] = sums.get(name, 0.0) + value


def _checked(name: str, value: float, gaps: list[str]) -> float | None:
    if math.isfinite(value) and value >= 0:
        return value
    gaps.append(f"{name} is {value:g}")
    return None


def _by_position(positions: dict[int, float], gaps: list[str]) -> tuple[int, ...] | None:
    if not positions:
        return None
    if sorted(positions) != list(range(len(positions))):
        gaps.append(f"{ACCEPTED_AT} has holes in its positions")
        return None
    values = [_checked(f"{ACCEPTED_AT}[{j}]", positions[j], gaps) for j in range(len(positions))]
    if any(value is None for value in values):
        return None
    return tuple(int(value) for value in values if value is not None)
