"""Verification of trees: its rule by enumeration; the kernel as its reference, entry for entry.

Discrete results are equal, not close, as in ``test_verify_rejection``. ``BITS`` makes every softmax weight of
integer logits a power of two, for edges that are met exactly.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from specctl_kernels.verify_greedy import verify_greedy
from specctl_kernels.verify_rejection import launch as rejection_launch
from specctl_kernels.verify_rejection import verify_rejection
from specctl_kernels.verify_rejection.reference import distribution
from specctl_kernels.verify_tree import launch, verify_greedy_linked_trees, verify_linked_trees
from specctl_kernels.verify_tree.reference import (
    verify_greedy_linked_trees_reference,
    verify_linked_trees_reference,
    walk_down,
)
from support.cut_rows import CUT_BY, LISTED
from support.rejection_runs import BITS, DEVICE, IS_GPU
from support.tree_batches import links_of, shaped, tree_batch
from support.tree_laws import SHAPES, emission_law, loss, random_model, tree_of
from support.verify_batches import DTYPES, OPTIONS, packed, uniforms_for
from support.verify_tests import LEAST_CHANCE, chi_square_chance, in_silence, poison_new_memory

VOCABULARIES = [1, 2, 7, 4097, 9001] + ([32_000, 151_936, 262_144] if IS_GPU else [])
ROUNDED = 1e-12
"""Sums of a few hundred products in float64."""
SHORT = 512
"""Entries that the short list has room for."""

poisoned = pytest.fixture(autouse=True)(poison_new_memory)


def run(given: dict[str, Any], verify: Any = verify_linked_trees) -> list[torch.Tensor]:
    moved = {k: v.to(DEVICE) if isinstance(v, torch.Tensor) else v for k, v in given.items()}
    return [result.cpu() for result in verify(**packed(moved))]


def equals_reference(given: dict[str, Any]) -> list[torch.Tensor]:
    """(emitted, counts, index)."""
    want, got = verify_linked_trees_reference(**packed(given)), run(given)
    assert [one.dtype for one in got] == [torch.int32] * 3
    for name, its, mine in zip(("emitted", "counts", "index"), want, got, strict=True):
        assert mine.tolist() == its.tolist(), name
    return got


def greedy_of(given: dict[str, Any]) -> dict[str, Any]:
    return {name: given[name] for name in ("logits", "drafts", "first_child", "next_sibling", "depth")}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_rule_keeps_the_targets_law_by_enumeration(shape: str) -> None:
    parents = SHAPES[shape]
    for seed in (1, 3):
        target = random_model(3, seed)
        drawn = torch.randint(0, 3, (len(parents),), generator=torch.Generator().manual_seed(seed)).tolist()
        for drafts in (drawn, [0] * len(parents), [row % 3 for row in range(len(parents))]):
            law = emission_law(walk_down, tree_of(parents, target, drafts))
            assert loss(law, target, len(parents)) < ROUNDED
            assert abs(sum(law.values()) - 1) < ROUNDED


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_what_is_emitted_is_the_references(vocabulary: int, options: str) -> None:
    number = vocabulary + len(options)
    given = tree_batch(3, 5, vocabulary, DTYPES[number % 3], options, seed=number % 4)
    equals_reference(given | {"uniforms": uniforms_for(given)})


@in_silence
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("requests", "rows"), [(0, 3), (1, 1), (3, 2), (5, 9), (2, 18)])
def test_requests_and_dtypes(requests: int, rows: int, dtype: torch.dtype) -> None:
    equals_reference(tree_batch(requests, rows, 97, dtype, "mixed", seed=rows))


@pytest.mark.parametrize("kind", [torch.int32, torch.int64], ids=["int32", "int64"])
@pytest.mark.parametrize(
    ("requests", "rows", "vocabulary", "depth"),
    [(0, 3, 9, 3), (1, 1, 7, 1), (1, 2, 97, 5), (9, 16, 40, 4), (3, 17, 5000, 40), (1, 64, 9, 20)], ids=str,
)  # fmt: skip
def test_greedy_trees(requests: int, rows: int, vocabulary: int, depth: int, kind: torch.dtype) -> None:
    given = greedy_of(tree_batch(requests, rows, vocabulary, DTYPES[rows % 3], "none")) | {"depth": depth}
    if requests:
        given["logits"][::5, 0] = float("nan")
    given |= {name: given[name].to(kind) for name in ("first_child", "next_sibling", "drafts")}
    want = verify_greedy_linked_trees_reference(**given)
    for mine, its in zip(run(given, verify_greedy_linked_trees), want, strict=True):
        assert mine.tolist() == its.tolist()


def test_cold_requests_and_those_with_top_k_1_are_greedy() -> None:
    """Of equal logits too."""
    given = tree_batch(8, 5, 50, torch.bfloat16, "mixed", seed=2)
    given["top_k"] = torch.tensor([1, 9] * 4, dtype=torch.int32)
    given["temperature"] = torch.tensor([1.3, 0.0] * 4)
    given["logits"][:, 7] = given["logits"][:, 40] = 30.0
    want = verify_greedy_linked_trees_reference(**greedy_of(given))
    assert [one.tolist() for one in equals_reference(given)] == [one.tolist() for one in want]


@pytest.mark.parametrize("options", ["none", "top_p", "mixed"])
def test_a_chain_emits_what_the_verifiers_of_chains_do(options: str) -> None:
    given = tree_batch(4, 5, 60, torch.float32, options, seed=1, shape="chain")
    starts = torch.arange(0, 21, 5, dtype=torch.int32)
    as_chain = {k: v for k, v in given.items() if k not in ("first_child", "next_sibling", "depth")}
    tokens, counts = run(as_chain | {"starts": starts, "width": 5}, verify_rejection)
    emitted, accepted, index = run(given)
    assert accepted.tolist() == counts.tolist()
    for req, count in enumerate(counts.tolist()):
        assert index[req].tolist() == [*range(5 * req, 5 * req + count), *[-1] * (5 - count)]
        assert emitted.view(4, 5)[req, :count].tolist() == tokens[req, :count].tolist()
    greedy = {k: as_chain[k] for k in ("logits", "drafts")} | {"starts": starts, "width": 5}
    assert (
        run(greedy_of(given), verify_greedy_linked_trees)[1].tolist()
        == run(greedy, verify_greedy)[1].tolist()
    )


def test_a_seed_gives_the_same_alone_and_in_any_batch() -> None:
    given = tree_batch(6, 5, 300, torch.bfloat16, "mixed", seed=6)
    emitted, counts, _ = equals_reference(given)
    for req in (0, 1, 4):
        alone = {
            k: v
            if k == "depth"
            else v.view(6, -1, *v.shape[1:])[req].clone()
            if len(v) == 30
            else v[req : req + 1]
            for k, v in given.items()
        }
        got = run(alone)
        assert got[0].tolist() == emitted.view(6, 5)[req].tolist()
        assert got[1].tolist() == counts[req : req + 1].tolist()


# Of these seven, a weight is 8, 4, 4, 2, 1, 1 or 0, of 20 in all.
LEVELS = torch.tensor([2.0, 0.0, 3.0, 1.0, 2.0, 0.0, float("-inf")])
EDGES: list[tuple[dict[str, Any], set[int]]] = [
    ({}, {0, 1, 2, 3, 4, 5}), ({"top_k": 1}, {2}), ({"top_k": 2}, {2, 0, 4}), ({"top_p": 0.0}, {2}),
    ({"top_p": 0.41}, {2, 0, 4}), ({"top_p": 0.79}, {2, 0, 4}), ({"top_p": 0.81}, {2, 0, 4, 3}),
    ({"min_p": 0.25, "top_k": 3}, {2, 0, 4}),
]  # fmt: skip


@pytest.mark.parametrize(("options", "kept"), EDGES, ids=str)
def test_equals_at_an_edge_are_children_that_can_be_accepted(options: dict[str, Any], kept: set[int]) -> None:
    """Of a star of all seven tokens and of two of them twice, with one number for each request."""
    shares, rows = 6, 10
    numbers = torch.tensor([[(part + 0.45867) / shares, 0.45867] for part in range(shares)]).double()
    links = [torch.tensor(one).repeat(shares, 1) for one in links_of(shaped("star", rows))]
    given = {
        "logits": LEVELS.expand(shares * rows, -1).contiguous(),
        "drafts": torch.tensor([0, 3, 3, 0, 1, 2, 0, 4, 5, 6], dtype=torch.int32).repeat(shares),
        "first_child": links[0], "next_sibling": links[1],
        "temperature": torch.full((shares,), BITS), "seeds": torch.arange(shares),
        "top_k": torch.full((shares,), options.get("top_k", 0), dtype=torch.int32),
        "top_p": torch.full((shares,), options.get("top_p", 1.0)),
        "min_p": torch.full((shares,), options.get("min_p", 0.0)),
        "positions": torch.arange(shares * rows), "depth": rows,
        "uniforms": numbers.repeat_interleave(rows, 0),
    }  # fmt: skip
    emitted, counts, index = equals_reference(given)
    assert set(counts.tolist()) == {2}, "all that p keeps hangs on the root"
    first = emitted.view(shares, rows)[:, 0].tolist()
    assert set(first) <= kept
    assert set(first) - {1, 5} == kept - {1, 5}, "those two are too small to be met"
    assert not set((index[:, 1] % rows).tolist()) & {2, 6}, "a token that an earlier child has"


@pytest.mark.parametrize("is_sampled", [False, True], ids=["greedy", "sampled"])
def test_drafts_that_no_int32_holds_are_never_accepted(is_sampled: bool) -> None:
    """The low half of each is a token that would be."""
    given = tree_batch(2, 3, 9, torch.float32, "none", shape="star")
    given["logits"] = torch.zeros(6, 9)
    given["logits"][:, 4] = 50.0
    given |= {"drafts": torch.tensor([0, 2**32 + 4, 4 - 2**33] * 2), "temperature": torch.ones(2)}
    given = given if is_sampled else greedy_of(given)
    emitted, counts, _ = run(given, verify_linked_trees if is_sampled else verify_greedy_linked_trees)
    assert (emitted.tolist(), counts.tolist()) == ([4, 0, 0] * 2, [1, 1])


@in_silence
def test_a_row_without_a_distribution_emits_token_0_behind_the_root() -> None:
    given = tree_batch(4, 4, 9, torch.float32, "none") | {"temperature": torch.ones(4)}
    given["logits"][4:8] = float("nan")
    emitted, counts, index = equals_reference(given)
    assert (emitted[4:8].tolist(), int(counts[1]), index[1].tolist()) == ([0] * 4, 1, [4, -1, -1, -1])


def test_sixty_four_nodes_of_each_shape() -> None:
    given = tree_batch(4, 64, 80, torch.float32, "top_p", seed=3)
    given["temperature"] = torch.tensor([0.8, 0.5, 1.0, 0.7])
    equals_reference(given | {"uniforms": uniforms_for(given)})


DRAWS = 200_000 if IS_GPU else 400


@pytest.mark.parametrize("options", [(1.0, 0, 1.0, 0.0), (0.7, 3, 0.9, 0.05)], ids=str)
def test_draws_of_the_kernel_have_the_targets_law(options: tuple[float, int, float, float]) -> None:
    """The token behind a root with three children, one of them twice; at 400 draws a law that is off by a
    total variation of 0.15 is found in 9 of 10 cases, at 200,000 of 0.007."""
    logits = torch.tensor([2.0, 1.0, 0.0, 0.5, 1.5]).repeat(DRAWS * 5, 1)
    links = [torch.tensor(one).repeat(DRAWS, 1) for one in links_of(shaped("star", 5))]
    given = {
        "logits": logits, "drafts": torch.tensor([0, 1, 4, 1, 3], dtype=torch.int32).repeat(DRAWS),
        "first_child": links[0], "next_sibling": links[1], "temperature": torch.full((DRAWS,), options[0]),
        "top_k": torch.full((DRAWS,), options[1], dtype=torch.int32),
        "top_p": torch.full((DRAWS,), options[2]), "min_p": torch.full((DRAWS,), options[3]),
        "seeds": torch.arange(DRAWS) * 7919,
        "positions": torch.zeros(DRAWS * 5, dtype=torch.int64), "depth": 5,
    }  # fmt: skip
    emitted, _, _ = run(given)
    seen = emitted.view(DRAWS, 5)[:, 0].bincount(minlength=5)
    assert chi_square_chance(seen, distribution(logits[0], *options)) > LEAST_CHANCE


def of_rows(rows: list[torch.Tensor], cuts: tuple[int, float, float]) -> dict[str, Any]:
    """Three requests of one binary tree, with these rows, float32[1, V], and random numbers."""
    given = tree_batch(
        3, len(rows), rows[0].shape[1], torch.float32, "none", shape="binary", logits=torch.cat(rows * 3)
    )
    kinds = zip(("top_k", "top_p", "min_p"), cuts, (torch.int32, torch.float32, torch.float32), strict=True)
    given |= {name: torch.full((3,), cut, dtype=kind) for name, cut, kind in kinds}
    return given | {"temperature": torch.full((3,), 0.7), "uniforms": uniforms_for(given)}


def read_where_equal(monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]) -> list[bool]:
    """Of each request of a call, whose results are the reference's, whether one of its rows was read, until
    its values fitted a list, to find its cut; under the interpreter alone is that memory new."""
    made: list[tuple[torch.Tensor, ...]] = []
    scratch = launch._scratch

    def noted(*sizes: Any) -> tuple[torch.Tensor, ...]:
        made.append(scratch(*sizes))
        return made[-1]

    monkeypatch.setattr(launch, "_scratch", noted)
    equals_reference(given)
    _parts, _short, _short_ids, lists, _taken = made[0]
    return (~lists.cpu().isnan()).any(1).tolist()


@pytest.mark.parametrize("cuts", CUT_BY, ids=str)
@pytest.mark.parametrize("row", LISTED)
def test_rows_that_keep_few_are_not_read(
    monkeypatch: pytest.MonkeyPatch, row: str, cuts: tuple[int, float, float]
) -> None:
    top_k, top_p, min_p = cuts
    rows = [LISTED[row].roll(131 * number, 1) for number in range(3)]
    is_read = read_where_equal(monkeypatch, of_rows(rows, cuts))
    needed = distribution(rows[0][0], 0.7, top_k, 1.0 if top_k or min_p else top_p, min_p) > 0
    if not IS_GPU and int(needed.sum()) <= SHORT:
        assert is_read == [False] * 3


@pytest.mark.parametrize("is_first_broad", [True, False])
@pytest.mark.parametrize("cuts", [(0, 0.9, 0.0), (0, 0.9, 1e-3), (600, 0.9, 0.0)], ids=str)
def test_a_walk_over_rows_that_are_read_and_rows_that_are_not(
    monkeypatch: pytest.MonkeyPatch, cuts: tuple[int, float, float], is_first_broad: bool
) -> None:
    """One request stops at the root, the others go on to its child. Of a broad row more entries weigh nearly
    the same than the short list has room for."""
    few, broad = LISTED["few"], torch.arange(9001).mul(2.0**-11).roll(4000)[None]
    given = of_rows([broad, few, few] if is_first_broad else [few, broad, broad], cuts)
    # Kept, but not surely.
    order = given["logits"][0].argsort(descending=True).to(torch.int32)
    given["drafts"].view(3, 3)[:, 1:3] = order[[2, 3]]
    given["uniforms"].view(3, 3, 2)[:, 0, 0] = torch.tensor([0.999, 0.0, 0.0])
    is_read = read_where_equal(monkeypatch, given)
    if not IS_GPU:
        # A request that stops at the root comes to no other row.
        assert is_read == [is_first_broad or cuts[0] > SHORT, True, True]


@pytest.mark.parametrize("cuts", CUT_BY[:3], ids=str)
def test_more_parts_than_the_short_list_has_places(
    monkeypatch: pytest.MonkeyPatch, cuts: tuple[int, float, float]
) -> None:
    """As of a large vocabulary, by parts of 8 columns."""
    monkeypatch.setattr(rejection_launch, "_PART_BYTES", 32)
    monkeypatch.setattr(launch, "PIECE", 64)
    read_where_equal(monkeypatch, of_rows([LISTED[row] for row in ("few", "in few parts", "one")], cuts))


LINKS = torch.full((2, 2), -1)
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"first_child": LINKS[0]}, r"first_child: expected \[requests, rows\], got \[2\]"),
    (
        {"first_child": LINKS.float()},
        r"first_child: expected int32 or int64\[2, 2\], contiguous, got float32",
    ),
    ({"next_sibling": LINKS[:1]}, r"next_sibling: expected int32 or int64\[2, 2\], contiguous, got int64\[1"),
    ({"logits": torch.zeros(3, 9)}, r"logits: expected 2 x 2 rows, got \[3, 9\]"),
    ({"logits": torch.zeros(9, 4).T}, "with contiguous rows"),
    ({"drafts": torch.zeros(4)}, r"drafts: expected int32 or int64\[4\], contiguous, got float32\[4\]"),
    ({"depth": 0}, "depth: expected 1 at least, got 0"),
    ({"first_child": torch.zeros(1, 300).int()}, "first_child: expected 1 to 256 rows, got 300"),
    ({"temperature": torch.zeros(3)}, r"temperature: expected float32\[2\], contiguous, got float32\[3\]"),
    ({"top_k": torch.ones(2)}, r"top_k: expected int32\[2\], contiguous, got float32\[2\]"),
    ({"seeds": torch.zeros(2)}, r"seeds: expected int64\[2\], contiguous, got float32\[2\]"),
    ({"positions": torch.zeros(2).long()}, r"positions: expected int64\[4\], contiguous, got int64\[2\]"),
    ({"uniforms": torch.zeros(4, 2)}, r"uniforms: expected float64\[4, 2\], contiguous, got float32"),
]


@pytest.mark.parametrize(
    ("wrong", "message"), WRONG, ids=lambda one: next(iter(one)) if isinstance(one, dict) else ""
)
def test_wrong_arguments_are_refused(wrong: dict[str, Any], message: str) -> None:
    given = {
        "logits": torch.zeros(4, 9), "drafts": torch.zeros(4, dtype=torch.int32), "first_child": LINKS,
        "next_sibling": LINKS, "temperature": torch.ones(2), "top_k": None, "top_p": torch.ones(2),
        "min_p": None, "seeds": torch.zeros(2, dtype=torch.int64),
        "positions": torch.zeros(4, dtype=torch.int64), "depth": 2,
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        verify_linked_trees(**packed(given | wrong))
    some = greedy_of(given | wrong)
    if wrong.keys() <= some.keys():
        with pytest.raises(ValueError, match=r"expected"):
            verify_greedy_linked_trees(**some)


@pytest.mark.skipif(not IS_GPU, reason="needs 5 GB of device memory")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_more_than_two_to_the_thirty_one_logits(temperature: float) -> None:
    requests, rows, vocabulary = 205, 41, 262_144
    logits = torch.zeros(requests * rows, vocabulary, dtype=torch.bfloat16, device=DEVICE)
    logits[-rows, 5] = logits[-1, -1] = 100.0
    drafts = torch.full((requests, rows), 7, dtype=torch.int32)
    drafts[-1, -1] = 5
    links = [torch.tensor(one).repeat(requests, 1) for one in links_of(shaped("star", rows))]
    emitted, counts, index = run({
        "logits": logits, "drafts": drafts.flatten(), "first_child": links[0], "next_sibling": links[1],
        "temperature": torch.full((requests,), temperature), "top_k": None,
        "top_p": torch.full((requests,), 0.9), "min_p": None, "seeds": torch.arange(requests),
        "positions": torch.arange(requests * rows), "depth": rows,
    })  # fmt: skip
    last = requests * rows
    assert [emitted[last - rows].item(), emitted[last - 1].item()] == [5, vocabulary - 1]
    assert index[-1, :2].tolist() == [last - rows, last - 1]
    assert int(counts[-1]) == 2
