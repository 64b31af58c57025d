"""``specctl status TARGET``: what a server does now, for people or as JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from specctl.cli.options import token_file_option
from specctl.contract.capabilities import Capabilities
from specctl.contract.classes import ClassLimit, class_words
from specctl.contract.setting import Setting
from specctl.contract.table import AppliedTable, TableRow, TableState
from specctl.contract.telemetry import ShadowAcceptance, Telemetry, TelemetryCell
from specctl.core.messages import Reason
from specctl.core.soundness import since_start
from specctl.core.supervision import adaptivity_words
from specctl.engine_api.client import EngineClient
from specctl.engine_api.deltas import CounterReset, cell_deltas, shadow_delta, stock_delta
from specctl.engine_api.stock_metrics import StockCounters, parse_stock_metrics
from specctl.errors import NotSteered, OtherContract, TargetError
from specctl.http_client import HttpClient, normalise_target, read_token
from specctl.terminal import examples, json_option, print_json
from specctl.types import StockDelta

__all__ = ["row_words", "status"]

WINDOW_S = 1.0
_PATIENCE_S = 15.0
"""An engine answers between two steps, and gives up after 10 s by itself."""
_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True)
class _Steered:
    """What only a server with the plugin tells."""

    capabilities: Capabilities
    table: AppliedTable
    telemetry: Telemetry
    cells: Sequence[TelemetryCell]


@dataclass(frozen=True, slots=True)
class _Seen:
    """``window_s`` None: counts are from the engine's start on. ``steered`` None: seen as a stock server, and
    ``why``."""

    target: str
    window_s: float | None
    running: int | None
    waiting: int | None
    survival: list[float] | None
    why: str = ""
    steered: _Steered | None = None


@click.command(
    epilog=examples(
        "specctl status http://localhost:8000",
        "specctl status localhost:8000 --json | jq .table.rows",
        "specctl status http://localhost:8000 --since-start --token-file token",
    )
)
@click.argument("target")
@json_option()
@click.option("--since-start", is_flag=True, help="figures since the engine's start; default: of one second")
@token_file_option("read")
def status(target: str, as_json: bool, since_start: bool, token_file: Path | None) -> int:
    """Print what a server does now: its requests, the table in force, acceptance and speed.

    TARGET is the URL of a vLLM or SGLang server, with or without the specctl plugin.
    """
    token = None if token_file is None else read_token(token_file)
    window_s = None if since_start else WINDOW_S
    seen = asyncio.run(_read(normalise_target(target), token, window_s))
    if as_json:
        print_json(_as_json(seen))
        return 0
    for line in _described(seen):
        click.secho(line, fg="yellow") if line.startswith("  warning") else click.echo(line)
    return 0


async def _read(target: str, token: str | None, window_s: float | None) -> _Seen:
    async with EngineClient(HttpClient(target, token=token, timeout_s=_PATIENCE_S)) as client:
        why = "without the specctl plugin"
        try:
            capabilities = await client.capabilities()
        except (NotSteered, OtherContract) as error:
            capabilities, why = None, str(error)
        if capabilities is None:
            return await _read_stock(client, why, window_s)
        return await _read_steered(client, capabilities, window_s)


async def _read_steered(client: EngineClient, capabilities: Capabilities, window_s: float | None) -> _Seen:
    before, after = await _twice(client.telemetry, window_s)
    cells, shadow = after.cells, after.shadow
    if window_s is not None:
        try:
            cells, shadow = cell_deltas(before, after), shadow_delta(before.shadow, after.shadow)
        except CounterReset:
            # Restarted between the two readings: what counts began after the first.
            window_s = None
    steered = _Steered(capabilities, await client.table(), after, cells)
    survival = _survival(cells, shadow)
    return _Seen(client.target, window_s, after.running, after.waiting, survival, steered=steered)


async def _read_stock(client: EngineClient, why: str, window_s: float | None) -> _Seen:
    async def page() -> StockCounters:
        try:
            return parse_stock_metrics(await client.metrics_text())
        except TargetError as error:
            raise TargetError(f"not an engine: {error}") from error

    before, after = await _twice(page, window_s)
    counts: StockCounters | StockDelta = after
    if window_s is not None:
        try:
            counts = stock_delta(before, after)
        except CounterReset:
            window_s = None
    survival = _ratios(counts.accepted_at or (), counts.drafts or 0)
    return _Seen(client.target, window_s, after.load.running, after.load.waiting, survival, why)


async def _twice(read: Callable[[], Awaitable[_Read]], window_s: float | None) -> tuple[_Read, _Read]:
    """Two readings so far apart; the same one twice without a window."""
    before = after = await read()
    if window_s is not None:
        await asyncio.sleep(window_s)
        after = await read()
    return before, after


def _as_json(seen: _Seen) -> dict[str, Any]:
    common = {"target": seen.target, "plugin": seen.steered is not None, "window_s": seen.window_s}
    requests = {"running": seen.running, "waiting": seen.waiting, "survival_at": seen.survival}
    if seen.steered is None:
        return {**common, "why": seen.why, "stock": requests}
    telemetry, cells = seen.steered.telemetry, seen.steered.cells
    return {
        **common,
        **requests,
        "capabilities": seen.steered.capabilities.model_dump(mode="json"),
        "table": seen.steered.table.model_dump(mode="json"),
        **telemetry.model_dump(include={"decoding", "uptime_s", "guarded_steps", "failures", "adaptivity"}),
        "unsound": _unsound(seen.steered),
        "buckets": [_bucket(cell) for cell in cells if not cell.has_prefill and cell.steps],
    }


def _unsound(steered: _Steered) -> dict[str, Any] | None:
    """Of the counters since the engine's start; None: nothing is known to be wrong."""
    fault = since_start(steered.capabilities.method, steered.telemetry)
    return None if fault is None else {"cause": fault.cause, "ratio": fault.ratio, "words": fault.words}


def _bucket(cell: TelemetryCell) -> dict[str, Any]:
    names = ("decode_batch_from", "decode_batch_to", "num_speculative_tokens", "tree_topk")
    return {
        **{name: getattr(cell, name) for name in (*names, "verify_width_tokens", "steps", "sampled_steps")},
        "tokens_per_s": cell.emitted_tokens / cell.step_s if cell.step_s > 0 else None,
        "tokens_per_request_step": cell.emitted_tokens / cell.request_steps if cell.request_steps else None,
    }


def _survival(cells: Sequence[TelemetryCell], shadow: ShadowAcceptance | None) -> list[float] | None:
    """From shadow drafts where the engine follows them, else from the cells. None: nothing was drafted."""
    if shadow is not None and shadow.drafts:
        return _ratios(shadow.accepted_at, shadow.drafts)
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


def _ratios(counts: Sequence[int], whole: int) -> list[float] | None:
    return [count / whole for count in counts] if whole and counts else None


def _described(seen: _Seen) -> list[str]:
    since = "since the start" if seen.window_s is None else f"in the last {seen.window_s:g} s"
    curve = "/".join(f"{value:.2f}" for value in (seen.survival or ())[:12])
    acceptance = f"  acceptance  {curve or 'no drafts'} {since}"
    running, waiting = ["?" if count is None else str(count) for count in (seen.running, seen.waiting)]
    if seen.steered is None:
        return [
            f"{seen.target}: seen as a stock server ({seen.why})",
            f"  requests    {running} running, {waiting} waiting",
            f"{acceptance} (steps with drafts only)",
        ]
    capabilities, table = seen.steered.capabilities, seen.steered.table
    warnings = list(capabilities.warnings)
    if not capabilities.controllable:
        warnings.insert(0, f"not controllable: {capabilities.why_not_controllable}")
    if failures := seen.steered.telemetry.failures:
        counts = ", ".join(f"{entry} {count:g}" for entry, count in failures.items())
        warnings.insert(0, f"the plugin failed in steps of this engine: {counts}; see the server's log")
    if fault := since_start(capabilities.method, seen.steered.telemetry):
        warnings.insert(0, f"since the start: {fault.words}")
    if table.ranks_behind:
        ranks = ", ".join(map(str, table.ranks_behind))
        warnings.insert(0, f"another table is in force on data-parallel rank {ranks}")
    return [
        f"{seen.target}: {capabilities.model}",
        f"  method      {capabilities.method} on {capabilities.engine} {capabilities.engine_version}, "
        f"plugin {capabilities.plugin_version}",
        *_options_lines(capabilities.method_options),
        f"  requests    {running} running ({seen.steered.telemetry.decoding} decoding), {waiting} waiting",
        *_table_lines(table),
        *_adaptivity_lines(seen.steered),
        acceptance,
        *_bucket_lines(seen.steered.cells),
        *(f"  warning     {warning}" for warning in warnings),
    ]


def _options_lines(options: Mapping[str, str]) -> list[str]:
    """The engine's own, which are fixed when the server starts."""
    if not options:
        return []
    return [f"  options     {', '.join(f'{name} {value}' for name, value in options.items())}"]


def _adaptivity_lines(steered: _Steered) -> list[str]:
    known = steered.capabilities.adaptivity
    if known is None:
        return []
    return [f"  adaptivity  {adaptivity_words(known, steered.telemetry.adaptivity, steered.cells)}"]


def _table_lines(table: AppliedTable) -> list[str]:
    lines = [f"  table       version {table.version}, {table.state}: {_why(table)}"]
    if table.reason.startswith(f"{Reason.FROZEN}:"):
        lines.append("  frozen      its daemon holds this table and changes nothing (specctl thaw)")
    elif table.reason:
        lines.append(f"  reason      {table.reason}")
    lines += [f"              {row_words(row)}" for row in table.rows]
    lines += [f"              {_limit(limit)}" for limit in table.class_limits]
    if table.lease_remaining_s is not None:
        lines.append(f"  fallback    when the lease ends: {_fallback(table)}")
        if table.fallback_num_speculative_tokens is None:
            lines += [f"              {row_words(row)}" for row in table.start_rows]
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


def row_words(row: TableRow) -> str:
    """For example "batch 2-6: up to 8 drafts, probability >= 0.2"."""
    batch = _span(row.decode_batch_from, row.decode_batch_to)
    context = ""
    if row.context_from_tokens or row.context_to_tokens is not None:
        context = f", context {_span(row.context_from_tokens, row.context_to_tokens)} tokens"
    sample = ""
    if row.sample is not None:
        drafts = row.sample.setting.num_speculative_tokens
        how = f"with {_setting(row.sample.setting)}" if drafts else "without drafts"
        sample = f"; 1 step in {row.sample.every_steps} {how}, to measure"
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


def _bucket_lines(cells: Sequence[TelemetryCell]) -> list[str]:
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


def _cell_setting(cell: TelemetryCell) -> str:
    words = "off" if not cell.num_speculative_tokens else f"{cell.num_speculative_tokens} drafts"
    return words if cell.tree_topk == 1 else f"{words} x {cell.tree_topk}"
