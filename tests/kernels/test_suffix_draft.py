"""The device's suffix drafts against the host's."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from specctl_kernels.suffix_draft import DeviceCorpus, SuffixDraftRule, suffix_draft

from specctl.draft import device_rule
from specctl.draft.calibration import ENTRIES
from specctl.draft.chains import ROW_WORDS
from specctl.draft.frozen_corpus import build_block
from specctl.draft.suffix_index import SuffixIndex, SuffixIndexOptions

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
WIDTH = 6


def streams(vocabulary: int, count: int, seed: int) -> list[list[int]]:
    generator = random.Random(seed)
    pieces = [[generator.randrange(vocabulary) for _ in range(generator.randint(2, 9))] for _ in range(6)]
    texts = []
    for _ in range(count):
        text: list[int] = []
        while len(text) < generator.randint(0, 70):
            text += generator.choice(pieces)
        texts.append(text)
    return texts


def outcomes() -> dict[str, np.ndarray]:
    """Of drafts from a request's own text most come true, of those from the corpus few."""
    entries = np.arange(ENTRIES)
    parts = [
        np.column_stack([0 * entries + i, entries, 0 * entries + 2, 0 * entries + 1 - i]) for i in (0, 1)
    ]
    return {"": np.concatenate(parts)}


@pytest.mark.parametrize(
    ("vocabulary", "min_match", "budget", "has_outcomes"),
    [(2, 1, 6, True), (9, 1, 1, False), (40, 2, 5, True), (200_000, 1, 6, False)],
)
@pytest.mark.parametrize("has_corpus", [True, False])
def test_drafts_as_the_host(
    vocabulary: int, min_match: int, budget: int, has_outcomes: bool, has_corpus: bool
) -> None:
    options = SuffixIndexOptions(
        index_bytes=2**17, min_token_prob=0.05, min_match_tokens=min_match, max_spec_factor=2.5
    )
    requests = streams(vocabulary, 7, vocabulary)
    index = SuffixIndex(options, len(requests), 256)
    rule = SuffixDraftRule(**device_rule.rule_of(options))
    corpus = DeviceCorpus(2**20, ROW_WORDS, DEVICE)
    if has_corpus:
        outputs = [np.array(text, np.int32) for text in streams(vocabulary, 20, vocabulary)]
        block = build_block(outputs, index.rungs)
        index.attach(block)
        for _ in range(3):  # both halves
            corpus.commit(corpus.stage(block.mem, block.row))
    if has_outcomes:
        block = replace(build_block([], index.rungs) if not has_corpus else block, outcomes=outcomes())
        index.attach(block)
    table = torch.from_numpy(index.outcomes.chances_of()).to(DEVICE)
    tokens = torch.zeros((len(requests), 256), dtype=torch.int32)
    for slot, text in enumerate(requests):
        index.start(slot, np.array(text, np.int32))
        tokens[slot, : len(text)] = torch.tensor(text, dtype=torch.int32)
    order = np.random.default_rng(0).permutation(len(requests)).astype(np.int32)
    batch = index.propose_batch(order, np.full(order.size, budget, np.int32))
    drafts = torch.zeros((order.size, WIDTH), dtype=torch.int64, device=DEVICE)
    probs = torch.zeros((order.size, WIDTH), dtype=torch.float32, device=DEVICE)
    heads = torch.zeros((3, order.size), dtype=torch.int32, device=DEVICE)
    suffix_draft(
        tokens.to(DEVICE),
        torch.tensor([len(text) for text in requests], dtype=torch.int32, device=DEVICE),
        torch.from_numpy(order).to(DEVICE),
        torch.ones(order.size, dtype=torch.int32, device=DEVICE),
        torch.ones(len(requests), dtype=torch.int32, device=DEVICE),
        corpus,
        table,
        rule,
        torch.tensor(device_rule.limits_of(options), dtype=torch.float64, device=DEVICE),
        budget,
        drafts,
        probs,
        heads,
    )
    assert heads.cpu().numpy().tolist() == batch.heads.tolist()
    assert batch.lengths.sum() > 0
    for row, slot in enumerate(order.tolist()):
        length = int(batch.lengths[row])
        assert drafts[row, :length].tolist() == batch.tokens[row, :length].tolist()
        np.testing.assert_allclose(probs[row, :length].cpu(), batch.probs[row, :length], rtol=1e-6)
        last = requests[slot][-1] if requests[slot] else 0
        assert drafts[row, length:budget].tolist() == [last] * (budget - length)
