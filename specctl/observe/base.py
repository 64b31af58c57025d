"""What the loop asks of an observer."""

from __future__ import annotations

from typing import Protocol

from specctl.types import Observation

__all__ = ["Observer"]


class Observer(Protocol):
    async def observe(self) -> Observation:
        """Look once. Raises TargetError when the target cannot be reached, is late, or is no engine.

        A part that is missing or broken is None in the observation, with the reason in ``gaps``.
        """

    async def close(self) -> None:
        """Release the connection."""
