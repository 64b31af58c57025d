"""Acceptance from what the server counts: specctl's telemetry, or vLLM's own counters on /metrics."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest

from prometheus_client.parser import text_string_to_metric_families

from specctl.bench.results import Acceptance
from specctl.contract.capabilities import Capabilities
from specctl.contract.telemetry import Telemetry
from specctl.engine_api.client import EngineClient
from specctl.errors import SpecctlError

__all__ = ["Counters", "acceptance_between", "read_counters"]

_STOCK = {
    "vllm:spec_decode_num_drafts_total": "drafts",
    "vllm:spec_decode_num_draft_tokens_total": "drafted_tokens",
    "vllm:spec_decode_num_accepted_tokens_total": "accepted_tokens",
}
_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"


@dataclass(frozen=True)
class Counters:
    """Monotonic since ``boot_id``; a stock server tells none. ``request_steps`` and ``emitted_tokens`` None:
    the server does not count steps without drafts."""

    boot_id: str | None
    drafts: int
    drafted_tokens: int
    accepted_at: tuple[int, ...]
    request_steps: int | None = None
    emitted_tokens: int | None = None
    accepted_tokens: int = 0


async def read_counters(client: EngineClient, capabilities: Capabilities | None) -> Counters | None:
    """None where the server tells nothing, or does not answer now."""
    try:
        if capabilities is not None:
            return of_telemetry(await client.telemetry())
        return of_metrics(await client.metrics_text())
    except (SpecctlError, ValueError):
        return None


def of_telemetry(telemetry: Telemetry) -> Counters:
    accepted_at: tuple[int, ...] = ()
    drafts = steps = emitted = drafted = 0
    for cell in telemetry.cells:
        drafts += cell.drafted_at[0] if cell.drafted_at else 0
        drafted += cell.drafted_tokens
        steps += cell.request_steps
        emitted += cell.emitted_tokens
        accepted_at = tuple(a + b for a, b in zip_longest(accepted_at, cell.accepted_at, fillvalue=0))
    return Counters(telemetry.boot_id, drafts, drafted, accepted_at, steps, emitted, sum(accepted_at))


def of_metrics(text: str) -> Counters | None:
    """None without vLLM's counters of speculation. Sums over engines. ValueError for no Prometheus text."""
    sums = dict.fromkeys(_STOCK.values(), 0.0)
    at: dict[int, float] = {}
    has_any = False
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in _STOCK:
                sums[_STOCK[sample.name]] += sample.value
                has_any = True
            elif sample.name == _POSITION:
                position = int(sample.labels.get("position", "0"))
                at[position] = at.get(position, 0.0) + sample.value
    if not has_any:
        return None
    return Counters(
        None,
        int(sums["drafts"]),
        int(sums["drafted_tokens"]),
        tuple(int(at.get(k, 0.0)) for k in range(max(at, default=-1) + 1)),
        accepted_tokens=int(sums["accepted_tokens"]),
    )


def acceptance_between(before: Counters | None, after: Counters | None) -> Acceptance | None:
    """None where one is missing or the server restarted in between."""
    if before is None or after is None or before.boot_id != after.boot_id:
        return None
    drafts, drafted = after.drafts - before.drafts, after.drafted_tokens - before.drafted_tokens
    at = tuple(a - b for a, b in zip_longest(after.accepted_at, before.accepted_at, fillvalue=0))
    accepted = after.accepted_tokens - before.accepted_tokens
    steps = emitted = None
    if after.request_steps is not None and before.request_steps is not None:
        steps = after.request_steps - before.request_steps
        emitted = (after.emitted_tokens or 0) - (before.emitted_tokens or 0)
    if min(drafts, drafted, accepted, steps or 0, *at) < 0:
        return None
    return Acceptance(
        source="metrics" if after.request_steps is None else "telemetry",
        drafted_tokens=drafted,
        accepted_tokens=accepted,
        drafts=drafts,
        request_steps=steps,
        acceptance_rate=accepted / drafted if drafted else None,
        acceptance_length=emitted / steps if steps and emitted is not None else None,
        drafting_acceptance_length=1 + accepted / drafts if drafts else None,
        survival_at=tuple(count / drafts for count in at) if drafts else (),
    )
