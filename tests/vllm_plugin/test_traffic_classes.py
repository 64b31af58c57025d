"""A request's traffic class; the names that it goes by in vLLM are the canary's matter."""

from types import SimpleNamespace

import pytest
from specctl_vllm.control.request_fields import field_of, is_shared
from specctl_vllm.control.traffic_classes import RequestClasses, class_key

from specctl.engine.request_classes import ClassKey
from specctl.engine.request_field import TOOLS_KEY


def request(prompt_tokens=10, salt=None, extra_args=None, temperature=0.0, grammar=None):
    return SimpleNamespace(
        num_prompt_tokens=prompt_tokens,
        num_computed_tokens=0,
        sampling_params=SimpleNamespace(
            extra_args=extra_args, temperature=temperature, structured_outputs=grammar
        ),
        lora_request=None,
        cache_salt=salt,
    )


@pytest.mark.parametrize(
    ("extra", "kind"),
    [
        ({"specctl": {"kind": "code"}}, "code"),
        ({"specctl": '{"kind": "code", "share": false}'}, "code"),
        ({"specctl": '{"share": false}'}, "greedy"),
        ({"specctl": {"kind": "code"}, TOOLS_KEY: 1}, "code"),
        ({TOOLS_KEY: 1}, "tools"),
        ({"other": "code"}, "greedy"),
        (None, "greedy"),
    ],
)
def test_a_request_may_name_its_kind(extra, kind):
    assert class_key(request(extra_args=extra)).kind == kind


def test_requests_that_name_no_kind_are_told_apart_by_what_they_are():
    assert class_key(request(temperature=0.5)).kind == "sampled"
    assert class_key(request(grammar=object())).kind == "structured"
    assert class_key(request(temperature=0.5, grammar=object(), extra_args={TOOLS_KEY: 1})).kind == "tools"


def test_requests_without_sampling_have_no_kind():
    pooling = request()
    pooling.sampling_params = None
    assert class_key(pooling).kind == ""


def test_a_field_that_passed_by_the_check_bounds_nothing_and_is_not_learnt_from():
    wrong = request(extra_args={"specctl": {"max_draft_tokens": "none"}})
    assert field_of(wrong).max_draft_tokens is None
    assert class_key(wrong).kind == "greedy"
    assert not is_shared(wrong)
    assert is_shared(request())
    assert not is_shared(request(extra_args={"specctl": {"share": False}}))


def test_the_salt_is_not_reported():
    key = class_key(request(salt="tenant-secret"))
    assert key.namespace
    assert "tenant-secret" not in key.namespace
    assert key != class_key(request(salt="another"))
    assert class_key(request()) == ClassKey("", "greedy", 1024)


def test_long_namespaces_are_cut_to_a_digest():
    adapted = request()
    adapted.lora_request = SimpleNamespace(lora_name="x" * 500)
    assert len(class_key(adapted).namespace) == 32


def test_a_request_moves_on_as_its_context_grows():
    classes = RequestClasses(3)
    grown, short = request(prompt_tokens=1000), request()
    for one in (grown, short):
        classes.arrived(one, 0.0)
    for step in range(6):
        grown.num_computed_tokens = 1000 + 10 * step
        classes.count(3, [grown, short], [3, 3], [2, 0], float(step))
    seen = {one.context_to_tokens: one for one in classes.counters.snapshot(is_idle=False)}
    assert seen.keys() == {1024, 4096}
    assert (seen[1024].request_steps, seen[4096].request_steps) == (6 + 4, 2)
    assert (seen[1024].decoding, seen[4096].decoding) == (1, 1)
    assert seen[4096].accepted_at == (2, 2, 0)


def test_a_request_that_nobody_announced_is_counted_too():
    classes = RequestClasses(3)
    classes.count(3, [request(extra_args={"specctl": {"kind": "code"}})], [3], [2], 0.0)
    assert [one.kind for one in classes.counters.snapshot(is_idle=False)] == ["code"]
