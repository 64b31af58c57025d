"""Observations made by hand."""

from __future__ import annotations

from specctl.contract import CONTRACT_VERSION
from specctl.contract.capabilities import Capabilities
from specctl.contract.setting import Setting
from specctl.contract.table import AppliedTable, TableRow, TableState, uniform_rows
from specctl.contract.telemetry import ShadowAcceptance, TelemetryCell
from specctl.types import Observation

__all__ = ["applied", "capabilities", "cell", "chains", "observation", "shadow", "tree"]


def chains(*depths: int) -> tuple[Setting, ...]:
    return tuple(Setting(num_speculative_tokens=depth) for depth in depths)


def tree(depth: int, topk: int, width: int) -> Setting:
    return Setting(num_speculative_tokens=depth, tree_topk=topk, verify_width_tokens=width)


def cell(
    *,
    steps: int = 10,
    decode_batch: int = 1,
    tokens: int = 4,
    accepted_at: tuple[int, ...] = (8, 6, 4, 2),
    drafted_at: tuple[int, ...] | None = None,
    step_s: float = 0.1,
    verified: tuple[int, ...] | None = None,
    seconds: tuple[float, ...] | None = None,
    has_prefill: bool = False,
    bucket: tuple[int, int] | None = None,
    context_tokens: int = 0,
    prefill_tokens: int = 0,
    topk: int = 1,
    width: int | None = None,
    ranks: tuple[tuple[int, ...], ...] = (),
    sampled_steps: int = 0,
    after_rest: bool = False,
) -> TelemetryCell:
    """``verified`` and ``seconds``: by step; else every step verifies the full width in ``step_s``."""
    verified = verified or (decode_batch * (width or 1 + tokens),) * len(seconds or (0,) * steps)
    seconds = seconds or (step_s,) * len(verified)
    low, high = bucket or (decode_batch, decode_batch)
    drafted = drafted_at if drafted_at is not None else (len(verified) * decode_batch,) * tokens
    return TelemetryCell.model_construct(
        decode_batch_from=low,
        decode_batch_to=high,
        num_speculative_tokens=tokens,
        has_prefill=has_prefill,
        steps=len(verified),
        request_steps=len(verified) * decode_batch,
        emitted_tokens=len(verified) * decode_batch + sum(accepted_at[:tokens]),
        verified_tokens=sum(verified),
        drafted_at=drafted,
        accepted_at=accepted_at[:tokens],
        context_tokens=context_tokens,
        prefill_tokens=prefill_tokens,
        step_s=sum(seconds),
        step_s_squared=sum(s * s for s in seconds),
        verified_tokens_squared=float(sum(v * v for v in verified)),
        step_s_by_verified_tokens=sum(s * v for s, v in zip(seconds, verified, strict=True)),
        draft_s=0.0,
        verify_s=sum(seconds),
        tree_topk=topk,
        verify_width_tokens=width,
        after_rest=after_rest,
        sampled_steps=sampled_steps,
        accepted_rank_at=ranks,
    )


def shadow(
    drafts: int, accepted_at: tuple[int, ...], drafted_at: tuple[int, ...] | None = None
) -> ShadowAcceptance:
    return ShadowAcceptance(
        drafts=drafts, drafted_at=drafted_at or (drafts,) * len(accepted_at), accepted_at=accepted_at
    )


def capabilities(
    settings: tuple[Setting, ...] = chains(0, 1, 2, 4),
    buckets: tuple[int, ...] = (1, 2, 4),
    *,
    sample_every_min_steps: int | None = 2,
    class_limits_max: int = 0,
    min_token_prob: float | None = None,
    why_not_controllable: str | None = None,
) -> Capabilities:
    return Capabilities(
        contract_version=CONTRACT_VERSION,
        engine="vllm",
        engine_version="0.32.0",
        plugin_version="0.1.0",
        boot_id="boot",
        model="fake",
        method="specctl_suffix",
        controllable=why_not_controllable is None,
        why_not_controllable=why_not_controllable,
        num_speculative_tokens_legal=tuple(sorted({one.num_speculative_tokens for one in settings})),
        settings=settings,
        sample_every_min_steps=sample_every_min_steps,
        decode_batch_max=buckets[-1],
        context_max_tokens=4096,
        decode_batch_buckets=buckets,
        rows_max=64,
        lease_max_s=3600.0,
        has_shadow_acceptance=False,
        class_limits_max=class_limits_max,
        min_token_prob=min_token_prob,
    )


def applied(rows: tuple[TableRow, ...] = uniform_rows(0), **changes: object) -> AppliedTable:
    table = AppliedTable(
        contract_version=CONTRACT_VERSION,
        boot_id="boot",
        version=0,
        state=TableState.START,
        method="specctl_suffix",
        rows=rows,
        fallback_num_speculative_tokens=None,
        start_rows=uniform_rows(0),
        lease_s=None,
        lease_remaining_s=None,
        owner=None,
        reason="",
        age_s=0.0,
    )
    return table.model_copy(update=changes)


def observation(
    *cells: TelemetryCell,
    time_s: float = 1.0,
    interval_s: float | None = 1.0,
    shadow: ShadowAcceptance | None = None,
    capabilities: Capabilities | None = None,
    applied: AppliedTable | None = None,
    target: str = "t",
) -> Observation:
    return Observation(
        target=target,
        time_s=time_s,
        interval_s=interval_s,
        capabilities=capabilities,
        applied=applied,
        cells=cells,
        shadow=shadow,
    )
