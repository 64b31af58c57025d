"""Compiling functions that compiled functions alone call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from numba import njit

__all__ = ["inner", "is_cached"]

inner = njit(cache=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""Without what Python would call them by, which unpacks every array of their arguments: the simulator
compiles in two thirds of the time. A call from Python ends the process."""


def is_cached(function: Any) -> bool:
    """Whether numba has kept a compiled form of this function of ours, from an earlier process."""
    return any(Path(function.stats.cache_path).glob(f"*.{function.py_func.__name__}-*.nbi"))
