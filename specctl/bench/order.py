"""In which order arms run. No input or output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

__all__ = ["round_order"]

_Arm = TypeVar("_Arm")


def round_order(arms: Sequence[_Arm], round_number: int) -> tuple[_Arm, ...]:
    """The order in one round, which counts from 0: A B, B A for two arms (over four runs A B B A).

    With more arms the first one rotates every second round, and every other round runs backwards. Over
    ``2 * len(arms)`` rounds each arm has each place twice, so that a slow drift of the machine favours none.
    """
    start = (round_number // 2) % len(arms)
    turned = (*arms[start:], *arms[:start])
    return tuple(reversed(turned)) if round_number % 2 else turned
