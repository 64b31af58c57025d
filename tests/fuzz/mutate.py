"""Inputs from earlier ones: bytes, tokens and whole structures are changed, doubled, joined and nested."""

from __future__ import annotations

import random
import re

__all__ = ["mutated"]

ODD = (
    b"", b"0", b"-1", b"1e400", b"-1e308", b"NaN", b"9" * 5000, b"0x" + b"f" * 400, b"null", b"~", b"true",
    b"!!int", b"!!bool maybe", b"&a [*a]", b"*a", b"&a", b"<<: *a", b"---\n", b"...", b"\x00", b"\xff\xfe",
    b"\xed\xa0\x80", b"\n", b"\r\n\x1b[2J", b"\t", b"{", b"}", b"[", b"]", b"\"", b"'", b"\\", b"\\ud800",
    b",",
    b": ", b"- ", b"# ", b"|\n", b">-\n", b"%YAML 9.9\n", b"[" * 200, b"{\"a\":" * 200, b"[[]]",
    b"[{}]",    b"{}",
    b"18446744073709551616", b"-9223372036854775809", b"1_000", b"0o17", b".inf", b"1.", b"+Inf", b"\xc2\x85",
    b"\xe2\x80\xa8", b"\xef\xbb\xbf", b"Content-Length: -1\r\n", b"Transfer-Encoding: chunked\r\n",
    b"HTTP/1.1 101 ",
)  # fmt: skip
_TOKENS = re.compile(rb"-?[0-9.]+|[A-Za-z_]+|\"[^\"\n]*\"|[^\sA-Za-z0-9]")
LENGTH_MAX = 64 * 1024
_WINDOW = 512


def mutated(rng: random.Random, pool: list[bytes]) -> bytes:
    data = rng.choice(pool)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        data = _step(rng, data, pool)
    return data[:LENGTH_MAX]


def _step(rng: random.Random, data: bytes, pool: list[bytes]) -> bytes:
    kind = rng.randrange(8)
    at = rng.randint(0, len(data))
    if kind == 0:
        return data[:at] + rng.randbytes(rng.randint(1, 4)) + data[at + rng.randint(0, 4) :]
    if kind == 1:
        return data[:at] + rng.choice(ODD) + data[at:]
    if kind == 2:
        return data[:at] + data[at + rng.randint(1, 64) :]
    if kind == 3:
        part = data[at : at + rng.randint(1, 200)]
        return data[:at] + part * rng.randint(2, 20) + data[at:]
    if kind == 4:
        other = rng.choice(pool)
        return data[:at] + other[rng.randint(0, len(other)) :]
    one, other = _token(rng, data), _token(rng, data)
    if one is None or other is None:
        return data
    number = str(rng.choice((-1, 0, 1, 2, 2**31, 2**63, 10**30))).encode()
    new = (rng.choice(ODD), data[slice(*other)], number)[kind - 5]
    return data[: one[0]] + new + data[one[1] :]


def _token(rng: random.Random, data: bytes) -> tuple[int, int] | None:
    """Where one begins and ends, out of some that stand together: a long input has very many. The first ones
    often say what the others are."""
    start = rng.choice((0, rng.randint(0, max(len(data) - _WINDOW, 0))))
    tokens = list(_TOKENS.finditer(data, start, start + _WINDOW))
    return rng.choice(tokens).span() if tokens else None
