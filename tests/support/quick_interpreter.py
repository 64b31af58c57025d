"""Tests of kernels with many helpers, under Triton's interpreter, in a third of the time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import triton
import triton.language as tl

__all__ = ["quick_interpreter"]


@contextmanager
def quick_interpreter(*, checks_overflow: bool = True) -> Iterator[None]:
    """The interpreter patches the language anew for each call of a helper, which takes most of its time; once
    for each launch and each of the language's modules is enough. Does nothing without TRITON_INTERPRET.

    checks_overflow: of int32 sums, which takes most of the rest.
    """
    if not triton.knobs.runtime.interpret:
        yield
        return
    from triton.runtime import interpreter

    patched: set[frozenset[int]] = set()
    launch, call = interpreter.GridExecutor.__call__, interpreter.InterpretedFunction.__call__

    def launched(executor: Any, *given: Any, **options: Any) -> Any:
        patched.clear()
        return launch(executor, *given, **options)

    def called(function: Any, *given: Any, **options: Any) -> Any:
        modules = frozenset(id(v) for v in function.fn.__globals__.values() if v is tl or v is tl.core)
        if modules in patched:
            return function.rewrite()(*given, **options)
        patched.add(modules)
        return call(function, *given, **options)

    builder = interpreter.interpreter_builder
    options = builder.options
    builder.options = replace(options, sanitize_overflow=checks_overflow)
    interpreter.GridExecutor.__call__, interpreter.InterpretedFunction.__call__ = launched, called
    try:
        yield
    finally:
        interpreter.GridExecutor.__call__, interpreter.InterpretedFunction.__call__ = launch, call
        builder.options = options
