"""Verification by rejection sampling: as its reference, token for token; its law. ``test_twins`` runs this.

Discrete results are equal, not close: the logits lie on a coarse grid, so that ties are exact and no
threshold falls between rounded neighbours, and of the uniforms, 53-bit numbers, one in 10^5 lies within
float32's rounding of an edge; the seeds are fixed. ``BITS`` makes every softmax weight of integer logits a
power of two, for edges that are met exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
from specctl_kernels.verify_greedy import verify_greedy
from specctl_kernels.verify_rejection import NO_TOKEN, NOT_FINITE, launch, verify_rejection
from specctl_kernels.verify_rejection.reference import (
    distribution,
    law_of_two,
    uniforms_reference,
    verify_rejection_reference,
)
from support.quick_interpreter import quick_interpreter

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
IS_GPU = DEVICE.type == "cuda"
VOCABULARIES = [1, 2, 7, 2047, 2048, 2049, 4097, 9001] + ([32_000, 151_936, 262_144] if IS_GPU else [])
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
BITS = 1.4426950408889634
LEAST_CHANCE = 1e-4
"""Of a sample as unlikely as the one seen, under the right law. The seeds are fixed."""
OPTIONS = {
    "none": (None, None, None),
    "top_k": ([1, 2, 5, 40, 0, 3000], None, None),
    "top_p": (None, [0.3, 0.9, 0.95, 1.0, 0.999, 0.0], None),
    "min_p": (None, None, [0.0, 0.1, 0.5, 1.0, 1e-4, 0.03]),
    "mixed": ([0, 3, 50, 3000, 1, 7], [0.95, 1.0, 0.7, 0.99, 0.9, 0.6], [0.0, 0.05, 0.2, 0.0, 1e-6, 0.01]),
}


def batch(
    requests: int, vocabulary: int, dtype: torch.dtype, options: str, *, width: int = 5, seed: int = 0
) -> dict[str, Any]:
    """Requests of 0 to ``width`` rows, every third one greedy; most drafts are likely tokens."""
    torch.manual_seed(1000 * requests + vocabulary + seed)
    rows = torch.randint(0, width + 1, (requests,))
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), rows.cumsum(0)]).to(torch.int32)
    total = int(starts[-1])
    logits = torch.randn(total, vocabulary).mul(12).round().div(4)
    logits[torch.rand(total, vocabulary) > 0.97] = float("-inf")
    logits[:, 0] = logits[:, 0].clamp(min=-3.0)
    drafts = logits.argmax(1).roll(1) if total else torch.zeros(0, dtype=torch.int64)
    other = torch.rand(total)
    drafts = torch.where(other < 0.3, torch.randint(0, vocabulary, (total,)), drafts)
    drafts = torch.where(other > 0.97, -1, drafts)
    # Of a broad law over many ids, a uniform is no longer far from an edge.
    degrees = [0.8, 1.0, 0.0, 0.01, 1.5, 100.0] if vocabulary < 10_000 else [0.3, 0.2, 0.0, 0.01, 0.25, 0.1]
    temperature = torch.tensor(degrees)[torch.arange(requests) % 6]
    kinds = (torch.int32, torch.float32, torch.float32)
    top_k, top_p, min_p = (
        None if values is None else torch.tensor(values, dtype=kind)[torch.randint(0, 6, (requests,))]
        for values, kind in zip(OPTIONS[options], kinds, strict=True)
    )
    return {
        "logits": logits.to(dtype), "drafts": drafts.to(torch.int32), "starts": starts,
        "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p,
        "seeds": torch.randint(-(2**62), 2**62, (requests,)),
        "positions": torch.randint(0, 2**40, (total,)), "width": width,
    }  # fmt: skip


def with_draft_logits(given: dict[str, Any], dtype: torch.dtype, columns: int) -> dict[str, Any]:
    """For every second request: near the target's, as a good draft head's. Not as cold as a probability that
    float32 cannot hold, since no draft would come of it."""
    requests, width = len(given["seeds"]), given["width"]
    draft_logits = torch.full((requests + 2, width - 1, columns), float("nan"), dtype=dtype)
    slots = torch.randperm(requests + 2)[:requests].to(torch.int32)
    slots[::2] = -1
    for req, slot in enumerate(slots.tolist()):
        start, end = given["starts"][req : req + 2].tolist()
        if slot >= 0 and end > start + 1:
            near = given["logits"][start : end - 1, :columns].float()
            near = near + torch.randn(near.shape).mul(4).round().div(4)
            draft_logits[slot, : end - start - 1] = near.to(dtype)
    temperature = given["temperature"]
    temperature = torch.where(temperature == 0.01, 0.3, temperature)
    return given | {"temperature": temperature, "draft_logits": draft_logits, "draft_slots": slots}


def run(given: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    moved = {k: v.to(DEVICE) if isinstance(v, torch.Tensor) else v for k, v in given.items()}
    tokens, counts = verify_rejection(**moved)
    return tokens.cpu(), counts.cpu()


def equals_reference(given: dict[str, Any]) -> torch.Tensor:
    want, got = verify_rejection_reference(**given), run(given)
    assert got[1].tolist() == want[1].tolist()
    assert got[0].tolist() == want[0].tolist()
    return got[1]


def uniforms_for(given: dict[str, Any]) -> torch.Tensor:
    return torch.rand(len(given["positions"]), 2, dtype=torch.float64)


@pytest.fixture(autouse=True, scope="module")
def interpreted_in_time() -> Iterator[None]:
    with quick_interpreter():
        yield


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the wrapper allocates is NaN or nonsense until it is written."""
    empty = torch.Tensor.new_empty

    def new_poisoned(tensor: torch.Tensor, *size: Any, **options: Any) -> torch.Tensor:
        made = empty(tensor, *size, **options)
        return made.fill_(float("nan") if made.is_floating_point() else -77)

    monkeypatch.setattr(torch.Tensor, "new_empty", new_poisoned)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_tokens_as_the_reference(vocabulary: int, options: str) -> None:
    dtype = DTYPES[(vocabulary + len(options)) % 3]
    given = batch(6, vocabulary, dtype, options, width=4)
    equals_reference(given | {"uniforms": uniforms_for(given)})


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("options", ["none", "mixed"])
@pytest.mark.parametrize(("requests", "width"), [(0, 3), (1, 1), (3, 2), (1, 9), (17, 9)])
def test_requests_and_dtypes(requests: int, width: int, options: str, dtype: torch.dtype) -> None:
    given = batch(requests, 97, dtype, options, width=width)
    equals_reference(given | {"uniforms": uniforms_for(given)})


@pytest.mark.parametrize("options", ["none", "mixed"])
@pytest.mark.parametrize(("vocabulary", "columns"), [(1, 1), (2, 1), (7, 7), (2049, 2049), (4099, 4001)])
def test_drafts_with_a_distribution(vocabulary: int, columns: int, options: str) -> None:
    for seed, (dtype, draft_dtype) in enumerate(zip(DTYPES, [*DTYPES[:2], torch.float32], strict=True)):
        given = batch(6, vocabulary, dtype, options, seed=seed)
        given = with_draft_logits(given, draft_dtype, columns)
        equals_reference(given | {"uniforms": uniforms_for(given)})


def test_a_greedy_batch_is_verified_as_by_verify_greedy() -> None:
    given = batch(17, 600, torch.bfloat16, "mixed")
    given["logits"][::5, 3] = float("nan")
    given["temperature"] = torch.zeros(17)
    on_device = [given[name].to(DEVICE) for name in ("logits", "drafts", "starts")]
    want = verify_greedy(*on_device, width=5)
    got = run(given)
    assert got[0].tolist() == want[0].tolist()
    assert got[1].tolist() == want[1].tolist()


def test_random_numbers_are_those_of_the_paper_and_of_the_reference() -> None:
    # Known answers of the authors' Random123 for philox4x32-10: counter 0, key 0.
    first = uniforms_reference(torch.tensor([0]), torch.tensor([0]))
    words = (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert first[0].tolist() == [
        ((words[0] << 32 | words[1]) >> 11) * 2.0**-53, ((words[2] << 32 | words[3]) >> 11) * 2.0**-53
    ]  # fmt: skip
    for seed in (5, 6):
        equals_reference(batch(9, 97, torch.float32, "mixed", seed=seed))


def test_a_seed_gives_the_same_tokens_alone_and_in_any_batch() -> None:
    given = with_draft_logits(batch(9, 9001, torch.bfloat16, "mixed", seed=4), torch.bfloat16, 9001)
    tokens, counts = run(given)
    for req in (0, 1, 3, 5):
        start, end = given["starts"][req : req + 2].tolist()
        alone = {k: v[start:end] for k, v in given.items() if k in ("logits", "drafts", "positions")}
        alone |= {k: given[k][req : req + 1] for k in ("temperature", "top_k", "top_p", "min_p", "seeds")}
        alone |= {"starts": torch.tensor([0, end - start], dtype=torch.int32), "width": 5}
        alone |= {"draft_logits": given["draft_logits"], "draft_slots": given["draft_slots"][req : req + 1]}
        got = run(alone)
        assert got[0][0].tolist() == tokens[req].tolist()
        assert got[1].tolist() == counts[req : req + 1].tolist()


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


def two_rows_of_six(seed: int) -> dict[str, Any]:
    given = batch(6, 97, torch.float32, "mixed", seed=seed)
    given |= {"temperature": torch.ones(6), "starts": torch.arange(0, 13, 2, dtype=torch.int32)}
    given |= {"logits": torch.randn(12, 97), "drafts": torch.full((12,), 5), "positions": torch.arange(12)}
    return given | {"uniforms": uniforms_for(given)}


# The interpreter's numpy tells of what a device computes in silence: inf - inf.
in_silence = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")


@in_silence
def test_rows_that_are_not_finite_mark_their_request_alone() -> None:
    given = two_rows_of_six(3)
    clean = run(given)
    logits = given["logits"].clone()
    logits[2, 50], logits[4, 0], logits[6] = float("nan"), float("inf"), float("-inf")
    logits[9, 3] = float("nan")  # request 4 reaches its second row only with its draft accepted
    given["uniforms"][8, 0] = 1 - 1e-9
    given["logits"] = logits
    tokens, counts = run(given)
    assert counts[1:4].tolist() == [NOT_FINITE] * 3
    assert set(tokens[1:4].flatten().tolist()) == {NO_TOKEN}
    for req in (0, 5):
        assert tokens[req].tolist() == clean[0][req].tolist()
        assert counts[req] == clean[1][req] > 0
    assert counts[4] == 1
    equals_reference(given)


@in_silence
@pytest.mark.parametrize("has_cuts", [False, True])
def test_rows_that_are_not_finite_are_counted_and_their_largest_number_taken(has_cuts: bool) -> None:
    given = two_rows_of_six(4)
    if not has_cuts:
        given |= {"top_k": None, "top_p": None, "min_p": None}
    logits = given["logits"]
    logits[2, 50], logits[2, 60], logits[4, 7] = float("nan"), 40.0, float("inf")
    logits[6], logits[8], logits[8, 11] = float("-inf"), float("nan"), -1.0
    counts = [torch.zeros(1, dtype=torch.int64, device=device) for device in ("cpu", DEVICE)]
    want = verify_rejection_reference(**given, not_finite=counts[0])
    got = run(given | {"not_finite": counts[1]})
    assert got[0].tolist() == want[0].tolist()
    assert got[1].tolist() == want[1].tolist()
    assert got[0][1:5, 0].tolist() == [60, 7, 0, 11]
    assert got[1][1:5].tolist() == [1] * 4
    assert counts[1].tolist() == counts[0].tolist() == [4]


@in_silence
@pytest.mark.parametrize("options", ["none", "mixed"])
def test_a_draft_whose_distribution_is_not_finite_is_rejected(options: str) -> None:
    given = with_draft_logits(batch(6, 97, torch.float32, options, width=3), torch.float32, 97)
    for slot in given["draft_slots"][1::2]:
        given["draft_logits"][slot, 0, 3] = float("nan")
    given["uniforms"] = uniforms_for(given)
    counts = [torch.zeros(1, dtype=torch.int64, device=device) for device in ("cpu", DEVICE)]
    want = verify_rejection_reference(**given, not_finite=counts[0])
    got = run(given | {"not_finite": counts[1]})
    assert got[0].tolist() == want[0].tolist()
    assert got[1].tolist() == want[1].tolist()
    assert counts[1].tolist() == counts[0].tolist()
    assert counts[0].tolist() != [0]


def test_options_by_slot_are_those_of_the_requests() -> None:
    given = batch(5, 97, torch.float32, "mixed", seed=9)
    want = run(given)
    slots = torch.tensor([6, 0, 3, 1, 5])
    for name in ("temperature", "top_k", "top_p", "min_p", "seeds"):
        by_slot = torch.full((8,), -1).to(given[name].dtype)
        by_slot[slots] = given[name]
        given[name] = by_slot
    for kind in (torch.int64, torch.int32):
        got = run(given | {"slots": slots.to(kind)})
        assert got[0].tolist() == want[0].tolist()
        assert got[1].tolist() == want[1].tolist()
    equals_reference(given | {"slots": slots})


def test_candidates_are_gathered_for_the_row_that_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of 3 pieces with 130 finite entries: all are listed, by piece, in order; the row is not read."""
    torch.manual_seed(5)
    logits = torch.full((1, 9001), float("-inf"))
    logits[0, ::70] = torch.randn(129).mul(8).round().div(4)
    made: list[tuple[torch.Tensor, ...]] = []
    lists = launch._lists

    def noted(*given: Any) -> tuple[torch.Tensor, ...]:
        made.append(lists(*given))
        return made[-1]

    monkeypatch.setattr(launch, "_lists", noted)
    given = two_rows_each(logits, [0, 70, 71], temperature=1.0, top_k=20, top_p=0.9)
    equals_reference(given)
    [(searched, values, ids, cuts)] = made
    assert searched[2].tolist() == [0, -1]
    assert cuts[2, 0].isfinite().all()
    segment = values.shape[2] // 4
    for piece, first in enumerate(range(0, 9001, 4096)):
        columns = torch.arange(0, 9001, 70)
        columns = columns[(columns >= first) & (columns < first + 4096)]
        at = slice(piece * segment, piece * segment + len(columns))
        assert ids[2, 0, at].tolist() == columns.tolist()
        assert values[2, 0, at].tolist() == logits[0, columns].tolist(), (
            "a search of the row would write here"
        )


CUT_BY = [(20, 1.0, 0.0), (0, 0.9, 0.0), (0, 1.0, 0.1), (20, 0.9, 0.0), (0, 0.9, 0.1), (20, 0.9, 0.1)]


@pytest.mark.parametrize(("top_k", "top_p", "min_p"), CUT_BY)
@pytest.mark.parametrize(("entries", "is_short"), [(300, True), (700, False)])
def test_few_entries_that_matter_are_held_against_each_other(
    monkeypatch: pytest.MonkeyPatch, entries: int, is_short: bool, top_k: int, top_p: float, min_p: float
) -> None:
    """Where more of them than a short list holds are equal, it is left and the list is searched."""
    torch.manual_seed(6)
    logits = torch.full((1, 9001), float("-inf"))
    columns = torch.randperm(9001)[:entries].sort().values
    logits[0, columns] = torch.randn(entries).mul(8).round().div(4) if is_short else 1.5
    made: list[tuple[torch.Tensor, ...]] = []
    shorts = launch._shorts

    def noted(*given: Any) -> tuple[torch.Tensor, ...]:
        made.append(shorts(*given))
        return made[-1]

    monkeypatch.setattr(launch, "_shorts", noted)
    given = two_rows_each(logits, [9000], temperature=0.7, top_k=top_k, top_p=top_p, min_p=min_p)
    equals_reference(given)
    [(_founds, values, ids, kept)] = made
    law = distribution(logits[0], 0.7, top_k, top_p, min_p)
    if not is_short:
        assert float(kept[0, 0, 1]) == -1
        return
    threshold = float(logits[0][law > 0].min())
    assert float(kept[0, 0, 0]) == threshold
    weights = ((logits[0].double() - logits.max()) / 0.7).exp()
    assert float(kept[0, 0, 1]) == pytest.approx(float(weights[law > 0].sum()), rel=1e-5)
    is_kept = values[0, 0] >= threshold
    assert ids[0, 0][is_kept].tolist() == law.nonzero().flatten().tolist()


def chi_square_chance(seen: torch.Tensor, law: torch.Tensor) -> float:
    """Of so large a sum of squares under the law; cells of less than 5 expected are one."""
    expected = law * seen.sum()
    assert int(seen[law == 0].sum()) == 0
    is_rare = expected < 5
    seen = torch.cat([seen[~is_rare].double(), seen[is_rare].sum().double()[None]])
    expected = torch.cat([expected[~is_rare], expected[is_rare].sum()[None]])
    is_cell = expected > 0  # none where no draw came so far: 0 squares of 1
    statistic = ((seen - expected)[is_cell] ** 2 / expected[is_cell]).sum()
    degrees = max(int(is_cell.sum()) - 1, 1)
    return float(torch.special.gammaincc(torch.tensor(degrees / 2).double(), statistic / 2))


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
        tokens, counts = verify_rejection_reference(**given)
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


SLOTS = torch.zeros(2, dtype=torch.int32)
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"drafts": torch.zeros(3)}, r"drafts: expected int32 or int64\[4\], contiguous, got float32\[3\]"),
    ({"starts": torch.zeros(3, dtype=torch.int64)}, r"starts: expected int32\[3\], contiguous, got int64"),
    ({"starts": torch.zeros((), dtype=torch.int32)}, r"starts: expected \[requests \+ 1\], got \[\]"),
    ({"logits": torch.zeros(9, 4).T}, "with contiguous rows"),
    ({"logits": torch.zeros(4, 0)}, "column at least"),
    ({"logits": torch.zeros(4, 9, dtype=torch.float64)}, r"got float64\[4, 9\]"),
    ({"width": 0}, "width: expected 1 at least, got 0"),
    ({"temperature": torch.zeros(3)}, r"temperature: expected float32\[2\], contiguous, got float32\[3\]"),
    ({"top_k": torch.ones(2)}, r"top_k: expected int32\[2\], contiguous, got float32\[2\]"),
    ({"uniforms": torch.zeros(4, 2)}, r"uniforms: expected float64\[4, 2\], contiguous, got float32"),
    ({"draft_slots": SLOTS}, "expected both or neither, got draft_slots alone"),
    ({"draft_logits": torch.zeros(2, 1, 9), "draft_slots": SLOTS}, r"\[slots, 2 or more, 9 or fewer\]"),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG, ids=[next(iter(wrong)) for wrong, _ in WRONG])
def test_wrong_shapes_are_refused(wrong: dict[str, Any], message: str) -> None:
    given = {
        "logits": torch.zeros(4, 9), "drafts": torch.zeros(4, dtype=torch.int32),
        "starts": torch.tensor([0, 2, 4], dtype=torch.int32), "temperature": torch.ones(2), "top_k": None,
        "top_p": torch.ones(2), "min_p": None, "seeds": torch.zeros(2, dtype=torch.int64),
        "positions": torch.zeros(4, dtype=torch.int64), "width": 3,
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        verify_rejection(**given | wrong)


@pytest.mark.skipif(not IS_GPU, reason="needs 5 GB of device memory")
def test_more_than_two_to_the_thirty_one_logits() -> None:
    rows, vocabulary = 8200, 262_144
    logits = torch.zeros(rows, vocabulary, dtype=torch.bfloat16, device=DEVICE)
    logits[-1, -1] = 100.0
    ones = torch.ones(rows, device=DEVICE)
    tokens, counts = verify_rejection(
        logits, torch.zeros(rows, dtype=torch.int32, device=DEVICE),
        torch.arange(rows + 1, dtype=torch.int32, device=DEVICE), ones, None, ones * 0.9, None,
        torch.arange(rows, device=DEVICE), torch.arange(rows, device=DEVICE), width=1,
    )  # fmt: skip
    assert int(tokens[-1, 0]) == vocabulary - 1
    assert counts.tolist() == [1] * rows
    assert int(tokens[:-1].unique().numel()) > 7000
