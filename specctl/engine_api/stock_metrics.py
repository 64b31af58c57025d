"""What vLLM 0.32 and SGLang 0.5.21 say in their own Prometheus text: names, and one reader of a page.

SGLang counts a request's tokens when it has finished, has no sums of drafted or accepted tokens, and
refreshes its gauges every 40 decode steps (its option --decode-log-interval): a stock SGLang server is seen
coarsely. A request that is not streamed counts its first token with its 50th or its last; the wait lasts
until then. No engine counts arrivals: a request is first seen when its first token leaves.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from specctl.engine_api.client import NO_METRICS
from specctl.errors import TargetError
from specctl.plain_text import plain_text
from specctl.types import Histogram

__all__ = ["LengthCounts", "LoadCounters", "StockCounters", "parse_stock_metrics"]

LINES_MAX = 100_000
WANTED_LINES_MAX = 10_000
LINE_CHARACTERS_MAX = 8192
EDGES_MAX = 128
POSITIONS_MAX = 1024
VALUE_MAX = 2.0**63
_LINE = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*(?:\{(.*)\})?[ \t]+(\S+)(?:[ \t]+\S+)?\s*")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"\s*(?:,\s*|$)')
_MESSAGE = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class _Engine(NamedTuple):
    """Names of samples after ``prefix``, by what they are here; histograms without _bucket.

    ``begins_empty``: a request's counters are not on the page before the first request.
    """

    prefix: str
    counters: dict[str, str]
    histograms: dict[str, str]
    positions: str = ""
    begins_empty: bool = False

    def wanted(self) -> dict[str, str]:
        """By the sample's full name."""
        buckets = {f"{name}_bucket": key for key, name in self.histograms.items()}
        named = {name: key for key, name in self.counters.items()} | buckets
        if self.positions:
            named[self.positions] = "accepted_at"
        return {f"{self.prefix}{name}": key for name, key in named.items()}


_COMMON = {
    "generated_tokens": "generation_tokens_total",
    "started_requests": "time_to_first_token_seconds_count",
    "first_token_wait_s": "time_to_first_token_seconds_sum",
}
_VLLM = _Engine(
    prefix="vllm:",
    counters=_COMMON
    | {
        "running": "num_requests_running",
        "waiting": "num_requests_waiting",
        "kv_cache_used_ratio": "kv_cache_usage_perc",
        "prompt_tokens": "prompt_tokens_total",
        "finished_requests": "request_generation_tokens_count",
        "finished_prompt_tokens": "request_prompt_tokens_sum",
        "finished_output_tokens": "request_generation_tokens_sum",
        "drafts": "spec_decode_num_drafts_total",
    },
    # Not inter_token_latency_seconds: that is the gap between two steps, whatever they emitted.
    histograms={
        "ttft": "time_to_first_token_seconds",
        "tpot": "request_time_per_output_token_seconds",
        "prompt_lengths": "request_prompt_tokens",
        "output_lengths": "request_generation_tokens",
    },
    positions="spec_decode_num_accepted_tokens_per_pos_total",
)
_SGLANG = _Engine(
    prefix="sglang:",
    counters=_COMMON
    | {
        "running": "num_running_reqs",
        "waiting": "num_queue_reqs",
        "kv_cache_used_ratio": "token_usage",
        "finished_requests": "generation_tokens_histogram_count",
        "finished_prompt_tokens": "prompt_tokens_histogram_sum",
        "finished_output_tokens": "generation_tokens_histogram_sum",
    },
    histograms={
        "ttft": "time_to_first_token_seconds",
        "tpot": "inter_token_latency_seconds",
        "prompt_lengths": "prompt_tokens_histogram",
        "output_lengths": "generation_tokens_histogram",
    },
    begins_empty=True,
)
_GAUGES = {"running", "waiting", "kv_cache_used_ratio"}
_ENGINES = [(engine, engine.wanted()) for engine in (_VLLM, _SGLANG)]


class LengthCounts(BaseModel):
    """Finished requests by length: ``counts[i]`` are at most ``upper_tokens[i]`` long; the last ones, longer
    than every edge."""

    model_config = _MESSAGE

    upper_tokens: tuple[float, ...]
    counts: tuple[int, ...]


class LoadCounters(BaseModel):
    """Who came, who left, and the lengths of their texts, as telemetry logs keep it.

    Summed over engines (data-parallel ranks); all but the gauges are monotonic. None: not on the page.
    """

    model_config = _MESSAGE

    started_requests: int | None = Field(default=None, ge=0, description="that got their first token")
    first_token_wait_s: float | None = Field(default=None, ge=0, description="arrival to first token, summed")
    prompt_tokens: int | None = Field(default=None, ge=0, description="of started requests, cached ones too")
    generated_tokens: int | None = Field(default=None, ge=0)
    finished_requests: int | None = Field(default=None, ge=0)
    finished_prompt_tokens: int | None = Field(default=None, ge=0)
    finished_output_tokens: int | None = Field(default=None, ge=0)
    prompt_lengths: LengthCounts | None = None
    output_lengths: LengthCounts | None = None
    running: int | None = Field(default=None, ge=0, description="gauge")
    waiting: int | None = Field(default=None, ge=0, description="gauge")


@dataclass(frozen=True, slots=True)
class StockCounters:
    """Summed over engines. None: missing, negative, or not a number; ``gaps`` says which and why."""

    load: LoadCounters
    kv_cache_used_ratio: float | None
    drafts: int | None
    accepted_at: tuple[int, ...] | None
    ttft: Histogram | None
    tpot: Histogram | None
    gaps: tuple[str, ...]


def parse_stock_metrics(text: str) -> StockCounters:
    """Raises TargetError when the text is no Prometheus text or holds no metric of an engine."""
    found = next((known for known in _ENGINES if known[0].prefix in text), None)
    if found is None:
        raise TargetError(f"/metrics holds no metric whose name starts with vllm: or sglang: ({NO_METRICS})")
    page = _Page()
    try:
        for key, line in _wanted_lines(text, found[1]):
            page.add(key, line)
    except ValueError as error:
        raise TargetError(f"/metrics is not Prometheus text ({plain_text(str(error))})") from error
    return page.counters(found[0])


def _wanted_lines(text: str, wanted: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Only these are parsed: a server's page has hundreds of lines of other histograms."""
    if text.count("\n") > LINES_MAX:
        raise ValueError(f"over {LINES_MAX} lines")
    left = WANTED_LINES_MAX
    for line in text.split("\n"):
        name, has_labels, _ = line.partition("{")
        key = wanted.get(name if has_labels else line.partition(" ")[0])
        if key is None:
            continue
        left -= 1
        if left < 0 or len(line) > LINE_CHARACTERS_MAX:
            bounds = f"{WANTED_LINES_MAX} samples or {LINE_CHARACTERS_MAX} characters a line"
            raise ValueError(f"over {bounds}")
        yield key, line


class _Page:
    """Sums of the samples of one page, over engines."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._edges: dict[str, dict[float, float]] = {}
        self._positions: dict[int, float] = {}
        self._gaps: list[str] = []

    def add(self, key: str, line: str) -> None:
        """Raises ValueError."""
        match = _LINE.fullmatch(line)
        if match is None:
            raise ValueError(line[:80])
        labels, value = match[1] or "", float(match[2])
        if key in _VLLM.histograms:
            edges = self._edges.setdefault(key, {})
            upper = float(_label(labels, "le") or "nan")
            if upper in edges or len(edges) <= EDGES_MAX:
                edges[upper] = edges.get(upper, 0.0) + value
        elif key == "accepted_at":
            position = _label(labels, "position") or ""
            if position.isascii() and position.isdigit() and len(position) < 5:
                self._positions[int(position)] = self._positions.get(int(position), 0.0) + value
        # SGLang with --enable-priority-scheduling has a gauge as a whole, and a share by priority.
        elif key not in ("running", "waiting") or not _label(labels, "priority"):
            self._sums[key] = self._sums.get(key, 0.0) + value

    def counters(self, engine: _Engine) -> StockCounters:
        # Until a request has finished there; later a counter that is not there is not known.
        if engine.begins_empty and "finished_requests" not in self._sums:
            self._sums = dict.fromkeys(engine.counters.keys() - _GAUGES, 0.0) | self._sums
        values = {name: self._checked(name) for name in engine.counters}
        counts = {name: None if value is None else int(value) for name, value in values.items()}
        wait_s, ratio = values["first_token_wait_s"], values["kv_cache_used_ratio"]
        lengths = {name: _lengths(self._histogram(name)) for name in ("prompt_lengths", "output_lengths")}
        return StockCounters(
            load=LoadCounters.model_validate({**counts, **lengths, "first_token_wait_s": wait_s}),
            kv_cache_used_ratio=ratio,
            drafts=counts.get("drafts"),
            accepted_at=self._accepted_at(),
            ttft=self._histogram("ttft"),
            tpot=self._histogram("tpot"),
            gaps=tuple(self._gaps),
        )

    def _checked(self, name: str) -> float | None:
        value = self._sums.get(name)
        if value is None or 0 <= value < VALUE_MAX:
            return value
        self._gaps.append(f"{name} is {value:g}")
        return None

    def _accepted_at(self) -> tuple[int, ...] | None:
        """None without positions; a hole in them, or a value that is no count, is a gap."""
        values = [self._positions[j] for j in sorted(self._positions)]
        if not values:
            return None
        is_whole = len(values) <= POSITIONS_MAX and max(self._positions) == len(values) - 1
        if is_whole and all(0 <= value < VALUE_MAX for value in values):
            return tuple(map(int, values))
        self._gaps.append("the accepted tokens by position have holes, or are no counts")
        return None

    def _histogram(self, key: str) -> Histogram | None:
        """None without the edge +Inf, or where a count falls from one edge to the next."""
        cumulative = self._edges.get(key, {})
        uppers = sorted(upper for upper in cumulative if not math.isnan(upper))
        if not uppers or uppers[-1] != math.inf or len(cumulative) > EDGES_MAX:
            return None
        totals = [cumulative[upper] for upper in uppers]
        counts = [after - before for before, after in zip([0.0, *totals], totals, strict=False)]
        if any(not 0 <= value < VALUE_MAX for value in counts):
            return None
        return Histogram(tuple(uppers[:-1]), tuple(map(int, counts)))


def _lengths(histogram: Histogram | None) -> LengthCounts | None:
    if histogram is None:
        return None
    return LengthCounts(upper_tokens=histogram.upper, counts=tuple(map(int, histogram.counts)))


def _label(labels: str, wanted: str) -> str | None:
    """Raises ValueError where the labels are none."""
    at = 0
    while at < len(labels):
        match = _LABEL.match(labels, at)
        if match is None:
            raise ValueError(labels[:80])
        if match[1] == wanted:
            return match[2]
        at = match.end()
    return None
