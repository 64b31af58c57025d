"""Names of traffic classes."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from specctl.contract.classes import ClassLimit, class_words, context_bucket
from specctl.engine.request_classes import OTHER, ClassKey, limit_of, valid_kind


@pytest.mark.parametrize(
    ("tokens", "upper"), [(0, 1024), (1024, 1024), (1025, 4096), (4096, 4096), (100_000, 262_144)]
)
def test_context_buckets_are_powers_of_four(tokens: int, upper: int) -> None:
    assert context_bucket(tokens) == upper


@pytest.mark.parametrize("kind", ["code", "a", "x_1-y", "z" * 32])
def test_a_kind_is_taken_as_given(kind: str) -> None:
    assert valid_kind(kind) == kind


@pytest.mark.parametrize("kind", ["", "Code", "a b", "a\n", "z" * 33, "ä", 7, None, ["code"]])
def test_anything_else_is_no_kind(kind: object) -> None:
    assert valid_kind(kind) == ""


CODE = ClassKey("adapter=a,salt=12", "code", 4096)


@pytest.mark.parametrize(
    ("rule", "is_met"),
    [
        ({}, True),
        ({"kind": "code"}, True),
        ({"kind": "co*"}, True),
        ({"kind": "co"}, False),
        ({"kind": ""}, False),
        ({"namespace": "adapter=a*"}, True),
        ({"namespace": "adapter=a"}, False),
        ({"namespace": ""}, False),
        ({"context_to_tokens": 4096}, True),
        ({"context_to_tokens": 1024}, False),
        ({"kind": "code", "context_to_tokens": 16_384}, False),
    ],
)
def test_a_rule_is_met_in_every_part(rule: dict[str, object], is_met: bool) -> None:
    limit = ClassLimit.model_validate({**rule, "max_num_speculative_tokens": 2})
    assert limit_of([limit], CODE) == (2 if is_met else None)


def test_the_first_rule_that_is_met_holds() -> None:
    chat = ClassLimit(kind="chat", max_num_speculative_tokens=1)
    code, every = (
        ClassLimit(kind="code", max_num_speculative_tokens=5),
        ClassLimit(max_num_speculative_tokens=0),
    )
    assert limit_of([chat, code, every], CODE) == 5
    assert limit_of([chat, every, code], CODE) == 0
    assert limit_of([chat], CODE) is None
    assert limit_of([chat, code], OTHER) is None


@pytest.mark.parametrize(
    "rule",
    [
        {"context_to_tokens": 2000},
        {"context_to_tokens": 0},
        {"kind": "No Kind"},
        {"kind": "c*de"},
        {"namespace": "*a"},
        {"max_num_speculative_tokens": -1},
        {"max_num_speculative_tokens": None},
        {"namespaces": "a"},
    ],
)
def test_a_rule_that_cannot_be_met_is_refused(rule: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ClassLimit.model_validate({"max_num_speculative_tokens": 2, **rule})


def test_rules_in_plain_words() -> None:
    every = ClassLimit(max_num_speculative_tokens=0)
    shared = ClassLimit(namespace="", kind="code", context_to_tokens=4096, max_num_speculative_tokens=1)
    assert class_words(every) == "every class"
    assert class_words(shared) == "namespace shared, kind code, context up to 4096"
