"""Inputs by path, or shipped ones by their bare name."""

from __future__ import annotations

from pathlib import Path

from specctl.errors import SimulationInputError
from specctl.policy.loader import shipped_policies

__all__ = ["find_file"]


def find_file(name_or_path: str, kind: str) -> Path:
    """A path, or the bare name of a shipped file. Raises SimulationInputError."""
    path = Path(name_or_path)
    if path.exists():
        return path
    known = shipped_policies(kind)
    for candidate in known:
        if name_or_path in (candidate.stem, candidate.name):
            return candidate
    names = ", ".join(candidate.stem for candidate in known) or "none"
    raise SimulationInputError(
        f"{name_or_path}: expected a file or one of the shipped {kind} ({names}), got neither"
    )
