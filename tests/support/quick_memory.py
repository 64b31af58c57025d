"""Loads and stores of kernels under Triton's interpreter, for ``quick_operations``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from support.quick_plans import NUMPY, UNKNOWN, Plan, Plans, data_of, key_of, same, shape_of, type_of

__all__ = ["loaded", "stored"]

_TRUE = np.array([True])
_KNOWN = NUMPY.keys() - {"int1"}


def loaded(plans: Plans, builtin: Any, read: Any) -> Callable[..., Any]:
    """Without a mask, or with one and a stand-in for the rest; both have the pointer's shape or none."""
    own, tensor_of = plans.own(builtin), plans.tensor
    known: dict[Any, Plan | None] = {}

    def plan_of(pointer: Any, mask: Any, other: Any) -> Plan | None:
        dtype, shape = getattr(pointer.dtype, "element_ty", tl.void), shape_of(pointer)
        if dtype.name not in _KNOWN or not _fit(shape, mask, other):
            return None
        is_of_tensor = isinstance(other, tl.tensor) and other.dtype.name != dtype.name
        return None if is_of_tensor else Plan(plans.kind(dtype, shape), NUMPY[dtype.name], {})

    def quick(pointer: Any, mask: Any = None, other: Any = None, _semantic: Any = None, **named: Any) -> Any:
        is_whole = mask is None and other is None
        key = key_of(pointer), key_of(mask), key_of(other)
        if named or not (is_whole or (key[1] and key[2])):
            return own(pointer, mask, other, **named)
        plan = known.get(key, UNKNOWN)
        if plan is UNKNOWN:
            known[key] = plan_of(pointer, mask, other)
            return same(quick(pointer, mask, other), own(pointer, mask, other))
        rest = None if plan is None else data_of(0 if is_whole else other, plan, False)
        if plan is None or rest is None:
            return own(pointer, mask, other)
        places = pointer.handle.data
        is_in = _as_shaped(_TRUE if is_whole else mask.handle.data, places)
        return tensor_of(plan.kind, read(places, is_in, _as_shaped(rest, places), plan.numpy))

    return quick


def stored(plans: Plans, builtin: Any, write: Any) -> Callable[..., Any]:
    """Tensors of their place's type, with its shape or none."""
    own = plans.own(builtin)
    known: dict[Any, bool] = {}

    def is_known(pointer: Any, value: Any, mask: Any) -> bool:
        dtype = getattr(pointer.dtype, "element_ty", tl.void)
        return _fit(shape_of(pointer), mask, value) and value.dtype.name == dtype.name in _KNOWN

    def quick(pointer: Any, value: Any, mask: Any = None, _semantic: Any = None, **named: Any) -> Any:
        if named or type(value) is not tl.tensor:
            return own(pointer, value, mask, **named)
        key = key_of(pointer), key_of(value), key_of(mask)
        if key not in known:
            known[key] = is_known(pointer, value, mask)
        if not known[key]:
            return own(pointer, value, mask)
        places = pointer.handle.data
        is_in = _as_shaped(_TRUE if mask is None else mask.handle.data, places)
        return write(places, _as_shaped(value.handle.data, places), is_in)

    return quick


def _fit(shape: tuple[int, ...], mask: Any, value: Any) -> bool:
    is_mask = mask is None or type_of(mask).name == "int1"
    return is_mask and all(shape_of(one) in ((), shape) for one in (mask, value))


def _as_shaped(data: Any, places: Any) -> Any:
    return data if data.shape == places.shape else np.full(places.shape, data)
