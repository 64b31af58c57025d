"""Verification of trees: its rules by enumeration; the kernel as its reference. ``test_twins`` runs this.

Discrete results are equal, not close, as in ``verify_rejection_twin``. ``BITS`` makes every softmax weight of
integer logits a power of two, for edges that are met exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from specctl_kernels.verify_greedy import verify_greedy
from specctl_kernels.verify_rejection import verify_rejection
from specctl_kernels.verify_tree import (
    NO_TOKEN,
    NOT_FINITE,
    RULES,
    verify_greedy_tree,
    verify_tree,
)
from specctl_kernels.verify_tree.reference import (
    verify_greedy_tree_reference,
    verify_tree_reference,
    walk_down,
    walk_up,
)
from support.quick_interpreter import quick_interpreter
from support.tree_batches import OPTIONS, chain, shaped, tree_batch
from support.tree_laws import SHAPES, emission_law, every_tree, loss, random_models
from support.verify_tests import in_silence, poison_new_memory

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
IS_GPU = DEVICE.type == "cuda"
VOCABULARIES = [1, 2, 7, 2047, 2048, 2049, 4097, 9001] + ([32_000, 151_936, 262_144] if IS_GPU else [])
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
BITS = 1.4426950408889634
ROUNDED = 1e-12
"""Sums of a few hundred products in float64."""
WALKS = {"multi_candidate": walk_down, "traversal": walk_up}


def run(given: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    moved = {k: v.to(DEVICE) if isinstance(v, torch.Tensor) else v for k, v in given.items()}
    return tuple(result.cpu() for result in verify_tree(**moved))


def equals_reference(given: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    want, got = verify_tree_reference(**given), run(given)
    for name, mine, its in zip(("counts", "paths", "tokens"), (1, 2, 0), (1, 2, 0), strict=True):
        assert got[mine].tolist() == want[its].tolist(), name
    return got


def with_uniforms(given: dict[str, Any]) -> dict[str, Any]:
    return given | {"uniforms": torch.rand(len(given["positions"]), 2, dtype=torch.float64)}


@pytest.fixture(autouse=True, scope="module")
def interpreted_in_time() -> Iterator[None]:
    with quick_interpreter():
        yield


poisoned = pytest.fixture(autouse=True)(poison_new_memory)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("shape", SHAPES)
def test_both_rules_keep_the_targets_law_by_enumeration(shape: str, rule: str) -> None:
    parents = SHAPES[shape]
    for seed, spread in ((1, 0.0), (3, 2.0)):
        models = random_models(3, seed, spread)
        given = torch.randint(0, 3, (len(parents),), generator=torch.Generator().manual_seed(seed)).tolist()
        for trees in (
            every_tree(parents, models), every_tree(parents, models, is_replaced=True),
            every_tree(parents, models, given), every_tree(parents, models, [0] * len(parents)),
        ):  # fmt: skip
            law = emission_law(WALKS[rule], trees)
            assert loss(law, models[0], len(parents)) < ROUNDED
            assert abs(sum(law.values()) - 1) < ROUNDED


@pytest.mark.parametrize("shape", SHAPES)
def test_traversal_emits_no_fewer_and_the_same_of_drafts_that_were_not_sampled(shape: str) -> None:
    parents = SHAPES[shape]
    for seed in range(2):
        models = random_models(3, seed, 1.0)
        mean = {}
        for rule, walk in WALKS.items():
            law = emission_law(walk, every_tree(parents, models))
            mean[rule] = sum(len(emitted) * chance for emitted, chance in law.items())
        assert mean["traversal"] >= mean["multi_candidate"] - ROUNDED
        given = [token % 3 for token in range(len(parents))]
        down, up = (emission_law(walk, every_tree(parents, models, given)) for walk in WALKS.values())
        keys = down.keys() | up.keys()
        assert max(abs(down.get(key, 0.0) - up.get(key, 0.0)) for key in keys) < ROUNDED


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_what_is_emitted_is_the_references(vocabulary: int, options: str) -> None:
    number = vocabulary + len(options)
    given = tree_batch(3, vocabulary, DTYPES[number % 3], options, width=5, seed=number % 4)
    equals_reference(with_uniforms(given) | {"rule": RULES[number % 2]})


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("options", ["none", "mixed"])
@pytest.mark.parametrize(("vocabulary", "columns"), [(1, 1), (2, 1), (7, 7), (97, 90), (4099, 4001)])
def test_drafts_with_a_distribution(vocabulary: int, columns: int, options: str, rule: str) -> None:
    number = vocabulary + len(options) + len(rule)
    given = tree_batch(
        5, vocabulary, DTYPES[number % 3], options, seed=number, draft_dtype=DTYPES[(number + 1) % 3],
        draft_columns=columns,
    )  # fmt: skip
    equals_reference(with_uniforms(given) | {"rule": rule})


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("requests", "width"), [(0, 3), (1, 1), (3, 2), (1, 9), (4, 9)])
def test_requests_and_dtypes(requests: int, width: int, dtype: torch.dtype) -> None:
    given = tree_batch(requests, 97, dtype, "mixed", width=width, draft_dtype=dtype, draft_columns=97)
    equals_reference(with_uniforms(given) | {"rule": RULES[(requests + width + DTYPES.index(dtype)) % 2]})


@pytest.mark.parametrize("is_sampled", [False, True], ids=["given", "sampled"])
@pytest.mark.parametrize("options", ["none", "top_p", "mixed"])
def test_a_chain_emits_what_verify_rejection_does(options: str, is_sampled: bool) -> None:
    drafted = {"draft_dtype": torch.float32, "draft_columns": 60} if is_sampled else {}
    given = tree_batch(4, 60, torch.float32, options, seed=1, full=True, shape="chain", **drafted)
    if options != "top_p":  # there the random numbers are the seeds' own
        given = with_uniforms(given)
    tokens, counts, paths = run(given)
    on_device = {k: v.to(DEVICE) if isinstance(v, torch.Tensor) else v for k, v in given.items()}
    del on_device["parents"]
    want = verify_rejection(**on_device)
    assert tokens.tolist() == want[0].tolist()
    assert counts.tolist() == want[1].tolist()
    for path, count in zip(paths.tolist(), counts.tolist(), strict=True):
        assert path == [*range(count), *[NO_TOKEN] * (given["width"] - count)]


@pytest.mark.filterwarnings("ignore:All-NaN slice:RuntimeWarning")  # numpy's, under the interpreter
@pytest.mark.parametrize(
    ("vocabulary", "dtype"),
    [*zip([1, 7, 2049], DTYPES, strict=True), *((8193, one) for one in DTYPES[:2])],
    ids=str,
)
def test_greedy_is_the_references_alone_and_among_sampled(vocabulary: int, dtype: torch.dtype) -> None:
    given = tree_batch(5, vocabulary, dtype, "none", seed=vocabulary)
    given["logits"][::5, 0] = float("nan")
    four = [given[name] for name in ("logits", "drafts", "parents", "starts")]
    want = verify_greedy_tree_reference(*four, width=6)
    got = verify_greedy_tree(*(one.to(DEVICE) for one in four), width=6)
    among = run(given | {"temperature": torch.zeros(5)})
    for one, mine, other in zip(want, got, among, strict=True):
        assert mine.tolist() == one.tolist()
        assert other.tolist() == one.tolist()
    on_device = [one.to(DEVICE) for one in (four[0], four[1], chain(four[3]), four[3])]
    chained = verify_greedy_tree(*on_device, width=6)
    plain = verify_greedy(on_device[0], on_device[1], on_device[3], width=6)
    assert chained[0].tolist() == plain[0].tolist()
    assert chained[1].tolist() == plain[1].tolist()


@pytest.mark.parametrize("rule", RULES)
def test_a_seed_gives_the_same_alone_and_in_any_batch(rule: str) -> None:
    given = tree_batch(6, 300, torch.bfloat16, "mixed", seed=6, draft_dtype=torch.float32, draft_columns=300)
    given["rule"] = rule
    whole = equals_reference(given)
    for req in (0, 1, 4):
        start, end = given["starts"][req : req + 2].tolist()
        by_row = ("logits", "drafts", "parents", "positions")
        by_request = ("temperature", "top_k", "top_p", "min_p", "seeds", "draft_slots")
        alone = {k: v[start:end] if k in by_row else v for k, v in given.items()}
        alone |= {k: given[k][req : req + 1] for k in by_request}
        alone["starts"] = torch.tensor([0, end - start], dtype=torch.int32)
        for one, all_of in zip(run(alone), whole, strict=True):
            assert one[0].tolist() == all_of[req].tolist()


def test_options_by_slot_are_those_of_the_requests() -> None:
    given = tree_batch(5, 97, torch.float32, "mixed", seed=9)
    want = run(given)
    slots = torch.tensor([6, 0, 3, 1, 5])
    for name in ("temperature", "top_k", "top_p", "min_p", "seeds"):
        by_slot = torch.full((8,), -1).to(given[name].dtype)
        by_slot[slots] = given[name]
        given[name] = by_slot
    got = equals_reference(given | {"slots": slots})
    assert [one.tolist() for one in got] == [one.tolist() for one in want]


def test_traversal_counts_by_the_roots_position_alone() -> None:
    """A later step comes to the other rows' positions again, and would repeat what has rejected a leaf."""
    given = tree_batch(6, 3, torch.float32, "none", full=True, draft_dtype=torch.float32, draft_columns=3)
    given |= {"rule": "traversal", "draft_slots": torch.arange(6, dtype=torch.int32)}
    given |= {"positions": torch.arange(6).repeat(6), "draft_logits": torch.randn(6, 5, 3)}
    moved = given | {"positions": given["positions"] * 7}
    assert [one.tolist() for one in run(given)] == [one.tolist() for one in run(moved)]


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
    parts, rows = 6, 10
    numbers = torch.tensor(
        [[(part + 0.45867) / parts, 0.45867] for part in range(parts)], dtype=torch.float64
    )
    given = {
        "logits": LEVELS.expand(parts * rows, -1).contiguous(),
        "drafts": torch.tensor([0, 3, 3, 0, 1, 2, 0, 4, 5, 6], dtype=torch.int32).repeat(parts),
        "parents": torch.tensor(shaped("star", rows), dtype=torch.int32).repeat(parts),
        "starts": torch.arange(0, parts * rows + 1, rows, dtype=torch.int32),
        "temperature": torch.full((parts,), BITS), "seeds": torch.arange(parts),
        "top_k": torch.full((parts,), options.get("top_k", 0), dtype=torch.int32),
        "top_p": torch.full((parts,), options.get("top_p", 1.0)),
        "min_p": torch.full((parts,), options.get("min_p", 0.0)),
        "positions": torch.arange(parts * rows), "width": rows,
        "uniforms": numbers.repeat_interleave(rows, 0),
    }  # fmt: skip
    tokens, counts, paths = equals_reference(given)
    assert set(counts.tolist()) == {2}, "all that p keeps hangs on the root"
    assert set(tokens[:, 0].tolist()) <= kept
    assert set(tokens[:, 0].tolist()) - {1, 5} == kept - {1, 5}, "those two are too small to be met"
    assert not set(paths[:, 1].tolist()) & {2, 6}, "a token that an earlier child has"


BROKEN = [1, 2, 9, -1, -7, 2**31 - 1, -(2**31)]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("is_sampled", [False, True], ids=["given", "sampled"])
def test_a_parent_that_is_none_is_never_followed(is_sampled: bool, rule: str) -> None:
    drafted = {"draft_dtype": torch.float32, "draft_columns": 8} if is_sampled else {}
    given = tree_batch(len(BROKEN), 8, torch.float32, "mixed", width=5, full=True, **drafted)
    for greedy in (False, True)[: 1 + (rule == RULES[0])]:
        given["temperature"] = torch.full((len(BROKEN),), 0.0 if greedy else 1.0)
        for req, parent in enumerate(BROKEN):
            given["parents"][5 * req : 5 * req + 5] = torch.tensor([parent, parent, 1, 2, 4])
        _, counts, paths = equals_reference(with_uniforms(given) | {"rule": rule})
        assert counts.tolist() == [1] * len(BROKEN)
        assert paths[:, 1:].eq(NO_TOKEN).all()


@in_silence
@pytest.mark.parametrize("rule", RULES)
def test_rows_that_are_not_finite_mark_their_request_alone(rule: str) -> None:
    given = tree_batch(
        6, 9, torch.float32, "none", width=5, full=True, draft_dtype=torch.float32, draft_columns=9
    )
    given |= {"logits": torch.randn(30, 9), "temperature": torch.ones(6), "rule": rule}
    given["draft_logits"] = torch.randn(8, 4, 9)
    given = with_uniforms(given)
    clean = run(given)
    logits, draft_logits = given["logits"].clone(), given["draft_logits"].clone()
    logits[5, 3], logits[10, 0], logits[15] = float("nan"), float("inf"), float("-inf")
    draft_logits[int(given["draft_slots"][4]), 0, 2] = float("nan")
    given |= {"logits": logits, "draft_logits": draft_logits}
    tokens, counts, paths = equals_reference(given)
    assert counts[1:5].tolist() == [NOT_FINITE] * 4
    assert tokens[1:5].eq(NO_TOKEN).all()
    assert paths[1:5].eq(NO_TOKEN).all()
    for req in (0, 5):
        for one, other in zip((tokens, counts, paths), clean, strict=True):
            assert one[req].tolist() == other[req].tolist()
