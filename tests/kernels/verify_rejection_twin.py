"""Verification by rejection sampling: as its reference, token for token. ``test_twins`` runs this; what the
options keep and the law are tested in ``verify_rejection_law_twin``.

Discrete results are equal, not close: the logits lie on a coarse grid, so that ties are exact and no
threshold falls between rounded neighbours, and of the uniforms, 53-bit numbers, one in 10^5 lies within
float32's rounding of an edge; the seeds are fixed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from specctl_kernels.verify_greedy import verify_greedy
from specctl_kernels.verify_rejection import NO_TOKEN, NOT_FINITE, stats, verify_rejection
from specctl_kernels.verify_rejection.reference import (
    uniforms_reference,
    verify_rejection_reference,
)
from support.quick_interpreter import quick_interpreter
from support.rejection_runs import DEVICE, IS_GPU, equals_reference, run
from support.verify_batches import (
    OPTIONS,
    coarse_logits,
    drawn_options,
    options_by_slot,
    two_requests,
    uniforms_for,
)
from support.verify_tests import in_silence, poison_new_memory

VOCABULARIES = [1, 2, 7, 2047, 2048, 2049, 4097, 9001] + ([32_000, 151_936, 262_144] if IS_GPU else [])
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def batch(
    requests: int, vocabulary: int, dtype: torch.dtype, options: str, *, width: int = 5, seed: int = 0
) -> dict[str, Any]:
    """Requests of 0 to ``width`` rows, every third one greedy; most drafts are likely tokens."""
    torch.manual_seed(1000 * requests + vocabulary + seed)
    rows = torch.randint(0, width + 1, (requests,))
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), rows.cumsum(0)]).to(torch.int32)
    total = int(starts[-1])
    logits = coarse_logits(total, vocabulary)
    drafts = logits.argmax(1).roll(1) if total else torch.zeros(0, dtype=torch.int64)
    other = torch.rand(total)
    drafts = torch.where(other < 0.3, torch.randint(0, vocabulary, (total,)), drafts)
    drafts = torch.where(other > 0.97, -1, drafts)
    # Of a broad law over many ids, a uniform is no longer far from an edge.
    degrees = [0.8, 1.0, 0.0, 0.01, 1.5, 100.0] if vocabulary < 10_000 else [0.3, 0.2, 0.0, 0.01, 0.25, 0.1]
    temperature = torch.tensor(degrees)[torch.arange(requests) % 6]
    cuts = drawn_options(options, requests)
    return {
        "logits": logits.to(dtype), "drafts": drafts.to(torch.int32), "starts": starts,
        "temperature": temperature, **cuts,
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


@pytest.fixture(autouse=True, scope="module")
def interpreted_in_time() -> Iterator[None]:
    with quick_interpreter():
        yield


poisoned = pytest.fixture(autouse=True)(poison_new_memory)


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


@pytest.mark.parametrize("has_draft_logits", [False, True])
def test_more_requests_than_a_grid_has_places(has_draft_logits: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr(stats, "GRID_MOST", 4)
    given = batch(11, 97, torch.float32, "mixed", width=3)
    if has_draft_logits:
        given = with_draft_logits(given, torch.float32, 97)
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


def two_rows_of_six(seed: int) -> dict[str, Any]:
    given = batch(6, 97, torch.float32, "mixed", seed=seed)
    given |= {"temperature": torch.ones(6), "starts": torch.arange(0, 13, 2, dtype=torch.int32)}
    given |= {"logits": torch.randn(12, 97), "drafts": torch.full((12,), 5), "positions": torch.arange(12)}
    return given | {"uniforms": uniforms_for(given)}


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
    given, slots = options_by_slot(given)
    for kind in (torch.int64, torch.int32):
        got = run(given | {"slots": slots.to(kind)})
        assert got[0].tolist() == want[0].tolist()
        assert got[1].tolist() == want[1].tolist()
    equals_reference(given | {"slots": slots})


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
    with pytest.raises(ValueError, match=message):
        verify_rejection(**two_requests() | wrong)


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
