"""What is known of an operation's operands before their values are: for ``quick_operations``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import triton.language as tl

__all__ = [
    "NUMPY",
    "UNKNOWN",
    "Kind",
    "Plan",
    "Plans",
    "constant",
    "data_of",
    "key_of",
    "same",
    "shape_of",
    "type_of",
]

NUMPY = {
    one.name: np.dtype(name)
    for one, name in (
        (tl.int1, "bool"), (tl.int32, "int32"), (tl.int64, "int64"), (tl.uint32, "uint32"),
        (tl.uint64, "uint64"), (tl.float32, "float32"), (tl.float64, "float64"),
    )
}  # fmt: skip
"""Types that numpy computes with as they are."""
UNKNOWN = object()
_INT32, _FLOAT32 = np.iinfo(np.int32), np.finfo(np.float32)
_new = object.__new__


class Kind(NamedTuple):
    """What all tensors of a type and a shape have in common."""

    dtype: Any
    type: Any
    shape: Any
    numel: Any


class Plan(NamedTuple):
    """How operands of certain types and shapes are computed with.

    numpy: the type that they are cast to. casts: which of them are of another. width: bytes of what the
    pointer before points to, else 0. constants: numbers that were operands, by value.
    """

    kind: Kind
    numpy: Any
    constants: dict[Any, Any]
    casts: tuple[bool, ...] = (False, False)
    may_overflow: bool = False
    width: int = 0


class Plans:
    """interpreter: Triton's module."""

    def __init__(self, interpreter: Any) -> None:
        self._semantic, self._handle = interpreter.interpreter_semantic, interpreter.TensorHandle
        self._kinds: dict[Any, Kind] = {}

    def own(self, builtin: Any) -> Any:
        """A builtin of the language as the interpreter calls it."""
        return partial(builtin, _semantic=self._semantic)

    def kind(self, dtype: Any, shape: Sequence[int]) -> Kind:
        """shape: () of a scalar."""
        key = dtype.name, tuple(shape)
        if key not in self._kinds:
            made = tl.tensor(None, tl.block_type(dtype, list(shape)) if shape else dtype)
            self._kinds[key] = Kind(dtype, made.type, made.shape, made.numel)
        return self._kinds[key]

    def tensor(self, kind: Kind, data: Any) -> Any:
        handle = _new(self._handle)
        handle.data, handle.dtype, handle.attr = data, kind.dtype, {}
        made = _new(tl.tensor)
        made.handle = handle
        made.dtype, made.type, made.shape, made.numel = kind
        return made

    def of(self, lhs: Any, rhs: Any, more: Any = None, dtype: Any = None) -> Plan | None:
        """Of two operands. more: a tensor whose shape the result has as well; dtype: of the result, where it
        is not what they are computed in. None: the interpreter's."""
        types, shape = [type_of(one) for one in (lhs, rhs)], _common_shape(lhs, rhs, more)
        if shape is None or any(one.name not in NUMPY for one in types):
            return None
        are_numbers = [not isinstance(one, tl.tensor) for one in (lhs, rhs)]
        common = self._semantic.computation_type_impl(
            types[0], are_numbers[0], types[1], are_numbers[1], False
        )
        if common.name not in NUMPY:
            return None
        casts = tuple(one.name != common.name for one in types)
        may_overflow = common.is_int() and common.int_bitwidth < 64
        return Plan(self.kind(dtype or common, shape), NUMPY[common.name], {}, casts, may_overflow)

    def of_pointer(self, pointer: Any, offset: Any) -> Plan | None:
        """Of a pointer and what is added to it."""
        shape = _common_shape(pointer, offset)
        if shape is None or type_of(offset).name not in ("int32", "int64"):
            return None
        width = max(1, pointer.dtype.element_ty.primitive_bitwidth // 8)
        return Plan(self.kind(pointer.dtype, shape), np.dtype(np.int64), {}, width=width)


def type_of(value: Any) -> Any:
    if isinstance(value, tl.tensor):
        return value.dtype
    return tl.int32 if type(value) is int else tl.float32


def shape_of(value: Any) -> tuple[int, ...]:
    """() of a scalar and of a number."""
    is_block = isinstance(value, tl.tensor) and value.type.is_block()
    return tuple(value.type.shape.values) if is_block else ()


def _common_shape(*values: Any) -> tuple[int, ...] | None:
    """None where some have more dimensions than others."""
    shapes = [shape for one in values if (shape := shape_of(one))]
    return np.broadcast_shapes(*shapes) if len(set(map(len, shapes))) <= 1 else None


def key_of(value: Any) -> Any:
    """What a plan depends on; the shape of all tensors that have one is one object. (): not known here."""
    given = type(value)
    if given is tl.tensor:
        return value.dtype.name, id(value.shape)
    return (given,) if given is int or given is float else ()


def data_of(value: Any, plan: Plan, is_cast: bool) -> Any:
    """None where it is not of the plan's type."""
    if type(value) is tl.tensor:
        return value.handle.data.astype(plan.numpy) if is_cast else value.handle.data
    found = plan.constants.get(value)
    return constant(plan, value) if found is None else found


def constant(plan: Plan, value: Any) -> Any:
    """A number as an array; None where it is of a type that takes more room than int32 or float32, or is
    none of the plan's."""
    if type(value) is int:
        is_in = (0 if plan.numpy.kind == "u" else _INT32.min) <= value <= _INT32.max
    else:
        is_in = value != value or value in (0.0, np.inf, -np.inf)
        is_in = is_in or _FLOAT32.tiny <= abs(value) <= _FLOAT32.max
        is_in = is_in and plan.numpy.kind == "f"
    if not is_in:
        return None
    found = np.array([value], dtype=plan.numpy)
    if type(value) is int or value:  # -0.0 is not 0.0, and equals it
        plan.constants[value] = found
    return found


def same(quick: Any, own: Any) -> Any:
    """The interpreter's own result, which a quick one has to be."""
    assert quick.type == own.type, (quick.type, own.type)
    assert quick.handle.data.shape == own.handle.data.shape
    np.testing.assert_array_equal(quick.handle.data, own.handle.data)
    return own
