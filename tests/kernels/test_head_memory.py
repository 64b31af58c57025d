"""A head that rests and comes back, against the reference and against what it has really written."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from specctl_kernels.head_memory import HeadMemory, remember, see
from specctl_kernels.head_memory.reference import remember_reference, see_reference
from specctl_kernels.peagle_inputs import DraftRows, peagle_inputs
from specctl_kernels.peagle_inputs.reference import peagle_inputs_reference

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SLOTS, BLOCKS, STATE, HIDDEN, DRAFTS, MOST_LEN = 5, 90, 12, 8, 3, 128
MOST_ROWS = 600
_MEMORY = ("states", "positions", "tokens", "blocks", "unseen")
_ROWS = {
    "ids": torch.int32, "positions": torch.int64, "slots": torch.int64, "starts": torch.int32,
    "seq_lens": torch.int32, "hidden": torch.float32, "sample_rows": torch.int64,
    "sample_positions": torch.int64, "sample_requests": torch.int64,
}  # fmt: skip


def rows_on(device: torch.device) -> DraftRows:
    sizes = dict.fromkeys(_ROWS, (MOST_ROWS,)) | {
        "starts": (SLOTS + 1,), "seq_lens": (SLOTS,), "hidden": (MOST_ROWS, HIDDEN),
        "sample_rows": (SLOTS * DRAFTS,), "sample_positions": (SLOTS * DRAFTS,),
        "sample_requests": (SLOTS * DRAFTS,),
    }  # fmt: skip
    return DraftRows(**{k: torch.zeros(sizes[k], dtype=dtype, device=device) for k, dtype in _ROWS.items()})


class Serving:
    """Requests that come, prefill, decode and go, with blocks from one pool."""

    def __init__(self, block_tokens: int, seed: int) -> None:
        self.random = random.Random(seed)
        self.block_tokens = block_tokens
        self.free = list(range(1, BLOCKS))
        self.slots: dict[int, list[int]] = {}
        self.length: dict[int, int] = {}
        self.written: dict[tuple[int, int], int] = {}
        """By block and offset: the slot's birth number of whoever wrote the head's key there last."""

    def step(self) -> dict[str, torch.Tensor]:
        generator = self.random
        for slot in list(self.slots):
            if self.length[slot] > MOST_LEN - 40 or generator.random() < 0.04:
                self.free += self.slots.pop(slot)
        for slot in range(SLOTS):
            if slot not in self.slots and generator.random() < 0.5:
                self.slots[slot], self.length[slot] = [], 0
        chosen = generator.sample(sorted(self.slots), max(len(self.slots) - 1, 1)) if self.slots else [0]
        self.slots.setdefault(chosen[0], [])
        self.length.setdefault(chosen[0], 0)
        queries = [
            generator.randint(1, 30) if self.length[s] == 0 else generator.randint(1, 4) for s in chosen
        ]
        rejected = [generator.randint(0, query - 1) if query < 5 else 0 for query in queries]
        table = torch.zeros((SLOTS, MOST_LEN // self.block_tokens + 2), dtype=torch.int32)
        for req, (slot, query) in enumerate(zip(chosen, queries, strict=True)):
            while len(self.slots[slot]) * self.block_tokens < self.length[slot] + query + DRAFTS:
                self.slots[slot].append(self.free.pop(0))
            table[req, : len(self.slots[slot])] = torch.tensor(self.slots[slot])
        first = [self.length[slot] for slot in chosen]
        for slot, query, lost in zip(chosen, queries, rejected, strict=True):
            self.length[slot] += query - lost
        total = sum(queries)
        at = torch.cat([torch.arange(f, f + q) for f, q in zip(first, queries, strict=True)])
        return {
            "target_ids": torch.randint(10, 99, (total + 8,), dtype=torch.int32),
            "target_positions": at,
            "target_starts": torch.tensor([0, *torch.tensor(queries).cumsum(0).tolist()], dtype=torch.int32),
            "requests": torch.tensor(chosen),
            "num_sampled": torch.ones(len(chosen), dtype=torch.int32),
            "num_rejected": torch.tensor(rejected, dtype=torch.int32),
            "last_sampled": torch.randint(100, 200, (SLOTS,)),
            "next_prefill": torch.randint(200, 300, (SLOTS,), dtype=torch.int32),
            "blocks": table,
        }


def equal(got: Any, expected: Any, names: Any) -> None:
    for name in names:
        assert torch.equal(getattr(got, name).cpu(), getattr(expected, name)), name


def on(device: torch.device, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.to(device) for name, value in given.items()}


def checked_attention(
    serving: Serving,
    given: dict[str, torch.Tensor],
    rows: DraftRows,
    table: torch.Tensor,
    seq_lens: torch.Tensor,
) -> int:
    """Writes down the pass's keys; every full block that is attended to must have been written."""
    size, attended = serving.block_tokens, 0
    for place in rows.slots.tolist():
        if place >= 0:
            serving.written[place // size, place % size] = 1
    for req, slot in enumerate(given["requests"].tolist()):
        first = int(given["target_positions"][given["target_starts"][req]])
        blocks = serving.slots[slot]
        cut = (int(rows.seq_lens[req]) - int(seq_lens[req])) // size
        assert table[req, : len(blocks) - cut].tolist()[: first // size - cut] == blocks[cut : first // size]
        for position in range(cut * size, first // size * size):
            assert serving.written.get((blocks[position // size], position % size)) == 1
            attended += 1
    return attended


@pytest.mark.parametrize(
    ("block_tokens", "ring", "steps", "attended_min"), [(16, 16, 24, 100), (8, 4, 24, 20), (64, 32, 8, 0)]
)
def test_rest_and_return_as_the_reference(
    block_tokens: int, ring: int, steps: int, attended_min: int
) -> None:
    """attended_min: positions of full blocks that the head attended to, lest nothing was checked."""
    serving = Serving(block_tokens, seed=ring)
    memory, reference = (
        HeadMemory(SLOTS, ring, STATE, torch.float32, device) for device in (DEVICE, torch.device("cpu"))
    )
    memory.set_blocks(BLOCKS)
    reference.set_blocks(BLOCKS)
    is_at_rest, rested, attended = False, False, 0
    masked = torch.randn(HIDDEN)
    settings = {
        "block_tokens": block_tokens,
        "mask_id": 7,
        "drafts": DRAFTS,
        "width": 0,
        "max_model_len": MOST_LEN,
    }
    for _ in range(steps):
        given = serving.step()
        was_at_rest, is_at_rest = is_at_rest, serving.random.random() < (0.8 if is_at_rest else 0.3)
        if is_at_rest:
            rested = True
            states = torch.randn(given["target_ids"].shape[0], STATE)
            remember(memory, **on(DEVICE, given | {"target_states": states}), block_tokens=block_tokens)
            remember_reference(reference, **given, target_states=states, block_tokens=block_tokens)
            forget(serving, given)
            equal(memory, reference, _MEMORY)
            continue
        behind = ring if was_at_rest else 0
        n = given["requests"].shape[0]
        behind_hidden = torch.randn(n * behind, HIDDEN) if behind else None
        hidden = torch.randn(given["target_ids"].shape[0], HIDDEN)
        layout = given | {"target_hidden": hidden, "mask_hidden": masked}
        expected, got = rows_on(torch.device("cpu")), rows_on(DEVICE)
        longest = int(given["target_starts"].diff().max())
        peagle_inputs_reference(expected, **layout, **settings, memory=reference, behind_hidden=behind_hidden)
        peagle_inputs(
            got, **on(DEVICE, layout), **settings, longest_query=longest, memory=memory,
            behind_hidden=None if behind_hidden is None else behind_hidden.to(DEVICE),
        )  # fmt: skip
        equal(got, expected, _ROWS)
        names = ("target_positions", "target_starts", "requests", "num_rejected", "blocks")
        places = {name: given[name] for name in names}
        table, seq_lens = torch.zeros_like(given["blocks"]), expected.seq_lens.clone()
        on_device = table.clone().to(DEVICE), seq_lens.clone().to(DEVICE)
        flags = {"behind": behind, "has_unseen": rested, "block_tokens": block_tokens}
        see_reference(reference, table, seq_lens, **places, **flags)
        see(memory, *on_device, **on(DEVICE, places), **flags)
        assert torch.equal(on_device[0].cpu(), table)
        assert torch.equal(on_device[1].cpu(), seq_lens)
        equal(memory, reference, _MEMORY)
        attended += checked_attention(serving, given, expected, table, seq_lens)
    assert attended >= attended_min


def forget(serving: Serving, given: dict[str, torch.Tensor]) -> None:
    size = serving.block_tokens
    for req, slot in enumerate(given["requests"].tolist()):
        start, stop = given["target_starts"][req : req + 2].tolist()
        for row in range(stop - start - int(given["num_rejected"][req])):
            position = int(given["target_positions"][start]) + row
            serving.written[serving.slots[slot][position // size], position % size] = 0


def test_what_is_kept_comes_back_oldest_first() -> None:
    memory = HeadMemory(2, 4, 3, torch.float32, DEVICE)
    memory.states[1] = torch.arange(12).view(4, 3)  # position 8 is in entry 0
    got = memory.inputs(torch.tensor([1, -1], device=DEVICE), torch.tensor([11, 3], device=DEVICE), 2)
    assert got[:2, 0].tolist() == [3.0, 6.0]


def test_a_ring_that_is_no_power_of_two() -> None:
    with pytest.raises(ValueError, match="ring: expected a power of two, got 12"):
        HeadMemory(1, 12, 3, torch.float32, DEVICE)
