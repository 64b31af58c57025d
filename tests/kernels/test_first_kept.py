"""Drafts without a distribution are verified by samples of the whole law, of which the first that is kept
counts. The law of that rule, by enumeration of its random numbers; and the kernel is the rule, number for
number, where rows take several rounds and where no round finds one.
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product
from typing import Any

import pytest
import torch
from specctl_kernels.verify_rejection.one_hot import ROUNDS
from specctl_kernels.verify_rejection.reference import distribution, first_kept, uniforms_reference
from support.rejection_runs import BITS, equals_reference, run
from support.verify_tests import poison_new_memory

poisoned = pytest.fixture(autouse=True)(poison_new_memory)

# At temperature BITS the weights are 4, 1, 2, 1 and 0, of 8 in all.
LOGITS = torch.tensor([2.0, 0.0, 1.0, 0.0, float("-inf")])
WEIGHTS = [4, 1, 2, 1, 0]
CUTS = {
    "none": (0, 1.0, 0.0), "top-k": (2, 1.0, 0.0), "top-p": (0, 0.7, 0.0), "min-p": (0, 1.0, 0.4),
    "top-p of the largest": (0, 0.3, 0.0), "top-k and top-p": (2, 0.6, 0.0),
    "top-p after min-p": (0, 0.9, 0.4), "all": (3, 0.7, 0.2),
}  # fmt: skip


def middles(cells: int) -> list[tuple[float, Fraction]]:
    """A number of each of so many equal cells, with the cell's chance."""
    return [((cell + 0.5) / cells, Fraction(1, cells)) for cell in range(cells)]


@pytest.mark.parametrize("draft", [-1, 0, 1, 2, 4])
@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
def test_the_rule_has_exactly_the_kept_law(cuts: tuple[int, float, float], draft: int) -> None:
    """All edges of the laws lie between cells, so a cell's middle stands for all of it: the law is exact."""
    options = (BITS, *cuts)
    kept = distribution(LOGITS, *options)
    weights = [weight if k > 0 else 0 for weight, k in zip(WEIGHTS, kept.tolist(), strict=True)]
    of_draft = (WEIGHTS[draft], weights[draft]) if draft >= 0 else (0, 0)
    first = list(product(middles(8), middles(8 - of_draft[0])))
    last = list(product(middles(sum(weights)), middles(max(sum(weights) - of_draft[1], 1))))
    for rounds in (product(first, last), product(last)):
        law = dict.fromkeys(range(5), Fraction(0))
        for drawn in rounds:
            numbers = [(accept[0], sample[0]) for accept, sample in drawn]
            chance = math.prod(accept[1] * sample[1] for accept, sample in drawn)
            law[first_kept(LOGITS, options, draft, numbers)] += chance
        assert list(law.values()) == [Fraction(weight, sum(weights)) for weight in weights]


def alone(logits: torch.Tensor, requests: int, **options: Any) -> dict[str, Any]:
    """Requests of one row and no draft, each with another seed."""
    return {
        "logits": logits.expand(requests, -1).contiguous(),
        "drafts": torch.zeros(requests, dtype=torch.int32),
        "starts": torch.arange(requests + 1, dtype=torch.int32),
        "temperature": torch.full((requests,), options.get("temperature", 1.0)),
        "top_k": torch.full((requests,), options.get("top_k", 0), dtype=torch.int32),
        "top_p": torch.full((requests,), options.get("top_p", 1.0)),
        "min_p": torch.full((requests,), options.get("min_p", 0.0)),
        "seeds": torch.arange(requests) * 7919, "positions": torch.arange(requests), "width": 1,
    }  # fmt: skip


FEW_OF_MANY: dict[str, dict[str, Any]] = {
    "top-k": {"top_k": 3}, "top-p": {"top_p": 0.06}, "min-p": {"min_p": 0.9},
    "top-k and top-p": {"top_k": 5, "top_p": 0.5}, "min-p and top-p": {"min_p": 0.7, "top_p": 0.6},
    "min-p and top-k": {"min_p": 0.8, "top_k": 4}, "many": {"top_k": 700},
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", FEW_OF_MANY.values(), ids=FEW_OF_MANY)
def test_rows_of_which_little_is_kept(options: dict[str, Any], dtype: torch.dtype) -> None:
    """Some requests take several rounds, some find none in all of them."""
    logits = torch.zeros(5000)
    logits[torch.arange(5) * 977 + 3] = torch.tensor([5.0, 4.75, 4.5, 4.25, 4.0])
    if "top_k" in options and options["top_k"] > 5:
        logits = torch.linspace(0, 2, 5000).mul(64).round().div(64)[torch.randperm(5000)]
    given = alone(logits.to(dtype), 12, **options)
    assert equals_reference(given).tolist() == [1] * 12
    whole, kept = distribution(logits.to(dtype), 1.0), distribution(
        logits.to(dtype), 1.0, options.get("top_k", 0), options.get("top_p", 1.0), options.get("min_p", 0.0)
    )  # fmt: skip
    assert float(whole[kept > 0].sum()) < 0.3


def test_a_draft_is_judged_again_in_each_round() -> None:
    """A row is drawn from again where its draft was drawn, but is cut; and where it is kept, but another that
    is cut was drawn."""
    logits = torch.tensor([3.0, 2.75, 2.5, 2.25] + [2.0] * 12)
    given = alone(logits, 48, top_k=3)
    given |= {"starts": torch.arange(0, 49, 2, dtype=torch.int32), "width": 2}
    for name in ("temperature", "top_k", "top_p", "min_p", "seeds"):
        given[name] = given[name][:24]
    given["drafts"] = torch.tensor([[0, draft] for draft in [0, 1, 3, 5] * 6], dtype=torch.int32).flatten()
    counts = equals_reference(given)
    assert set(counts.tolist()) == {1, 2}
    assert counts.view(6, 4)[:, 2:].eq(1).all()


def test_each_round_has_numbers_of_its_own() -> None:
    seeds, positions = torch.zeros(ROUNDS.value + 1, dtype=torch.int64), torch.full((ROUNDS.value + 1,), 5)
    numbers = uniforms_reference(seeds, positions, torch.arange(ROUNDS.value + 1))
    assert len(set(numbers.flatten().tolist())) == 2 * len(numbers)


def test_a_request_without_cuts_has_the_same_tokens_beside_one_with_cuts() -> None:
    given = alone(torch.linspace(0, 4, 97), 6)
    without = run(given | {"top_k": None, "top_p": None, "min_p": None})
    given["top_k"][::2] = 3
    beside = run(given)
    assert beside[0][1::2].tolist() == without[0][1::2].tolist()
