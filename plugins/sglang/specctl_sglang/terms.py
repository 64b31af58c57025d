"""SGLang's words and numbers, turned into the contract's and back. Nowhere else."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from specctl.draft.options import SHARED

__all__ = [
    "PEAGLE",
    "STEERED",
    "SUFFIX",
    "checked_candidates",
    "checked_topks",
    "checked_tree",
    "default_candidates",
    "drafts_of",
    "method_of",
    "namespace_of",
    "steps_of",
    "width_of",
]

SUFFIX = "SPECCTL_SUFFIX"
PEAGLE = "SPECCTL_PEAGLE"
"""Names for ``--speculative-algorithm``."""
STEERED = ("NGRAM", "EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "DFLASH")
"""SGLang's own algorithms that get a table where it is asked for."""
_ON_A_DEVICE = (0, 1, 2, 3, 5, 7, 11, 15, 23, 31, 47, 63)


def width_of(num_speculative_tokens: int) -> int:
    """speculative_num_draft_tokens, which counts the target's own last token too."""
    return num_speculative_tokens + 1


def drafts_of(speculative_num_draft_tokens: int) -> int:
    """num_speculative_tokens."""
    return speculative_num_draft_tokens - 1


def method_of(speculative_algorithm: str) -> str:
    """The contract's name of a method: specctl_suffix, ngram, eagle3."""
    return speculative_algorithm.lower()


def default_candidates(full: int, has_graphs: bool) -> tuple[int, ...]:
    """Numbers of drafted tokens that are prepared where the user names none: each where nothing is captured
    for it, else fewer the larger they are, because each takes time at start and memory."""
    if not has_graphs:
        return tuple(range(full + 1))
    return (*(number for number in _ON_A_DEVICE if number < full), full)


def checked_candidates(asked: Iterable[int], full: int) -> tuple[int, ...]:
    """Sorted, with ``full``, which SGLang prepares in any case. Raises ValueError."""
    numbers = set(asked)
    over = sorted(number for number in numbers if number > full)
    if over:
        raise ValueError(
            f"candidates: expected at most {full} (--speculative-num-draft-tokens {width_of(full)} less the "
            f"target's own token), got {', '.join(map(str, over))}"
        )
    return tuple(sorted(numbers | {full}))


def namespace_of(lora_id: str | None, extra_key: str | None) -> str:
    """One namespace for each adapter and cache salt, SGLang's own means to keep tenants apart.

    The salt itself is a secret of its tenant: only a digest of it is kept.
    """
    parts = []
    if lora_id is not None:
        parts.append(f"adapter={lora_id}")
    if extra_key:
        parts.append(f"salt={hashlib.blake2b(extra_key.encode(), digest_size=8).hexdigest()}")
    return ",".join(parts) or SHARED


def steps_of(num_speculative_tokens: int, tree_topk: int, steps_at_start: int) -> int:
    """speculative_num_steps: passes of a draft model, which is how deep a draft can be.

    As many as drafts for a chain. A tree keeps the depth of the server's start, is never deeper than it has
    drafts, and deep enough to hold them: the first pass makes tree_topk, each later one its square.
    """
    if tree_topk == 1:
        return num_speculative_tokens
    return max(min(steps_at_start, num_speculative_tokens), _steps_needed(num_speculative_tokens, tree_topk))


def _steps_needed(num_speculative_tokens: int, tree_topk: int) -> int:
    return 1 + -(-max(num_speculative_tokens - tree_topk, 0) // tree_topk**2)


def checked_tree(num_speculative_tokens: int, tree_topk: int, steps: int) -> None:
    """Raises ValueError for a server whose own trees cannot hold the drafts that it was started with: SGLang
    would end at the first of them."""
    if tree_topk > 1 and _steps_needed(num_speculative_tokens, tree_topk) > steps:
        most = tree_topk + (steps - 1) * tree_topk**2
        raise ValueError(
            f"--speculative-num-draft-tokens: expected at most {width_of(most)}, as trees of "
            f"--speculative-num-steps {steps} and --speculative-eagle-topk {tree_topk} have {most} nodes, "
            f"got {width_of(num_speculative_tokens)}"
        )


def checked_topks(asked: Iterable[int] | None, at_start: int) -> tuple[int, ...]:
    """Values of tree_topk to prepare, sorted, with 1 and speculative_eagle_topk. Raises ValueError."""
    numbers = {1, at_start, *(asked or ())}
    if max(numbers) > at_start:
        raise ValueError(
            f"tree_topks: expected at most {at_start} (--speculative-eagle-topk, which sizes a draft's KV "
            f"cache), got {max(numbers)}"
        )
    return tuple(sorted(numbers))
