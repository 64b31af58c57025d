"""``specctl status TARGET``: what a server does now, for people or as JSON."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from specctl.contract import ROUTE_PREFIX
from specctl.contract.capabilities import Capabilities
from specctl.contract.classes import ClassLimit, class_words
from specctl.contract.table import AppliedTable
from specctl.contract.telemetry import Telemetry
from specctl.errors import ContractError, TargetError
from specctl.http_client import HttpClient, Response, normalise_target, read_token
from specctl.observe.stock import StockCounters, parse_stock_metrics
from specctl.types import Reason

__all__ = ["status"]

_Message = TypeVar("_Message", bound=BaseModel)
_PATIENCE_S = 15.0
"""An engine answers between two steps, and gives up after 10 s by itself."""


def status(target: str, *, token_file: Path | None, as_json: bool) -> int:
    """Raises TargetError and ContractError."""
    token = None if token_file is None else read_token(token_file)
    seen = asyncio.run(_read(normalise_target(target), token))
    print(json.dumps(seen, indent=2) if as_json else "\n".join(_words(seen)))
    return 0


async def _read(target: str, token: str | None) -> dict[str, Any]:
    async with HttpClient(target, token=token, timeout_s=_PATIENCE_S) as client:
        response = await client.get(f"{ROUTE_PREFIX}/capabilities")
        if response.status == 404:
            return {"target": target, "plugin": False, "stock": _stock(await client.get("/metrics"), target)}
        capabilities = _parsed(Capabilities, response, target)
        table = _parsed(AppliedTable, await client.get(f"{ROUTE_PREFIX}/table"), target)
        telemetry = _parsed(Telemetry, await client.get(f"{ROUTE_PREFIX}/telemetry"), target)
    return {
        "target": target,
        "plugin": True,
        "capabilities": capabilities.model_dump(mode="json"),
        "table": table.model_dump(mode="json"),
        "running": telemetry.running,
        "waiting": telemetry.waiting,
        "decoding": telemetry.decoding,
        "uptime_s": telemetry.uptime_s,
        "guarded_steps": telemetry.guarded_steps,
        "buckets": _buckets(telemetry),
        "survival_at": _survival(telemetry),
    }


def _parsed(model: type[_Message], response: Response, target: str) -> _Message:
    if response.status in (401, 403):
        raise ContractError(f"{target}: HTTP {response.status}: wants a token (--token-file)")
    if response.status != 200:
        raise TargetError(f"{target}: HTTP {response.status}; is this an engine, and is it ready?")
    try:
        return model.model_validate_json(response.body)
    except ValidationError as error:
        raise ContractError(f"{target}: {model.__name__}: {error.errors()[0]['msg']}") from error


def _stock(response: Response, target: str) -> dict[str, Any]:
    if response.status != 200:
        raise TargetError(f"{target}: not an engine: /metrics answers HTTP {response.status}")
    counters: StockCounters = parse_stock_metrics(response.body.decode("utf-8", errors="replace"))
    drafts, accepted_at = counters.drafts, counters.accepted_at
    survival = [accepted / drafts for accepted in accepted_at] if drafts and accepted_at else None
    return {"running": counters.running, "waiting": counters.waiting, "survival_at": survival}


def _buckets(telemetry: Telemetry) -> list[dict[str, Any]]:
    return [
        {
            "decode_batch_from": cell.decode_batch_from,
            "decode_batch_to": cell.decode_batch_to,
            "num_speculative_tokens": cell.num_speculative_tokens,
            "steps": cell.steps,
            "tokens_per_s": cell.emitted_tokens / cell.step_s if cell.step_s > 0 else None,
            "tokens_per_request_step": cell.emitted_tokens / cell.request_steps
            if cell.request_steps
            else None,
        }
        for cell in telemetry.cells
        if not cell.has_prefill and cell.steps
    ]


def _survival(telemetry: Telemetry) -> list[float] | None:
    """Since the engine started; from shadow drafts where the engine follows them, else from the cells."""
    if telemetry.shadow is not None and telemetry.shadow.drafts:
        return [accepted / telemetry.shadow.drafts for accepted in telemetry.shadow.accepted_at]
    most = max((cell.num_speculative_tokens for cell in telemetry.cells), default=0)
    survival: list[float] = []
    for j in range(most):
        able = [cell for cell in telemetry.cells if cell.num_speculative_tokens > j]
        reached = sum(cell.request_steps for cell in able)
        accepted = sum(cell.accepted_at[j] for cell in able if j < len(cell.accepted_at))
        if not reached:
            return survival or None
        survival.append(accepted / reached)
    return survival or None


def _words(seen: dict[str, Any]) -> list[str]:
    if not seen["plugin"]:
        stock = seen["stock"]
        return [
            f"{seen['target']}: a stock server, without the specctl plugin",
            f"  requests    {stock['running']} running, {stock['waiting']} waiting",
            f"  acceptance  {_curve(stock['survival_at'])} (drafted steps only)",
        ]
    capabilities, table = seen["capabilities"], seen["table"]
    lines = [
        f"{seen['target']}: {capabilities['model']}",
        f"  method      {capabilities['method']} on {capabilities['engine']} "
        f"{capabilities['engine_version']}, plugin {capabilities['plugin_version']}",
        f"  requests    {seen['running']} running ({seen['decoding']} decoding), {seen['waiting']} waiting",
        f"  table       version {table['version']}, {table['state']}, {_lease(table)}",
    ]
    lines += [f"              {_row(row)}" for row in table["rows"]]
    lines += [f"              {_limit(limit)}" for limit in table["class_limits"]]
    if table["reason"].startswith(f"{Reason.FROZEN}:"):
        lines.append("  frozen      its daemon holds this table and changes nothing (specctl thaw)")
    lines.append(f"  acceptance  {_curve(seen['survival_at'])} (since the start)")
    lines += ["  decoding    tokens  steps     tok/s  tokens a step"] if seen["buckets"] else []
    lines += [f"  {_bucket(bucket)}" for bucket in seen["buckets"]]
    if table["ranks_behind"]:
        ranks = ", ".join(map(str, table["ranks_behind"]))
        lines.append(f"  warning     another table is in force on data-parallel rank {ranks}")
    if not capabilities["controllable"]:
        lines.append(f"  warning     not controllable: {capabilities['why_not_controllable']}")
    lines += [f"  warning     {warning}" for warning in capabilities["warnings"]]
    return lines


def _lease(table: dict[str, Any]) -> str:
    owner = table["owner"] or "nobody"
    if table["lease_remaining_s"] is None:
        return f"set by {owner}, no lease"
    left = f"{table['lease_remaining_s']:.1f} s left"
    return f"leased by {owner}, {left}, then {table['fallback_num_speculative_tokens']} tokens"


def _row(row: dict[str, Any]) -> str:
    low, high = row["decode_batch_from"], row["decode_batch_to"]
    batch = f"{low} and more" if high is None else f"{low}" if low == high else f"{low}-{high}"
    tokens = row["num_speculative_tokens"]
    least = row.get("min_token_prob")
    chosen = "" if least is None else f", a chance of {least:g} at least"
    return f"{batch} decoding: {f'{tokens} tokens' if tokens else 'off'}{chosen}"


def _limit(limit: dict[str, Any]) -> str:
    most = limit["max_num_speculative_tokens"]
    return f"{class_words(ClassLimit(**limit))}: {f'at most {most} tokens' if most else 'off'}"


def _bucket(bucket: dict[str, Any]) -> str:
    low, high = bucket["decode_batch_from"], bucket["decode_batch_to"]
    batch = f"{low}" if low == high else f"{low}-{high}"
    rate, tokens = bucket["tokens_per_s"], bucket["tokens_per_request_step"]
    told = "    -" if rate is None else f"{rate:9.1f}"
    each = "-" if tokens is None else f"{tokens:.2f}"
    return f"{batch:<10}  {bucket['num_speculative_tokens']:>6}  {bucket['steps']:>5} {told}  {each}"


def _curve(survival: list[float] | None) -> str:
    return "not measured" if not survival else "/".join(f"{value:.2f}" for value in survival[:12])
