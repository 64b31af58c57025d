"""What the tests of the verify kernels share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from specctl_kernels import workspace

__all__ = ["LEAST_CHANCE", "chi_square_chance", "in_silence", "poison_new_memory"]

LEAST_CHANCE = 1e-4
"""Of a sample as unlikely as the one seen, under the right law. The seeds are fixed."""

# The interpreter's numpy tells of what a device computes in silence: inf - inf, the largest of NaN alone.
in_silence = pytest.mark.filterwarnings(
    "ignore:invalid value encountered:RuntimeWarning", "ignore:All-NaN slice encountered:RuntimeWarning"
)


def chi_square_chance(seen: torch.Tensor, law: torch.Tensor) -> float:
    """Of so large a sum of squares under the law; cells of less than 5 expected are one."""
    expected = law * seen.sum()
    assert int(seen[law == 0].sum()) == 0
    is_rare = expected < 5
    seen = torch.cat([seen[~is_rare].double(), seen[is_rare].sum().double()[None]])
    expected = torch.cat([expected[~is_rare], expected[is_rare].sum()[None]])
    is_cell = expected > 0  # none where no draw came so far: 0 squares of 1
    statistic = ((seen - expected)[is_cell] ** 2 / expected[is_cell]).sum()
    degrees = max(int(is_cell.sum()) - 1, 1)
    return float(torch.special.gammaincc(torch.tensor(degrees / 2).double(), statistic / 2))


def poison_new_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a wrapper allocates is NaN or nonsense until it is written; nothing is kept between calls."""
    monkeypatch.setattr(workspace, "_KEPT_BYTES_MOST", -1)
    monkeypatch.setattr(workspace, "_of_thread", workspace._OfThread())
    empty = torch.Tensor.new_empty

    def new_poisoned(tensor: torch.Tensor, *size: Any, **options: Any) -> torch.Tensor:
        made = empty(tensor, *size, **options)
        return made.fill_(float("nan") if made.is_floating_point() else -77)

    monkeypatch.setattr(torch.Tensor, "new_empty", new_poisoned)
