"""Which table values an algorithm can take on this SGLang, and why not where it cannot."""

from __future__ import annotations

from dataclasses import dataclass

from specctl_sglang.terms import SUFFIX, drafts_of

__all__ = ["MethodSupport", "method_support"]

_TREE_TOPK_MAX = 8
_GUARDED = (
    "on a CPU SGLang verifies drafts by the target's most probable token, which is wrong for sampled "
    "requests; while one with a temperature over 0 is in the batch, nothing is drafted"
)


@dataclass(frozen=True)
class MethodSupport:
    legal: tuple[int, ...]
    """Values of num_speculative_tokens, sorted; 0 is off."""
    why_not_controllable: str | None = None
    tree_topk_max: int = 1

    def warnings(self, device: str) -> tuple[str, ...]:
        return (_GUARDED,) if device == "cpu" and self.why_not_controllable is None else ()


def method_support(
    speculative_algorithm: str, speculative_num_draft_tokens: int, prepared: tuple[int, ...] | None
) -> MethodSupport:
    """prepared: numbers of drafts that the worker can change to; None: it is none of ours."""
    if prepared is not None:
        topk = _TREE_TOPK_MAX if speculative_algorithm == SUFFIX else 1
        return MethodSupport(prepared, tree_topk_max=topk)
    why = (
        f"algorithm {speculative_algorithm} runs as stock: its number of drafts is fixed at start; steered "
        f"are {SUFFIX} and, with SPECCTL_SGLANG_OPTIONS, NGRAM"
    )
    return MethodSupport((drafts_of(speculative_num_draft_tokens),), why)
