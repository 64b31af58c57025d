"""How many drafts a step verifies that has one width for all."""

from __future__ import annotations

import numpy as np
import pytest
from specctl_sglang.proposers.weighing import Weighing

EVERY = tuple(range(9))


def worth(number: int, lengths: list[int], probs: np.ndarray, requests: int, least: float) -> float:
    brought = sum(float(probs[i, j]) for i, n in enumerate(lengths) for j in range(min(n, number)))
    return brought - least * requests * number


@pytest.mark.parametrize("numbers", [EVERY, (0, 2, 4, 8), (1, 3, 8), (8,)])
@pytest.mark.parametrize("least", [0.0, 0.05, 0.2, 0.6, 1.0])
def test_no_other_number_pays_more(numbers, least):
    generator = np.random.default_rng(3)
    for _ in range(200):
        requests = int(generator.integers(1, 9))
        drafted = int(generator.integers(0, requests + 1))
        lengths = generator.integers(0, 9, drafted)
        probs = np.cumprod(generator.random((drafted, 8)) ** 0.3, axis=1).astype(np.float32)
        found = Weighing(least, numbers).most(lengths.astype(np.int32), probs, requests)
        values = [worth(number, lengths.tolist(), probs, requests, least) for number in numbers]
        assert found in numbers
        assert values[numbers.index(found)] == pytest.approx(max(values), abs=1e-5)


def test_one_long_draft_widens_no_full_batch():
    lengths, probs = np.array([8, *[1] * 15], np.int32), np.full((16, 8), 0.9, np.float32)
    assert Weighing(0.1, EVERY).most(lengths, probs, 16) == 1
    assert Weighing(0.1, EVERY).most(lengths[:1], probs[:1], 1) == 8
    assert Weighing(0.0, (0, 4, 8)).most(lengths, probs, 16) == 8


def test_nothing_found_is_nothing_verified():
    none = np.zeros((0, 0), np.float32)
    assert Weighing(0.0, EVERY).most(np.zeros(0, np.int32), none, 4) == 0
    assert Weighing(0.1, (2, 4)).most(np.zeros(3, np.int32), np.zeros((3, 4), np.float32), 3) == 2
