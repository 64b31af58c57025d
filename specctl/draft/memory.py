"""Arrays by their address, and cache lines ahead of their use: what numba's Python has no words for.

numba takes 0.1 us to look at an array argument, and a call of the suffix index would have twenty. One
table of addresses takes their place: ``State`` keeps the arrays alive and fills it, ``vector_at`` and
others read it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["State", "columns_at", "matrix_at", "part_at", "prefetch", "size_at", "state_words", "vector_at"]

_WORDS = 3
"""Of an array in the table: address, rows, columns (1 for a vector)."""


class State:
    """A table of arrays for compiled code; every one of its places must be put before a call."""

    def __init__(self, places: int) -> None:
        self._table = np.zeros(_WORDS * places, np.int64)
        self._kept: dict[int, npt.NDArray[Any]] = {}
        self.address = int(self._table.ctypes.data)

    def put(self, place: int, array: npt.NDArray[Any]) -> None:
        """Compiled code finds this array, of one or two dimensions and contiguous, from now on."""
        if not array.flags.c_contiguous or array.ndim > 2:
            raise ValueError(f"place {place}: expected a contiguous array of one or two dimensions")
        self._kept[place] = array
        columns = array.shape[1] if array.ndim == 2 else 1
        self._table[_WORDS * place : _WORDS * (place + 1)] = array.ctypes.data, array.shape[0], columns

    def drop(self, place: int) -> None:
        """Let go of an array whose memory is about to move."""
        self._kept.pop(place, None)
        self._table[_WORDS * place : _WORDS * (place + 1)] = 0


@intrinsic
def _pointer(typing_context, address):  # int64 -> voidptr
    def code(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), code


@intrinsic
def prefetch(typing_context, array, index):  # one dimension, contiguous; int64
    """Read the cache line of array[index] soon. An index outside the array does nothing."""

    def code(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        at = builder.bitcast(builder.gep(data, [arguments[1]]), cgutils.voidptr_t)
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, word, word, word])
        call = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(call, [at, word(0), word(3), word(1)])  # to read, kept in all levels, data
        return context.get_dummy_value()

    return types.void(array, types.int64), code


@njit(cache=True, nogil=True)
def state_words(address, places):  # int64[3 * places]
    return carray(_pointer(address), (_WORDS * places,), np.int64)


@njit(cache=True, nogil=True)
def vector_at(words, place, dtype):
    return carray(_pointer(words[_WORDS * place]), (words[_WORDS * place + 1],), dtype)


@njit(cache=True, nogil=True)
def matrix_at(words, place, dtype):
    shape = words[_WORDS * place + 1], words[_WORDS * place + 2]
    return carray(_pointer(words[_WORDS * place]), shape, dtype)


@njit(cache=True, nogil=True)
def part_at(words, place, skipped, dtype, rows, columns):
    """rows x columns elements of another dtype, ``skipped`` bytes after the start of an array."""
    return carray(_pointer(words[_WORDS * place] + skipped), (rows, columns), dtype)


@njit(cache=True, nogil=True)
def columns_at(words, place):
    return words[_WORDS * place + 2]


@njit(cache=True, nogil=True)
def size_at(words, place):
    return words[_WORDS * place + 1] * words[_WORDS * place + 2]
