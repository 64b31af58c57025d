"""How many batches of drafts specctl's kernels verified, and why the engine did the others.

Telemetry has the counts under ``proposer``.
"""

from __future__ import annotations

import logging

__all__ = ["ENGINES", "OURS", "VerifiedBatches"]

OURS = "batches_verified_by_specctl"
ENGINES = "batches_verified_by_engine_"
"""With the reason behind it."""


class VerifiedBatches:
    """Of one process."""

    def __init__(self, log: logging.Logger, engine: str) -> None:
        self.counts: dict[str, int] = {}
        self._log = log
        self._engine = engine

    def count(self, reason: str | None) -> int:
        """A batch that ours verified, or the engine for a reason, which the log tells when it first occurs.

        Returns how many there are of its kind now.
        """
        name = OURS if reason is None else ENGINES + reason
        number = self.counts[name] = self.counts.get(name, 0) + 1
        if number == 1 and reason is not None:
            self._log.info("specctl: %s verifies batches with: %s", self._engine, reason.replace("_", " "))
        return number

    def snapshot(self) -> dict[str, float]:
        return {name: float(value) for name, value in self.counts.items()}
