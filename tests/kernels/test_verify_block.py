"""Block verification against its reference, token for token; its law is tested in
``test_verify_block_law``.

Discrete results are equal, not close: the logits lie on a coarse grid, so no threshold falls between rounded
neighbours, and of the uniforms, 53-bit numbers, one in 10^5 lies within float32's rounding of an edge; the
seeds are fixed.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from specctl_kernels.row_law.given import Sampling
from specctl_kernels.verify_block import NO_TOKEN, verify_block
from specctl_kernels.verify_block.reference import (
    block_uniforms_reference,
    verify_block_reference,
)
from specctl_kernels.verify_greedy import verify_greedy
from specctl_kernels.verify_rejection import verify_rejection
from specctl_kernels.verify_rejection.reference import distribution
from support.verify_batches import (
    OPTIONS,
    coarse_logits,
    drawn_options,
    options_by_slot,
    packed,
    two_requests,
    uniforms_for,
)
from support.verify_tests import in_silence, poison_new_memory

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
IS_GPU = DEVICE.type == "cuda"
VOCABULARIES = [1, 2, 7, 2049, 9001] + ([32_000, 151_936, 262_144] if IS_GPU else [])
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def batch(
    requests: int, vocabulary: int, dtype: torch.dtype, options: str, *, width: int = 5, seed: int = 0
) -> dict[str, Any]:
    """Requests of 0 to ``width`` rows; drafts are mostly samples of what stands in ``draft_logits``, whose
    vocabulary is sometimes smaller. One request in six is greedy, one in four has no draft distribution."""
    torch.manual_seed(1000 * requests + vocabulary + seed)
    columns = vocabulary - (vocabulary // 8 if seed % 2 else 0)
    rows = torch.randint(0, width + 1, (requests,))
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), rows.cumsum(0)]).to(torch.int32)
    total = int(starts[-1])
    logits = coarse_logits(total, vocabulary)
    # Of a broad law over many ids, a uniform is no longer far from an edge.
    degrees = [0.8, 1.0, 0.0, 0.3, 1.5, 100.0] if vocabulary < 10_000 else [0.3, 0.2, 0.0, 0.1, 0.25, 0.1]
    temperature = torch.tensor(degrees)[(torch.arange(requests) + seed) % 6]
    draft_logits = torch.full((requests + 2, width - 1, columns), float("nan"), dtype=dtype)
    slots = torch.randperm(requests + 2)[:requests].to(torch.int32)
    drafts = torch.zeros(total, dtype=torch.int32)
    for req, slot in enumerate(slots.tolist()):
        for row in range(int(starts[req]), int(starts[req + 1]) - 1):
            near = logits[row, :columns] + torch.randn(columns).mul(4).round().div(4)
            draft_logits[slot, row - int(starts[req])] = near.to(dtype)
            law = distribution(near, float(temperature[req]) or 1.0)
            drafts[row + 1] = int(torch.multinomial(law, 1))
    drafts = torch.where(torch.rand(total) > 0.95, -1, drafts)
    slots[torch.rand(requests) > 0.75] = -1
    cuts = drawn_options(options, requests)
    return {
        "logits": logits.to(dtype), "drafts": drafts, "starts": starts, "temperature": temperature,
        **cuts,
        "seeds": torch.randint(-(2**62), 2**62, (requests,)),
        "positions": torch.randint(0, 2**40, (total,)), "width": width,
        "draft_logits": draft_logits, "draft_slots": slots,
    }  # fmt: skip


def on_device(given: dict[str, Any]) -> dict[str, Any]:
    return {k: v.to(DEVICE) if isinstance(v, torch.Tensor) else v for k, v in given.items()}


def run(given: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    tokens, counts = verify_block(**packed(on_device(given)))
    return tokens.cpu(), counts.cpu()


def equals_reference(given: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    want, got = verify_block_reference(**packed(given)), run(given)
    assert got[1].tolist() == want[1].tolist()
    assert got[0].tolist() == want[0].tolist()
    return got


def of_request(given: dict[str, Any], req: int) -> dict[str, Any]:
    """The batch of one request."""
    start, end = given["starts"][req : req + 2].tolist()
    alone = {k: given[k][start:end] for k in ("logits", "drafts", "positions", "uniforms") if k in given}
    by_request = ("temperature", "top_k", "top_p", "min_p", "seeds", "draft_slots")
    alone |= {k: None if given[k] is None else given[k][req : req + 1] for k in by_request}
    alone |= {"starts": torch.tensor([0, end - start], dtype=torch.int32)}
    return alone | {k: given[k] for k in ("width", "draft_logits")}


poisoned = pytest.fixture(autouse=True)(poison_new_memory)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_tokens_as_the_reference(vocabulary: int, options: str) -> None:
    dtype = DTYPES[(vocabulary + len(options)) % 3]
    requests = 6 if vocabulary < 9001 or IS_GPU else 4
    given = batch(requests, vocabulary, dtype, options, seed=len(options))
    equals_reference(given | {"uniforms": uniforms_for(given)})


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("requests", "width"), [(0, 3), (1, 1), (3, 2), (1, 9), (7, 9)])
def test_requests_and_dtypes(requests: int, width: int, dtype: torch.dtype) -> None:
    """Random numbers from the seeds, here; draft logits of another dtype."""
    given = batch(requests, 97, dtype, "mixed", width=width, seed=width)
    equals_reference(given | {"draft_logits": given["draft_logits"].float()})


def test_one_draft_is_verified_as_by_verify_rejection() -> None:
    """h_1 is then p / q, and both draw the same random numbers."""
    given = batch(8, 97, torch.float32, "mixed", width=2, seed=1)
    given["draft_slots"] = torch.arange(8, dtype=torch.int32)
    given["draft_logits"] = given["draft_logits"].nan_to_num(0.0, neginf=float("-inf"))
    tokens, counts = verify_rejection(**packed(on_device(given)))
    got = run(given)
    assert got[0].tolist() == tokens.tolist()
    assert got[1].tolist() == counts.tolist()


def test_drafts_that_were_not_sampled_go_token_by_token() -> None:
    given = batch(9, 600, torch.bfloat16, "mixed", seed=6)
    given["draft_slots"][:6] = -1
    mixed = run(given)
    moved = on_device(given) | {"draft_logits": None, "draft_slots": None}
    for tokens, counts in (verify_block(**packed(moved)), verify_rejection(**packed(moved))):
        assert mixed[0][:6].tolist() == tokens[:6].tolist()
        assert mixed[1][:6].tolist() == counts[:6].tolist()
    given["temperature"] = torch.zeros(9)
    want = verify_greedy(*(given[name].to(DEVICE) for name in ("logits", "drafts", "starts")), width=5)
    got = run(given)
    assert got[0].tolist() == want[0].tolist()
    assert got[1].tolist() == want[1].tolist()


def test_a_seed_gives_the_same_tokens_alone_and_in_any_batch() -> None:
    given = batch(6, 4097, torch.bfloat16, "mixed", seed=4)
    tokens, counts = run(given)
    for req in (1, 3, 4):
        got = run(of_request(given, req))
        assert got[0][0].tolist() == tokens[req].tolist()
        assert got[1].tolist() == counts[req : req + 1].tolist()


def test_no_step_sees_a_number_that_an_earlier_one_looked_at() -> None:
    """A step may look at the numbers of all its drafts and emit one token: the next begins one further."""
    width, steps = 6, 20
    positions = torch.arange(steps)[:, None] + torch.arange(width)
    starts = torch.arange(0, steps * width + 1, width, dtype=torch.int32)
    numbers = block_uniforms_reference(torch.full((steps,), 7), positions.flatten(), starts)
    assert numbers[:, 0].unique().numel() == steps * width
    sampled = numbers[:, 1].unique()  # by position: of each, one step alone samples there
    assert sampled.numel() == steps + width - 1
    assert not torch.isin(sampled, numbers[:, 0]).any()


def with_rows_that_are_not_finite() -> tuple[dict[str, Any], dict[str, Any]]:
    """(seven requests of three rows, the same with NaN, +inf or nothing in rows of all but the first)."""
    given = batch(7, 97, torch.float32, "mixed", seed=3)
    given |= {"temperature": torch.ones(7), "starts": torch.arange(0, 22, 3, dtype=torch.int32)}
    given |= {"logits": torch.randn(21, 97), "drafts": torch.full((21,), 5), "positions": torch.arange(21)}
    given |= {"draft_logits": torch.randn(7, 2, 97), "draft_slots": torch.arange(7, dtype=torch.int32)}
    given |= {"width": 3, "uniforms": torch.rand(21, 2, dtype=torch.float64), "top_k": None}
    given |= {"top_p": torch.full((7,), 0.999), "min_p": None}
    logits, draft_logits = given["logits"].clone(), given["draft_logits"].clone()
    logits[3, 50], logits[6, 0], logits[9] = float("nan"), float("inf"), float("-inf")
    draft_logits[4, 0, 7] = float("nan")
    logits[16, 3] = logits[19, 3] = float("nan")
    logits[15, 5] = -50.0
    draft_logits[5, 0, 5] = 50.0  # the row behind a draft that is not kept does not count
    logits[18, 5] = 50.0
    return given, given | {"logits": logits, "draft_logits": draft_logits}


@in_silence
def test_rows_that_are_not_finite_change_no_other_request() -> None:
    given, broken = with_rows_that_are_not_finite()
    clean = run(given)
    tokens, counts = equals_reference(broken)
    assert counts.tolist()[1:] == [1, 1, 1, 1, 1, 2]
    assert tokens[0].tolist() == clean[0][0].tolist()
    assert counts[0] == clean[1][0] > 0


@in_silence
@pytest.mark.parametrize("has_cuts", [False, True])
def test_rows_that_are_not_finite_are_counted(has_cuts: bool) -> None:
    """Behind the kept drafts comes the row's largest number, or where the draft alone has no distribution a
    sample of the target's; a request that is verified token by token is counted too."""
    _, given = with_rows_that_are_not_finite()
    if not has_cuts:
        given |= {"top_p": None}
    given["logits"][3, 60] = 40.0
    given["draft_slots"][2] = -1
    found = [torch.zeros(1, dtype=torch.int64, device=device) for device in ("cpu", DEVICE)]
    want = verify_block_reference(**packed(given | {"not_finite": found[0]}))
    got = run(given | {"not_finite": found[1]})
    assert got[0].tolist() == want[0].tolist()
    assert got[1].tolist() == want[1].tolist()
    assert got[0][1:4, 0].tolist() == [60, 0, 0]
    assert got[1].tolist()[1:] == [1, 1, 1, 1, 1, 2]
    assert found[1].tolist() == found[0].tolist() == [5]
    law = distribution(given["logits"][12], 1.0, 0, 0.999 if has_cuts else 1.0)
    drawn = float(given["uniforms"][12, 1])
    assert int(got[0][4, 0]) == int((law.cumsum(0) > drawn).int().argmax())


def test_options_by_slot_are_those_of_the_requests() -> None:
    given = batch(5, 97, torch.float32, "mixed", seed=9)
    given["draft_slots"][0] = 2
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
    ({"logits": torch.zeros(9, 4).T}, "with contiguous rows"),
    ({"width": 0}, "width: expected 1 at least, got 0"),
    ({"top_k": torch.ones(2)}, r"top_k: expected int32\[2\], contiguous, got float32\[2\]"),
    ({"uniforms": torch.zeros(4, 2)}, r"uniforms: expected float64\[4, 2\], contiguous, got float32"),
    ({"not_finite": torch.zeros(1)}, r"not_finite: expected int64\[1\], contiguous, got float32\[1\]"),
    ({"draft_logits": None}, "expected both or neither, got draft_slots alone"),
    ({"draft_slots": None}, "expected both or neither, got draft_logits alone"),
    ({"draft_logits": torch.zeros(2, 1, 9)}, r"\[slots, 2 or more, 9 or fewer\]"),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG, ids=[next(iter(wrong)) for wrong, _ in WRONG])
def test_wrong_shapes_are_refused(wrong: dict[str, Any], message: str) -> None:
    given = two_requests() | {"draft_logits": torch.zeros(2, 2, 9), "draft_slots": SLOTS}
    with pytest.raises(ValueError, match=message):
        verify_block(**packed(given | wrong))


@pytest.mark.skipif(not IS_GPU, reason="needs 10 GB of device memory")
@pytest.mark.parametrize("top_p", [None, 0.9])
def test_more_than_two_to_the_thirty_one_logits(top_p: float | None) -> None:
    """The draft logits as well: every draft is the last column, as p has it and, but for one, q too."""
    requests, vocabulary = 4100, 262_144
    logits = torch.zeros(2 * requests, vocabulary, dtype=torch.bfloat16, device=DEVICE)
    draft_logits = torch.zeros(2 * requests, 1, vocabulary, dtype=torch.bfloat16, device=DEVICE)
    logits[:, -1] = draft_logits[..., -1] = 100.0
    logits[-2, -1], logits[-2, -2] = -100.0, 100.0
    ones = torch.ones(requests, device=DEVICE)
    tokens, counts = verify_block(
        logits, torch.full((2 * requests,), vocabulary - 1, dtype=torch.int32, device=DEVICE),
        torch.arange(0, 2 * requests + 1, 2, dtype=torch.int32, device=DEVICE),
        Sampling(
            ones, None, None if top_p is None else ones * top_p, None, torch.arange(requests, device=DEVICE)
        ),
        torch.arange(2 * requests, device=DEVICE), width=2, draft_logits=draft_logits,
        not_finite=torch.zeros(1, dtype=torch.int64, device=DEVICE),
        draft_slots=torch.arange(requests, 2 * requests, dtype=torch.int32, device=DEVICE),
    )  # fmt: skip
    assert counts.tolist() == [2] * (requests - 1) + [1]
    assert tokens[-1].tolist() == [vocabulary - 2, NO_TOKEN]
    assert tokens[:-1].unique().tolist() == [vocabulary - 1]
