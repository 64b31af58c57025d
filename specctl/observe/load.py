"""The load of a server, from its own Prometheus text: who came, who left, and the lengths of their texts.

No metric counts arrivals: a request is first seen when its first token leaves.
"""

from __future__ import annotations

import math

from pydantic import BaseModel, ConfigDict, Field

from specctl.observe.engine_metrics import metrics_of
from specctl.observe.stock import engine_samples

__all__ = ["LengthCounts", "LoadCounters", "parse_load"]

_EDGES_MAX = 128
_MESSAGE = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class LengthCounts(BaseModel):
    """Finished requests by length: ``counts[i]`` are at most ``upper_tokens[i]`` long; the last ones, longer
    than every edge."""

    model_config = _MESSAGE

    upper_tokens: tuple[float, ...]
    counts: tuple[int, ...]


class LoadCounters(BaseModel):
    """Summed over engines (data-parallel ranks); all but the gauges are monotonic. None: not told."""

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


def parse_load(text: str) -> LoadCounters:
    """Raises TargetError when the text is no Prometheus text or holds no metric of an engine."""
    names = metrics_of(text)
    wait, prompts, outputs = names.first_token_wait, names.prompt_lengths, names.output_lengths
    edges: dict[str, dict[float, float]] = {f"{prompts}_bucket": {}, f"{outputs}_bucket": {}}
    plain = {f"{wait}_count", f"{wait}_sum", f"{outputs}_count", f"{prompts}_sum", f"{outputs}_sum"}
    plain |= {names.generated_tokens, names.running, names.waiting}
    plain |= {names.prompt_tokens} if names.prompt_tokens else set()
    sums: dict[str, float] = {}
    with engine_samples(text, (*plain, *edges)) as samples:
        for sample in samples:
            if names.is_share(sample.name, sample.labels):
                continue
            if sample.name in edges:
                upper = float(sample.labels.get("le", "nan"))
                edges[sample.name][upper] = edges[sample.name].get(upper, 0.0) + sample.value
            elif sample.name in plain:
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value

    # Until a request has finished there; later a counter that is not there is not known.
    at_first = 0.0 if names.begins_empty and f"{outputs}_count" not in sums else None

    def count(name: str, absent: float | None = at_first) -> int | None:
        value = _checked(sums.get(name, absent))
        return None if value is None else int(value)

    return LoadCounters(
        started_requests=count(f"{wait}_count"),
        first_token_wait_s=_checked(sums.get(f"{wait}_sum", at_first)),
        prompt_tokens=None if names.prompt_tokens is None else count(names.prompt_tokens),
        generated_tokens=count(names.generated_tokens),
        finished_requests=count(f"{outputs}_count"),
        finished_prompt_tokens=count(f"{prompts}_sum"),
        finished_output_tokens=count(f"{outputs}_sum"),
        prompt_lengths=_lengths(edges[f"{prompts}_bucket"]),
        output_lengths=_lengths(edges[f"{outputs}_bucket"]),
        running=count(names.running, None),
        waiting=count(names.waiting, None),
    )


def _checked(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) and value >= 0 else None


def _lengths(cumulative: dict[float, float]) -> LengthCounts | None:
    """None without the edge +Inf, or where a count falls from one edge to the next."""
    uppers = sorted(cumulative)
    if not uppers or uppers[-1] != math.inf or len(uppers) > _EDGES_MAX:
        return None
    totals = [cumulative[upper] for upper in uppers]
    counts = [after - before for before, after in zip([0.0, *totals], totals, strict=False)]
    if any(not math.isfinite(value) or value < 0 for value in counts):
        return None
    return LengthCounts(upper_tokens=tuple(uppers[:-1]), counts=tuple(int(value) for value in counts))
