"""The law of what block verification emits, and how many drafts it keeps.

On a GPU every draw is the kernel's. Without one the draws are those of the rule's reference, which the kernel
equals on some of them. ``BITS`` makes every softmax weight of integer logits a power of two.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from specctl_kernels.verify_block import verify_block
from specctl_kernels.verify_block.reference import (
    block_step,
    block_uniforms_reference,
    chances_of_stops,
    chances_to_keep,
    residual,
    running_ratios,
)
from specctl_kernels.verify_rejection.reference import distribution
from support.verify_batches import packed
from support.verify_tests import LEAST_CHANCE, chi_square_chance

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
IS_GPU = DEVICE.type == "cuda"
BITS = 1.4426950408889634
EXACT = 1e-12
"""Sums of some hundred float64 probabilities."""
DRAWS = 1_000_000


def test_both_rules_have_one_law_on_drafts_that_were_not_sampled() -> None:
    """Exactly, for every number of kept drafts; the residual is p without the draft in both."""
    torch.manual_seed(4)
    for drafts in range(5):
        p = torch.rand(drafts + 1, 6, dtype=torch.float64).pow(4)
        p = p / p.sum(-1, keepdim=True)
        fed = torch.randint(0, 6, (drafts,))
        q = torch.nn.functional.one_hot(fed, 6).double()
        ratios = running_ratios(p, q, fed)
        block = chances_of_stops(chances_to_keep(p, q, ratios))
        kept = torch.cat([torch.ones(1).double(), p[torch.arange(drafts), fed].cumprod(0)])
        token = kept * torch.cat([1 - p[torch.arange(drafts), fed], torch.ones(1).double()])
        torch.testing.assert_close(block, token, rtol=0, atol=EXACT)
        for row in range(drafts):
            left = residual(p[row], q[row], ratios[row])
            by_token = p[row] * (1 - q[row])
            torch.testing.assert_close(left / left.sum(), by_token / by_token.sum(), rtol=0, atol=EXACT)


Tree = tuple[list[torch.Tensor], list[torch.Tensor]]
"""Logits of p behind 0, 1 and 2 drafts, [V], [V, V], [V, V, V], by the drafts; of q behind 0 and 1."""


def laws_of(tree: Tree, options: tuple[float, int, float, float]) -> Tree:
    def laws(logits: torch.Tensor, *options: Any) -> torch.Tensor:
        rows = logits.reshape(-1, logits.shape[-1])
        return torch.stack([distribution(row, *options) for row in rows]).view(logits.shape)

    return [laws(one, *options) for one in tree[0]], [laws(one, options[0]) for one in tree[1]]


def behind(levels: list[torch.Tensor], drafts: torch.Tensor) -> torch.Tensor:
    """[..., levels, V]: each level's row behind the drafts int64[..., 2] before it."""
    rows = [level[tuple(drafts[..., i] for i in range(depth))] for depth, level in enumerate(levels)]
    return torch.stack([row.expand(*drafts.shape[:-1], -1) for row in rows], -2)


def kept_by_kernel(
    tree: Tree, drafts: torch.Tensor, uniforms: torch.Tensor, options: tuple[float, int, float, float]
) -> tuple[torch.Tensor, torch.Tensor]:
    """(drafts kept, the token behind them), a request for each pair of drafts."""
    requests = len(drafts)
    starts = torch.arange(0, 3 * requests + 1, 3, dtype=torch.int32)
    given: dict[str, Any] = {
        "logits": behind(tree[0], drafts).reshape(3 * requests, -1), "starts": starts, "width": 3,
        "drafts": torch.nn.functional.pad(drafts, (1, 0)).flatten(),
        "temperature": torch.full((requests,), options[0]),
        "top_k": torch.full((requests,), options[1], dtype=torch.int32),
        "top_p": torch.full((requests,), options[2]), "min_p": torch.full((requests,), options[3]),
        "seeds": torch.arange(requests), "positions": torch.arange(3 * requests),
        "uniforms": uniforms.reshape(-1, 2), "draft_logits": behind(tree[1], drafts),
        "draft_slots": torch.arange(requests, dtype=torch.int32),
    }  # fmt: skip
    moved = {k: v.to(DEVICE) if isinstance(v, torch.Tensor) else v for k, v in given.items()}
    tokens, counts = (one.cpu() for one in verify_block(**packed(moved)))
    for row in range(2):
        is_kept = counts > row + 1
        assert torch.equal(tokens[is_kept, row], drafts[is_kept, row])
    return counts.long() - 1, tokens.gather(1, counts.long()[:, None] - 1)[:, 0]


def outcomes(
    tree: Tree, options: tuple[float, int, float, float], draws: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """(drafts, how many are kept, the token behind them) of every 100,000 draws."""
    p, q = laws_of(tree, options)
    for chunk in range(0, draws, 100_000):
        generator = torch.Generator().manual_seed(chunk + 3)
        size = min(draws, 100_000)
        first = torch.multinomial(q[0].expand(size, -1), 1, generator=generator)
        second = torch.multinomial(q[1][first[:, 0]], 1, generator=generator)
        drafts = torch.cat([first, second], 1)
        uniforms = torch.rand(size, 3, 2, dtype=torch.float64, generator=generator)
        if IS_GPU:
            yield drafts, *kept_by_kernel(tree, drafts, uniforms, options)
            continue
        kept, token = block_step(behind(p, drafts), behind(q, drafts), drafts, uniforms)
        if chunk == 0:
            got = kept_by_kernel(tree, drafts[:6], uniforms[:6], options)
            assert [one.tolist() for one in got] == [kept[:6].tolist(), token[:6].tolist()]
        yield drafts, kept, token


ROWS_P = torch.tensor(
    [[2.0, 1.0, 0.0, -1.0, 0.5, -0.5, 1.5], [0.0, 3.0, 1.0, 1.0, -2.0, 0.25, 1.0], [1.0, 1, 1, 1, 1, 1, 1]]
)
ROWS_Q = torch.tensor([[1.0, 2.0, 0.0, 0.0, -1.0, 1.0, 0.0], [2.0, 0.0, 1.0, 2.0, -1.0, 0.0, 1.0]])
LEFT = torch.tensor([1.0, 0.5, 2.0, float("-inf"), float("-inf"), float("-inf"), float("-inf")])
TIES = torch.tensor([2.0, 0.0, 3.0, 1.0, 2.0, 0.0, float("-inf")])
POINTS = torch.tensor([[0.0] * 7, [0.0] * 7]).index_fill(1, torch.tensor([1]), 200.0)
LAWS: dict[str, tuple[torch.Tensor, torch.Tensor, tuple[float, int, float, float]]] = {
    "p is q": (ROWS_P, ROWS_P[:2], (1.0, 0, 1.0, 0.0)),
    "other q": (ROWS_P, ROWS_Q, (0.8, 0, 1.0, 0.0)),
    "disjoint": (LEFT.flip(0).expand(3, -1), LEFT.expand(2, -1), (1.0, 0, 1.0, 0.0)),
    "zero mass": (LEFT.expand(3, -1), ROWS_Q, (1.0, 0, 1.0, 0.0)),
    "q on one token": (ROWS_P, POINTS, (1.0, 0, 1.0, 0.0)),
    "top-k 1": (ROWS_P, ROWS_Q, (1.0, 1, 1.0, 0.0)),
    "top-k": (ROWS_P, ROWS_Q, (1.3, 3, 1.0, 0.0)),
    "top-p": (ROWS_P, ROWS_Q, (1.0, 0, 0.8, 0.0)),
    "top-p with ties at the edge": (TIES.expand(3, -1), ROWS_Q, (BITS, 0, 0.6, 0.0)),
    "all options": (ROWS_P, ROWS_Q, (0.7, 5, 0.9, 0.05)),
    "cold": (ROWS_P, ROWS_Q, (0.02, 0, 1.0, 0.0)),
    "hot": (ROWS_P, ROWS_Q, (100.0, 0, 0.9, 0.0)),
}


@pytest.mark.parametrize("case", LAWS)
def test_three_tokens_have_the_targets_law(case: str) -> None:
    """What is emitted, followed by the target's own samples, at each position and together."""
    rows_p, rows_q, options = LAWS[case]
    tree = (
        [rows_p[0], rows_p[1].expand(7, -1), rows_p[2].expand(7, 7, -1)],
        [rows_q[0], rows_q[1].expand(7, -1)],
    )
    laws = [distribution(row, *options) for row in rows_p]
    seen = torch.zeros(7, 7, 7)
    for drafts, kept, token in outcomes(tree, options, 100_000 if IS_GPU else 40_000):
        generator = torch.Generator().manual_seed(5)
        own = [torch.multinomial(law, len(kept), replacement=True, generator=generator) for law in laws]
        tokens = torch.stack(own, 1)
        tokens[:, :2] = torch.where(torch.arange(2) < kept[:, None], drafts, tokens[:, :2])
        tokens.scatter_(1, kept[:, None], token[:, None])
        seen += (tokens @ torch.tensor([49, 7, 1])).bincount(minlength=343).view(7, 7, 7)
        if case == "p is q":
            assert int(kept.min()) == 2
        if case == "disjoint":
            assert int(kept.max()) == 0
    joint = laws[0][:, None, None] * laws[1][:, None] * laws[2]
    assert chi_square_chance(seen.flatten(), joint.flatten()) > LEAST_CHANCE
    for step in range(3):
        others = [axis for axis in range(3) if axis != step]
        assert chi_square_chance(seen.sum(others), laws[step]) > LEAST_CHANCE, step


def test_two_steps_have_the_targets_law() -> None:
    """With the numbers of one seed. Were a draft's drawn by its own position, both steps would look at some,
    and the second token's law would be off by 1.7 points."""
    requests = 30_000
    p, q = torch.tensor([0.5, 0.3, 0.15, 0.05]).double(), torch.tensor([0.2, 0.4, 0.2, 0.2]).double()
    rows_p, rows_q = p.expand(requests, 3, 4), q.expand(requests, 2, 4)
    generator = torch.Generator().manual_seed(1)
    starts = torch.arange(0, 3 * requests + 1, 3, dtype=torch.int32)
    first = torch.zeros(requests, dtype=torch.int64)
    steps = []
    for _ in range(2):
        drafts = torch.multinomial(q.expand(requests, 4), 2, replacement=True, generator=generator)
        positions = first[:, None] + torch.arange(3)
        uniforms = block_uniforms_reference(torch.arange(requests), positions.flatten(), starts)
        kept, token = block_step(rows_p, rows_q, drafts, uniforms.view(requests, 3, 2))
        tokens = torch.where(torch.arange(2) < kept[:, None], drafts, token[:, None])
        steps.append((kept, tokens))
        first = first + kept + 1
    (kept, tokens), (_, later) = steps
    second = torch.where(kept > 0, tokens[:, 1], later[:, 0])
    joint = (4 * tokens[:, 0] + second).bincount(minlength=16)
    assert chi_square_chance(joint, (p[:, None] * p).flatten()) > LEAST_CHANCE


# temperature, top_k, top_p, min_p
CUTS = [(1.0, 0, 1.0, 0.0), (0.7, 2, 1.0, 0.0), (1.0, 0, 0.6, 0.0), (1.5, 3, 0.9, 0.1)]


def random_tree(columns: int = 4) -> Tree:
    shapes = [(columns,) * (depth + 1) for depth in range(3)]
    return [torch.randn(shape).mul(1.5) for shape in shapes], [
        torch.randn(shape).mul(1.5) for shape in shapes[:2]
    ]


def enumerated(p: list[torch.Tensor], q: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Of all pairs of drafts, exactly: (their chance [V, V], that of i kept ones [V, V, 3], r [V, V, 3])."""
    drafts = torch.stack(torch.meshgrid(*[torch.arange(len(q[0]))] * 2, indexing="ij"), -1)
    rows_p, rows_q = behind(p, drafts), behind(q, drafts)
    ratios = running_ratios(rows_p, rows_q, drafts)
    return q[0][:, None] * q[1], chances_of_stops(chances_to_keep(rows_p, rows_q, ratios)), ratios


def normal(weights: torch.Tensor) -> torch.Tensor:
    return weights / weights.sum(-1, keepdim=True).clamp(min=1e-300)


def law_by_kept(p: list[torch.Tensor], q: list[torch.Tensor]) -> list[torch.Tensor]:
    """The chance of what is emitted, [V], [V, V], [V, V, V] for 0, 1 and 2 kept drafts."""
    chance, stops, ratios = enumerated(p, q)
    shares = chance[..., None] * stops
    none, one, both = shares[..., 0].sum(), shares[..., 1].sum(1), shares[..., 2]
    first = normal(residual(p[0], q[0], torch.ones(()).double()))
    second = normal(residual(p[1], q[1], ratios[:, 0, 1]))
    return [none * first, one[:, None] * second, both[..., None] * p[2]]


def test_the_rule_keeps_the_targets_law_and_more_drafts_by_enumeration() -> None:
    torch.manual_seed(2)
    gains = []
    for options in CUTS * 10:
        p, q = laws_of(random_tree(), options)
        none, one, both = law_by_kept(p, q)
        joint = none[:, None, None] * p[1][:, :, None] * p[2] + one[..., None] * p[2] + both
        torch.testing.assert_close(joint, p[0][:, None, None] * p[1][..., None] * p[2], rtol=0, atol=EXACT)
        chance, stops, ratios = enumerated(p, q)
        kept = (chance[..., None] * stops * torch.arange(3)).sum()
        # The chance that i drafts or more are kept is r_i, given the first i (the paper's lemma 3).
        assert float(kept) == pytest.approx(float((chance[..., None] * ratios[..., 1:]).sum()), abs=EXACT)
        same = [torch.minimum(p[depth], q[depth]) for depth in range(2)]
        by_token = same[0].sum() + (same[0][:, None] * same[1]).sum()
        most = same[0].sum() + torch.minimum(p[0][:, None] * p[1], chance).sum()
        assert by_token - EXACT <= kept <= most + EXACT
        gains.append(float(kept - by_token))
    assert max(gains) > 0.05


@pytest.mark.parametrize("options", CUTS[::3], ids=["no cuts", "all cuts"])
def test_a_million_draws_fall_as_enumerated(options: tuple[float, int, float, float]) -> None:
    torch.manual_seed(9)
    tree = random_tree()
    p, q = laws_of(tree, options)
    law = torch.cat([one.flatten() for one in law_by_kept(p, q)])
    offsets, bases = torch.tensor([0, 4, 20]), torch.tensor([[0, 0], [4, 0], [16, 4]])
    seen, kept_in_all = torch.zeros(84, dtype=torch.int64), 0
    for drafts, kept, token in outcomes(tree, options, DRAWS):
        seen += (offsets[kept] + (drafts * bases[kept]).sum(1) + token).bincount(minlength=84)
        kept_in_all += int(kept.sum())
    assert int(seen.sum()) == DRAWS
    assert chi_square_chance(seen, law) > LEAST_CHANCE
    chance, stops, _ = enumerated(p, q)
    mean, square = ((chance[..., None] * stops * torch.arange(3) ** power).sum() for power in (1, 2))
    error = float(((square - mean**2) / DRAWS).sqrt())
    assert kept_in_all / DRAWS == pytest.approx(float(mean), abs=4 * error)
