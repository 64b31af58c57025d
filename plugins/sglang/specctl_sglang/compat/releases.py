"""What the supported releases of SGLang do differently: the one place that tells them apart."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

__all__ = ["draft_context", "has_dp_attention", "has_watermarks", "rank_of", "ranks_of"]


def draft_context(drafter: Any) -> AbstractContextManager[Any]:
    """The parallel groups of a draft worker, which SGLang enters around everything its draft model does."""
    entered: AbstractContextManager[Any]
    if hasattr(drafter, "draft_tp_context"):  # 0.5.21
        group = drafter.draft_runner.tp_group
        entered = drafter.draft_tp_context(group, owns_attention=drafter.draft_owns_attention)
        return entered
    from sglang.srt.speculative.spec_utils import draft_tp_context

    # 0.5.23 resolves a layout; 0.5.22 has a flag.
    is_resolved = hasattr(drafter, "parallel_layout")
    entered = draft_tp_context(drafter.parallel_layout if is_resolved else drafter.draft_owns_attention)
    return entered


def has_dp_attention(arguments: Any) -> bool:
    """arguments: SGLang's parallel context, or a view of its arguments."""
    return bool(
        getattr(arguments, "enable_dp_attention", False)  # 0.5.21
        or getattr(arguments, "attn_dp_enabled", False)
        or getattr(arguments, "attn_dp_size", 1) > 1
    )


def ranks_of(server_args: Any) -> int:
    """Data-parallel ones, whichever layers they share; 0.5.21 has one number for both kinds."""
    return (server_args.dp_size or 1) * getattr(server_args, "attn_dp_size", 1)


def rank_of(parallel: Any) -> int:
    """Of a scheduler, among them; parallel: SGLang's context."""
    return max(parallel.dp_rank or 0, parallel.attn_dp_rank or 0)


def has_watermarks(batch: Any) -> bool:
    """Whether a request of the batch asks for one; 0.5.21 has none."""
    return bool(getattr(batch.sampling_info, "has_watermark_candidates", False))
