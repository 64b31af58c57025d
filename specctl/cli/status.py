"""``specctl status TARGET``: what a server does now, for people or as JSON."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specctl.contract.capabilities import Capabilities
from specctl.contract.classes import ClassLimit, class_words
from specctl.contract.setting import Setting
from specctl.contract.table import AppliedTable, TableRow, TableState
from specctl.contract.telemetry import ShadowAcceptance, Telemetry, TelemetryCell
from specctl.core.messages import Reason
from specctl.engine_api.client import EngineClient
from specctl.engine_api.deltas import CounterReset, cell_deltas, shadow_delta, stock_delta
from specctl.engine_api.stock_metrics import StockCounters, parse_stock_metrics
from specctl.errors import NotSteered, OtherContract, TargetError
from specctl.http_client import HttpClient, normalise_target, read_token
from specctl.types import CellDelta, ShadowDelta, StockDelta

__all__ = ["add_arguments", "row_words", "run"]

WINDOW_S = 1.0
_PATIENCE_S = 15.0
"""An engine answers between two steps, and gives up after 10 s by itself."""
_Cell = TelemetryCell | CellDelta


@dataclass(frozen=True, slots=True)
class _Steered:
    """A server with the plugin. ``window_s`` None: cells and shadow count since the engine's start."""

    target: str
    capabilities: Capabilities
    table: AppliedTable
    telemetry: Telemetry
    cells: tuple[_Cell, ...]
    shadow: ShadowAcceptance | ShadowDelta | None
    window_s: float | None


@dataclass(frozen=True, slots=True)
class _Stock:
    """A server without a plugin that can be used, and why."""

    target: str
    why: str
    counters: StockCounters
    counts: StockCounters | StockDelta
    window_s: float | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET")
    parser.add_argument("--json", action="store_true", help="for machines")
    words = "count from the engine's start on, instead of over one second"
    parser.add_argument("--since-start", action="store_true", help=words)
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="bearer token with the read scope")


def run(options: argparse.Namespace) -> int:
    """Raises TargetError and ContractError."""
    return status(
        options.target,
        token_file=options.token_file,
        as_json=options.json,
        since_start=options.since_start,
    )


def status(target: str, *, token_file: Path | None, as_json: bool, since_start: bool) -> int:
    """Raises TargetError and ContractError."""
    token = None if token_file is None else read_token(token_file)
    window_s = None if since_start else WINDOW_S
    seen = asyncio.run(_read(normalise_target(target), token, window_s))
    described = _as_json(seen) if as_json else _described(seen)
    print(json.dumps(described, indent=2) if as_json else "\n".join(described))
    return 0


async def _read(target: str, token: str | None, window_s: float | None) -> _Steered | _Stock:
    async with EngineClient(HttpClient(target, token=token, timeout_s=_PATIENCE_S)) as client:
        why = "without the specctl plugin"
        try:
            capabilities = await client.capabilities()
        except (NotSteered, OtherContract) as error:
            capabilities, why = None, str(error)
        if capabilities is None:
            return await _read_stock(client, why, window_s)
        return await _read_steered(client, capabilities, window_s)


async def _read_steered(client: EngineClient, capabilities: Capabilities, window_s: float | None) -> _Steered:
    before = telemetry = await client.telemetry()
    if window_s is not None:
        await asyncio.sleep(window_s)
        telemetry = await client.telemetry()
    cells: tuple[_Cell, ...] = telemetry.cells
    shadow: ShadowAcceptance | ShadowDelta | None = telemetry.shadow
    if window_s is not None:
        try:
            cells, shadow = cell_deltas(before, telemetry), shadow_delta(before.shadow, telemetry.shadow)
        except CounterReset:
            # Restarted between the two readings: what counts began after the first.
            window_s = None
    table = await client.table()
    return _Steered(client.target, capabilities, table, telemetry, cells, shadow, window_s)


async def _read_stock(client: EngineClient, why: str, window_s: float | None) -> _Stock:
    before = counters = await _page(client)
    counts: StockCounters | StockDelta = counters
    if window_s is not None:
        await asyncio.sleep(window_s)
        counters = await _page(client)
        try:
            counts = stock_delta(before, counters)
        except CounterReset:
            counts, window_s = counters, None
    return _Stock(client.target, why, counters, counts, window_s)


async def _page(client: EngineClient) -> StockCounters:
    try:
        return parse_stock_metrics(await client.metrics_text())
    except TargetError as error:
        raise TargetError(f"not an engine: {error}") from error


def _as_json(seen: _Steered | _Stock) -> dict[str, Any]:
    if isinstance(seen, _Stock):
        load = seen.counters.load
        survival = _stock_survival(seen.counts)
        stock = {"running": load.running, "waiting": load.waiting, "survival_at": survival}
        return {
            "target": seen.target,
            "plugin": False,
            "why": seen.why,
            "window_s": seen.window_s,
            "stock": stock,
        }
    telemetry = seen.telemetry
    return {
        "target": seen.target,
        "plugin": True,
        "capabilities": seen.capabilities.model_dump(mode="json"),
        "table": seen.table.model_dump(mode="json"),
        "running": telemetry.running,
        "waiting": telemetry.waiting,
        "decoding": telemetry.decoding,
        "uptime_s": telemetry.uptime_s,
        "guarded_steps": telemetry.guarded_steps,
        "window_s": seen.window_s,
        "buckets": [_bucket(cell) for cell in seen.cells if not cell.has_prefill and cell.steps],
        "survival_at": _survival(seen.cells, seen.shadow),
    }


def _bucket(cell: _Cell) -> dict[str, Any]:
    names = ("decode_batch_from", "decode_batch_to", "num_speculative_tokens", "tree_topk")
    return {
        **{name: getattr(cell, name) for name in (*names, "verify_width_tokens", "steps", "sampled_steps")},
        "tokens_per_s": cell.emitted_tokens / cell.step_s if cell.step_s > 0 else None,
        "tokens_per_request_step": cell.emitted_tokens / cell.request_steps if cell.request_steps else None,
    }


def _survival(cells: Sequence[_Cell], shadow: ShadowAcceptance | ShadowDelta | None) -> list[float] | None:
    """From shadow drafts where the engine follows them, else from the cells. None: nothing was drafted."""
    if shadow is not None and shadow.drafts:
        return [accepted / shadow.drafts for accepted in shadow.accepted_at]
    most = max((cell.num_speculative_tokens for cell in cells), default=0)
    survival: list[float] = []
    for j in range(most):
        able = [cell for cell in cells if cell.num_speculative_tokens > j]
        reached = sum(cell.request_steps for cell in able)
        accepted = sum(cell.accepted_at[j] for cell in able if j < len(cell.accepted_at))
        if not reached:
            break
        survival.append(accepted / reached)
    return survival or None


def _stock_survival(counts: StockCounters | StockDelta) -> list[float] | None:
    if not counts.drafts or counts.accepted_at is None:
        return None
    return [accepted / counts.drafts for accepted in counts.accepted_at]


def _described(seen: _Steered | _Stock) -> list[str]:
    since = "since the start" if seen.window_s is None else f"in the last {seen.window_s:g} s"
    if isinstance(seen, _Stock):
        load = seen.counters.load
        return [
            f"{seen.target}: seen as a stock server ({seen.why})",
            f"  requests    {_known(load.running)} running, {_known(load.waiting)} waiting",
            f"  acceptance  {_curve(_stock_survival(seen.counts), since)} (steps with drafts only)",
        ]
    capabilities, telemetry, table = seen.capabilities, seen.telemetry, seen.table
    lines = [
        f"{seen.target}: {capabilities.model}",
        f"  method      {capabilities.method} on {capabilities.engine} {capabilities.engine_version}, "
        f"plugin {capabilities.plugin_version}",
        f"  requests    {telemetry.running} running ({telemetry.decoding} decoding), "
        f"{telemetry.waiting} waiting",
        *_table_lines(table),
        f"  acceptance  {_curve(_survival(seen.cells, seen.shadow), since)}",
        *_bucket_lines(seen.cells),
    ]
    if table.ranks_behind:
        ranks = ", ".join(map(str, table.ranks_behind))
        lines.append(f"  warning     another table is in force on data-parallel rank {ranks}")
    if not capabilities.controllable:
        lines.append(f"  warning     not controllable: {capabilities.why_not_controllable}")
    return [*lines, *(f"  warning     {warning}" for warning in capabilities.warnings)]


def _table_lines(table: AppliedTable) -> list[str]:
    lines = [f"  table       version {table.version}, {table.state}: {_why(table)}"]
    if table.reason:
        lines.append(f"  reason      {table.reason}")
    if table.reason.startswith(f"{Reason.FROZEN}:"):
        lines.append("  frozen      its daemon holds this table and changes nothing (specctl thaw)")
    lines += [f"              {row_words(row)}" for row in table.rows]
    lines += [f"              {_limit(limit)}" for limit in table.class_limits]
    if table.lease_remaining_s is not None:
        lines.append(f"  fallback    when the lease ends: {_fallback(table)}")
        lines += _start_lines(table)
    return lines


def _why(table: AppliedTable) -> str:
    """Why this table is in force."""
    owner = table.owner or "nobody"
    if table.state is TableState.START:
        return "the server was started with it, and no other was put"
    if table.state is TableState.FALLBACK:
        return f"the last lease ran out {table.age_s:.1f} s ago, {_fallback(table)}"
    if table.lease_remaining_s is None:
        return f"set by {owner} {table.age_s:.1f} s ago, without a lease"
    return f"set by {owner} {table.age_s:.1f} s ago, leased for another {table.lease_remaining_s:.1f} s"


def _fallback(table: AppliedTable) -> str:
    number = table.fallback_num_speculative_tokens
    if number is None:
        return "the table that the server was started with"
    return f"{_drafts(number)} for every batch"


def _start_lines(table: AppliedTable) -> list[str]:
    if table.fallback_num_speculative_tokens is not None:
        return []
    return [f"              {row_words(row)}" for row in table.start_rows]


def row_words(row: TableRow) -> str:
    """For example "batch 2-6: up to 8 drafts, probability >= 0.2"."""
    batch = _span(row.decode_batch_from, row.decode_batch_to)
    context = ""
    if row.context_from_tokens or row.context_to_tokens is not None:
        context = f", context {_span(row.context_from_tokens, row.context_to_tokens)} tokens"
    sample = ""
    if row.sample is not None:
        sample = f"; every {row.sample.every_steps} steps one with {_setting(row.sample.setting)}"
    return f"batch {batch}{context}: {_setting(row)}{sample}"


def _setting(setting: Setting) -> str:
    words = [_drafts(setting.num_speculative_tokens)]
    if setting.tree_topk > 1:
        words.append(f"{setting.tree_topk} branches")
    if setting.verify_width_tokens is not None:
        words.append(f"{setting.verify_width_tokens} positions verified")
    if setting.min_token_prob is not None:
        words.append(f"probability >= {setting.min_token_prob:g}")
    return ", ".join(words)


def _drafts(number: int) -> str:
    return "off" if not number else f"up to {number} draft{'' if number == 1 else 's'}"


def _span(low: int, high: int | None) -> str:
    return f"{low} and more" if high is None else f"{low}" if low == high else f"{low}-{high}"


def _limit(limit: ClassLimit) -> str:
    return f"{class_words(limit)}: {_drafts(limit.max_num_speculative_tokens)}"


def _bucket_lines(cells: Sequence[_Cell]) -> list[str]:
    rows = [
        f"  {_span(cell.decode_batch_from, cell.decode_batch_to):<10}  "
        f"{_cell_setting(cell):<18}  {cell.steps:>6}  {cell.sampled_steps:>7}  "
        f"{cell.emitted_tokens / cell.step_s if cell.step_s > 0 else 0:9.1f}  "
        f"{cell.emitted_tokens / max(cell.request_steps, 1):.2f}"
        for cell in cells
        if not cell.has_prefill and cell.steps
    ]
    head = f"  {'batch':<10}  {'setting':<18}  {'steps':>6}  {'sampled':>7}  {'tokens/s':>9}  tokens a step"
    return [head, *rows] if rows else []


def _cell_setting(cell: _Cell) -> str:
    words = "off" if not cell.num_speculative_tokens else f"{cell.num_speculative_tokens} drafts"
    return words if cell.tree_topk == 1 else f"{words} x {cell.tree_topk}"


def _curve(survival: list[float] | None, since: str) -> str:
    if not survival:
        return f"no drafts {since}"
    return f"{'/'.join(f'{value:.2f}' for value in survival[:12])} {since}"


def _known(value: int | None) -> str:
    return "?" if value is None else str(value)
