"""Records of requests -> figures of a run and of an arm. No input or output."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean, median

import numpy as np

from specctl.bench.loads import Load
from specctl.bench.records import RequestRecord
from specctl.bench.results import Acceptance, ArmFigures, Percentiles, Run
from specctl.bench.run_load import LoadRun

__all__ = ["Samples", "arm_figures", "percentiles", "run_figures", "samples_of", "steady_span"]

ERRORS_MAX = 3


class Samples:
    """Raw values of one arm under one load, in seconds."""

    def __init__(self) -> None:
        self.ttft: list[float] = []
        self.tpot: list[float] = []
        self.itl: list[float] = []
        self.e2el: list[float] = []

    def add(self, other: Samples) -> None:
        for name in ("ttft", "tpot", "itl", "e2el"):
            getattr(self, name).extend(getattr(other, name))


def samples_of(records: Iterable[RequestRecord]) -> Samples:
    """TTFT and ITL also of requests that were cut off; TPOT and E2EL of whole ones."""
    found = Samples()
    for record in records:
        if record.error is not None:
            continue
        for name in ("ttft", "tpot", "e2el"):
            value = getattr(record, f"{name}_s")
            if value is not None:
                getattr(found, name).append(value)
        found.itl += np.diff(record.arrival_s).tolist()
    return found


def percentiles(values: Sequence[float]) -> Percentiles | None:
    if not values:
        return None
    p50, p95, p99 = np.percentile(np.asarray(values), (50, 95, 99)).tolist()
    return Percentiles(count=len(values), mean_s=fmean(values), p50_s=p50, p95_s=p95, p99_s=p99)


def run_figures(
    arm: str,
    load: Load,
    run: LoadRun,
    *,
    number: int,
    place: int,
    began_s: float,
    acceptance: Acceptance | None,
) -> Run:
    """``began_s``: when the benchmark began."""
    records, samples = run.records, samples_of(run.records)
    seconds = max(run.ended_s - run.started_s, 1e-9)
    whole = [record for record in records if record.is_whole]
    failed = [record for record in records if record.error is not None]
    tokens = sum(record.output_tokens for record in records)
    steady = steady_span(run, load)
    return Run(
        arm=arm,
        load=load.title,
        round=number,
        place=place,
        started_s=run.started_s - began_s,
        seconds=seconds,
        requests=len(whole),
        cut_off=len(records) - len(whole) - len(failed),
        failed=len(failed),
        errors=tuple(name for name, _ in Counter(one.error or "" for one in failed).most_common(ERRORS_MAX)),
        prompt_tokens=_sum(record.prompt_tokens for record in records),
        output_tokens=tokens,
        tokens_per_s=tokens / seconds,
        steady_tokens_per_s=None
        if steady is None
        else _tokens_in(records, *steady) / (steady[1] - steady[0]),
        decode_tokens_per_s=_decode_speed(whole),
        requests_per_s=len(whole) / seconds,
        speed=_speed(load, tokens / seconds, samples),
        ttft=percentiles(samples.ttft),
        tpot=percentiles(samples.tpot),
        itl=percentiles(samples.itl),
        e2el=percentiles(samples.e2el),
        acceptance=acceptance,
        timeline=_timeline(run),
    )


def steady_span(run: LoadRun, load: Load) -> tuple[float, float] | None:
    """When the load was complete: in a closed loop while as many requests as asked for had their first token
    or were about to follow one that ended; in an open loop from the first end to the last arrival.

    None where it never was, or for less than a tenth of the run.
    """
    records = [record for record in run.records if record.error is None]
    if load.concurrency is not None:
        first = records[: load.concurrency]
        if len(first) < load.concurrency or any(not record.arrival_s for record in first):
            return None
        start_s = max(record.arrival_s[0] for record in first)
        # The last requests are sent one by one; once one of them ends without a follower the load thins out.
        last = sorted(record.sent_s for record in records)[-1]
        ends = [record.ended_s for record in records if record.ended_s is not None and record.ended_s > last]
        end_s = min(ends, default=run.ended_s)
    else:
        ended = [record.ended_s for record in records if record.ended_s is not None]
        if not ended:
            return None
        start_s, end_s = min(ended), max(record.sent_s for record in records)
    return (start_s, end_s) if end_s - start_s > 0.1 * (run.ended_s - run.started_s) else None


def arm_figures(
    arm: str, load: str, runs: Sequence[Run], samples: Samples, price_per_hour: float | None
) -> ArmFigures:
    """``runs``: of this arm under this load, at least one."""
    speeds = [run.tokens_per_s for run in runs]
    middle = median(speeds)
    cost = None if not price_per_hour or not middle else price_per_hour / (middle * 3600.0) * 1e6
    return ArmFigures(
        arm=arm,
        load=load,
        tokens_per_s=middle,
        tokens_per_s_min=min(speeds),
        tokens_per_s_max=max(speeds),
        steady_tokens_per_s=_median(run.steady_tokens_per_s for run in runs),
        decode_tokens_per_s=_median(run.decode_tokens_per_s for run in runs),
        ttft=percentiles(samples.ttft),
        tpot=percentiles(samples.tpot),
        itl=percentiles(samples.itl),
        e2el=percentiles(samples.e2el),
        acceptance=_joined([run.acceptance for run in runs if run.acceptance is not None]),
        cost_per_million_tokens=cost,
    )


def _joined(parts: Sequence[Acceptance]) -> Acceptance | None:
    """Of several runs; positions are weighted by their drafts."""
    if not parts:
        return None
    drafts = sum(part.drafts for part in parts)
    longest = max(len(part.survival_at) for part in parts)
    at = [
        sum(part.survival_at[k] * part.drafts for part in parts if k < len(part.survival_at))
        for k in range(longest)
    ]
    drafted, accepted = (
        sum(getattr(part, f"{name}_tokens") for part in parts) for name in ("drafted", "accepted")
    )
    steps = _sum(part.request_steps for part in parts)
    emitted = sum((part.acceptance_length or 0.0) * (part.request_steps or 0) for part in parts)
    return Acceptance(
        source=parts[0].source,
        drafted_tokens=drafted,
        accepted_tokens=accepted,
        drafts=drafts,
        request_steps=steps,
        acceptance_rate=accepted / drafted if drafted else None,
        acceptance_length=emitted / steps if steps else None,
        drafting_acceptance_length=1 + accepted / drafts if drafts else None,
        survival_at=tuple(value / drafts for value in at) if drafts else (),
    )


def _speed(load: Load, tokens_per_s: float, samples: Samples) -> float:
    if load.is_closed:
        return tokens_per_s
    return 1.0 / fmean(samples.e2el) if samples.e2el else 0.0


def _decode_speed(whole: Sequence[RequestRecord]) -> float | None:
    seconds = sum(record.arrival_s[-1] - record.arrival_s[0] for record in whole)
    tokens = sum(record.output_tokens - record.arrival_tokens[0] for record in whole)
    return tokens / seconds if seconds > 0 else None


def _tokens_in(records: Iterable[RequestRecord], start_s: float, end_s: float) -> int:
    return sum(
        tokens
        for record in records
        for when_s, tokens in zip(record.arrival_s, record.arrival_tokens, strict=True)
        if start_s < when_s <= end_s
    )


def _timeline(run: LoadRun) -> tuple[float, ...]:
    seconds = run.ended_s - run.started_s
    bins = max(math.ceil(seconds), 1)
    totals = [0.0] * bins
    for record in run.records:
        for when_s, tokens in zip(record.arrival_s, record.arrival_tokens, strict=True):
            totals[min(max(int(when_s - run.started_s), 0), bins - 1)] += tokens
    widths = [min(1.0, seconds - i) or 1.0 for i in range(bins)]
    # A last part of a second says little.
    if bins > 1 and widths[-1] < 0.5:
        totals, widths = totals[:-1], widths[:-1]
    return tuple(round(total / width, 3) for total, width in zip(totals, widths, strict=True))


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
