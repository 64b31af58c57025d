"""Is the table in force slower than no drafts? From the engine's sampled steps, or measured under a lease."""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from specctl.clock import SystemClock
from specctl.contract.table import TableRow
from specctl.contract.telemetry import Telemetry, TelemetryCell
from specctl.core.table_rows import row_at
from specctl.doctor.finding import Finding, warning
from specctl.doctor.seen import Seen
from specctl.engine_api.client import EngineClient
from specctl.engine_api.deltas import CounterReset, cell_deltas
from specctl.engine_api.owner import owner_name
from specctl.errors import ContractError, LeaseHeld, SpecctlError

__all__ = ["measured_finding", "sampled_findings"]

PAIRS = 6
SETTLE_S = 0.5
STEPS_MIN = 20
ERRORS = 2.0
"""Standard errors that a difference must exceed."""
LEAST_RATIO = 0.02
"""Smaller differences are not worth a finding."""


@dataclass(frozen=True, slots=True)
class _Rate:
    """Tokens per second of decoding steps, and its relative standard error from the spread of the steps."""

    tokens_per_s: float
    error_ratio: float
    steps: int


def sampled_findings(seen: Seen) -> Iterator[Finding]:
    """From the counters since the start: steps without drafts beside steps of the setting in force."""
    if seen.after is None or seen.table is None:
        return
    cells = [cell for cell in seen.after.cells if not cell.has_prefill and not cell.after_rest]
    for last in sorted({cell.decode_batch_to for cell in cells}):
        same = [cell for cell in cells if cell.decode_batch_to == last]
        row = row_at(seen.table.rows, same[0].decode_batch_from)
        if row is None or not row.num_speculative_tokens:
            continue
        off = _rate(cell for cell in same if not cell.num_speculative_tokens)
        present = _rate(cell for cell in same if _is_of(cell, row))
        if off is None or present is None:
            continue
        ratio = present.tokens_per_s / off.tokens_per_s
        error = math.hypot(off.error_ratio, present.error_ratio)
        if ratio * (1 + ERRORS * error) < 1 - LEAST_RATIO:
            words = (
                f"batch {same[0].decode_batch_from}-{last}, since the start: {present.tokens_per_s:.0f} "
                f"tokens/s with {row.num_speculative_tokens} drafts ({present.steps} steps), "
                f"{off.tokens_per_s:.0f} without ({off.steps} steps)"
            )
            yield _slower(ratio, error, words)


def _is_of(cell: TelemetryCell, row: TableRow) -> bool:
    names = ("num_speculative_tokens", "tree_topk", "verify_width_tokens")
    return all(getattr(cell, name) == getattr(row, name) for name in names)


def _rate(cells: Iterable[TelemetryCell]) -> _Rate | None:
    """None: fewer than STEPS_MIN steps."""
    listed = list(cells)
    steps = sum(cell.steps for cell in listed)
    seconds = sum(cell.step_s for cell in listed)
    tokens = sum(cell.emitted_tokens for cell in listed)
    squares = sum(cell.step_s_squared for cell in listed)
    if steps < STEPS_MIN or seconds <= 0 or tokens <= 0:
        return None
    mean = seconds / steps
    spread = math.sqrt(max(squares / steps - mean * mean, 0.0)) / mean
    # Tokens of a step scatter, too: as much as a Poisson count.
    error = math.sqrt(spread**2 / steps + 1 / tokens)
    return _Rate(tokens / seconds, error, steps)


def _slower(ratio: float, error: float, seen: str) -> Finding:
    return warning(
        "slower-than-off",
        f"drafting makes this server {1 - ratio:.0%} slower than no drafts",
        f"{seen}; +/- {ERRORS * error:.1%}",
        "specctl autotune turns it off where it does not pay; without the daemon start with fewer drafts or "
        "a batch table; where it never pays start without speculation",
    )


async def measured_finding(
    client: EngineClient, seen: Seen, seconds: float
) -> tuple[Finding | None, str | None]:
    """The table in force and no drafts in turn; the table is put back. And why nothing is known."""
    from specctl.simulate.profiling.temporary_table import TemporaryTable

    capabilities = seen.capabilities
    assert capabilities is not None, "checked"
    if 0 not in capabilities.num_speculative_tokens_legal:
        return None, "no drafts is no prepared setting"
    table = TemporaryTable(client, capabilities, SystemClock(), owner=owner_name("doctor"))
    try:
        found = await table.find()
    except LeaseHeld as held:
        return None, f"{held}; stop that daemon, or look at its metric specctl_speedup_vs_off"
    except ContractError as refused:
        return None, str(refused)
    if not any(row.num_speculative_tokens for row in found.rows):
        return None, "the table in force drafts nothing"
    half_s = seconds / PAIRS / 2
    pairs: list[tuple[float, float]] = []
    try:
        for _ in range(PAIRS):
            present = await _tokens_per_s(client, half_s)
            await table.hold(0, max(seen.after.decoding if seen.after else 1, 1))
            off = await _tokens_per_s(client, half_s)
            await table.rest()
            if present is not None and off is not None:
                pairs.append((present, off))
    except (ContractError, SpecctlError) as broken:
        return None, str(broken)
    finally:
        await table.put_back()
    return _judged(pairs, half_s)


async def _tokens_per_s(client: EngineClient, seconds: float) -> float | None:
    """Of decoding steps without prompts. None: there were too few."""
    await asyncio.sleep(min(SETTLE_S, seconds / 4))
    before: Telemetry = await client.telemetry()
    await asyncio.sleep(seconds)
    try:
        gained: tuple[TelemetryCell, ...] = cell_deltas(before, await client.telemetry())
    except CounterReset:
        return None
    cells = [cell for cell in gained if not cell.has_prefill]
    steps, step_s = sum(cell.steps for cell in cells), sum(cell.step_s for cell in cells)
    return sum(cell.emitted_tokens for cell in cells) / step_s if steps >= 5 and step_s > 0 else None


def _judged(pairs: list[tuple[float, float]], half_s: float) -> tuple[Finding | None, str | None]:
    if len(pairs) < 3:
        return None, f"{len(pairs)} of {PAIRS} comparisons had enough steps; it needs traffic"
    logs = [math.log(present / off) for present, off in pairs]
    mean, error = statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
    ratio = math.exp(mean)
    if mean + ERRORS * error < -LEAST_RATIO:
        present = statistics.fmean(pair[0] for pair in pairs)
        off = statistics.fmean(pair[1] for pair in pairs)
        words = f"{present:.0f} against {off:.0f} tokens/s in {len(pairs)} pairs of {half_s:g} s, in turn"
        return _slower(ratio, error, words), None
    return None, None
