"""A head that rests on the V1 runner, on steps as vLLM lays them out, without a server: whenever it drafts,
its KV cache holds what it would hold had it run in every step."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from specctl_vllm.compat.resting_head import RING, RestingHead, wrap_propose

DRAFTS, BLOCK, BLOCKS = 4, 16, 32
WIDTH = 3
"""Of a state."""


@dataclass
class Metadata:
    """What of vLLM's CommonAttentionMetadata a pass reads."""

    query_start_loc: torch.Tensor
    query_start_loc_cpu: torch.Tensor
    seq_lens: torch.Tensor
    num_reqs: int
    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    block_table_tensor: torch.Tensor
    slot_mapping: torch.Tensor
    seq_lens_cpu_upper_bound: torch.Tensor | None = None


class Head:
    """Writes what it reads at each place of its cache, and wants rows without gaps."""

    def __init__(self, max_num_tokens=2048):
        self.max_num_tokens = max_num_tokens
        self.speculative_config = SimpleNamespace(num_speculative_tokens=DRAFTS)
        self.cache = {}
        self.passes = self.rows = 0
        self.specctl_resting = RestingHead(self)

    def read(self, **given):
        """vLLM's propose."""
        metadata = given["common_attn_metadata"]
        starts = metadata.query_start_loc_cpu.tolist()
        ids, positions = given["target_token_ids"], given["target_positions"]
        assert metadata.query_start_loc.tolist() == starts
        assert len(ids) == metadata.num_actual_tokens == starts[-1] <= self.max_num_tokens
        assert metadata.max_query_len == np.diff(starts).max()
        assert metadata.seq_lens_cpu_upper_bound.tolist() == metadata.seq_lens.tolist()
        assert metadata.seq_lens_cpu_upper_bound.dtype == metadata.seq_lens.dtype == torch.int32
        shifted = torch.roll(ids, -1)
        last = given["token_indices_to_sample"]
        shifted[metadata.query_start_loc[1:].long() - 1 if last is None else last] = given["next_token_ids"]
        for request, (start, end) in enumerate(pairwise(starts)):
            there = positions[start:end].tolist()
            assert there == list(range(there[0], there[0] + end - start))
            assert metadata.seq_lens[request] == there[-1] + 1
            table = metadata.block_table_tensor[request]
            for row in range(start, end):
                at = int(positions[row])
                slot = int(table[at // BLOCK]) * BLOCK + at % BLOCK
                assert int(metadata.slot_mapping[row]) == slot
                state = tuple(given["target_hidden_states"][row].tolist())
                self.cache[slot] = (at, int(shifted[row]), state)
        self.passes += 1
        self.rows += len(ids)
        return torch.zeros(metadata.num_reqs, given["num_speculative_tokens"], dtype=torch.int64)

    propose = wrap_propose(read)


@dataclass
class Request:
    name: str
    tokens: list[int]
    """The prompt, then what was emitted."""
    first_block: int
    computed: int = 0
    drafts: int = 0
    """That wait to be verified."""
    table: list[int] = field(default_factory=list)

    def __post_init__(self):
        self.table = list(range(self.first_block, self.first_block + BLOCKS))


def state(name, position):
    return torch.tensor([float(sum(name.encode())), float(position), float(sum(name.encode()) * position)])


def step(head, requests, wanted, rng, *, is_known=True, chunk=64, ended=()):
    """One step of the target over these requests, and the drafting behind it."""
    ids, positions, states, slots, counts, rejected, following = [], [], [], [], [], [], []
    for request in requests:
        is_prompt = request.computed + 1 < len(request.tokens)
        count = min(chunk, len(request.tokens) - request.computed) if is_prompt else 1
        refused = 0 if is_prompt else rng.randint(0, request.drafts)
        drafts = 0 if is_prompt else request.drafts
        known = request.tokens[request.computed : request.computed + count]
        accepted = [rng.randint(1, 999) for _ in range(drafts - refused)]
        wrong = [rng.randint(1, 999) for _ in range(refused)]
        rows = known + accepted + wrong
        places = range(request.computed, request.computed + len(rows))
        ids += rows
        positions += places
        states += [state(request.name, at) for at in places]
        slots += [request.table[at // BLOCK] * BLOCK + at % BLOCK for at in places]
        counts.append(len(rows))
        rejected.append(refused)
        request.computed += len(rows) - refused
        request.tokens += accepted
        if request.computed == len(request.tokens):
            request.tokens.append(rng.randint(1, 999))
        following.append(request.tokens[request.computed])
        request.drafts = wanted if is_known else 0
    starts = torch.tensor([0, *np.cumsum(counts)], dtype=torch.int32)
    has_drafts = any(rejected) or any(count > 1 for count in counts)
    seq_lens = torch.tensor([positions[end - 1] + 1 for end in starts[1:].tolist()], dtype=torch.int32)
    metadata = Metadata(
        starts, starts.clone(), seq_lens, len(requests), len(ids), max(counts), 512,
        torch.tensor([request.table for request in requests]), torch.tensor(slots), seq_lens.clone(),
    )  # fmt: skip
    refused = np.array(rejected, np.intp)
    names = [request.name for request in requests]
    head.specctl_resting.drop(ended)
    head.specctl_resting.begin(names, refused if is_known else None)
    drafts = head.propose(
        num_speculative_tokens=wanted,
        target_token_ids=torch.tensor(ids, dtype=torch.int32),
        target_positions=torch.tensor(positions),
        target_hidden_states=torch.stack(states),
        next_token_ids=torch.tensor(following, dtype=torch.int32),
        token_indices_to_sample=starts[1:].long() - 1 - torch.from_numpy(refused) if has_drafts else None,
        sampling_metadata=None,
        common_attn_metadata=metadata,
        num_rejected_tokens_gpu=torch.from_numpy(refused) if has_drafts else None,
    )
    assert tuple(drafts.shape) == (len(requests), wanted)


def assert_complete(head, request):
    for at in range(request.computed):
        slot = request.table[at // BLOCK] * BLOCK + at % BLOCK
        expected = (at, request.tokens[at + 1], tuple(state(request.name, at).tolist()))
        assert head.cache.get(slot) == expected, (request.name, at)


def request(name, at, prompt=20):
    return Request(name, list(range(1, prompt + 1)), at * BLOCKS)


def test_a_pass_reads_what_gathered():
    head, rng, one = Head(), random.Random(0), request("a", 0)
    step(head, [one], 0, rng)
    assert head.passes == 1
    for _ in range(RING):
        step(head, [one], 0, rng)
    assert head.passes == 1
    step(head, [one], 0, rng)
    assert (head.passes, head.rows) == (2, 20 + RING)
    step(head, [one], DRAFTS, rng)
    # The one that waited, then the step's own.
    assert (head.passes, head.rows) == (4, 20 + RING + 2)
    assert_complete(head, one)


def test_a_request_that_misses_steps_keeps_its_rows():
    head, rng, one, other = Head(), random.Random(0), request("a", 0), request("b", 1)
    step(head, [one, other], 0, rng)
    for _ in range(3):
        step(head, [one, other], 0, rng)
    step(head, [one], DRAFTS, rng)
    assert_complete(head, one)
    one.drafts = 0
    step(head, [other, one], DRAFTS, rng)
    assert_complete(head, one)
    assert_complete(head, other)


def test_a_request_that_begins_anew_has_nothing_held():
    head, rng, one = Head(), random.Random(0), request("a", 0)
    step(head, [one], 0, rng)
    step(head, [one], 0, rng)
    one.computed, one.table = 0, [block + 3 * BLOCKS for block in one.table]
    step(head, [one], 0, rng, ended=["a"])
    step(head, [one], DRAFTS, rng)
    assert_complete(head, one)


def test_unknown_rejections_let_it_run():
    head, rng, one = Head(), random.Random(0), request("a", 0)
    step(head, [one], 0, rng, is_known=False)
    step(head, [one], 0, rng, is_known=False)
    assert head.passes == 1
    one.drafts = 2
    step(head, [one], 0, rng, is_known=False)
    assert head.passes == 3
    assert_complete(head, one)


def test_rows_of_all_requests_fit_into_one_pass():
    head, rng = Head(max_num_tokens=24), random.Random(0)
    requests = [request(name, at, prompt=3) for at, name in enumerate("abcd")]
    for _ in range(40):
        step(head, requests, 0, rng)
    step(head, requests, DRAFTS, rng)
    for one in requests:
        assert_complete(head, one)


@pytest.mark.parametrize("seed", range(40))
def test_any_course_of_steps(seed):
    rng, head = random.Random(seed), Head(max_num_tokens=(2048, 512, 256)[seed % 3])
    running, made = [], 0
    for _ in range(120):
        ended = []
        if running and rng.random() < 0.05:
            ended.append(running.pop(rng.randrange(len(running))).name)
        if len(running) < 4 and rng.random() < 0.2:
            running.append(request(f"r{made}", made, prompt=rng.randint(2, 90)))
            made += 1
        if running and rng.random() < 0.03:
            again = rng.choice(running)
            again.computed = again.drafts = 0
            ended.append(again.name)
        batch = [one for one in running if rng.random() < 0.9 and len(one.tokens) < 400]
        if not batch:
            head.specctl_resting.drop(ended)
            continue
        rng.shuffle(batch)
        # Drafts of another source are verified while the head rests, as a hybrid's are.
        wanted = rng.choice([0, 0, 0, 0, DRAFTS])
        step(head, batch, wanted, rng, ended=ended)
        for one in batch:
            one.drafts = rng.randint(0, DRAFTS)
        if wanted:
            for one in batch:
                assert_complete(head, one)
    assert head.passes
