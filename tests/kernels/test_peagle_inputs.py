"""The layout of a parallel draft pass against its reference."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch
from specctl_kernels.peagle_inputs import DraftRows, peagle_inputs
from specctl_kernels.peagle_inputs.reference import peagle_inputs_reference

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SLOTS, MOST_ROWS, MOST_LEN, BLOCK_TOKENS, MASK_ID = 9, 400, 96, 16, 7


def buffers(requests: int, drafts: int, hidden: int) -> DraftRows:
    """Poisoned, so that what is not written shows."""
    return DraftRows(
        ids=torch.full((MOST_ROWS,), -77, dtype=torch.int32),
        positions=torch.full((MOST_ROWS,), -77, dtype=torch.int64),
        slots=torch.full((MOST_ROWS,), -77, dtype=torch.int64),
        starts=torch.full((requests + 1,), -77, dtype=torch.int32),
        seq_lens=torch.full((requests,), -77, dtype=torch.int32),
        hidden=torch.full((MOST_ROWS, hidden), -77.0),
        sample_rows=torch.full((requests * drafts,), -77, dtype=torch.int64),
        sample_positions=torch.full((requests * drafts,), -77, dtype=torch.int64),
        sample_requests=torch.full((requests * drafts,), -77, dtype=torch.int64),
    )


@pytest.mark.parametrize("hidden", [8, 20, 600])
@pytest.mark.parametrize(
    ("drafts", "is_uniform", "queries"),
    [
        (1, True, [1, 1]),
        (5, True, [6, 6, 6, 6, 6]),
        (3, True, [4, 1, 2, 4]),
        (2, True, [1]),
        (4, False, [40, 1, 5, 17, 3]),
        (1, False, [9, 1]),
        (8, False, [2, 33]),
    ],
)
def test_layout_as_the_reference(drafts: int, is_uniform: bool, queries: list[int], hidden: int) -> None:
    generator = random.Random(drafts * 1000 + len(queries))
    n, total = len(queries), sum(queries)
    width = 2 * max(drafts, max(queries) - 1) if is_uniform else 0
    starts = torch.tensor([0, *torch.tensor(queries).cumsum(0).tolist()], dtype=torch.int32)
    first = [generator.randint(0, MOST_LEN - query) for query in queries]
    first[0] = MOST_LEN - queries[0]  # at the model's end, drafts find no place
    positions = torch.cat([torch.arange(at, at + query) for at, query in zip(first, queries, strict=True)])
    sampled = [int(generator.random() < 0.8) for _ in queries]
    rejected = [
        generator.randint(0, query - 1) if one else 0 for query, one in zip(queries, sampled, strict=True)
    ]
    requests = generator.sample(range(SLOTS), n)
    requests[-1] = -1 if n > 2 else requests[-1]
    blocks = torch.randperm(n * 6).add(1).reshape(n, 6).to(torch.int32)
    blocks[0, -1] = 0
    given = {
        "target_ids": torch.randint(10, 99, (total + 8,), dtype=torch.int32),
        "target_positions": positions,
        "target_starts": starts,
        "target_hidden": torch.randn(total + 8, hidden),
        "mask_hidden": torch.randn(hidden),
        "requests": torch.tensor(requests),
        "num_sampled": torch.tensor(sampled, dtype=torch.int32),
        "num_rejected": torch.tensor(rejected, dtype=torch.int32),
        "last_sampled": torch.randint(100, 200, (SLOTS,)),
        "next_prefill": torch.randint(200, 300, (SLOTS,), dtype=torch.int32),
        "blocks": blocks,
    }
    settings = {
        "block_tokens": BLOCK_TOKENS, "mask_id": MASK_ID, "drafts": drafts, "width": width,
        "max_model_len": MOST_LEN,
    }  # fmt: skip
    expected = buffers(SLOTS, drafts, hidden)
    peagle_inputs_reference(expected, **given, **settings)
    got = buffers(SLOTS, drafts, hidden)
    on_device = DraftRows(**{k: getattr(got, k).to(DEVICE) for k in got.__dataclass_fields__})
    moved = {key: value.to(DEVICE) for key, value in given.items()}
    peagle_inputs(on_device, **moved, longest_query=max(queries), **settings)
    for field in dataclasses.fields(DraftRows):
        got_field = getattr(on_device, field.name).cpu()
        assert torch.equal(got_field, getattr(expected, field.name)), field.name


def test_a_width_too_small() -> None:
    one = torch.ones(1, dtype=torch.int64)
    with pytest.raises(ValueError, match="width: expected at least 5, got 4"):
        peagle_inputs(
            buffers(1, 2, 8), one, one, torch.tensor([0, 4]), torch.zeros(4, 8), one, one, one, one, one, one,
            one[None], longest_query=4, block_tokens=16, mask_id=0, drafts=2, width=4, max_model_len=9,
        )  # fmt: skip
