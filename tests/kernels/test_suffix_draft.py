"""The device's suffix drafts against the host's."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.device_drafts import WIDTH, OnDevice

from specctl.draft.calibration import ENTRIES
from specctl.draft.frozen_corpus import build_block
from specctl.draft.suffix_index import SuffixIndex, SuffixIndexOptions
from specctl.draft.token_odds import PLACES


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


def set_odds(index: SuffixIndex) -> None:
    """Of every place another one, from 1/2 to 2."""
    index.outcomes.tokens.odds[:] = 2.0 ** np.random.default_rng(3).uniform(-1, 1, PLACES)


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
    outputs = [np.array(text, np.int32) for text in streams(vocabulary, 20, vocabulary)]
    block = build_block(outputs if has_corpus else [], index.rungs)
    index.attach(replace(block, outcomes=outcomes()) if has_outcomes else block)
    if has_outcomes:
        set_odds(index)
    device = OnDevice(options, requests, index.outcomes)
    if has_corpus:
        for _ in range(3):  # both halves
            device.corpus.commit(device.corpus.stage(block.mem, block.row))
    for slot, text in enumerate(requests):
        index.start(slot, np.array(text, np.int32))
    order = np.random.default_rng(0).permutation(len(requests)).astype(np.int32)
    batch = index.propose_batch(order, np.full(order.size, budget, np.int32))
    drafts, probs, heads = device.draft(requests, order, budget)
    assert heads.numpy().tolist() == batch.heads.tolist()
    assert batch.lengths.sum() > 0
    for row, slot in enumerate(order.tolist()):
        length = int(batch.lengths[row])
        assert drafts[row, :length].tolist() == batch.tokens[row, :length].tolist()
        np.testing.assert_allclose(probs[row, :length], batch.probs[row, :length], rtol=1e-6)
        last = requests[slot][-1] if requests[slot] else 0
        assert drafts[row, length:budget].tolist() == [last] * (budget - length)


@pytest.mark.parametrize("least", [0.02, 0.4], ids=["long drafts", "drafts that end as improbable"])
def test_outcomes_are_counted_as_on_the_host(least: int) -> None:
    """Texts that go on as drafted, in part; the first tokens are sampled, as on a server."""
    options = SuffixIndexOptions(index_bytes=2**17, min_token_prob=least)
    generator = random.Random(0)
    requests = [text[:60] + text[:20] for text in streams(6, 8, 3)]
    index = SuffixIndex(options, len(requests), 256)
    index.outcomes.is_learning = False
    block = build_block([np.array(text, np.int32) for text in streams(6, 20, 3)], index.rungs)
    index.attach(block)
    set_odds(index)
    device = OnDevice(options, requests, index.outcomes)
    device.corpus.commit(device.corpus.stage(block.mem, block.row))
    order = np.arange(len(requests), dtype=np.int32)
    for slot, text in enumerate(requests):
        index.start(slot, np.array(text, np.int32))
    drafts, budget = torch.zeros((len(requests), WIDTH), dtype=torch.int64), WIDTH
    for step in range(10):
        for slot, text in enumerate(requests):
            accepted = drafts[slot, : generator.randint(0, 4) if step else 0].tolist()
            new = [*accepted, generator.randrange(6)]
            text += new
            index.extend(slot, np.array(new, np.int32))
        index.propose_batch(order, np.full(order.size, budget, np.int32))
        drafts, _, _ = device.draft(requests, order, budget)
    counted = device.assert_counted_as(index)
    assert counted[..., 0].sum(axis=1).min() > 10
    assert counted[..., 1].sum() > 10


@pytest.mark.parametrize("min_prob", [0.01, 0.3])
@pytest.mark.parametrize("source", [4, 6], ids=["own text", "corpus"])
def test_behind_an_edit_as_the_host(source: int, min_prob: float) -> None:
    """Requests that copy their prompt, or an earlier answer, with a token replaced, left out or added now and
    then."""
    options = SuffixIndexOptions(index_bytes=2**17, min_token_prob=min_prob)
    generator = random.Random(1)
    prompts = [[generator.randrange(30) for _ in range(70)] for _ in range(6)]
    answers = [
        [token for old in prompt for token in edit(old, generator.randrange(27), generator.randrange(30))]
        for prompt in prompts
    ]
    index = SuffixIndex(options, len(prompts), 256)
    index.outcomes.is_learning = False
    block = build_block([np.array(prompt, np.int32) for prompt in prompts], index.rungs)
    if source == 6:
        index.attach(block)
        prompts = [[slot] for slot in range(len(prompts))]
    set_odds(index)
    device = OnDevice(options, prompts, index.outcomes)
    if source == 6:
        device.corpus.commit(device.corpus.stage(block.mem, block.row))
    texts = [list(prompt) for prompt in prompts]
    order, sources = np.arange(len(prompts), dtype=np.int32), []
    for slot, prompt in enumerate(prompts):
        index.start(slot, np.array(prompt, np.int32))
    for step in range(20):
        for slot, text in enumerate(texts):
            new, answers[slot] = answers[slot][: 1 + step % 3], answers[slot][1 + step % 3 :]
            text += new
            index.extend(slot, np.array(new, np.int32))
        batch = index.propose_batch(order, np.full(order.size, WIDTH, np.int32))
        drafts, probs, heads = device.draft(texts, order, WIDTH)
        assert heads.numpy().tolist() == batch.heads.tolist()
        sources += batch.source.tolist()
        np.testing.assert_allclose(probs.numpy(), batch.probs, rtol=1e-6)
        for row, length in enumerate(batch.lengths.tolist()):
            assert drafts[row, :length].tolist() == batch.tokens[row, :length].tolist()
    assert sources.count(source) > 10
    device.assert_counted_as(index)


def edit(token: int, kind: int, other: int) -> list[int]:
    return {0: [], 1: [other], 2: [other, token]}.get(kind, [token])


def test_a_slot_that_another_request_takes_goes_on_nowhere() -> None:
    """The token before the place where the last request's text went on is this one's last token, too."""
    options = SuffixIndexOptions(index_bytes=2**17)
    index = SuffixIndex(options, 1, 256)
    text = [*range(100, 160), *range(100, 120)]
    device = OnDevice(options, [text], index.outcomes)
    slots = np.zeros(1, np.int32)
    device.draft([[*text, 120]], slots, WIDTH)
    heads = device.draft([[*text, 120, 7, 122]], slots, WIDTH)[2]
    assert heads[2].tolist() == [4]
    device.draft([[*text, 120]], slots, WIDTH)
    device.prefills[0] = 12
    heads = device.draft([[*range(83), 22]], slots, WIDTH)[2]
    assert heads[2].tolist() == [1]


def test_a_slot_that_another_request_takes_teaches_nothing() -> None:
    options = SuffixIndexOptions(index_bytes=2**17, min_token_prob=0.0)
    index = SuffixIndex(options, 1, 256)
    text = [1, 2, 3, 4] * 5
    device = OnDevice(options, [text], index.outcomes)
    slots = np.zeros(1, np.int32)
    device.draft([[*text, 1]], slots, WIDTH)
    device.prefills[0] = 12
    device.draft([[*text, 1, 2, 3, 4]], slots, WIDTH)
    assert not device.lessons.counted.any()
    device.draft([[*text, 1, 2, 3, 4, 1, 2]], slots, WIDTH)
    assert device.lessons.counted[0, :, 1].sum() == 2
