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
    tokens = list(_TOKENS.finditer(data[:LENGTH_MAX]))
    if not tokens:
        return data
    one, two = rng.choice(tokens), rng.choice(tokens)
    new = (rng.choice(ODD), two[0], str(rng.choice((-1, 0, 1, 2, 2**31, 2**63, 10**30))).encode())[kind - 5]
    return data[: one.start()] + new + data[one.end() :]
