"""What kernels do most often under Triton's interpreter, each by one call of numpy's.

For each operation, what there is to know of its operands' types and shapes is found out once: the type that
it computes in, the type and the shape of its result. That result, of the first use, is compared with the
interpreter's own. What is not known here stays with the interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import triton.language as tl
from support.quick_memory import loaded, stored
from support.quick_plans import (
    NUMPY,
    UNKNOWN,
    Kind,
    Plan,
    Plans,
    constant,
    data_of,
    key_of,
    same,
    shape_of,
)

__all__ = ["of_functions", "of_language"]

_OPERATORS = {
    "arithmetic": {"add": np.add, "sub": np.subtract, "mul": np.multiply},
    "comparison": {
        "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal,
        "ne": np.not_equal,
    },
    "logic": {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor},
    "shift": {"lshift": np.left_shift, "rshift": np.right_shift},
}  # fmt: skip
_ALL = slice(None)

_Quick = Callable[..., Any]


def of_functions(plans: Plans) -> dict[int, _Quick]:
    """What stands for functions that the interpreter would interpret, by their ids; called with a tensor and
    an axis, None: the interpreter's."""
    ufuncs = ((tl.sum, np.add), (tl.max, np.fmax), (tl.min, np.fmin))
    return {id(function): _reduction(plans, function, ufunc) for function, ufunc in ufuncs}


def of_language(plans: Plans, interpreter: Any) -> Iterator[tuple[Any, str, Any]]:
    """(owner, name, new) of the language as the interpreter has patched it."""
    core, tensor = tl.core, tl.tensor
    builder, native = interpreter.interpreter_builder, interpreter._interpreter
    for family, ufuncs in _OPERATORS.items():
        for name, ufunc in ufuncs.items():
            own = plans.own(getattr(tensor, f"__{name}__"))
            yield tensor, f"__{name}__", _binary(plans, own, ufunc, family, builder)
    yield tensor, "__neg__", _unary(plans, tensor.__neg__, np.negative)
    yield tensor, "__getitem__", _expanded(plans, tensor.__getitem__)
    yield tensor, "to", _cast(plans, tensor.to)
    functions = {
        "where": _where(plans, core.where),
        "arange": _arange(plans, core.arange),
        "reshape": _reshaped(plans, core.reshape),
        "load": loaded(plans, core.load, native.load),
        "store": stored(plans, core.store, native.store),
        "minimum": _function(plans, core.minimum, np.fmin, "extreme", builder),
        "maximum": _function(plans, core.maximum, np.fmax, "extreme", builder),
        "add": _wrapping(plans, core.add, np.add, builder),
        "mul": _wrapping(plans, core.mul, np.multiply, builder),
    }
    of_math = {
        "exp2": _unary(plans, tl.math.exp2, np.exp2),
        "log2": _unary(plans, tl.math.log2, np.log2),
        "fma": _fused(plans, tl.math.fma, native.fma_fp32),
        "div_rn": _divided(plans, tl.math.div_rn, builder),
        "umulhi": _function(plans, tl.math.umulhi, _high, "high", builder),
    }
    for module, found in ((core, functions), (tl.math, of_math)):
        for (name, new), place in product(found.items(), (tl, module)):
            yield place, name, new


def _plan_of(plans: Plans, lhs: Any, rhs: Any, ufunc: Any, family: str) -> Plan | None:
    if family == "arithmetic" and ufunc is np.add and lhs.dtype.is_ptr():
        return plans.of_pointer(lhs, rhs)
    plan = plans.of(lhs, rhs, dtype=tl.int1 if family == "comparison" else None)
    if plan is None or (plan.numpy.kind == "b" and family != "logic"):
        return None
    if plan.numpy.kind == "f" and family in ("logic", "shift"):
        return None
    if family == "shift" and plan.casts[0]:  # the first one's sign decides which shift it is
        return None
    if plan.numpy != {"high": np.uint32, "division": np.float32}.get(family, plan.numpy):
        return None
    return plan._replace(may_overflow=plan.may_overflow and family == "arithmetic")


def _binary(plans: Plans, own: Any, ufunc: Any, family: str, builder: Any) -> _Quick:
    known: dict[Any, Plan | None] = {}
    tensor, constexpr, tensor_of = tl.tensor, tl.constexpr, plans.tensor

    def quick(lhs: Any, rhs: Any) -> Any:
        given = type(rhs)
        if given is tensor:
            key: Any = (lhs.dtype.name, id(lhs.shape), rhs.dtype.name, id(rhs.shape))
        elif given is int or given is float:
            key = (lhs.dtype.name, id(lhs.shape), given)
        else:
            return quick(lhs, rhs.value) if given is constexpr else own(lhs, rhs)
        plan = known.get(key, UNKNOWN)
        if plan is UNKNOWN:
            known[key] = _plan_of(plans, lhs, rhs, ufunc, family)
            return same(quick(lhs, rhs), own(lhs, rhs))
        if plan is None:
            return own(lhs, rhs)
        kind, dtype, constants, (casts_left, casts_right), may_overflow, width = plan
        left = lhs.handle.data.astype(dtype) if casts_left else lhs.handle.data
        if given is tensor:
            right = rhs.handle.data.astype(dtype) if casts_right else rhs.handle.data
        else:
            right = constants.get(rhs)
            if right is None and (right := constant(plan, rhs)) is None:
                return own(lhs, rhs)
        if width:
            return tensor_of(kind, left + width * right.astype(np.uint64))
        data = ufunc(left, right)
        if may_overflow and builder.options.sanitize_overflow:
            exact = ufunc(left, right, dtype=np.int64)
            if not (exact == data).all():
                return own(lhs, rhs)
        return tensor_of(kind, data)

    return quick


def _function(plans: Plans, builtin: Any, ufunc: Any, family: str, builder: Any) -> _Quick:
    """A function of two operands, of which the second may be a number."""
    own = plans.own(builtin)
    binary = _binary(plans, own, ufunc, family, builder)

    def quick(x: Any, y: Any, _semantic: Any = None, **named: Any) -> Any:
        return own(x, y, **named) if named or type(x) is not tl.tensor else binary(x, y)

    return quick


def _wrapping(plans: Plans, builtin: Any, ufunc: Any, builder: Any) -> _Quick:
    """A function of two operands, where its result may overflow."""
    own = plans.own(builtin)
    binary = _binary(plans, partial(own, sanitize_overflow=False), ufunc, "wrapping", builder)

    def quick(x: Any, y: Any, sanitize_overflow: Any = True, _semantic: Any = None) -> Any:
        if sanitize_overflow or type(x) is not tl.tensor:
            return own(x, y, sanitize_overflow=sanitize_overflow)
        return binary(x, y)

    return quick


def _divided(plans: Plans, builtin: Any, builder: Any) -> _Quick:
    """A number by a tensor, of float32."""
    own = plans.own(builtin)

    def inverse(divisor: Any, number: Any) -> Any:
        return own(number, divisor)

    def divide(divisor: Any, number: Any) -> Any:
        return np.divide(number, divisor)

    binary = _binary(plans, inverse, divide, "division", builder)

    def quick(x: Any, y: Any, _semantic: Any = None) -> Any:
        is_known = type(x) is float and type(y) is tl.tensor
        return binary(y, x) if is_known else own(x, y)

    return quick


def _high(left: Any, right: Any) -> Any:
    """The upper half of the product."""
    return (np.multiply(left, right, dtype=np.uint64) >> np.uint64(32)).astype(np.uint32)


def _unary(plans: Plans, builtin: Any, ufunc: Any) -> _Quick:
    own, tensor_of = plans.own(builtin), plans.tensor
    seen: set[Any] = set()

    def quick(value: Any, _semantic: Any = None) -> Any:
        if type(value) is not tl.tensor or value.dtype.name not in ("fp32", "fp64"):
            return own(value)
        key = key_of(value)
        if key not in seen:
            seen.add(key)
            return same(quick(value), own(value))
        kind = Kind(value.dtype, value.type, value.shape, value.numel)
        return tensor_of(kind, ufunc(value.handle.data))

    return quick


def _fused(plans: Plans, builtin: Any, multiply_and_add: Any) -> _Quick:
    """Of float32."""
    own, tensor_of = plans.own(builtin), plans.tensor
    known: dict[Any, Plan | None] = {}

    def quick(x: Any, y: Any, z: Any, _semantic: Any = None) -> Any:
        key = key_of(x), key_of(y), key_of(z)
        plan = known.get(key, UNKNOWN)
        if plan is UNKNOWN:
            known[key] = plans.of(x, y, z) if all(one[:1] == ("fp32",) for one in key) else None
            return same(quick(x, y, z), own(x, y, z))
        if plan is None:
            return own(x, y, z)
        data = [one.handle.data for one in (x, y, z)]
        shape = max((one.shape for one in data), key=np.prod)
        alike = [one if one.shape == shape else np.array(np.broadcast_to(one, shape)) for one in data]
        return tensor_of(plan.kind, multiply_and_add(*alike))

    return quick


def _where(plans: Plans, builtin: Any) -> _Quick:
    own, tensor_of = plans.own(builtin), plans.tensor
    known: dict[Any, Plan | None] = {}

    def quick(condition: Any, x: Any, y: Any, _semantic: Any = None) -> Any:
        key = key_of(condition), key_of(x), key_of(y)
        plan = known.get(key, UNKNOWN)
        if plan is UNKNOWN:
            is_known = all(key) and key[0][0] == "int1"
            known[key] = plans.of(x, y, condition) if is_known else None
            return same(quick(condition, x, y), own(condition, x, y))
        if plan is None:
            return own(condition, x, y)
        first, second = data_of(x, plan, plan.casts[0]), data_of(y, plan, plan.casts[1])
        if first is None or second is None:
            return own(condition, x, y)
        return tensor_of(plan.kind, np.where(condition.handle.data, first, second))

    return quick


def _arange(plans: Plans, builtin: Any) -> _Quick:
    """The same tensor again: nothing writes into one."""
    own = plans.own(builtin)
    made: dict[Any, Any] = {}

    def quick(start: Any, end: Any, _semantic: Any = None) -> Any:
        key = getattr(start, "value", start), getattr(end, "value", end)
        if key not in made:
            made[key] = own(*key)
        return made[key]

    return quick


def _cast(plans: Plans, builtin: Any) -> _Quick:
    own, tensor_of = plans.own(builtin), plans.tensor
    known: dict[Any, Plan | None] = {}

    def plan_of(value: Any, dtype: Any) -> Plan | None:
        names = value.dtype.name, dtype.name
        if not NUMPY.keys() >= {*names} or names[0] == names[1] or names[1] == "int1":
            return None
        return Plan(plans.kind(dtype, shape_of(value)), NUMPY[names[1]], {})

    def quick(value: Any, dtype: Any, *given: Any, _semantic: Any = None, **named: Any) -> Any:
        if given or named:
            return own(value, dtype, *given, **named)
        dtype = getattr(dtype, "value", dtype)
        key = key_of(value), dtype.name
        plan = known.get(key, UNKNOWN)
        if plan is UNKNOWN:
            known[key] = plan_of(value, dtype)
            return same(quick(value, dtype), own(value, dtype))
        if plan is None:
            return own(value, dtype)
        return tensor_of(plan.kind, value.handle.data.astype(plan.numpy))

    return quick


def _expanded(plans: Plans, builtin: Any) -> _Quick:
    """A vector as a row or a column."""
    own, tensor_of = plans.own(builtin), plans.tensor
    kinds: dict[Any, Kind] = {}

    def quick(value: Any, places: Any) -> Any:
        if type(places) is not tuple or len(places) != 2 or len(value.handle.data.shape) != 1:
            return own(value, places)
        is_row = places[0] is None
        if places[is_row] != _ALL or places[not is_row] is not None or not value.type.is_block():
            return own(value, places)
        key = key_of(value), is_row
        if key not in kinds:
            found = own(value, places)
            kinds[key] = plans.kind(found.dtype, shape_of(found))
            return found
        data = value.handle.data
        return tensor_of(kinds[key], data[None, :] if is_row else data[:, None])

    return quick


def _reshaped(plans: Plans, builtin: Any) -> _Quick:
    own, tensor_of = plans.own(builtin), plans.tensor
    kinds: dict[Any, Kind] = {}

    def quick(value: Any, *shape: Any, _semantic: Any = None, **named: Any) -> Any:
        if named or len(shape) != 1 or type(shape[0]) is not tuple:
            return own(value, *shape, **named)
        sizes = tuple([getattr(size, "value", size) for size in shape[0]])
        key = key_of(value), sizes
        if key not in kinds:
            found = own(value, *shape)
            kinds[key] = plans.kind(found.dtype, shape_of(found))
            return found
        return tensor_of(kinds[key], value.handle.data.reshape(sizes))

    return quick


def _reduction(plans: Plans, function: Any, ufunc: Any) -> _Quick:
    tensor_of = plans.tensor
    known: dict[Any, Plan | None] = {}

    def plan_of(value: Any, axis: Any) -> Plan | None:
        shape, dtype = shape_of(value), value.dtype
        if dtype.name not in NUMPY or type(axis) is not int or not 0 <= axis < len(shape):
            return None
        if dtype.name == "int1":
            dtype = tl.uint32 if ufunc is np.add else tl.int32
        return Plan(plans.kind(dtype, shape[:axis] + shape[axis + 1 :]), NUMPY[dtype.name], {})

    def quick(value: Any, axis: Any) -> Any:
        axis = getattr(axis, "value", axis)
        key = key_of(value), axis
        plan = known.get(key, UNKNOWN)
        if plan is UNKNOWN:
            known[key] = plan_of(value, axis)
            found = quick(value, axis)
            return None if found is None else same(found, function.rewrite()(value, axis))
        if plan is None:
            return None
        data = value.handle.data.astype(plan.numpy, copy=False)
        # A sum of int32 is one of int64 at first.
        found = ufunc.reduce(data, axis=axis, keepdims=data.ndim == 1).astype(plan.numpy, copy=False)
        if ufunc is not np.add and plan.numpy.kind == "f" and np.isnan(found).any():
            return None
        return tensor_of(plan.kind, found)

    return quick
