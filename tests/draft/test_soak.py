"""Ten million updates under a budget of 64 MiB: memory stays flat, and the index goes on answering."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from specctl.draft.suffix_index import SuffixIndex, SuffixIndexOptions

BUDGET_BYTES = 64 * 2**20
UPDATES = 10_000_000
DOCUMENT = 1_000
GROWTH_MAX_BYTES = 8 * 2**20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * 4096


def test_memory_stays_flat() -> None:
    index = SuffixIndex(SuffixIndexOptions(index_bytes=BUDGET_BYTES), 4, 2 * DOCUMENT)
    generator = np.random.default_rng(0)
    phrases = generator.integers(0, 50_000, (2_000, 20), np.int32)
    slots, budgets = np.zeros(1, np.int32), np.full(1, 8, np.int32)
    after_filling = 0
    for i in range(UPDATES // DOCUMENT):
        text = phrases[generator.integers(0, 2_000, DOCUMENT // 20)].ravel()
        index.start(0, text[:10])
        index.extend(0, text)
        index.propose_batch(slots, budgets)
        index.finish(0)
        if i % 100 == 0:
            assert index.corpus_bytes <= BUDGET_BYTES
        if i == 4 * UPDATES // DOCUMENT // 10:
            after_filling = resident_bytes()
    assert resident_bytes() - after_filling < GROWTH_MAX_BYTES
    stats = index.stats()
    assert stats["corpus_evicted_tokens"] > 5_000_000
    assert stats["corpus_tokens"] > 2_500_000
    assert stats["hits_global"] > 0
