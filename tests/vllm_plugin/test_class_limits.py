"""The table's rules for classes, request by request."""

from types import SimpleNamespace

import pytest
from specctl_vllm.control.class_limits import RequestLimits
from specctl_vllm.control.steering import Steering

from specctl.contract.classes import ClassLimit

PLACEHOLDERS = [-1] * 4
RULES = (
    ClassLimit(kind="plain", max_num_speculative_tokens=0),
    ClassLimit(kind="code", max_num_speculative_tokens=3),
    ClassLimit(context_to_tokens=4096, max_num_speculative_tokens=1),
)


def request(kind, computed=10, own=None):
    field = {"kind": kind} if own is None else {"kind": kind, "max_draft_tokens": own}
    return SimpleNamespace(
        request_id=f"{kind} {own}",
        num_prompt_tokens=10,
        num_computed_tokens=computed,
        sampling_params=SimpleNamespace(
            extra_args={"specctl": field}, temperature=0.0, structured_outputs=None
        ),
        lora_request=None,
        cache_salt=None,
        spec_token_ids=PLACEHOLDERS,
    )


def test_each_request_keeps_what_its_class_may_have():
    requests = [request("plain"), request("code"), request("chat"), request("chat", computed=2000)]
    RequestLimits().cut(RULES, requests)
    assert [len(one.spec_token_ids) for one in requests] == [0, 3, 4, 1]
    assert PLACEHOLDERS == [-1] * 4


def test_drafts_under_the_limit_are_left_alone():
    short = request("code")
    short.spec_token_ids = drafts = [7, 8]
    RequestLimits().cut(RULES, [short])
    assert short.spec_token_ids is drafts


@pytest.mark.parametrize(
    ("emitted", "in_flight", "kept"),
    [(0, 0, 4), (7, 0, 4), (8, 0, 3), (9, 0, 2), (11, 0, 0), (12, 0, 4), (7, 3, 1), (9, 5, 0)],
)
@pytest.mark.parametrize("rules", [RULES, ()])
def test_drafts_end_before_a_request_has_its_least_tokens(emitted, in_flight, kept, rules):
    """Of 12 tokens asked for, the last one that may not end a request is behind 3 drafts where it has 8."""
    limits, one = RequestLimits(bounds_min_tokens=True), request("chat")
    one.sampling_params.min_tokens = 12
    one.num_output_tokens, one.num_output_placeholders = 0, 0
    limits.arrived(one)
    one.num_output_tokens, one.num_output_placeholders = emitted, in_flight
    limits.cut(rules, [one])
    assert len(one.spec_token_ids) == kept


def test_other_rules_are_looked_up_anew():
    limits, one = RequestLimits(), request("code")
    assert limits.most(RULES, [one]) == 3
    assert limits.most((ClassLimit(max_num_speculative_tokens=2),), [one]) == 2


@pytest.mark.parametrize(
    ("kind", "own", "kept"), [("code", 2, 2), ("code", 4, 3), ("chat", 1, 1), ("chat", 9, 4)]
)
@pytest.mark.parametrize("rules", [RULES, ()])
def test_a_request_may_ask_for_fewer_and_never_for_more(kind, own, kept, rules):
    limits, one, other = RequestLimits(), request(kind, own=own), request("chat")
    for each in (one, other):
        limits.arrived(each)
    limits.cut(rules, [one, other])
    assert len(one.spec_token_ids) == (kept if rules else min(own, 4))
    assert len(other.spec_token_ids) == 4
    assert limits.most(rules, [one, other]) is None


def test_a_request_bounds_drafts_until_it_ends():
    limits, one = RequestLimits(), request("chat", own=0)
    limits.arrived(one)
    assert limits.most((), [one]) == 0
    limits.finished([one.request_id])
    assert limits.most((), [one]) is None
    limits.cut((), [one])
    assert one.spec_token_ids is PLACEHOLDERS


@pytest.mark.parametrize(
    ("kinds", "most"),
    [(["plain"], 0), (["plain", "code"], 3), (["plain", "chat"], None), ([], 0)],
)
def test_the_most_that_anybody_can_use(kinds, most):
    assert RequestLimits().most(RULES, [request(kind) for kind in kinds]) == most


@pytest.mark.parametrize(
    ("kinds", "proposed", "wanted"),
    [
        (["plain"], 4, 0),
        (["code"], 4, 4),
        (["code"], 2, 2),
        (["plain", "chat"], 4, 4),
    ],
)
def test_nobody_is_asked_for_drafts_that_are_cut_anyway(kinds, proposed, wanted):
    """Legal are 0, 2 and 4: three drafts are cut from four."""
    steering = SimpleNamespace(
        _limits=RequestLimits(),
        table=SimpleNamespace(class_limits=RULES),
        capabilities=SimpleNamespace(num_speculative_tokens_legal=(0, 2, 4)),
    )
    assert Steering._wanted(steering, proposed, [request(kind) for kind in kinds]) == wanted
