"""Answers that are decoded again without drafts: which, when, and what is said of them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from specctl_vllm.control.self_check import SelfCheck, is_comparable

from specctl.engine.self_check import KEPT_MAX

PLAIN = {
    "temperature": 0.0, "structured_outputs": None, "presence_penalty": 0.0, "frequency_penalty": 0.0,
    "repetition_penalty": 1.0, "min_tokens": 0, "logit_bias": None, "bad_words": [],
    "allowed_token_ids": None,
}  # fmt: skip
ANSWER = [5, 6, 7]


def request(request_id="a", answer=ANSWER, sampling=(), **more):
    fields = {
        "request_id": request_id, "mm_features": [], "prompt_embeds": None, "prompt_token_ids": [1, 2],
        "lora_request": None, "resumable": False, "output_token_ids": list(answer),
    }  # fmt: skip
    params = SimpleNamespace(**{**PLAIN, **dict(sampling)})
    return SimpleNamespace(sampling_params=params, **{**fields, **more})


class Scheduler:
    def __init__(self):
        self.requests, self.pause_state = {}, 0

    def add_request(self, made):
        self.requests[made.request_id] = made


def step(made, tokens, *, expected=None, lead=0.0):
    """The engine's outputs of a step; ``expected`` has ``lead`` less log probability than the token."""
    ids = np.array([[token, token if expected is None else expected] for token in tokens])
    values = np.array([[-0.5, -0.5 - lead] for _ in tokens])
    logprobs = SimpleNamespace(logprob_token_ids=ids, logprobs=values)
    own = SimpleNamespace(request_id=made, new_token_ids=tokens, new_logprobs=logprobs)
    other = SimpleNamespace(request_id="other", new_token_ids=[1], new_logprobs=None)
    return {0: SimpleNamespace(outputs=[other, own])}


@pytest.fixture
def scheduler():
    return Scheduler()


@pytest.fixture
def ended():
    return []


@pytest.fixture
def check(scheduler, ended):
    def make(original, request_id, tokens):
        return SimpleNamespace(request_id=request_id, original=original, tokens=tokens)

    def end(where, request_id):
        ended.append(request_id)
        del where.requests[request_id]

    return SelfCheck(scheduler, 1.0, "torch.float32", make, end)


def begun(check, scheduler, finished=None):
    """The id of the request that decodes an answer again."""
    check.finished(finished or request())
    check.begin()
    (made,) = scheduler.requests.values()
    assert made.tokens == len(made.original.output_token_ids)
    return made.request_id


def test_the_same_answer_is_identical_and_no_client_sees_the_check(check, scheduler):
    made = begun(check, scheduler)
    for token in ANSWER:
        outputs = step(made, [token])
        check.take(outputs)
        assert [one.request_id for one in outputs[0].outputs] == ["other"]
    assert check.counts.model_dump() == {"checked": 1, "identical": 1, "ties": 0, "differing": 0}


@pytest.mark.parametrize(
    ("lead", "result"),
    [pytest.param(5e-4, "ties", id="rounding"), pytest.param(0.01, "differing", id="more")],
)
def test_the_first_other_token_decides(check, scheduler, ended, caplog, lead, result):
    made = begun(check, scheduler)
    check.take(step(made, [5]))
    check.take(step(made, [9], expected=6, lead=lead))
    check.take(step(made, [3]))
    assert check.counts.checked == getattr(check.counts, result) == 1
    assert ("token 1 is 9 instead of 6" in caplog.text) == (result == "differing")
    check.make_way()
    assert ended == [made]


def test_a_token_that_is_not_among_the_most_probable_differs(check, scheduler):
    check.take(step(begun(check, scheduler), [9]))
    assert check.counts.differing == 1


def test_it_makes_way_for_other_requests_and_counts_nothing(check, scheduler, ended):
    made = begun(check, scheduler)
    check.take(step(made, [5]))
    scheduler.requests["b"] = request("b")
    check.make_way()
    assert (ended, check.counts.checked) == ([made], 0)
    check.finished(request("c"))
    check.begin()
    assert list(scheduler.requests) == ["b"]


@pytest.mark.parametrize("pause", [0, 1])
def test_it_begins_only_while_the_engine_is_idle(check, scheduler, pause):
    check.finished(request())
    scheduler.pause_state = pause
    check.begin()
    assert bool(scheduler.requests) == (not pause)


def test_its_own_request_is_not_checked_again(check, scheduler):
    made = begun(check, scheduler)
    check.finished(request(made))
    scheduler.requests.clear()
    check.make_way()
    check.begin()
    assert not scheduler.requests


def test_one_of_so_many_is_kept_and_older_ones_make_way(scheduler):
    check = SelfCheck(scheduler, 0.25, "bfloat16", lambda *_: None, lambda *_: None)
    for number in range(4 * (KEPT_MAX + 2)):
        check.finished(request(str(number)))
    assert [one.request_id for one in check._kept] == [str(number) for number in range(11, 43, 4)]


@pytest.mark.parametrize(
    "more",
    [
        {"sampling": {"temperature": 0.7}},
        {"sampling": {"structured_outputs": object()}},
        {"sampling": {"presence_penalty": 0.1}},
        {"sampling": {"frequency_penalty": 0.1}},
        {"sampling": {"repetition_penalty": 1.1}},
        {"sampling": {"min_tokens": 2}},
        {"sampling": {"logit_bias": {1: 2.0}}},
        {"sampling": {"bad_words": ["x"]}},
        {"sampling": {"allowed_token_ids": [1]}},
        {"mm_features": [object()]},
        {"prompt_embeds": object()},
        {"prompt_token_ids": None},
        {"lora_request": object()},
        {"resumable": True},
        {"answer": []},
    ],
    ids=lambda more: next(iter(more.get("sampling", more))),
)
def test_only_plain_greedy_answers_are_comparable(more):
    assert is_comparable(request())
    assert not is_comparable(request(**more))


def test_a_failure_ends_the_check_and_is_counted_once(monkeypatch):
    from specctl_vllm.control import steering

    from specctl.engine.guard import Guard

    guard = Guard()
    monkeypatch.setattr(steering, "GUARD", guard)
    own = object.__new__(steering.Steering)
    own.self_check = object()
    for _ in range(3):
        own.check_answers(lambda check: check.make_way())
    assert own.self_check is None
    assert guard.failures == {"self_check": 1}
