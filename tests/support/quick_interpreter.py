"""Tests of kernels with many helpers, under Triton's interpreter, in a fraction of the time.

Most of its time goes into what every operation looks up anew: types, shapes and what to patch. Nothing here
changes what an operation computes.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np
import triton
import triton.language as tl
from support.quick_operations import of_functions, of_language
from support.quick_plans import Plans

__all__ = ["quick_interpreter"]

_PLAIN = frozenset(str(one) for one in (tl.int1, tl.int32, tl.int64, tl.float32))
"""Types of which two operands alike need no conversion, whatever the operation is."""
_EXACT = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


@contextmanager
def quick_interpreter(*, checks_overflow: bool = True) -> Iterator[None]:
    """Does nothing without TRITON_INTERPRET.

    checks_overflow: integers that overflow raise AssertionError.
    """
    if not triton.knobs.runtime.interpret:
        yield
        return
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    options = builder.options
    with ExitStack() as patches:
        for owner, name, new in (
            *_patched_once(interpreter),
            *_types_once(interpreter),
            *_operands_alike(type(interpreter.interpreter_semantic)),
            *_constants_once(type(interpreter.interpreter_semantic)),
        ):
            patches.enter_context(patch.object(owner, name, new))
        for owner, name, new in _operations(interpreter):
            patches.enter_context(patch.object(owner, name, new))
        # It finds overflows anyway, and says nothing of them unless it debugs.
        builder.options = replace(options, sanitize_overflow=checks_overflow, debug=checks_overflow)
        try:
            yield
        finally:
            builder.options = options


_Patch = tuple[Any, str, Any]


def _patched_once(interpreter: Any) -> Iterator[_Patch]:
    """The language is patched for each launch and each of its modules, where the interpreter patches it for
    each call of a helper."""
    patched: set[frozenset[int]] = set()
    launch, call = interpreter.GridExecutor.__call__, interpreter.InterpretedFunction.__call__

    @cache
    def modules_of(function: Any) -> frozenset[int]:
        return frozenset(id(v) for v in function.__globals__.values() if v is tl or v is tl.core)

    def launched(executor: Any, *given: Any, **options: Any) -> Any:
        patched.clear()
        return launch(executor, *given, **options)

    def called(function: Any, *given: Any, **options: Any) -> Any:
        modules = modules_of(function.fn)
        if modules in patched:
            return function.rewrite()(*given, **options)
        patched.add(modules)
        return call(function, *given, **options)

    yield interpreter.GridExecutor, "__call__", launched
    yield interpreter.InterpretedFunction, "__call__", called


def _operations(interpreter: Any) -> Iterator[_Patch]:
    """``quick_operations``, wherever the interpreter patches the language."""
    plans = Plans(interpreter)
    patches, functions = [*of_language(plans, interpreter)], of_functions(plans)
    patch_lang, call = interpreter._patch_lang, interpreter.InterpretedFunction.__call__

    def patched(function: Any) -> Any:
        scope = patch_lang(function)
        for owner, name, new in patches:
            scope.set_attr(owner, name, new)
        return scope

    def called(function: Any, *given: Any, **options: Any) -> Any:
        quick, found = functions.get(id(function)), None
        if quick is not None and len(given) == 2 and not options:
            found = quick(*given)
        elif quick is not None and len(given) == 1 and options.keys() == {"axis"}:
            found = quick(*given, options["axis"])
        return call(function, *given, **options) if found is None else found

    yield interpreter, "_patch_lang", patched
    yield interpreter.InterpretedFunction, "__call__", called


def _types_once(interpreter: Any) -> Iterator[_Patch]:
    """One shape for all types and tensors that have it, and one numpy type for all types of a name."""
    numpy_type = interpreter._get_np_dtype
    by_name: dict[str, Any] = {}
    shapes: dict[tuple[int, ...], tuple[Any, int, str]] = {}

    def np_dtype(dtype: Any) -> Any:
        name = (dtype.element_ty if isinstance(dtype, tl.block_type) else dtype).name
        if name not in by_name:
            by_name[name] = numpy_type(dtype)
        return by_name[name]

    make_type = tl.block_type.__init__

    def typed(block: Any, element: Any, shape: Any) -> None:
        values = shape.values if isinstance(shape, tl.tuple) else shape
        if not isinstance(values, list | builtins.tuple):
            make_type(block, element, shape)
            return
        key = builtins.tuple([v.value if isinstance(v, tl.constexpr) else v for v in values])
        if key not in shapes:
            make_type(block, element, shape)
            shapes[key] = block.shape, block.numel, str(block.shape)
            return
        block.element_ty = element
        block.shape, block.numel, words = shapes[key]
        block.name = f"<{words}, {element}>"

    make_tensor = tl.tensor.__init__
    tensor_shapes: dict[tuple[int, ...], tuple[Any, Any]] = {}

    def made(tensor: Any, handle: Any, type: Any) -> None:
        key = builtins.tuple(type.shape.values) if type.is_block() else ()
        if key not in tensor_shapes:
            make_tensor(tensor, handle, type)
            tensor_shapes[key] = tensor.shape, tensor.numel
            return
        tensor.handle, tensor.type, tensor.dtype = handle, type, type.scalar
        tensor.shape, tensor.numel = tensor_shapes[key]

    yield interpreter, "_get_np_dtype", np_dtype
    yield tl.block_type, "__init__", typed
    yield tl.tensor, "__init__", made


def _constants_once(semantic: Any) -> Iterator[_Patch]:
    """One tensor for a whole number of a type: nothing writes into one."""
    constant = semantic.scalar_constant
    constants: dict[Any, Any] = {}

    def scalar_constant(self: Any, value: Any, dtype: Any) -> Any:
        if type(value) is not int:
            return constant(self, value, dtype)
        key = value, dtype.name
        if key not in constants:
            constants[key] = constant(self, value, dtype)
        return constants[key]

    yield semantic, "scalar_constant", scalar_constant


def _operands_alike(semantic: Any) -> Iterator[_Patch]:
    """Two operands of one type, or of one shape, are as they are to be; whether an int32 overflows is seen by
    one sum in int64."""
    check, broadcast = semantic.binary_op_type_checking_impl, semantic.broadcast_impl_value
    sanitize = semantic.binary_op_sanitize_overflow_impl

    def checked(self: Any, lhs: Any, rhs: Any, *given: Any, **options: Any) -> Any:
        if (
            isinstance(lhs, tl.tensor)
            and isinstance(rhs, tl.tensor)
            and lhs.dtype is rhs.dtype
            and lhs.dtype.name in _PLAIN
        ):
            return self.broadcast_impl_value(lhs, rhs)
        return check(self, lhs, rhs, *given, **options)

    def broadcasted(self: Any, lhs: Any, rhs: Any) -> Any:
        if lhs.shape is rhs.shape:
            return lhs, rhs
        return broadcast(self, lhs, rhs)

    def sanitized(self: Any, lhs: Any, rhs: Any, operation: Any) -> None:
        type = lhs.type.scalar
        exact = _EXACT.get(operation.__name__)
        if exact is not None and type.int_bitwidth < 64 and self.builder.options.sanitize_overflow:
            result = exact(lhs.handle.data, rhs.handle.data, dtype=np.int64)
            if type.get_int_min_value() <= result.min() and result.max() <= type.get_int_max_value():
                return
        sanitize(self, lhs, rhs, operation)

    yield semantic, "binary_op_type_checking_impl", checked
    yield semantic, "broadcast_impl_value", broadcasted
    yield semantic, "binary_op_sanitize_overflow_impl", sanitized
