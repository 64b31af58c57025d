"""Argument checks of the suffix index: ValueError with expected and got."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

__all__ = [
    "check_count",
    "check_length",
    "checked_floats",
    "checked_ints",
    "explain_extend",
    "explain_propose",
]

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]
_INT32 = np.dtype(np.int32)
_FLOAT64 = np.dtype(np.float64)


def checked_floats(name: str, values: Any, rows: int) -> Floats:
    """float64[rows], contiguous."""
    if type(values) is not np.ndarray or values.dtype is not _FLOAT64 or not values.flags.carray:
        values = np.array(values, np.float64)
    if values.shape != (rows,):
        raise ValueError(f"{name}: expected {rows} values, got shape {values.shape}")
    checked: Floats = values
    return checked


def checked_ints(name: str, values: Any) -> Ints:
    """The compiled code knows one kind of array: int32, one dimension, contiguous, writable."""
    if type(values) is np.ndarray and values.dtype is _INT32 and values.ndim == 1 and values.flags.carray:
        return values
    if not isinstance(values, np.ndarray):
        raise ValueError(f"{name}: expected a one-dimensional int32 array, got {type(values).__name__}")
    if values.dtype != np.int32 or values.ndim != 1:
        got = f"{values.dtype} of shape {values.shape}"
        raise ValueError(f"{name}: expected a one-dimensional int32 array, got {got}")
    is_plain = values.flags.c_contiguous and values.flags.writeable
    plain: Ints = values if is_plain else values.copy()
    return plain


def check_count(name: str, value: Any, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not low <= value <= high:
        raise ValueError(f"{name}: expected an integer from {low} to {high}, got {value!r}")


def check_length(tokens: int, most: int) -> None:
    if tokens > most:
        raise ValueError(f"expected at most {most} tokens in a request, got {tokens}")


def explain_extend(
    slots: npt.NDArray[Any],
    tokens: Ints,
    offsets: npt.NDArray[Any],
    length_of: Callable[[int], int],
    most_tokens: int,
) -> NoReturn:
    """The compiled check refused these: find out why. length_of raises where a slot is free."""
    if int(tokens.min(initial=0)) < 0:
        raise ValueError(f"tokens: expected ids from 0 to 2147483647, got {int(tokens.min())}")
    added = np.diff(offsets)
    if int(added.min()) < 0:
        raise ValueError(f"offsets: expected ascending values, got {offsets.tolist()}")
    for slot in slots.tolist():
        check_length(length_of(slot) + int(added[slots == slot].sum()), most_tokens)
    raise AssertionError("a legal call was refused")


def explain_propose(
    slots: Ints, budgets: Ints, min_probs: Floats, length_of: Callable[[int], int]
) -> NoReturn:
    for slot in slots.tolist():
        length_of(slot)
    if budgets.size != slots.size:
        raise ValueError(f"budgets: expected {slots.size} values, got {budgets.size}")
    if int(budgets.min()) < 0:
        raise ValueError(f"budgets: expected values from 0, got {int(budgets.min())}")
    raise ValueError(f"min_probs: expected values from 0 to 1, got {min_probs.tolist()}")
