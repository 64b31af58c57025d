"""The same in plain PyTorch and Python, in float64, written like the paper."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch

from specctl_kernels.row_argmax.reference import row_argmax_reference
from specctl_kernels.row_law.given import Sampling
from specctl_kernels.verify_rejection.reference import (
    distribution,
    is_finite,
    sample_by,
    uniforms_reference,
)

__all__ = [
    "Coins", "NotFiniteError", "Tree", "parents_of_links", "verify_greedy_linked_trees_reference",
    "verify_linked_trees_reference", "walk_down",
]  # fmt: skip


class NotFiniteError(ValueError):
    """A walk came to a row without a distribution."""


class Coins(Protocol):
    def accepts(self, row: int, chance: float) -> bool:
        """True with this chance; of a row any number of times, each independent of the others."""


class _Uniforms:
    """A uniform number that was not under a chance is one again, once what is left of it is stretched."""

    def __init__(self, uniforms: torch.Tensor) -> None:
        self._left: list[float] = uniforms.tolist()

    def accepts(self, row: int, chance: float) -> bool:
        if self._left[row] < chance:
            return True
        self._left[row] = (self._left[row] - chance) / (1 - chance)
        return False


@dataclass
class Tree:
    """What one request was drafted. ``targets`` [rows, V] are laws, a row of NaN for none."""

    tokens: list[int]
    parents: list[int]
    targets: torch.Tensor

    def target(self, row: int) -> torch.Tensor:
        if bool(self.targets[row].isnan().any()):
            raise NotFiniteError(row)
        return self.targets[row]

    def children(self, row: int) -> Iterator[int]:
        """A row's children in order, a token once."""
        seen: set[int] = set()
        for child in range(row + 1, len(self.tokens)):
            token = self.tokens[child]
            if self.parents[child] == row and token not in seen and 0 <= token < self.targets.shape[1]:
                seen.add(token)
                yield child


def walk_down(tree: Tree, coins: Coins) -> tuple[list[int], torch.Tensor]:
    """SpecInfer's multi-step speculative sampling (Miao et al. 2023, arXiv 2305.09781, algorithm 2) of drafts
    that were not sampled: (rows of the accepted path, the law of the token behind it)."""
    path = [0]
    while True:
        accepted, rest = _one_step(tree, path[-1], coins)
        if accepted is None:
            return path, rest
        path.append(accepted)


def _one_step(tree: Tree, row: int, coins: Coins) -> tuple[int | None, torch.Tensor]:
    whole = p = tree.target(row)
    for child in tree.children(row):
        token = tree.tokens[child]
        if coins.accepts(row, float(p[token])):
            return child, p
        p = p.index_fill(0, torch.tensor(token), 0.0)
        if p.sum() <= 0:
            return None, whole
        p = p / p.sum()
    return None, p


def parents_of_links(first_child: list[int], next_sibling: list[int]) -> list[int]:
    """Of each row its parent's, -1 for the root and for a row that no earlier row leads to."""
    parents = [-1] * len(first_child)
    for row, (child, sibling) in enumerate(zip(first_child, next_sibling, strict=True)):
        if row < child < len(parents):
            parents[child] = row
        if row < sibling < len(parents):
            parents[sibling] = parents[row]
    return parents


def verify_linked_trees_reference(
    logits: torch.Tensor,
    drafts: torch.Tensor,
    first_child: torch.Tensor,
    next_sibling: torch.Tensor,
    sampling: Sampling,
    positions: torch.Tensor,
    *,
    depth: int,
    uniforms: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As ``verify_linked_trees``."""
    rows = first_child.shape[1]
    if uniforms is None:
        uniforms = uniforms_reference(sampling.seeds.repeat_interleave(rows), positions)
    found: list[tuple[list[int], int]] = []
    for req, tree in enumerate(_trees(logits, drafts, first_child, next_sibling)):
        options = sampling.of(req)
        if options[0] <= 0 or options[1] == 1:
            found.append(_walk_greedy(tree))
            continue
        laws = [distribution(row, *options) if is_finite(row) else row * torch.nan for row in tree.targets]
        tree.targets = torch.stack(laws)
        drawn = uniforms[req * rows : (req + 1) * rows]
        try:
            path, rest = walk_down(tree, _Uniforms(drawn[:, 0]))
            found.append((path, sample_by(rest, float(drawn[path[-1], 1]))))
        except NotFiniteError:
            found.append(([0], 0))
    return _by_row(found, drafts, rows, depth)


def verify_greedy_linked_trees_reference(
    logits: torch.Tensor,
    drafts: torch.Tensor,
    first_child: torch.Tensor,
    next_sibling: torch.Tensor,
    *,
    depth: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As ``verify_greedy_linked_trees``."""
    trees = _trees(logits, drafts, first_child, next_sibling)
    return _by_row([_walk_greedy(tree) for tree in trees], drafts, first_child.shape[1], depth)


def _trees(
    logits: torch.Tensor, drafts: torch.Tensor, first_child: torch.Tensor, next_sibling: torch.Tensor
) -> Iterator[Tree]:
    """Of each request, with its logits for laws."""
    rows = first_child.shape[1]
    for req, links in enumerate(zip(first_child.tolist(), next_sibling.tolist(), strict=True)):
        of = slice(req * rows, (req + 1) * rows)
        yield Tree(drafts[of].tolist(), parents_of_links(*links), logits[of].double())


def _walk_greedy(tree: Tree) -> tuple[list[int], int]:
    choices, path = row_argmax_reference(tree.targets).tolist(), [0]
    while True:
        choice = choices[path[-1]]
        same = [child for child in tree.children(path[-1]) if tree.tokens[child] == choice]
        if not same:
            return path, choice
        path.append(same[0])


def _by_row(
    found: list[tuple[list[int], int]], drafts: torch.Tensor, rows: int, depth: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(emitted, counts, index) of (accepted path, token behind it) of each request."""
    emitted = torch.zeros(len(found) * rows, dtype=torch.int32)
    counts = torch.zeros(len(found), dtype=torch.int32)
    index = torch.full((len(found), depth), -1, dtype=torch.int32)
    for req, (path, last) in enumerate(found):
        places = [req * rows + row for row in path]
        emitted[places] = torch.tensor([*(int(drafts[at]) for at in places[1:]), last], dtype=torch.int32)
        counts[req] = min(len(path), depth)
        index[req, : len(path)] = torch.tensor(places[:depth], dtype=torch.int32)
    return emitted, counts, index
