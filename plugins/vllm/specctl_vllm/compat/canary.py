"""Checks what this plugin relies on inside vLLM (``relied_on``), before anything is changed."""

from __future__ import annotations

from pathlib import Path

from specctl.engine import seams
from specctl_vllm.compat.relied_on import RELIED_ON, Seam

__all__ = ["missing_seams"]


def missing_seams(root: Path | None = None, relied_on: tuple[Seam, ...] = RELIED_ON) -> list[str]:
    """One sentence for each seam that is not as expected; root: the folder that holds ``vllm``."""
    return seams.missing_seams(relied_on, root)
