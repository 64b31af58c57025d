"""Checks what this plugin relies on inside SGLang (``relied_on``), before anything is changed."""

from __future__ import annotations

from pathlib import Path

from specctl.engine import seams
from specctl_sglang.compat.relied_on import RELIED_ON

__all__ = ["missing_seams"]


def missing_seams(root: Path | None = None) -> list[str]:
    """One sentence for each seam that is not as expected; root: the folder that holds ``sglang``."""
    return seams.missing_seams(RELIED_ON, root)
