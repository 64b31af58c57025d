"""Names of traffic classes."""

from __future__ import annotations

import pytest

from specctl.contract.classes import context_bucket, valid_kind


@pytest.mark.parametrize(
    ("tokens", "upper"), [(0, 1024), (1024, 1024), (1025, 4096), (4096, 4096), (100_000, 262_144)]
)
def test_context_buckets_are_powers_of_four(tokens: int, upper: int) -> None:
    assert context_bucket(tokens) == upper


@pytest.mark.parametrize("told", ["code", "a", "x_1-y", "z" * 32])
def test_a_kind_is_taken_as_told(told: str) -> None:
    assert valid_kind(told) == told


@pytest.mark.parametrize("told", ["", "Code", "a b", "a\n", "z" * 33, "ä", 7, None, ["code"]])
def test_anything_else_is_no_kind(told: object) -> None:
    assert valid_kind(told) == ""
