"""The same in plain PyTorch and Python, in float64, written like the papers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch

from specctl_kernels.row_argmax.reference import row_argmax_reference
from specctl_kernels.verify_rejection.launch import NO_TOKEN, NOT_FINITE, ROUNDING
from specctl_kernels.verify_rejection.reference import (
    distribution,
    is_finite,
    sample_by,
    uniforms_reference,
)

__all__ = [
    "Coins", "NotFiniteError", "Tree", "by_row_reference", "verify_greedy_tree_reference",
    "verify_tree_reference", "walk_down", "walk_up",
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
    """What one request was drafted. ``targets`` [rows, V] are laws, a row of NaN for none; ``drafted`` [rows,
    V] those that a row's children were sampled from, None where they were not sampled."""

    tokens: list[int]
    parents: list[int]
    targets: torch.Tensor
    drafted: torch.Tensor | None = None

    @property
    def least(self) -> float:
        return 0.0 if self.drafted is None else ROUNDING

    def target(self, row: int) -> torch.Tensor:
        if bool(self.targets[row].isnan().any()):
            raise NotFiniteError(row)
        return self.targets[row]

    def candidates(self, row: int) -> Iterator[tuple[int, torch.Tensor]]:
        """A row's children in order, a token once, each with the law that it was drawn from, which then loses
        it."""
        seen: set[int] = set()
        law = None if self.drafted is None else self.drafted[row].clone()
        for child in range(row + 1, len(self.tokens)):
            token = self.tokens[child]
            if self.parents[child] != row or token in seen or not 0 <= token < self.targets.shape[1]:
                continue
            seen.add(token)
            if law is None:
                yield child, torch.nn.functional.one_hot(torch.tensor(token), self.targets.shape[1]).double()
                continue
            if bool(law.isnan().any()):
                raise NotFiniteError(row)
            if law.sum() <= 0:
                return
            yield child, law / law.sum()
            law[token] = 0.0


def _ratio(worth: float, price: float) -> float:
    """min(1, worth / price); nothing for nothing."""
    return 1.0 if worth >= price and worth > 0 else worth / price if worth > 0 else 0.0


def walk_down(tree: Tree, coins: Coins) -> tuple[list[int], torch.Tensor]:
    """SpecInfer's multi-step speculative sampling (Miao et al. 2023, arXiv 2305.09781, algorithm 2) of drafts
    without replacement: (rows of the accepted path, the law of the token behind it)."""
    path = [0]
    while True:
        accepted, rest = _one_step(tree, path[-1], coins)
        if accepted is None:
            return path, rest
        path.append(accepted)


def _one_step(tree: Tree, row: int, coins: Coins) -> tuple[int | None, torch.Tensor]:
    whole = p = tree.target(row)
    left = 1.0
    for child, q in tree.candidates(row):
        token = tree.tokens[child]
        if coins.accepts(row, _ratio(float(p[token]), float(q[token]))):
            return child, p
        rest = (p - q).clamp(min=0)
        left *= float(rest.sum())
        if left <= tree.least:
            return None, whole
        p = rest / rest.sum()
    return None, p


def walk_up(tree: Tree, coins: Coins) -> tuple[list[int], torch.Tensor]:
    """Traversal verification (Weng et al. 2025, arXiv 2505.12398, algorithm 2), as ``walk_down``."""
    found = _visited(tree, 0, 1.0, coins)
    assert found is not None, "the root's chance is 1"
    return found


def _visited(tree: Tree, row: int, chance: float, coins: Coins) -> tuple[list[int], torch.Tensor] | None:
    """What is accepted at this row or below it, which comes with the given chance: leaves first."""
    whole = p = tree.target(row)
    left = 1.0
    for child, q in tree.candidates(row):
        token = tree.tokens[child]
        of_child = _ratio(chance * float(p[token]), float(q[token]))
        found = _visited(tree, child, of_child, coins) if of_child > 0 else None
        if found is not None:
            return [row, *found[0]], found[1]
        rest = (chance * p - q).clamp(min=0)
        mass = float(rest.sum())
        left *= mass / chance
        chance = 1.0 if chance == 1 else mass / (mass + 1 - chance)
        if left <= tree.least:
            p = whole
            break
        p = rest / mass
    return ([row], p) if row == 0 or coins.accepts(row, chance) else None


def _laws(logits: torch.Tensor, *options: float) -> torch.Tensor:
    laws = [distribution(row, *options) if is_finite(row) else row.double() * torch.nan for row in logits]  # type: ignore[arg-type]
    return torch.stack(laws)


def _tree_of(
    logits: torch.Tensor,
    tokens: list[int],
    parents: list[int],
    options: tuple[float, int, float, float],
    draft_logits: torch.Tensor | None,
) -> Tree:
    tree = Tree(tokens, parents, _laws(logits, *options))
    if draft_logits is not None:
        tree.drafted = torch.zeros_like(tree.targets)
        rows = min(len(tokens), len(draft_logits))
        tree.drafted[:rows, : draft_logits.shape[1]] = _laws(draft_logits[:rows], options[0])
    return tree


def verify_tree_reference(
    logits: torch.Tensor,
    drafts: torch.Tensor,
    parents: torch.Tensor,
    starts: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    min_p: torch.Tensor | None,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    *,
    width: int,
    rule: str = "multi_candidate",
    draft_logits: torch.Tensor | None = None,
    draft_slots: torch.Tensor | None = None,
    uniforms: torch.Tensor | None = None,
    slots: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As ``verify_tree``."""
    if slots is not None:
        options = (temperature, top_k, top_p, min_p, seeds)
        temperature, top_k, top_p, min_p, seeds = (v if v is None else v[slots.long()] for v in options)
    tokens, counts, paths = verify_greedy_tree_reference(logits, drafts, parents, starts, width=width)
    for req, (start, end) in enumerate(pairwise(starts.tolist())):
        if start == end or temperature[req] <= 0:
            continue
        chosen = (
            float(temperature[req]),
            int(top_k[req]) if top_k is not None else 0,
            float(top_p[req]) if top_p is not None else 1.0,
            float(min_p[req]) if min_p is not None else 0.0,
        )
        slot = int(draft_slots[req]) if draft_slots is not None else -1
        given = draft_logits[slot] if draft_logits is not None and slot >= 0 else None
        fed = drafts[start:end].tolist()
        tree = _tree_of(logits[start:end], fed, parents[start:end].tolist(), chosen, given)
        walk = walk_up if rule == "traversal" and given is not None else walk_down
        if uniforms is not None:
            drawn = uniforms[start:end]
        elif walk is walk_down:
            drawn = uniforms_reference(seeds[req].expand(end - start), positions[start:end])
        else:
            nodes, root = torch.arange(end - start), positions[start].expand(end - start)
            drawn = uniforms_reference(seeds[req].expand(end - start), root, nodes)
        tokens[req], paths[req] = NO_TOKEN, NO_TOKEN
        try:
            path, rest = walk(tree, _Uniforms(drawn[:, 0]))
        except NotFiniteError:
            counts[req] = NOT_FINITE
            continue
        emitted = [*(fed[row] for row in path[1:]), sample_by(rest, float(drawn[path[-1], 1]))]
        counts[req] = len(emitted)
        tokens[req, : len(emitted)] = torch.tensor(emitted)
        paths[req, : len(path)] = torch.tensor(path, dtype=torch.int32)
    return tokens, counts, paths


def verify_greedy_tree_reference(
    logits: torch.Tensor, drafts: torch.Tensor, parents: torch.Tensor, starts: torch.Tensor, *, width: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As ``verify_greedy_tree``."""
    choices = row_argmax_reference(logits).tolist() if len(logits) else []
    requests = len(starts) - 1
    tokens = torch.full((requests, width), NO_TOKEN, dtype=torch.int64)
    paths = torch.full((requests, width), NO_TOKEN, dtype=torch.int32)
    counts = torch.zeros(requests, dtype=torch.int32)
    for req, (start, end) in enumerate(pairwise(starts.tolist())):
        row: int | None = 0 if end > start else None
        while row is not None:
            place, choice = int(counts[req]), choices[start + row]
            tokens[req, place], paths[req, place] = choice, row
            counts[req] += 1
            below = range(row + 1, end - start)
            same = [at for at in below if parents[start + at] == row and drafts[start + at] == choice]
            row = same[0] if same else None
    return tokens, counts, paths


def by_row_reference(
    tokens: torch.Tensor, counts: torch.Tensor, paths: torch.Tensor, rows: int, depth: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What ``verify_linked_trees`` returns, from what ``verify_tree`` does of requests with so many rows."""
    requests = counts.shape[0]
    emitted = torch.zeros(requests * rows, dtype=torch.int32)
    index = torch.full((requests, depth), -1, dtype=torch.int32)
    for req in range(requests):
        index[req, 0] = req * rows
        for place in range(int(counts[req])):
            at = req * rows + int(paths[req, place])
            emitted[at] = int(tokens[req, place])
            if place < depth:
                index[req, place] = at
    return emitted, counts.clamp(1, depth), index
