"""How many batches of drafts specctl's kernels verified, and why SGLang did the others.

Counted where batches are verified; scheduler and worker share a process, so telemetry reads the counts as
they are, under ``proposer``.
"""

from __future__ import annotations

import logging

__all__ = ["count", "snapshot"]

logger = logging.getLogger("sglang.specctl")
_OURS = "batches_verified_by_specctl"
_ENGINES = "batches_verified_by_engine_"

_counts: dict[str, int] = {}


def count(reason: str | None) -> None:
    """A batch that ours verified, or the engine for a reason, which the log tells when it first occurs."""
    name = _OURS if reason is None else _ENGINES + reason
    before = _counts.get(name, 0)
    _counts[name] = before + 1
    if before == 0 and reason is not None:
        logger.info("specctl: SGLang verifies batches itself where: %s", reason.replace("_", " "))


def snapshot() -> dict[str, float]:
    return {name: float(value) for name, value in _counts.items()}
