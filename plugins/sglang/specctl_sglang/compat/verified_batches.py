"""Who verified batches of drafts, counted where it is done.

Scheduler and worker share a process, so telemetry reads the counts as they are.
"""

from __future__ import annotations

import logging

from specctl.engine.verified_batches import VerifiedBatches

__all__ = ["batches", "snapshot"]

batches = VerifiedBatches(logging.getLogger("sglang.specctl"), "SGLang")
snapshot = batches.snapshot
