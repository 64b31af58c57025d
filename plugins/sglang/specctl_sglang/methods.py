"""Which table values an algorithm can take on this SGLang, and why not where it cannot."""

from __future__ import annotations

from dataclasses import dataclass

from specctl_sglang.terms import PEAGLE, STEERED, SUFFIX, drafts_of

__all__ = ["MethodSupport", "method_support"]

_TREE_TOPK_MAX = 8
_NOT_ASKED = "its number of drafts is fixed at start"
_GUARDED = (
    "on a CPU SGLang verifies drafts by the target's most probable token, which is wrong for sampled "
    "requests; while one with a temperature over 0 is in the batch, nothing is drafted"
)


@dataclass(frozen=True)
class MethodSupport:
    legal: tuple[int, ...]
    """Values of num_speculative_tokens, sorted; 0 is off."""
    why_not_controllable: str | None = None
    tree_topks: tuple[int, ...] = (1,)
    """Values of tree_topk, sorted."""

    def warnings(self, device: str) -> tuple[str, ...]:
        return (_GUARDED,) if device == "cpu" and self.why_not_controllable is None else ()


def method_support(
    speculative_algorithm: str,
    speculative_num_draft_tokens: int,
    prepared: tuple[int, ...] | None,
    tree_topks: tuple[int, ...] = (1,),
    why_as_stock: str | None = None,
    speculative_eagle_topk: int | None = None,
) -> MethodSupport:
    """prepared: numbers of drafts that the worker can change to; None: it is none of ours. tree_topks: of
    the same worker; empty: nothing needs to be prepared for a tree, up to ``speculative_eagle_topk`` (the
    breadth of NGRAM), by which attention backends tell whether they need a mask."""
    if prepared is not None:
        most = min(_TREE_TOPK_MAX, speculative_eagle_topk or _TREE_TOPK_MAX)
        return MethodSupport(prepared, tree_topks=tree_topks or tuple(range(1, most + 1)))
    why = (
        f"algorithm {speculative_algorithm} runs as stock: {why_as_stock or _NOT_ASKED}; steered are "
        f"{SUFFIX}, {PEAGLE} and, with SPECCTL_SGLANG_OPTIONS, {', '.join(STEERED)}"
    )
    return MethodSupport((drafts_of(speculative_num_draft_tokens),), why)
