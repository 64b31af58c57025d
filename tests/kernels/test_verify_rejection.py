"""Verification by rejection sampling: as its reference, token for token; what the
options keep and the law are tested in ``test_verify_rejection_law``.

Discrete results are equal, not close: the logits lie on a coarse grid, so that ties are exact and no
threshold falls between rounded neighbours, and of the uniforms, 53-bit numbers, one in 10^5 lies within
float32's rounding of an edge; the seeds are fixed.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from specctl_kernels.row_law import stats
from specctl_kernels.row_law.given import Sampling
from specctl_kernels.verify_block import verify_block
from specctl_kernels.verify_greedy import verify_greedy
from specctl_kernels.verify_rejection import NO_TOKEN, verify_rejection
from specctl_kernels.verify_rejection.reference import (
    distribution,
    sample_by,
    uniforms_reference,
    verify_rejection_reference,
)
from support.rejection_runs import DEVICE, IS_GPU, equals_reference, run
from support.verify_batches import (
    DTYPES,
    OPTIONS,
    chain_batch,
    options_by_slot,
    packed,
    two_requests,
    uniforms_for,
    with_draft_logits,
)
from support.verify_tests import in_silence, poison_new_memory

VOCABULARIES = [1, 2, 7, 2047, 2048, 2049, 4097, 9001] + ([32_000, 151_936, 262_144] if IS_GPU else [])


poisoned = pytest.fixture(autouse=True)(poison_new_memory)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_tokens_as_the_reference(vocabulary: int, options: str) -> None:
    dtype = DTYPES[(vocabulary + len(options)) % 3]
    given = chain_batch(6, vocabulary, dtype, options, width=4)
    equals_reference(given | {"uniforms": uniforms_for(given)})


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("options", ["none", "mixed"])
@pytest.mark.parametrize(("requests", "width"), [(0, 3), (1, 1), (3, 2), (1, 9), (17, 9)])
def test_requests_and_dtypes(requests: int, width: int, options: str, dtype: torch.dtype) -> None:
    given = chain_batch(requests, 97, dtype, options, width=width)
    equals_reference(given | {"uniforms": uniforms_for(given)})


@pytest.mark.parametrize("options", ["none", "mixed"])
@pytest.mark.parametrize(("vocabulary", "columns"), [(1, 1), (2, 1), (7, 7), (2049, 2049), (4099, 4001)])
def test_drafts_with_a_distribution(vocabulary: int, columns: int, options: str) -> None:
    for seed, (dtype, draft_dtype) in enumerate(zip(DTYPES, [*DTYPES[:2], torch.float32], strict=True)):
        given = chain_batch(6, vocabulary, dtype, options, seed=seed)
        given = with_draft_logits(given, draft_dtype, columns)
        equals_reference(given | {"uniforms": uniforms_for(given)})


@pytest.mark.parametrize("has_draft_logits", [False, True])
def test_more_requests_than_a_grid_has_places(has_draft_logits: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr(stats, "GRID_MOST", 4)
    given = chain_batch(11, 97, torch.float32, "mixed", width=3)
    if has_draft_logits:
        given = with_draft_logits(given, torch.float32, 97)
    equals_reference(given | {"uniforms": uniforms_for(given)})


def test_a_greedy_batch_is_verified_as_by_verify_greedy() -> None:
    given = chain_batch(17, 600, torch.bfloat16, "mixed")
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
        equals_reference(chain_batch(9, 97, torch.float32, "mixed", seed=seed))


def test_a_seed_gives_the_same_tokens_alone_and_in_any_chain_batch() -> None:
    given = with_draft_logits(chain_batch(9, 9001, torch.bfloat16, "mixed", seed=4), torch.bfloat16, 9001)
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
    given = chain_batch(6, 97, torch.float32, "mixed", seed=seed)
    given |= {"temperature": torch.ones(6), "starts": torch.arange(0, 13, 2, dtype=torch.int32)}
    given |= {"logits": torch.randn(12, 97), "drafts": torch.full((12,), 5), "positions": torch.arange(12)}
    return given | {"uniforms": uniforms_for(given)}


@in_silence
def test_rows_that_are_not_finite_change_no_other_request() -> None:
    given = two_rows_of_six(3)
    clean = run(given)
    logits = given["logits"].clone()
    logits[2, 50], logits[4, 0], logits[6] = float("nan"), float("inf"), float("-inf")
    logits[9, 3] = float("nan")  # request 4 reaches its second row only with its draft accepted
    given["uniforms"][8, 0] = 1 - 1e-9
    given["logits"] = logits
    tokens, counts = run(given)
    assert counts[1:4].tolist() == [1] * 3
    for req in (0, 5):
        assert tokens[req].tolist() == clean[0][req].tolist()
        assert counts[req] == clean[1][req] > 0
    assert counts[4] == 1
    equals_reference(given)


@in_silence
@pytest.mark.parametrize("has_cuts", [False, True])
def test_rows_that_are_not_finite_are_counted_and_their_largest_number_taken(has_cuts: bool) -> None:
    given = two_rows_of_six(4)
    given["top_k"][given["top_k"] == 1] = 2  # 1 is greedy, where nothing is counted
    if not has_cuts:
        given |= {"top_k": None, "top_p": None, "min_p": None}
    logits = given["logits"]
    logits[2, 50], logits[2, 60], logits[4, 7] = float("nan"), 40.0, float("inf")
    logits[6], logits[8], logits[8, 11] = float("-inf"), float("nan"), -1.0
    counts = [torch.zeros(1, dtype=torch.int64, device=device) for device in ("cpu", DEVICE)]
    want = verify_rejection_reference(**packed(given | {"not_finite": counts[0]}))
    got = run(given | {"not_finite": counts[1]})
    assert got[0].tolist() == want[0].tolist()
    assert got[1].tolist() == want[1].tolist()
    assert got[0][1:5, 0].tolist() == [60, 7, 0, 11]
    assert got[1][1:5].tolist() == [1] * 4
    assert counts[1].tolist() == counts[0].tolist() == [4]


@in_silence
@pytest.mark.parametrize("options", ["none", "mixed"])
def test_a_draft_whose_distribution_is_not_finite_is_rejected(options: str) -> None:
    given = with_draft_logits(chain_batch(6, 97, torch.float32, options, width=3), torch.float32, 97)
    for slot in given["draft_slots"][1::2]:
        given["draft_logits"][slot, 0, 3] = float("nan")
    given["uniforms"] = uniforms_for(given)
    counts = [torch.zeros(1, dtype=torch.int64, device=device) for device in ("cpu", DEVICE)]
    want = verify_rejection_reference(**packed(given | {"not_finite": counts[0]}))
    got = run(given | {"not_finite": counts[1]})
    assert got[0].tolist() == want[0].tolist()
    assert got[1].tolist() == want[1].tolist()
    assert counts[1].tolist() == counts[0].tolist()
    assert counts[0].tolist() != [0]


# Draft logits of 8.65 and 0 at T = 0.1: the second's weight is 2^-125, and a factor of its inverse overflows.
NEARLY_ONE_HOT = torch.full((64,), float("-inf")).index_copy(
    0, torch.tensor([0, 1]), torch.tensor([8.65, 0.0])
)


@pytest.mark.parametrize("verify", [verify_rejection, verify_block], ids=["token", "block"])
@pytest.mark.parametrize("has_cuts", [False, True])
@pytest.mark.parametrize(("draft", "temperature", "gap"), [(0, 0.1, 8.65), (1, 0.1, 8.65), (0, 0.2, 17.2)])
def test_a_rejected_cold_draft_is_never_emitted(
    verify: Any, has_cuts: bool, draft: int, temperature: float, gap: float
) -> None:
    """A draft with nearly all of q's mass, or nearly none, is rejected: a sample of the other 63 follows."""
    numbers = torch.tensor([0.02, 0.25, 0.5, 0.75, 0.98], dtype=torch.float64)
    requests = len(numbers)
    logits = torch.zeros(2 * requests, 64)
    if draft == 1:  # the target gives it less than q, little as that is
        logits[:, 1] = float("-inf")
    starts = torch.arange(0, 2 * requests + 1, 2, dtype=torch.int32)
    given = {
        "logits": logits, "drafts": torch.tensor([0, draft] * requests, dtype=torch.int32), "starts": starts,
        "temperature": torch.full((requests,), temperature), "top_k": None,
        "top_p": torch.full((requests,), 0.9999) if has_cuts else None, "min_p": None,
        "seeds": torch.arange(requests), "positions": torch.arange(2 * requests), "width": 2,
        "draft_logits": (NEARLY_ONE_HOT * gap / 8.65)[None, None],
        "draft_slots": torch.zeros(requests, dtype=torch.int32),
        "uniforms": torch.stack([torch.full_like(numbers, 1 - 1e-9), numbers], 1).repeat_interleave(2, 0),
    }  # fmt: skip
    moved = {k: v.to(DEVICE) if isinstance(v, torch.Tensor) else v for k, v in given.items()}
    tokens, counts = verify(**packed(moved))
    weights = (torch.arange(64) != draft).double()
    weights[0] = 0.0  # q has all of its mass there
    assert counts.tolist() == [1] * requests
    assert tokens[:, 0].tolist() == [sample_by(weights, float(number)) for number in numbers]


@pytest.mark.parametrize("options", ["none", "mixed"])
@pytest.mark.parametrize("temperature", [0.1, 0.05, 0.02, 0.005])
def test_cold_drafts_with_a_distribution(temperature: float, options: str) -> None:
    """Drawn from their own law, near the target's."""
    given = with_draft_logits(chain_batch(8, 97, torch.float32, options, seed=5), torch.float32, 90)
    given["temperature"] = torch.full((8,), temperature)
    for req, slot in enumerate(given["draft_slots"].tolist()):
        start, end = given["starts"][req : req + 2].tolist()
        for row in range(end - start - 1 if slot >= 0 else 0):
            law = distribution(given["draft_logits"][slot, row], temperature)
            given["drafts"][start + row + 1] = int(torch.multinomial(law * (law > 1e-30), 1))
    equals_reference(given | {"uniforms": uniforms_for(given)})


def test_at_an_infinite_temperature_every_finite_logit_has_the_same_probability() -> None:
    for options in ("none", "mixed"):
        given = chain_batch(7, 97, torch.float32, options, seed=8)
        given["temperature"] = torch.full((7,), float("inf"))
        counts = equals_reference(given | {"uniforms": uniforms_for(given)})
        assert bool((counts[given["starts"].diff() > 0] > 0).all())


@pytest.mark.parametrize("has_draft_logits", [False, True])
def test_top_k_1_takes_the_first_of_equal_logits(has_draft_logits: bool) -> None:
    given = chain_batch(12, 3, torch.bfloat16, "none", width=2)
    given["logits"] = (
        torch.tensor([2.0, 2.0, 0.0]).expand(len(given["logits"]), 3).to(torch.bfloat16).contiguous()
    )
    given |= {"top_k": torch.ones(12, dtype=torch.int32), "temperature": torch.ones(12)}
    if has_draft_logits:
        given = with_draft_logits(given, torch.float32, 3)
    tokens, counts = run(given)
    assert counts.tolist() == equals_reference(given).tolist()
    assert set(tokens[tokens != NO_TOKEN].tolist()) == {0}


@pytest.mark.parametrize("is_greedy", [False, True])
def test_drafts_that_no_int32_holds_are_never_kept(is_greedy: bool) -> None:
    """The low half of each is a token that would be."""
    given = chain_batch(2, 9, torch.float32, "none") | {"starts": torch.tensor([0, 3, 6], dtype=torch.int32)}
    given |= {"logits": torch.zeros(6, 9), "drafts": torch.tensor([0, 2**32 + 4, 4, 0, 4 - 2**33, 4])}
    given |= {"positions": torch.arange(6), "temperature": torch.full((2,), 0.0 if is_greedy else 1.0)}
    given["logits"][:, 4] = 50.0
    assert equals_reference(given).tolist() == [1, 1]
    on_device = [given[name].to(DEVICE) for name in ("logits", "drafts", "starts")]
    assert verify_greedy(*on_device, width=5)[1].tolist() == [1, 1]


def test_options_by_slot_are_those_of_the_requests() -> None:
    given = chain_batch(5, 97, torch.float32, "mixed", seed=9)
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
        verify_rejection(**packed(two_requests() | wrong))


@pytest.mark.skipif(not IS_GPU, reason="needs 5 GB of device memory")
def test_more_than_two_to_the_thirty_one_logits() -> None:
    rows, vocabulary = 8200, 262_144
    logits = torch.zeros(rows, vocabulary, dtype=torch.bfloat16, device=DEVICE)
    logits[-1, -1] = 100.0
    ones = torch.ones(rows, device=DEVICE)
    tokens, counts = verify_rejection(
        logits, torch.zeros(rows, dtype=torch.int32, device=DEVICE),
        torch.arange(rows + 1, dtype=torch.int32, device=DEVICE),
        Sampling(ones, None, ones * 0.9, None, torch.arange(rows, device=DEVICE)),
        torch.arange(rows, device=DEVICE), width=1,
        not_finite=torch.zeros(1, dtype=torch.int64, device=DEVICE),
    )  # fmt: skip
    assert int(tokens[-1, 0]) == vocabulary - 1
    assert counts.tolist() == [1] * rows
    assert int(tokens[:-1].unique().numel()) > 7000
