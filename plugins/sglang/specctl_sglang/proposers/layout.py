"""Drafts of a batch as SGLang verifies them: one width for all, and who sees whom as a mask.

Everything that a verification needs of a batch is written by one compiled call into one block of memory, so
that one copy brings it to the device. Place 0 of each row is the target's own last token. Places that hold
no draft are linked from nowhere, so that none of them can be accepted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numba import njit

__all__ = ["Drafts", "Emitted", "Places", "block_bytes", "cut", "lay_out", "limit_tree"]

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
_NONE = -1
_NOTHING = np.empty(0, np.bool_)
_PARTS = 5
"""Of a block, n * w each: tokens, positions, first children, next siblings, slots."""


@dataclass(frozen=True, slots=True)
class Drafts:
    """Of n requests; at most width - 1 tokens of each are verified: the first ones, a tree as well."""

    tokens: Ints  # [n, k]
    parents: Ints | None  # [n, k] a token comes after its parent, -1: the target's own token; None: chains
    sizes: Ints  # [n]
    width: int

    @property
    def drafted(self) -> Ints:
        """int32[n]: places that hold a draft."""
        return np.minimum(self.sizes, np.int32(self.width - 1))

    @property
    def depths(self) -> Ints:
        """int32[n]: how deep the verified drafts are."""
        return self.drafted if self.parents is None else _depths(self.parents, self.drafted)

    def within(self, limits: Ints) -> tuple[Ints, Ints | None, Ints]:
        """Tokens, parents and sizes with at most so many levels of each request."""
        if self.parents is None:
            return self.tokens, None, np.minimum(self.drafted, limits)
        return limit_tree(self.tokens, self.parents, self.drafted, self.tokens.shape[1], limits)

    @classmethod
    def none(cls, requests: int, width: int) -> Drafts:
        return cls(np.zeros((requests, 0), np.int32), None, np.zeros(requests, np.int32), width)


@dataclass(frozen=True, slots=True)
class Emitted:
    """What the step before left of n requests, on the host."""

    lengths: Longs  # [n] tokens with a place in the KV cache; the last emitted one has none yet
    tokens: Ints  # [n, W] what the step emitted
    counts: Longs  # [n] how many of them

    @property
    def last(self) -> Ints:
        """int32[n]: the target's own last token; a row that nothing was written to is padding."""
        found: Ints = self.tokens[np.arange(self.counts.size), np.maximum(self.counts - 1, 0)]
        return found


@dataclass(frozen=True, slots=True)
class Places:
    """Views of one block, which hold n requests of w places."""

    block: npt.NDArray[np.uint8]
    ints: Longs
    tokens: Longs  # [n, w]
    positions: Longs  # [n, w] in the text
    next_token: Longs  # [n, w] first child, -1: none
    next_sibling: Longs  # [n, w] next child of the same parent, -1: none
    slots: Longs  # [n, w] where the engine's table of rows has each place's slot of the KV cache
    mask_at: Longs  # [n, w, w] where the mask over contexts and drafts has them; or empty
    mask: npt.NDArray[np.bool_]  # [n, w, w] whether the row's place sees the column's

    @classmethod
    def of(cls, memory: npt.NDArray[np.uint8], requests: int, width: int, *, has_mask_at: bool) -> Places:
        """The first bytes of ``memory``, block_bytes of them."""
        block = memory[: block_bytes(requests, width, has_mask_at=has_mask_at)]
        one, square = requests * width, requests * width * width
        size = _PARTS * one + (square if has_mask_at else 0)
        ints = block[: 8 * size].view(np.int64)
        parts = ints[: _PARTS * one].reshape(_PARTS, requests, width)
        tokens, positions, next_token, next_sibling, slots = parts
        at = ints[_PARTS * one :].reshape(-1, width, width)
        mask = block[8 * size :].view(np.bool_).reshape(requests, width, width)
        return cls(block, ints, tokens, positions, next_token, next_sibling, slots, at, mask)


def block_bytes(requests: int, width: int, *, has_mask_at: bool) -> int:
    one, square = requests * width, requests * width * width
    return 8 * (_PARTS * one + (square if has_mask_at else 0)) + square


@njit(cache=True, nogil=True)
def _write(drafts, parents, sizes, is_chain, last, lengths, rows, stride, ints, mask, whole):
    requests, width = mask.shape[0], mask.shape[1]
    one = requests * width
    start = 0
    for i in range(requests):
        taken = min(np.int64(sizes[i]), width - 1)
        length, base = lengths[i], i * width
        seen = length + width
        for place in range(width):
            holds = 0 < place <= taken
            above = np.int64(0)
            if holds:
                above = np.int64(place - 1) if is_chain else np.int64(parents[i, place - 1]) + 1
            ints[base + place] = drafts[i, place - 1] if holds else (last[i] if place == 0 else 0)
            ints[one + base + place] = ints[one + base + above] + 1 if holds else length
            ints[2 * one + base + place] = _NONE
            ints[3 * one + base + place] = _NONE
            ints[4 * one + base + place] = rows[i] * stride + length + place
            for other in range(width):
                mask[i, place, other] = other == 0 or other == place or (holds and mask[i, above, other])
        for place in range(taken, 0, -1):
            above = np.int64(place - 1) if is_chain else np.int64(parents[i, place - 1]) + 1
            ints[3 * one + base + place] = ints[2 * one + base + above]
            ints[2 * one + base + above] = place
        if ints.size > 5 * one:
            for place in range(width):
                for other in range(width):
                    at = 5 * one + (base + place) * width + other
                    ints[at] = start + place * seen + length + other
        if whole.size:
            for place in range(width):
                at = start + place * seen
                whole[at : at + length] = True
                whole[at + length : at + seen] = mask[i, place]
        start += width * seen


def lay_out(
    drafts: Drafts,
    emitted: Emitted,
    rows: Longs,
    stride: int,
    places: Places,
    whole: npt.NDArray[np.bool_] = _NOTHING,
) -> None:
    """Writes ``places``. rows int64[n]: the requests' rows in the engine's table of slots, whose rows are
    ``stride`` apart. whole bool[sum of w * (length + w)]: the mask over contexts and drafts, if wanted."""
    is_chain = drafts.parents is None
    parents = drafts.tokens if drafts.parents is None else drafts.parents
    _write(
        drafts.tokens, parents, drafts.sizes, is_chain, emitted.last, emitted.lengths, rows, stride,
        places.ints, places.mask, whole,
    )  # fmt: skip


@njit(cache=True, nogil=True)
def _depths(parents, sizes):
    found = np.zeros(sizes.size, np.int32)
    levels = np.zeros(parents.shape[1], np.int32)
    for i in range(sizes.size):
        for node in range(sizes[i]):
            parent = parents[i, node]
            levels[node] = 1 + (levels[parent] if parent >= 0 else 0)
            found[i] = max(found[i], levels[node])
    return found


@njit(cache=True, nogil=True)
def _limit(nodes, parents, sizes, most, deepest, new_nodes, new_parents, new_sizes):
    columns = nodes.shape[1]
    place_of, levels = np.empty(columns, np.int32), np.empty(columns, np.int32)
    children = np.empty(columns + 1, np.int32)
    for i in range(sizes.size):
        children[:] = 0
        kept = 0
        for node in range(sizes[i]):
            parent = parents[i, node]
            place_of[node] = _NONE
            if parent >= 0 and place_of[parent] == _NONE:
                continue
            level = 1 + (levels[parent] if parent >= 0 else 0)
            if level > deepest[i] or children[parent + 1] == most:
                continue
            children[parent + 1] += 1
            levels[node], place_of[node] = level, kept
            new_nodes[i, kept] = nodes[i, node]
            new_parents[i, kept] = place_of[parent] if parent >= 0 else _NONE
            kept += 1
        new_sizes[i] = kept


def limit_tree(
    nodes: Ints, parents: Ints, sizes: Ints, most: int, deepest: int | Ints
) -> tuple[Ints, Ints, Ints]:
    """The trees with at most so many children of each node, the first ones, and so many levels."""
    new = np.zeros_like(nodes), np.full_like(parents, _NONE), np.zeros_like(sizes)
    levels = np.full(sizes.size, deepest, np.int32)
    _limit(nodes, parents, sizes, most, levels, *new)
    return new


def cut(tokens: Longs, mask: npt.NDArray[np.bool_], width: int) -> Drafts:
    """The first places of wider drafts: tokens int64[n, W], mask bool[n, W, W], a place after its parent.

    For proposers of SGLang's own, which fill every place.
    """
    mask = mask[:, :width, :width]
    places = np.arange(width)
    ancestors = mask & (places[None, :] < places[:, None])[None]
    parents = np.where(ancestors, places, 0).max(-1)[:, 1:] - 1
    sizes = np.full(tokens.shape[0], width - 1, np.int32)
    return Drafts(tokens[:, 1:width].astype(np.int32), parents.astype(np.int32), sizes, width)
