"""The law of what a rule for trees emits, exactly: every draft that may be drawn, every fall of its coins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache

import torch
from specctl_kernels.verify_tree.reference import Coins, Tree

__all__ = ["SHAPES", "Walk", "emission_law", "every_tree", "loss", "random_models"]

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


def random_models(vocabulary: int, seed: int, spread: float) -> tuple[Model, Model]:
    """(target, drafter) with a law of their own for each context; the same if ``spread`` is 0."""

    @cache
    def scores(context: Context) -> torch.Tensor:
        generator = torch.Generator().manual_seed(hash((seed, context)) % 2**31)
        return torch.randn(2, vocabulary, generator=generator, dtype=torch.float64) * 1.5

    def target(context: Context) -> torch.Tensor:
        return scores(context)[0].softmax(0)

    def drafter(context: Context) -> torch.Tensor:
        return (scores(context)[0] + spread * scores(context)[1]).softmax(0)

    return target, drafter


class _Forced:
    """Coins that fall as told, then heads; ``others`` are the ways not taken."""

    def __init__(self, forced: list[bool]) -> None:
        self.forced, self.fell, self.chance = forced, list[bool](), 1.0
        self.others: list[list[bool]] = []

    def accepts(self, row: int, chance: float) -> bool:
        if chance <= 0 or chance >= 1:
            return chance >= 1
        is_told = len(self.fell) < len(self.forced)
        fell = self.forced[len(self.fell)] if is_told else True
        if not is_told:
            self.others.append([*self.fell, False])
        self.fell.append(fell)
        self.chance *= chance if fell else 1 - chance
        return fell


def every_tree(
    parents: list[int],
    models: tuple[Model, Model],
    given: list[int] | None = None,
    is_replaced: bool = False,
) -> Iterator[tuple[float, Tree]]:
    """Every tree of the shape with its chance, children drawn without replacement unless ``is_replaced``; of
    drafts that are not sampled, the one with the tokens ``given``."""
    target, drafter = models

    def grown(tokens: list[int]) -> Iterator[tuple[float, list[int]]]:
        at = len(tokens)
        if at == len(parents):
            yield 1.0, tokens
            return
        law = drafter(context(tokens, parents[at])).clone()
        for other in range(1, at):
            if parents[other] == parents[at] and not is_replaced:
                law[tokens[other]] = 0
        for token in range(len(law)) if given is None else [given[at]]:
            chance = float(law[token] / law.sum()) if given is None else 1.0
            if chance > 0:
                yield from ((chance * more, all_of) for more, all_of in grown([*tokens, token]))

    def context(tokens: list[int], row: int) -> Context:
        return () if row == 0 else (*context(tokens, parents[row]), tokens[row])

    for chance, tokens in grown([0]):
        contexts = [context(tokens, row) for row in range(len(parents))]
        drafted = torch.stack([drafter(one) for one in contexts]) if given is None else None
        yield chance, Tree(tokens, parents, torch.stack([target(one) for one in contexts]), drafted)


def emission_law(walk: Walk, trees: Iterable[tuple[float, Tree]]) -> dict[Context, float]:
    """Chance of each emitted sequence, by running the walk itself."""
    law: dict[Context, float] = {}
    for chance, tree in trees:
        open_ways: list[list[bool]] = [[]]
        while open_ways:
            coins = _Forced(open_ways.pop())
            path, rest = walk(tree, coins)
            open_ways += coins.others
            prefix = tuple(tree.tokens[row] for row in path[1:])
            for token, share in enumerate((rest / rest.sum()).tolist()):
                emitted = (*prefix, token)
                law[emitted] = law.get(emitted, 0.0) + chance * coins.chance * share
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
