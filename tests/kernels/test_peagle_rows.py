"""The rows of a uniform draft pass: kernel, reference and by hand."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from specctl_kernels.peagle_rows import PassBuffers, PassRows, peagle_rows
from specctl_kernels.peagle_rows.reference import peagle_rows_reference

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
POOL, MOST_LEN, MASK_ID = 50, 90, 777
BATCHES = [
    pytest.param(2, 1, [1, 2], id="one draft"),
    pytest.param(6, 5, [1, 6, 3], id="five drafts"),
    pytest.param(3, 5, [3, 1, 2], id="fewer verified than prepared"),
    pytest.param(1, 5, [1], id="after a prompt"),
    pytest.param(10, 5, [0, 10, 4], id="after a rest"),
    pytest.param(9, 8, list(range(1, 10)) * 4, id="36 requests"),
]


def given(width: int, known: list[int], hidden_size: int, dtype: torch.dtype) -> dict[str, Any]:
    torch.manual_seed(width * 100 + hidden_size)
    n = len(known)
    return {
        "tokens": torch.randint(0, 500, (n, width), dtype=torch.int32),
        "hidden": torch.randn(n, width, hidden_size).to(dtype),
        "known": torch.tensor(known, dtype=torch.int32),
        "mask_hidden": torch.randn(hidden_size).to(dtype),
        "requests": torch.randperm(POOL)[:n],
        "starts": torch.randint(0, MOST_LEN - 20, (n,)),
        "slot_table": torch.randperm(POOL * MOST_LEN).view(POOL, MOST_LEN).to(torch.int32),
    }


def made(call: Any, inputs: dict[str, Any], drafts: int) -> PassRows:
    on_device = {name: value.to(DEVICE) for name, value in inputs.items()}
    return PassRows(*(one.cpu() for one in call(**on_device, mask_id=MASK_ID, drafts=drafts)))


def assert_same(found: PassRows, expected: PassRows) -> None:
    for name in PassRows._fields:
        one, wanted = getattr(found, name), getattr(expected, name)
        assert one.dtype == wanted.dtype, name
        assert torch.equal(one, wanted), name


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not written shows."""
    new_empty = torch.Tensor.new_empty
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda *a, **k: new_empty(*a, **k).fill_(-77))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("hidden_size", [8, 20, 1500])
@pytest.mark.parametrize(("width", "drafts", "known"), BATCHES)
@pytest.mark.usefixtures("poisoned")
def test_rows_as_the_reference(
    width: int, drafts: int, known: list[int], hidden_size: int, dtype: torch.dtype
) -> None:
    inputs = given(width, known, hidden_size, dtype)
    assert_same(made(peagle_rows, inputs, drafts), made(peagle_rows_reference, inputs, drafts))


def by_hand(inputs: dict[str, Any], drafts: int) -> PassRows:
    """Request by request, as the paper has it; what nobody reads are mask rows too."""
    rows = 2 * drafts
    parts: list[tuple[Any, ...]] = []
    for req, number in enumerate(inputs["known"].tolist()):
        masks = inputs["mask_hidden"].expand(rows - number, -1)
        start = int(inputs["starts"][req])
        states = torch.cat([inputs["hidden"][req, :number], masks])
        parts.append(
            (
                inputs["tokens"][req, :number].tolist() + [MASK_ID] * (rows - number),
                states,
                inputs["slot_table"][int(inputs["requests"][req]), start : start + rows].tolist(),
                req * rows + min(max(number - 1, 0), rows - drafts),
                states[max(number - 1, 0)],
            )
        )
    ids, states, slots, first, last = zip(*parts, strict=True)
    return PassRows(
        torch.tensor(ids).flatten(), torch.cat(states), torch.tensor(slots).flatten(), torch.tensor(first),
        torch.stack(last),
    )  # fmt: skip


@pytest.mark.parametrize(("width", "drafts", "known"), BATCHES)
def test_the_reference_has_known_rows_first_and_masks_after_them(
    width: int, drafts: int, known: list[int]
) -> None:
    inputs = given(width, known, 3, torch.float32)
    assert_same(made(peagle_rows_reference, inputs, drafts), by_hand(inputs, drafts))


@pytest.mark.parametrize("call", [peagle_rows, peagle_rows_reference])
def test_the_mask_state_takes_the_states_dtype_and_states_may_lie_apart(call: Any) -> None:
    inputs = given(4, [1, 4, 2], 24, torch.bfloat16)
    inputs["mask_hidden"] = inputs["mask_hidden"].float()
    wide = torch.randn(3, 8, 40).to(torch.bfloat16).to(DEVICE)
    inputs["hidden"] = wide[:, 2:6, 8:32]
    found = made(call, inputs, 3)
    assert found.hidden.dtype == torch.bfloat16
    assert_same(
        found,
        by_hand(
            {**inputs, "mask_hidden": inputs["mask_hidden"].bfloat16(), "hidden": wide.cpu()[:, 2:6, 8:32]}, 3
        ),
    )


def buffers(padded: int, rows: int, hidden_size: int, dtype: torch.dtype) -> PassBuffers:
    def full(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.full(shape, -77, dtype=dtype, device=DEVICE)

    return PassBuffers(
        full(padded * rows), full(padded * rows, hidden_size, dtype=dtype), full(padded * rows), full(padded),
        full(padded * rows), full(padded), full(padded, dtype=torch.int32), full(padded), 33,
    )  # fmt: skip


@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize(("width", "drafts", "known"), BATCHES)
def test_rows_into_memory_that_a_captured_pass_reads(
    width: int, drafts: int, known: list[int], padding: int
) -> None:
    inputs, rows, n = given(width, known, 20, torch.bfloat16), 2 * drafts, len(known)
    into = buffers(n + padding, rows, 20, torch.bfloat16)
    assert_same(made(partial(peagle_rows, into=into), inputs, drafts), by_hand(inputs, drafts))
    starts = inputs["starts"]
    positions = starts[:, None] + torch.arange(rows)
    assert into.slots[n * rows :].tolist() == [0] * padding * rows
    assert into.positions.tolist() == [*positions.flatten().tolist(), *[0] * padding * rows]
    assert into.lengths.tolist() == [*(starts + rows).tolist(), *[33] * padding]
    assert into.row_counts.tolist() == [rows] * (n + padding)
    assert into.requests.tolist() == [*inputs["requests"].tolist(), *[0] * padding]


def test_buffers_that_do_not_fit() -> None:
    inputs = given(4, [1, 2], 8, torch.float32)
    for into in (
        buffers(1, 6, 8, torch.float32),
        buffers(2, 8, 8, torch.float32),
        buffers(2, 6, 9, torch.float32),
    ):
        with pytest.raises(ValueError, match="expected buffers of at least 2 requests with 6 rows"):
            peagle_rows(**inputs, mask_id=0, drafts=3, into=into)


def test_no_requests() -> None:
    inputs = given(4, [1], 8, torch.float32)
    for name in ("tokens", "hidden", "known", "requests", "starts"):
        inputs[name] = inputs[name][:0]
    assert [tuple(one.shape) for one in made(peagle_rows, inputs, 3)] == [(0,), (0, 8), (0,), (0,), (0, 8)]


def test_shapes_that_do_not_fit() -> None:
    inputs = given(4, [1, 2], 8, torch.float32)
    with pytest.raises(
        ValueError, match=r"expected hidden \[2, 4, H\] and mask_hidden \[H\], got \(2, 3, 8\)"
    ):
        peagle_rows(**{**inputs, "hidden": inputs["hidden"][:, :3]}, mask_id=0, drafts=3)
    with pytest.raises(ValueError, match="expected contiguous rows"):
        peagle_rows(**{**inputs, "hidden": inputs["hidden"].mT.contiguous().mT}, mask_id=0, drafts=3)
