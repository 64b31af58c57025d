"""Which settings an algorithm can take on this SGLang, and why not where it cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specctl.contract.setting import Setting
from specctl_sglang.terms import DFLASH, PEAGLE, STEERED, SUFFIX, Shape, chain, drafts_of, setting_of

__all__ = ["MethodSupport", "method_support"]

_NOT_ASKED = "its number of drafts is fixed at start"
_GUARDED = (
    "on a CPU SGLang verifies drafts by the target's most probable token, which is wrong for sampled "
    "requests; while one with a temperature over 0 is in the batch, nothing is drafted"
)
_ONE_BRANCH = {
    DFLASH: "a block of DFLASH is a chain",
    PEAGLE: "a P-EAGLE head drafts a chain",
    "NGRAM": "the server was started with --speculative-ngram-max-bfs-breadth 1",
}
_STARTED_SO = "no tree is prepared: the server was started with --speculative-eagle-topk 1, or without trees"


@dataclass(frozen=True)
class MethodSupport:
    settings: tuple[Setting, ...]
    why_not_controllable: str | None = None
    why_chains_only: str | None = None

    def warnings(self, device: str) -> tuple[str, ...]:
        return (_GUARDED,) if device == "cpu" and self.why_not_controllable is None else ()


def method_support(
    speculative_algorithm: str,
    at_start: Shape,
    prepared: Sequence[Shape] | None,
    why_as_stock: str | None = None,
) -> MethodSupport:
    """prepared: what the worker can change to; None: it is none of ours."""
    if prepared is not None:
        settings = tuple(map(setting_of, sorted(prepared)))
        is_chain = all(one.tree_topk == 1 for one in settings)
        why_chains = _ONE_BRANCH.get(speculative_algorithm, _STARTED_SO) if is_chain else None
        return MethodSupport(settings, why_chains_only=why_chains)
    why = (
        f"algorithm {speculative_algorithm} runs as stock: {why_as_stock or _NOT_ASKED}; steered are "
        f"{SUFFIX}, {PEAGLE} and, with SPECCTL_SGLANG_OPTIONS, {', '.join(STEERED)}"
    )
    depth, topk, width = at_start
    started = at_start if topk > 1 and depth < width else chain(drafts_of(width))
    return MethodSupport((setting_of(started),), why)
