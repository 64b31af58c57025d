"""What a request says of itself, where SGLang reads it."""

from types import SimpleNamespace

import pytest
from specctl_sglang.compat.requests import wrap_to_sampling_params, wrap_verify


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"specctl": {"max_draft_tokens": -1}}, "specctl.max_draft_tokens"),
        ({"specctl": {"drafts": 1}}, "specctl.drafts"),
        ({"specctl": 3}, "expected an object"),
        ({"specctl": {"kind": "No Kind"}}, "specctl.kind"),
    ],
)
def test_a_wrong_field_is_an_error_of_that_request(fields, words):
    seen = []
    verify = wrap_verify(lambda params, vocabulary: seen.append(vocabulary))
    with pytest.raises(ValueError, match=words):
        verify(SimpleNamespace(custom_params=fields), 9)
    assert seen == []


@pytest.mark.parametrize(
    "fields", [None, {}, {"other": 1}, {"specctl": {"max_draft_tokens": 2, "share": False}}]
)
def test_a_field_that_is_right_or_absent_is_left_to_sglang(fields):
    seen = []
    wrap_verify(lambda params, vocabulary: seen.append(vocabulary))(SimpleNamespace(custom_params=fields), 9)
    assert seen == [9]


@pytest.mark.parametrize(
    ("tools", "choice", "custom", "found"),
    [
        (["one"], "auto", None, {"specctl_tools": True}),
        (["one"], "auto", {"a": 1}, {"a": 1, "specctl_tools": True}),
        (["one"], "none", None, None),
        (None, "auto", {"a": 1}, {"a": 1}),
    ],
)
def test_a_request_with_tools_says_so_to_the_scheduler(tools, choice, custom, found):
    params = wrap_to_sampling_params(lambda asked, stop: {"stop": stop, "custom_params": custom})
    assert params(SimpleNamespace(tools=tools, tool_choice=choice), ["x"]) == {
        "stop": ["x"], "custom_params": found,
    }  # fmt: skip
