"""Verification by rejection sampling: what the options keep, at their edges too, and its law. ``BITS``
makes every softmax weight of integer logits a power of two: edges are met exactly.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from specctl_kernels.verify_rejection import NO_TOKEN, launch, reference
from specctl_kernels.verify_rejection.reference import distribution, law_of_two, verify_rejection_reference
from support.cut_rows import CUT_BY, LISTED
from support.rejection_runs import BITS, IS_GPU, equals_reference, run
from support.verify_batches import packed
from support.verify_tests import LEAST_CHANCE, chi_square_chance, poison_new_memory

poisoned = pytest.fixture(autouse=True)(poison_new_memory)


def two_rows_each(logits: torch.Tensor, drafts: list[int], **options: Any) -> dict[str, Any]:
    """A request for each draft, of the same row twice, whose draft is kept if its probability is not 0."""
    requests = len(drafts)
    return {
        "logits": logits.expand(2 * requests, -1).contiguous(),
        "drafts": torch.tensor([[0, draft] for draft in drafts], dtype=torch.int32).flatten(),
        "starts": torch.arange(0, 2 * requests + 1, 2, dtype=torch.int32),
        "temperature": torch.full((requests,), options.get("temperature", BITS)),
        "top_k": torch.full((requests,), options.get("top_k", 0), dtype=torch.int32),
        "top_p": torch.full((requests,), options.get("top_p", 1.0)),
        "min_p": torch.full((requests,), options.get("min_p", 0.0)),
        "seeds": torch.arange(requests), "positions": torch.arange(2 * requests), "width": 2,
        "uniforms": torch.tensor([0.0, 0.45867], dtype=torch.float64).expand(2 * requests, 2).contiguous(),
    }  # fmt: skip


# Of these seven, a weight is 8, 4, 4, 2, 1, 1 or 0, of 20 in all.
LEVELS = torch.tensor([2.0, 0.0, 3.0, 1.0, 2.0, 0.0, float("-inf")])


EDGES: list[tuple[dict[str, Any], set[int]]] = [
    ({"top_k": 1}, {2}), ({"top_k": 2}, {2, 0, 4}), ({"top_k": 3}, {2, 0, 4}), ({"top_k": 4}, {2, 0, 4, 3}),
    ({"top_k": 6}, {0, 1, 2, 3, 4, 5}), ({"top_k": 7}, {0, 1, 2, 3, 4, 5}), ({"top_p": 0.0}, {2}),
    ({"top_p": 0.39}, {2}), ({"top_p": 0.41}, {2, 0, 4}), ({"top_p": 0.79}, {2, 0, 4}),
    ({"top_p": 0.81}, {2, 0, 4, 3}), ({"top_p": 0.999}, {0, 1, 2, 3, 4, 5}),
    ({"top_p": 0.5, "top_k": 2}, {2}), ({"top_p": 0.53, "top_k": 2}, {2, 0, 4}), ({"min_p": 1.0}, {2}),
    ({"min_p": 0.5}, {2, 0, 4}), ({"min_p": 0.25}, {2, 0, 4, 3}),
    ({"min_p": 0.25, "top_k": 3}, {2, 0, 4}), ({"min_p": 0.5, "top_p": 0.5}, {2}),
]  # fmt: skip


@pytest.mark.parametrize(("options", "kept"), EDGES, ids=str)
def test_equals_at_an_edge_are_kept(options: dict[str, Any], kept: set[int]) -> None:
    given = two_rows_each(LEVELS, list(range(7)), **options)
    counts = equals_reference(given)
    assert set(torch.nonzero(counts == 2).flatten().tolist()) == kept


def test_a_broad_row_is_searched_without_a_list() -> None:
    """More values than the list holds, all different, or all the same."""
    wide = torch.arange(6000).mul(1 / 1024).flip(0).roll(1700)
    for logits, (top_k, top_p) in product((wide, wide * 0 + 4), ((0, 0.9), (3500, 1.0), (3500, 0.85))):
        equals_reference(two_rows_each(logits, [1699], temperature=1.0, top_k=top_k, top_p=top_p))


def searched(given: dict[str, Any]) -> dict[str, Any]:
    """As a call whose drafts may have a distribution: its cuts are looked for, where the others' are not."""
    logits = torch.zeros(1, given["width"] - 1, given["logits"].shape[1])
    slots = torch.full((len(given["seeds"]),), -1, dtype=torch.int32)
    return given | {"draft_logits": logits, "draft_slots": slots}


def noted_found(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Of each call from here on."""
    made: list[Any] = []
    found = launch._found

    def noted(*given: Any) -> Any:
        made.append(found(*given))
        return made[-1]

    monkeypatch.setattr(launch, "_found", noted)
    return made


@pytest.mark.parametrize(("top_k", "top_p", "min_p"), CUT_BY)
@pytest.mark.parametrize("logits", LISTED.values(), ids=LISTED)
def test_entries_that_may_be_kept_are_listed(
    monkeypatch: pytest.MonkeyPatch, logits: torch.Tensor, top_k: int, top_p: float, min_p: float
) -> None:
    """All of the row from a value on, in the order of their columns, if so few are kept as fit; and the row
    is not read then."""
    made = noted_found(monkeypatch)
    drafts = [int(logits[0].argmin()), int(logits[0].argmax())]
    given = two_rows_each(logits, drafts, temperature=0.7, top_k=top_k, top_p=top_p, min_p=min_p)
    equals_reference(searched(given))
    [found] = made
    assert int(found.searched[0, 0]) == 0
    is_kept = distribution(logits[0], 0.7, top_k, top_p, min_p) > 0
    threshold = float(found.kept[0, 0, 0])
    assert (logits[0] >= threshold).tolist() == is_kept.tolist()
    weights = ((logits[0].double() - logits.max()) / 0.7).exp()
    assert float(found.kept[0, 0, 1]) == pytest.approx(float(weights[is_kept].sum()), rel=1e-5)
    listed = int(found.listed[0, 0])
    needed = distribution(logits[0], 0.7, top_k, 1.0, min_p) > 0 if top_k or min_p else is_kept
    if int(needed.sum()) > 512:
        assert listed == -1
        return
    assert int(is_kept.sum()) <= listed <= 512
    values, ids = found.short[0, 0, :listed], found.short_ids[0, 0, :listed]
    assert ids.tolist() == (logits[0] >= values.min().cpu()).nonzero().flatten().tolist()
    assert values.tolist() == logits[0][ids.long().cpu()].tolist()
    if not IS_GPU:
        assert bool(found.lists[0, 0].isnan().all()), "a search of the row would write here"


@pytest.mark.parametrize(("top_k", "top_p", "min_p"), [(600, 1.0, 0.0), (0, 0.9, 0.0), (0, 0.9, 1e-3)])
@pytest.mark.parametrize("step", [0.0, 2.0**-11])
def test_a_row_that_keeps_more_is_read(
    monkeypatch: pytest.MonkeyPatch, step: float, top_k: int, top_p: float, min_p: float
) -> None:
    made = noted_found(monkeypatch)
    logits = torch.arange(9001).mul(step).roll(4000)[None]
    given = two_rows_each(logits, [3998], temperature=1.0, top_k=top_k, top_p=top_p, min_p=min_p)
    equals_reference(searched(given))
    assert made[0].listed[0, 0] == -1


@pytest.mark.parametrize("cuts", [(20, 1.0, 0.0), (0, 0.9, 0.0), (0, 1.0, 0.1)], ids=str)
def test_more_parts_than_the_short_list_has_places(
    monkeypatch: pytest.MonkeyPatch, cuts: tuple[int, float, float]
) -> None:
    """As of a large vocabulary, by parts of 8 columns; some rows tie in more parts than are taken."""
    monkeypatch.setattr(launch, "_PART_BYTES", 32)
    monkeypatch.setattr(launch, "PIECE", 64)
    # With min-p the first sample is of the pieces that reach its bound: it depends on their size.
    monkeypatch.setattr(reference, "PIECE", 64)
    flat = torch.full((1, 9001), 2.0)
    top_k, top_p, min_p = cuts
    for logits in (*LISTED.values(), flat):
        drafts = [int(logits[0].argmin())]
        equals_reference(
            two_rows_each(logits, drafts, temperature=0.7, top_k=top_k, top_p=top_p, min_p=min_p)
        )


ROWS_P = torch.tensor(
    [[2.0, 1.0, 0.0, -1.0, 0.5, -0.5, 1.5], [0.0, 3.0, 1.0, 1.0, -2.0, 0.25, 1.0], [1.0, 1, 1, 1, 1, 1, 1]]
)
ROWS_Q = torch.tensor([[1.0, 2.0, 0.0, 0.0, -1.0, 1.0, 0.0], [2.0, 0.0, 1.0, 2.0, -1.0, 0.0, 1.0]])
LEFT = torch.tensor([1.0, 0.5, 2.0, float("-inf"), float("-inf"), float("-inf"), float("-inf")])
LAWS: dict[str, tuple[torch.Tensor, torch.Tensor | None, tuple[float, int, float, float]]] = {
    "p is q": (ROWS_P, ROWS_P[:2], (1.0, 0, 1.0, 0.0)),
    "other q": (ROWS_P, ROWS_Q, (0.8, 0, 1.0, 0.0)),
    "disjoint": (LEFT.flip(0).expand(3, -1), LEFT.expand(2, -1), (1.0, 0, 1.0, 0.0)),
    "zero mass": (LEFT.expand(3, -1), ROWS_Q, (1.0, 0, 1.0, 0.0)),
    "one-hot": (ROWS_P, None, (1.0, 0, 1.0, 0.0)),
    "top-k 1": (ROWS_P, ROWS_Q, (1.0, 1, 1.0, 0.0)),
    "top-k": (ROWS_P, ROWS_Q, (1.3, 3, 1.0, 0.0)),
    "top-p": (ROWS_P, ROWS_Q, (1.0, 0, 0.8, 0.0)),
    "top-p with ties, one-hot": (LEVELS.expand(3, -1), None, (BITS, 0, 0.6, 0.0)),
    "all options, one-hot": (ROWS_P, None, (0.7, 5, 0.9, 0.05)),
    "all options": (ROWS_P, ROWS_Q, (0.7, 5, 0.9, 0.05)),
    "cold": (ROWS_P, ROWS_Q, (0.02, 0, 1.0, 0.0)),
    "hot": (ROWS_P, ROWS_Q, (100.0, 0, 0.9, 0.0)),
}
DRAWS = 100_000 if IS_GPU else 600


def first_requests(given: dict[str, Any], requests: int) -> dict[str, Any]:
    """Of requests of three rows."""
    sizes = {
        "logits": 3 * requests,
        "drafts": 3 * requests,
        "positions": 3 * requests,
        "starts": requests + 1,
    }
    kept = {k: v for k, v in given.items() if k not in ("draft_logits", "width")}
    return {k: v[: sizes.get(k, requests)] for k, v in kept.items()}


@pytest.mark.parametrize("case", LAWS)
def test_each_position_has_the_targets_law(case: str) -> None:
    """The rows do not depend on what stands before them here, so a position that is reached, however it was,
    has its row's law. Without a GPU the draws are the reference's; the kernel equals it on some of them."""
    p_logits, q_logits, options = LAWS[case]
    requests, generator = DRAWS, torch.Generator().manual_seed(11)
    drafts = torch.zeros(requests, 3, dtype=torch.int64)
    for step in range(2):
        law = distribution((p_logits if q_logits is None else q_logits)[step], options[0]).float()
        if q_logits is None:
            law = law * 0 + 1  # one-hot drafts may come from anywhere
        drafts[:, step + 1] = torch.multinomial(law, requests, replacement=True, generator=generator)
    given: dict[str, Any] = {
        "logits": p_logits.repeat(requests, 1), "drafts": drafts.flatten(),
        "starts": torch.arange(0, 3 * requests + 1, 3, dtype=torch.int32),
        "temperature": torch.full((requests,), options[0]),
        "top_k": torch.full((requests,), options[1], dtype=torch.int32),
        "top_p": torch.full((requests,), options[2]), "min_p": torch.full((requests,), options[3]),
        "seeds": torch.arange(requests) * 7919, "positions": torch.arange(3).repeat(requests), "width": 3,
    }  # fmt: skip
    if q_logits is not None:
        given |= {"draft_logits": q_logits[None], "draft_slots": torch.zeros(requests, dtype=torch.int32)}
    if IS_GPU:
        tokens, counts = run(given)
    else:
        tokens, counts = verify_rejection_reference(**packed(given))
        equals_reference(given | first_requests(given, 5))
    laws = [distribution(row, *options) for row in p_logits]
    assert int(counts.min()) >= 1
    for step in range(3):
        seen = tokens[:, step][tokens[:, step] != NO_TOKEN].bincount(minlength=7)
        assert chi_square_chance(seen, laws[step]) > LEAST_CHANCE, step
    if case == "p is q":
        assert int(counts.min()) == 3
    if case == "disjoint":
        assert int(counts.max()) == 1


# temperature, top_k, top_p, min_p
CUTS = [(1.0, 0, 1.0, 0.0), (0.7, 2, 1.0, 0.0), (1.0, 0, 0.6, 0.0), (1.5, 3, 0.9, 0.1)]


def test_the_rule_keeps_the_targets_law_by_enumeration() -> None:
    torch.manual_seed(2)
    for options in CUTS * 10:
        logits, drafted = torch.randn(2, 2, 4, 4)
        p = torch.stack([distribution(row, *options) for row in logits.view(-1, 4)]).view(2, 4, 4)
        q = torch.stack([distribution(row, options[0]) for row in drafted.view(-1, 4)]).view(2, 4, 4)
        torch.testing.assert_close(law_of_two(p, q), p[0, 0][:, None] * p[1], rtol=0, atol=1e-12)
