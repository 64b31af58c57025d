"""A request's own field, in both forms that it comes in."""

import json

import pytest

from specctl.engine.request_field import RequestField, kind_of, read_field


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (None, RequestField()),
        ({}, RequestField()),
        ({"max_draft_tokens": 0}, RequestField(max_draft_tokens=0)),
        (
            {"max_draft_tokens": 3, "kind": "sql_1", "share": False},
            RequestField(max_draft_tokens=3, kind="sql_1", share=False),
        ),
    ],
)
def test_an_object_and_its_text_say_the_same(value, field):
    assert read_field(value) == field
    if value is not None:
        assert read_field(json.dumps(value)) == field


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"max_draft_tokens": -1}, "max_draft_tokens"),
        ({"max_draft_tokens": 1025}, "max_draft_tokens"),
        ({"max_draft_tokens": 10**30}, "max_draft_tokens"),
        ({"max_draft_tokens": 2.5}, "max_draft_tokens"),
        ({"max_draft_tokens": True}, "max_draft_tokens"),
        ({"max_draft_tokens": "2"}, "max_draft_tokens"),
        ({"kind": ""}, "kind"),
        ({"kind": "Not This"}, "kind"),
        ({"kind": "code\n"}, "kind"),
        ({"kind": "x" * 33}, "kind"),
        ({"share": 0}, "share"),
        ({"shared": False}, "shared"),
        ([], "list"),
        (["max_draft_tokens"], "list"),
        (3, "3"),
    ],
)
def test_nonsense_is_refused_by_its_name(value, named):
    for form in (value, json.dumps(value)):
        with pytest.raises(ValueError, match=r"^specctl") as refusal:
            read_field(form)
        assert str(refusal.value).isprintable()
    with pytest.raises(ValueError, match=named):
        read_field(value)


@pytest.mark.parametrize(
    "text", ["", "code", "{", "{}{}", '{"kind": "\ud800"}', "[" * 1000, "{" * 2000, "NaN", "null"]
)
def test_text_that_is_no_object_is_refused(text):
    with pytest.raises(ValueError, match=r"^specctl"):
        read_field(text)


@pytest.mark.parametrize(
    ("field", "facts", "kind"),
    [
        (RequestField(kind="code"), (True, True, True), "code"),
        (RequestField(), (True, True, True), "tools"),
        (RequestField(), (False, True, True), "structured"),
        (RequestField(), (False, False, True), "sampled"),
        (RequestField(), (False, False, False), "greedy"),
    ],
)
def test_a_request_that_names_no_kind_has_one(field, facts, kind):
    has_tools, is_structured, is_sampled = facts
    assert kind_of(field, has_tools=has_tools, is_structured=is_structured, is_sampled=is_sampled) == kind
