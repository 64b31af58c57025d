"""The compiled calls of every step, loaded once for each process."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path

from specctl.draft.arena import extend_one
from specctl.draft.proposal import propose_one, propose_rows

__all__ = ["load_kernels"]

logger = logging.getLogger(__name__)
_SIGNATURES = {
    propose_one: "int64(int64, int64, int64, float64)",
    propose_rows: "int64(int64, int32[::1], int32[::1], float64[::1], int64, int64, int64)",
    extend_one: "int64(int64, int64, int32[::1], int64)",
}


@cache
def load_kernels() -> None:
    """They take the types they expect and no others: a wrong one is a TypeError, which costs nothing else."""
    folder = Path(str(propose_rows.stats.cache_path))
    if not any(folder.glob("proposal.propose_rows*.nbi")):
        logger.info("suffix index: compiling its kernels, once; they are kept in %s", folder)
    for kernel, signature in _SIGNATURES.items():
        kernel.compile(signature)
        kernel.disable_compile()
