"""The law of what a rule for trees emits, exactly: every fall of its coins."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from specctl_kernels.verify_tree.reference import Coins, Tree

__all__ = ["SHAPES", "Walk", "emission_law", "loss", "random_model", "tree_of"]

Walk = Callable[[Tree, Coins], tuple[list[int], torch.Tensor]]
Context = tuple[int, ...]
Model = Callable[[Context], torch.Tensor]
"""float64[V], the law of the token behind a context."""

SHAPES: dict[str, list[int]] = {
    "root alone": [-1],
    "chain": [-1, 0, 1, 2],
    "star": [-1, 0, 0, 0],
    "twigs": [-1, 0, 0, 1, 1],
    "mixed": [-1, 0, 1, 0, 1, 3],
    "second deeper": [-1, 0, 0, 2, 3],
}


def random_model(vocabulary: int, seed: int) -> Model:
    """A target with a law of its own for each context."""

    @cache
    def target(context: Context) -> torch.Tensor:
        generator = torch.Generator().manual_seed(hash((seed, context)) % 2**31)
        return torch.randn(vocabulary, generator=generator, dtype=torch.float64).mul(1.5).softmax(0)

    return target


class _Forced:
    """Coins that fall as told, then heads; ``others`` are the ways not taken."""

    def __init__(self, forced: list[bool]) -> None:
        self.forced, self.fell, self.chance = forced, list[bool](), 1.0
        self.others: list[list[bool]] = []

    def accepts(self, row: int, chance: float) -> bool:
        if chance <= 0 or chance >= 1:
            return chance >= 1
        is_forced = len(self.fell) < len(self.forced)
        fell = self.forced[len(self.fell)] if is_forced else True
        if not is_forced:
            self.others.append([*self.fell, False])
        self.fell.append(fell)
        self.chance *= chance if fell else 1 - chance
        return fell


def tree_of(parents: list[int], target: Model, tokens: list[int]) -> Tree:
    """The tree of these drafts."""

    def context(row: int) -> Context:
        return () if row == 0 else (*context(parents[row]), tokens[row])

    return Tree(tokens, parents, torch.stack([target(context(row)) for row in range(len(parents))]))


def emission_law(walk: Walk, tree: Tree) -> dict[Context, float]:
    """Chance of each emitted sequence, by running the walk itself."""
    law: dict[Context, float] = {}
    open_ways: list[list[bool]] = [[]]
    while open_ways:
        coins = _Forced(open_ways.pop())
        path, rest = walk(tree, coins)
        open_ways += coins.others
        prefix = tuple(tree.tokens[row] for row in path[1:])
        for token, share in enumerate((rest / rest.sum()).tolist()):
            emitted = (*prefix, token)
            law[emitted] = law.get(emitted, 0.0) + coins.chance * share
    return law


def loss(law: dict[Context, float], target: Model, length: int) -> float:
    """The largest difference, over sequences of this length, from the target's own law; what was emitted goes
    on as the target would."""
    sequences: list[tuple[Context, float, float]] = [((), 1.0, 0.0)]
    for _ in range(length):
        longer = []
        for context, own, emitted in sequences:
            for token, share in enumerate(target(context).tolist()):
                now = (*context, token)
                longer.append((now, own * share, emitted * share + law.get(now, 0.0)))
        sequences = longer
    return max(abs(own - emitted) for _, own, emitted in sequences)
