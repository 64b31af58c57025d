"""Whether the daemon does its work: each of its loops must come round.

The daemon's port is served by the same event loop, so that one which is stuck does not answer at all.
"""

from __future__ import annotations

from specctl.clock import Clock

__all__ = ["STUCK_S", "Health"]

STUCK_S = 90.0
"""Longer than the longest wait between two polls, with every request of a poll at its limit of time."""


class Health:
    """Of one daemon. ``roster_read`` is said once a second, ``ticked`` after every poll of a target."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._roster_s = clock.now_s()
        self._is_started = False
        self._ticked_s: dict[str, float] = {}
        self._waiting: set[str] = set()

    def roster_read(self) -> None:
        """The loop that starts and ends the targets' loops has come round."""
        self._roster_s, self._is_started = self._clock.now_s(), True

    def added(self, target: str) -> None:
        self._ticked_s[target] = self._clock.now_s()
        self._waiting.add(target)

    def ticked(self, target: str) -> None:
        self._ticked_s[target] = self._clock.now_s()
        self._waiting.discard(target)

    def forget(self, target: str) -> None:
        self._ticked_s.pop(target, None)
        self._waiting.discard(target)

    def problems(self) -> list[str]:
        """Why a restart is needed; empty: it is not."""
        now_s = self._clock.now_s()
        found = []
        if now_s - self._roster_s > STUCK_S:
            found.append(f"targets were not looked up for {now_s - self._roster_s:.0f} s")
        for target, ticked_s in self._ticked_s.items():
            if now_s - ticked_s > STUCK_S:
                found.append(f"{target}: not polled for {now_s - ticked_s:.0f} s")
        return found

    def not_ready(self) -> list[str]:
        """Why figures are not complete yet; empty: every target was polled, whether it answered or not."""
        found = [] if self._is_started else ["targets were not looked up yet"]
        return [*self.problems(), *found, *(f"{target}: not polled yet" for target in sorted(self._waiting))]
