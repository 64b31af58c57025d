"""Answers that are decoded again without drafts: which, when, and what is said of them."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest
from specctl_sglang.control import repeated_answers
from specctl_sglang.control.repeated_answers import RepeatedAnswers
from specctl_sglang.control.self_check import DONE, NEXT, KeptAnswers, is_comparable

from specctl.engine.guard import Guard
from specctl.engine.self_check import ID_PREFIX, KEPT_MAX, TOKENS_MAX

PLAIN = {
    "top_k": 1, "json_schema": None, "regex": None, "ebnf": None, "structural_tag": None,
    "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "min_new_tokens": 0,
    "logit_bias": None,
}  # fmt: skip
ANSWER = [5, 6, 7]


def request(rid="a", answer=ANSWER, sampling=(), has_ended=True, **more):
    fields = {
        "origin_input_ids": [1, 2], "output_ids": list(answer), "finished_len": None, "extra_key": "tenant",
        "custom_logit_processor": None, "lora_id": None, "multimodal_inputs": None, "input_embeds": None,
        "session": None, "finished": lambda: has_ended,
    }  # fmt: skip
    params = SimpleNamespace(**{**PLAIN, **dict(sampling)})
    return SimpleNamespace(rid=rid, sampling_params=params, **{**fields, **more})


class Scheduler:
    def __init__(self, ratio=1.0):
        self.is_idle, self.ended = True, []
        self.answers = KeptAnswers(ratio, "torch.float32", lambda: self.is_idle, self.ended.append)

    def ask(self, operation, **payload):
        answer = json.loads(self.answers.handle(operation, json.dumps(payload)))
        assert answer["status"] == 200
        return answer["body"]

    def has_run(self, *requests):
        self.answers.before_step(requests)
        self.answers.after_step(requests)


@pytest.fixture
def scheduler():
    return Scheduler()


def test_a_finished_answer_is_handed_out_once(scheduler):
    running, finished = request("b", has_ended=False), request()
    scheduler.has_run(running, finished)
    scheduler.has_run(running, finished)
    assert scheduler.ask(NEXT) == {
        "id": f"{ID_PREFIX}0", "request_id": "a", "prompt": [1, 2], "answer": ANSWER, "extra_key": "tenant",
    }  # fmt: skip
    assert scheduler.ask(NEXT) == {}


def test_what_came_after_the_end_of_an_answer_is_left_out(scheduler):
    scheduler.has_run(request(finished_len=2))
    assert scheduler.ask(NEXT)["answer"] == ANSWER[:2]
    scheduler.has_run(request(answer=range(TOKENS_MAX + 5)))
    assert len(scheduler.ask(NEXT)["answer"]) == TOKENS_MAX


def test_nothing_is_handed_out_while_others_run_or_wait(scheduler):
    scheduler.has_run(request())
    scheduler.is_idle = False
    assert scheduler.ask(NEXT) == {}
    scheduler.is_idle = True
    assert scheduler.ask(NEXT)


@pytest.mark.parametrize(
    ("lead", "result"),
    [
        pytest.param(None, "identical", id="same"),
        pytest.param(5e-4, "ties", id="rounding"),
        pytest.param(0.01, "differing", id="more"),
    ],
)
def test_results_are_counted(scheduler, caplog, lead, result):
    scheduler.has_run(request())
    scheduler.ask(NEXT)
    place = {"request_id": "a", "at": 1, "token": 9, "expected": 6, "lead": lead}
    scheduler.ask(DONE, **({} if lead is None else {"differs": place}))
    counts = scheduler.answers.counts
    assert counts.checked == getattr(counts, result) == 1
    assert ("token 1 is 9 instead of 6" in caplog.text) == (result == "differing")


def test_the_first_other_request_ends_a_check(scheduler):
    scheduler.has_run(request())
    own = request(scheduler.ask(NEXT)["id"], has_ended=False)
    scheduler.has_run(own)
    assert scheduler.ended == []
    scheduler.has_run(own, request("b", has_ended=False))
    assert scheduler.ended == [own.rid]
    scheduler.has_run(own, request("b", has_ended=False))
    assert (scheduler.ended, scheduler.answers.counts.checked) == ([own.rid], 0)


def test_one_of_so_many_is_kept_and_older_ones_make_way():
    scheduler = Scheduler(0.25)
    for number in range(4 * (KEPT_MAX + 2)):
        scheduler.has_run(request(str(number)))
    handed = [scheduler.ask(NEXT)["request_id"] for _ in range(KEPT_MAX)]
    assert handed == [str(number) for number in range(11, 43, 4)]


def test_media_are_remembered_although_sglang_drops_them(scheduler):
    one = request(multimodal_inputs=object(), has_ended=False)
    scheduler.has_run(one)
    one.multimodal_inputs, one.finished = None, lambda: True
    scheduler.has_run(one)
    assert scheduler.ask(NEXT) == {}


def test_other_operations_are_not_its_own(scheduler):
    assert scheduler.answers.handle("telemetry", "") is None


@pytest.mark.parametrize(
    "more",
    [
        {"sampling": {"top_k": 20}},
        {"sampling": {"json_schema": "{}"}},
        {"sampling": {"regex": "a"}},
        {"sampling": {"ebnf": "a"}},
        {"sampling": {"structural_tag": "a"}},
        {"sampling": {"presence_penalty": 0.1}},
        {"sampling": {"frequency_penalty": 0.1}},
        {"sampling": {"repetition_penalty": 1.1}},
        {"sampling": {"min_new_tokens": 9}},
        {"sampling": {"logit_bias": {"1": 2.0}}},
        {"rid": f"{ID_PREFIX}0"},
        {"custom_logit_processor": "x"},
        {"lora_id": "x"},
        {"input_embeds": [[0.0]]},
        {"session": object()},
        {"answer": []},
    ],
    ids=lambda more: next(iter(more.get("sampling", more))),
)
def test_only_plain_greedy_answers_are_comparable(more):
    assert is_comparable(request())
    assert not is_comparable(request(**more))


LEAD = 0.25


def repeated(scheduler, tokens, is_aborted_at=None):
    """What the HTTP server's process does with the next kept answer, which is decoded again as ``tokens``."""
    asked = []

    async def ask(operation, payload):
        return scheduler.answers.handle(operation, payload)

    async def generate(kept, prompt, number, **logprobs):
        asked.append((list(prompt), number, logprobs))
        if len(asked) - 1 == is_aborted_at:
            return None
        if not logprobs:
            return {"output_ids": tokens}
        pair = logprobs["token_ids_logprob"]
        # SGLang gives them by their ids, not in the order in which they were asked for.
        logprobs_by_id = [(-1.0 - LEAD * pair.index(one), one, None) for one in sorted(pair)]
        return {"output_ids": tokens[:1], "meta_info": {"output_token_ids_logprobs": [logprobs_by_id]}}

    asyncio.run(RepeatedAnswers(ask, generate).check())
    return asked


def test_the_same_answer_is_identical(scheduler):
    scheduler.has_run(request())
    assert repeated(scheduler, ANSWER) == [([1, 2], 3, {})]
    assert scheduler.answers.counts.identical == 1


@pytest.mark.parametrize("token", [4, 9])
def test_the_first_other_token_is_weighed_behind_what_is_alike(scheduler, caplog, token):
    scheduler.has_run(request())
    asked = repeated(scheduler, [5, token, 3])
    assert asked[1] == ([1, 2, 5], 1, {"return_logprob": True, "token_ids_logprob": [token, 6]})
    assert scheduler.answers.counts.differing == 1
    assert f"token 1 is {token} instead of 6, by {LEAD}" in caplog.text


@pytest.mark.parametrize("at", [0, 1])
def test_an_aborted_check_counts_nothing(scheduler, at):
    scheduler.has_run(request())
    assert len(repeated(scheduler, [5, 9, 3], is_aborted_at=at)) == at + 1
    assert scheduler.answers.counts.checked == 0


def test_nothing_is_decoded_where_nothing_is_kept(scheduler):
    assert repeated(scheduler, ANSWER) == []


def test_a_failure_is_the_last_one(monkeypatch):
    guard, calls = Guard(), []
    monkeypatch.setattr(repeated_answers, "GUARD", guard)

    async def ask(operation, payload):
        calls.append(operation)
        return json.dumps({"status": 500, "body": "broken"})

    async def polls():
        checks = RepeatedAnswers(ask, None)
        for _ in range(3):
            checks.begin()
            await asyncio.sleep(0.01)

    asyncio.run(polls())
    assert (calls, guard.failures) == ([NEXT], {"self_check": 1})
