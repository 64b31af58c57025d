"""Options of the suffix index, and what one call of it returns."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

__all__ = ["SHARED", "DraftBatch", "SuffixIndexOptions"]

SHARED = ""
"""The namespace of requests that name none."""
_BOUNDS: dict[str, tuple[float, float]] = {
    "max_match_tokens": (1, 256),
    "min_match_tokens": (1, 64),
    "max_spec_factor": (0.0, 64.0),
    "max_spec_offset": (-64.0, 64.0),
    "min_token_prob": (0.0, 1.0),
    "index_bytes": (2**16, 2**40),
    "max_namespaces": (1, 4096),
    "threads": (1, 64),
}
_INTEGERS = ("max_match_tokens", "min_match_tokens", "index_bytes", "max_namespaces", "threads")


@dataclass(frozen=True)
class SuffixIndexOptions:
    """Defaults were chosen on replays of agent transcripts, SWE, SQL and chat (``benchmarks.suffix_replay``).

    A draft has at most floor(max_spec_factor * match + max_spec_offset) tokens and ends where the probability
    that all of it is accepted falls below min_token_prob. index_bytes bounds the corpus of finished outputs
    with every array it needs, in equal parts for max_namespaces; use_global=False keeps no corpus. threads
    work on a large batch, the caller's included.
    """

    max_match_tokens: int = 32
    min_match_tokens: int = 1
    max_spec_factor: float = 2.0
    max_spec_offset: float = 0.0
    min_token_prob: float = 0.1
    index_bytes: int = 256 * 2**20
    use_global: bool = True
    max_namespaces: int = 1
    threads: int = 2

    def __post_init__(self) -> None:
        for name, (low, high) in _BOUNDS.items():
            value = getattr(self, name)
            kinds = (int, np.integer) if name in _INTEGERS else (int, float, np.integer, np.floating)
            if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
                kind = "an integer" if name in _INTEGERS else "a number"
                raise ValueError(f"{name}: expected {kind} from {low:g} to {high:g}, got {value!r}")
        if not isinstance(self.use_global, bool):
            raise ValueError(f"use_global: expected true or false, got {self.use_global!r}")
        if self.min_match_tokens > self.max_match_tokens:
            raise ValueError(
                f"min_match_tokens: expected at most max_match_tokens = {self.max_match_tokens}, "
                f"got {self.min_match_tokens}"
            )


@dataclass(slots=True)
class DraftBatch:
    """Row i belongs to the i-th slot asked for; columns from ``lengths[i]`` on are 0."""

    tokens: npt.NDArray[np.int32]  # [n, max_budget]
    probs: npt.NDArray[np.float32]
    """[n, max_budget] estimated probability that tokens[:, :j + 1] all come true"""
    heads: npt.NDArray[np.int32]  # [3, n] lengths, match_tokens, source

    @property
    def lengths(self) -> npt.NDArray[np.int32]:
        """[n] drafted tokens"""
        row: npt.NDArray[np.int32] = self.heads[0]
        return row

    @property
    def match_tokens(self) -> npt.NDArray[np.int32]:
        """[n] length of the match the draft continues, 0 = no draft"""
        row: npt.NDArray[np.int32] = self.heads[1]
        return row

    @property
    def source(self) -> npt.NDArray[np.int32]:
        """[n] 0 none, 1 own tokens, 2 live corpus, 3 frozen corpus; 4 to 6 so behind an edit"""
        row: npt.NDArray[np.int32] = self.heads[2]
        return row


assert {field.name for field in fields(SuffixIndexOptions)} == {*_BOUNDS, "use_global"}
