"""Observations made by hand."""

from __future__ import annotations

from specctl.types import CellDelta, Observation, ShadowDelta


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
) -> CellDelta:
    """``verified`` and ``seconds``: by step; else every step verifies the full width in ``step_s``."""
    verified = verified or (decode_batch * (1 + tokens),) * steps
    seconds = seconds or (step_s,) * len(verified)
    low, high = bucket or (decode_batch, decode_batch)
    drafted = drafted_at if drafted_at is not None else (len(verified) * decode_batch,) * tokens
    return CellDelta(
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
    )


def shadow(
    drafts: int, accepted_at: tuple[int, ...], drafted_at: tuple[int, ...] | None = None
) -> ShadowDelta:
    return ShadowDelta(drafts, drafted_at or (drafts,) * len(accepted_at), accepted_at)


def observation(
    *cells: CellDelta, time_s: float = 1.0, interval_s: float | None = 1.0, shadow: ShadowDelta | None = None
) -> Observation:
    return Observation(target="t", time_s=time_s, interval_s=interval_s, cells=cells, shadow=shadow)
