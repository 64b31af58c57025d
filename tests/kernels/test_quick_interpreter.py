"""Operations under ``support.quick_interpreter`` are numpy's, at the edges of their types too, and an integer
that overflows is found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError

pytestmark = pytest.mark.skipif(not triton.knobs.runtime.interpret, reason="of Triton's interpreter")
SIZE = 16
PLAIN = np.arange(SIZE) - 5
EDGES = [0.0, -0.0, 1.5, -2.25, np.inf, -np.inf, np.nan, 1e-40, 3e38, -3e38, 7.0, 0.1, 1.0, 2.0, -1.0, 5.0]
WHOLE = [0, -1, 1, 2, -7, 30, 2**28 - 1, -(2**28), 12345, -12345, 3, 4, 5, 6, 7, 8]


@triton.jit
def floats_kernel(x_ptr, y_ptr, out_ptr, SIZE: tl.constexpr):
    """out_ptr float32[8, SIZE]"""
    at = tl.arange(0, SIZE)
    x = tl.load(x_ptr + at)
    y = tl.load(y_ptr + at, mask=at < SIZE - 1, other=2.5)
    tl.store(out_ptr + at, x + y)
    tl.store(out_ptr + SIZE + at, x - 0.5)
    tl.store(out_ptr + 2 * SIZE + at, x * y)
    tl.store(out_ptr + 3 * SIZE + at, tl.where(x >= y, x, -0.0))
    tl.store(out_ptr + 4 * SIZE + at, tl.minimum(x, y))
    tl.store(out_ptr + 5 * SIZE + at, tl.maximum(x, 1))
    tl.store(out_ptr + 6 * SIZE + at, tl.exp2(-x))
    tl.store(out_ptr + 7 * SIZE + at, tl.sum((x[:, None] < y[None, :]).to(tl.float32), axis=1))


def floats_of(x: Any, y: Any) -> Any:
    y = np.where(np.arange(SIZE) < SIZE - 1, y, np.float32(2.5))
    rows = [x + y, x - np.float32(0.5), x * y, np.where(x >= y, x, np.float32(-0.0)), np.fmin(x, y)]
    rows += [np.fmax(x, np.float32(1)), np.exp2(-x), (x[:, None] < y[None, :]).sum(1)]
    return np.stack(rows).astype(np.float32)


@pytest.mark.parametrize("other", [EDGES, EDGES[::-1], [2.0] * SIZE])
def test_floats(other: list[float]) -> None:
    for given in (PLAIN, EDGES):
        x, y = torch.tensor(given, dtype=torch.float32), torch.tensor(other, dtype=torch.float32)
        out = torch.empty(8, SIZE)
        with np.errstate(all="ignore"):
            floats_kernel[(1,)](x, y, out, SIZE=SIZE)
            expected = floats_of(x.numpy(), y.numpy())
        np.testing.assert_array_equal(out.numpy(), expected)
        assert (np.signbit(out.numpy()) == np.signbit(expected))[~np.isnan(expected)].all()


@triton.jit
def integers_kernel(x_ptr, y_ptr, out_ptr, SIZE: tl.constexpr):
    """out_ptr of the type of x, [9, SIZE]"""
    at = tl.arange(0, SIZE)
    x = tl.load(x_ptr + at)
    y = tl.load(y_ptr + at)
    tl.store(out_ptr + at, x + y)
    tl.store(out_ptr + SIZE + at, x - 3)
    tl.store(out_ptr + 2 * SIZE + at, (x & 7) * y)
    tl.store(out_ptr + 3 * SIZE + at, tl.where((x < y) | (x == 1), x, y ^ x))
    tl.store(out_ptr + 4 * SIZE + at, tl.minimum(x, y))
    tl.store(out_ptr + 5 * SIZE + at, x >> 3)
    tl.store(out_ptr + 6 * SIZE + at, x * 0 + tl.sum((x > y).to(tl.int32), axis=0))
    tl.store(out_ptr + 7 * SIZE + at, x * 0 + tl.max(at - 40, axis=0))
    tl.store(out_ptr + 8 * SIZE + at, (x.to(tl.float32) * 0.5).to(x.dtype))


def integers_of(x: Any, y: Any) -> Any:
    half = np.trunc(x.astype(np.float32) * np.float32(0.5))
    rows = [x + y, x - 3, (x & 7) * y, np.where((x < y) | (x == 1), x, y ^ x), np.minimum(x, y), x >> 3]
    rows += [np.full(SIZE, (x > y).sum()), np.full(SIZE, SIZE - 41), half]
    return np.stack([row.astype(x.dtype) for row in rows])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_integers(dtype: torch.dtype) -> None:
    for given in (PLAIN, WHOLE):
        x, y = torch.tensor(given, dtype=dtype), torch.tensor(WHOLE[::-1], dtype=dtype)
        out = torch.empty(9, SIZE, dtype=dtype)
        integers_kernel[(1,)](x, y, out, SIZE=SIZE)
        np.testing.assert_array_equal(out.numpy(), integers_of(x.numpy(), y.numpy()))


@pytest.mark.parametrize("last", [2**31 - 1, -(2**31)])
def test_an_integer_that_overflows_is_found(last: int) -> None:
    y = torch.tensor(WHOLE, dtype=torch.int32)
    out = torch.empty(9, SIZE, dtype=torch.int32)
    integers_kernel[(1,)](y, y, out, SIZE=SIZE)
    x = torch.tensor([*WHOLE[:-1], last], dtype=torch.int32)
    with pytest.raises(InterpreterError, match=r"int32 overflow detected for operation (add|sub)"):
        integers_kernel[(1,)](x, y, out, SIZE=SIZE)
