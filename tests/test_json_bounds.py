from __future__ import annotations

import contextlib
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specctl.json_bounds import NUMBER_MAX, check_json


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"9" * 22 + b"]",
        b"[-" + b"9" * 400 + b"]",
        b'{"a": 1e22}',
        b'{"a": 1E+22 }',
        b'{"a": 1.5e00000000000022}',
        b'{"a": {"b": [1, 2.0E400]}}',
        b"[NaN]",
        b"[-Infinity]",
        b"[1e309]",
        b"[" + b"1" * 30 + b".5]",
        b"[" * 70_000,
        b"{" * 70_000,
        b"1," * 500_000,
    ],
)
def test_what_is_too_much_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        check_json(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"boot": "12e45e678e90123456789012345678901234567890", "a": 1e-30, "b": 0.00012345678901234567}',
        b'{"a": 100000000000000000000, "b": 1e+20, "c": "NaN"}',
        b"",
        b"no JSON",
    ],
)
def test_what_engines_send_is_not(body: bytes) -> None:
    check_json(body)


NUMBERS = st.integers() | st.floats() | st.integers(-(10**30), 10**30)


@given(st.recursive(NUMBERS | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_every_number_beyond_the_bound_is_found(value: object) -> None:
    def is_bounded(part: object) -> bool:
        if isinstance(part, dict | list):
            return all(map(is_bounded, part.values() if isinstance(part, dict) else part))
        return not isinstance(part, int | float) or -NUMBER_MAX <= part <= NUMBER_MAX

    body = json.dumps(value).encode()
    if is_bounded(value):
        check_json(body)
    else:
        with pytest.raises(ValueError, match=r"."):
            check_json(body)


def test_a_large_body_takes_little_time() -> None:
    for part in (b"1e1,", b'"1e1",', b"111111111111111111111.1,", b"1,", b'"1e1":'):
        body = (part * (1 << 20))[: 4 << 20]
        started_s = time.process_time()
        with contextlib.suppress(ValueError):
            check_json(body)
        assert time.process_time() - started_s < 1.0
