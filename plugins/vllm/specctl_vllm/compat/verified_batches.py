"""Who verified batches of drafts.

Counted in the worker; the counts travel to the scheduler with a step's tokens (``step_report``).
"""

from __future__ import annotations

import logging
from typing import Any

from specctl.engine.verified_batches import VerifiedBatches

__all__ = ["batches", "count", "not_finite_on", "snapshot", "warn_once"]

logger = logging.getLogger("vllm.specctl")
_NOT_FINITE = "requests_with_logits_not_finite"
_READ_EVERY = 256
"""Batches between two reads of the device's count."""

batches = VerifiedBatches(logger, "vLLM's sampler")
snapshot = batches.snapshot
_on_device: Any = None
_on_host: Any = None
_warned: set[str] = set()


def count(reason: str | None) -> None:
    """As ``VerifiedBatches.count``, and now and then a read of the device's count."""
    number = batches.count(reason)
    if _on_device is not None and number % _READ_EVERY == 0:
        # Nothing waits: what the last copy brought is reported, and it only grows.
        found = int(_on_host[0])
        if found and not batches.counts.get(_NOT_FINITE):
            logger.warning("specctl: rows of logits were not finite; their requests got the largest number")
        if found:
            batches.counts[_NOT_FINITE] = found
        _on_host.copy_(_on_device, non_blocking=True)


def warn_once(reason: str, error: Exception) -> None:
    if reason not in _warned:
        _warned.add(reason)
        logger.warning("specctl: batches of %s are verified by vLLM's sampler: %s", reason, error)


def not_finite_on(device: Any) -> Any:
    """int64[1] that the kernel counts on: requests that came to a row without a distribution."""
    global _on_device, _on_host
    if _on_device is None:
        import torch

        _on_device = torch.zeros(1, dtype=torch.int64, device=device)
        _on_host = torch.zeros(1, dtype=torch.int64, pin_memory=_on_device.is_cuda)
    return _on_device
