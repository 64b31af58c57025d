"""An exception of ours costs a step its drafts and nothing else, on either model runner."""

import os
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from specctl_vllm.compat import model_runner
from specctl_vllm.compat.draft_seconds import DraftClock
from specctl_vllm.compat.scheduler import _namespaces
from specctl_vllm.compat.step_report import StepReport
from specctl_vllm.options import parse_speculative_config
from specctl_vllm.proposers.guarded import guarded_speculator, note_step
from specctl_vllm.report import Failures
from support.vllm_steps import TOKENS, Engine

from specctl.engine.guard import FAILURES_MAX, GUARD


@pytest.fixture(autouse=True)
def _failures_are_expected():
    yield
    GUARD.failures.clear()


def broken(*_args, **_kwargs):
    raise RuntimeError("broken")


class Proposer:
    """Of the V1 runner, with one method that raises."""

    def __init__(self, fails):
        self.alone = []
        self.drafted = 0
        if fails:
            setattr(self, fails, broken)

    def finish(self, request_ids):
        """Nothing to do."""

    def note_requests(self, namespaces, unshared, new_requests):
        """Nothing to do."""

    def isolate(self, request_ids):
        self.alone += request_ids

    def note_batch(self, input_batch, rows):
        """Nothing to do."""

    def propose_step(self, input_batch, sampled_token_ids, wanted, least):
        self.drafted += 1
        return [[7] * wanted for _ in sampled_token_ids]

    def shadow_counts(self):
        return None

    def stats(self):
        return None


def step(runner):
    """Of two requests, as the runner goes through it; the drafts, and the report."""
    output = SimpleNamespace(
        finished_req_ids={"gone"},
        num_spec_tokens_to_schedule=2,
        scheduled_new_reqs=[SimpleNamespace(req_id="a")],
    )
    model_runner.wrap_execute_model(lambda *_: None)(runner, output)
    drafts = model_runner.wrap_propose_draft_token_ids(broken)(runner, output, [[1], [2]])
    report = model_runner.wrap_take_draft_token_ids(lambda _: SimpleNamespace())(runner).specctl
    return drafts, report


def runner_with(fails):
    proposer = Proposer(fails)
    runner = SimpleNamespace(
        drafter=proposer, input_batch=None, specctl_clock=DraftClock(False), specctl_resting_head=None
    )
    return runner, proposer


ENTRIES = ["finish", "note_requests", "note_batch", "propose_step", "shadow_counts", "stats"]


@pytest.mark.parametrize("fails", ENTRIES)
def test_a_step_on_v1_goes_on_without_what_failed(fails):
    runner, proposer = runner_with(fails)
    drafts, report = step(runner)
    assert drafts == ([[], []] if fails == "propose_step" else [[7, 7], [7, 7]])
    assert report.failures == Failures(os.getpid(), Counter({fails: 1}))
    assert proposer.alone == (["a"] if fails == "note_requests" else [])


def test_after_a_few_failures_v1_does_not_ask_the_proposer():
    runner, proposer = runner_with("stats")
    for _ in range(FAILURES_MAX):
        assert step(runner)[0] == [[7, 7], [7, 7]]
    assert step(runner)[0] == [[], []]
    assert proposer.drafted == FAILURES_MAX


class Speculator:
    """Of Model Runner V2."""

    num_speculative_steps = 3

    def __init__(self):
        self.draft_logits = torch.zeros(4, 3, 5)
        self.is_broken = False
        self.alone = []

    def note_step(self, scheduler_output):
        if self.is_broken:
            broken()

    def isolate(self, request_ids):
        self.alone += request_ids

    def propose(self, input_batch, dummy_run=False, num_speculative_tokens=None):
        if self.is_broken:
            broken()
        return torch.full((input_batch.num_reqs, 3), 7)


BATCH = SimpleNamespace(num_reqs=2, idx_mapping=torch.tensor([3, 1], dtype=torch.int32))


def test_a_step_on_v2_gets_drafts_of_a_law_that_they_were_drawn_from():
    made = guarded_speculator(Speculator())
    assert made.propose(BATCH).tolist() == [[7] * 3] * 2
    made.is_broken = True
    drafts = made.propose(BATCH)
    assert (drafts.dtype, drafts.tolist()) == (torch.int64, [[0] * 3] * 2)
    laws = made.draft_logits.softmax(-1)
    assert torch.equal(laws[[1, 3], :, 0], torch.ones(2, 3))
    assert torch.equal(laws[[0, 2]], torch.full((2, 3, 5), 0.2)), "other requests' slots stay"
    assert GUARD.failures == {"propose": 1}


def test_v2_rests_after_a_few_failures_and_a_dummy_run_fails_as_it_is():
    made = guarded_speculator(Speculator())
    made.is_broken = True
    with pytest.raises(RuntimeError, match="broken"):
        made.propose(BATCH, dummy_run=True)
    for _ in range(FAILURES_MAX):
        made.propose(BATCH)
    made.is_broken = False
    assert made.propose(BATCH).tolist() == [[0] * 3] * 2


def test_a_rank_at_rest_makes_the_passes_that_others_wait_for():
    head = torch.full((2, 3), 9)
    made = guarded_speculator(Speculator(), lambda batch, num_speculative_tokens: head)
    assert made.propose(BATCH, num_speculative_tokens=2).tolist() == [[7] * 3] * 2
    made.is_broken = True
    for _ in range(FAILURES_MAX):
        assert made.propose(BATCH, num_speculative_tokens=2).tolist() == [[0] * 3] * 2
    assert made.propose(BATCH, num_speculative_tokens=2) is head


def test_a_request_whose_namespace_is_not_known_is_alone():
    made = Speculator()
    made.is_broken = True
    note_step(made, SimpleNamespace(scheduled_new_reqs=[SimpleNamespace(req_id="a")]))
    assert made.alone == ["a"]
    scheduler = SimpleNamespace(requests={"b": SimpleNamespace(cache_salt="tenant")})
    output = SimpleNamespace(scheduled_new_reqs=[SimpleNamespace(req_id="b")])
    assert _namespaces(scheduler, output) == {"b": "request=b"}
    assert GUARD.failures == {"note_step": 1, "namespace_of": 1}


@pytest.mark.parametrize("is_async", [False, True])
def test_a_worker_that_failed_too_often_is_asked_for_nothing(monkeypatch, is_async):
    engine = Engine(monkeypatch, is_async)
    engine.output_fields = {
        "specctl": StepReport(Failures(os.getpid() + 1, Counter(propose=FAILURES_MAX - 1)))
    }
    engine.run(4)
    assert engine.scheduled().num_spec_tokens_to_schedule == TOKENS
    engine.output_fields = {"specctl": StepReport(Failures(os.getpid() + 1, Counter(propose=FAILURES_MAX)))}
    engine.run(2)
    assert engine.scheduled().num_spec_tokens_to_schedule == 0
    assert engine.steering.telemetry().failures == {"propose": FAILURES_MAX}


STEERING = {
    "before_schedule": "_flush_if_whole",
    "after_schedule": "_planned",
    "before_update": "_note_failures",
    "after_update": "_flush",
}
"""A method that each calls."""


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("entry", STEERING)
def test_steering_that_fails_costs_a_step_its_count(monkeypatch, is_async, entry):
    engine = Engine(monkeypatch, is_async)
    engine.run(4)
    with monkeypatch.context() as failing:
        failing.setattr(engine.steering, STEERING[entry], broken)
        engine.run(1)
    assert GUARD.failures[entry] == 1
    assert engine.steering.is_active
    GUARD.failures.clear()
    before = engine.steering.telemetry().cells
    engine.run(10)
    after = engine.steering.telemetry().cells
    assert 9 <= sum(one.steps for one in after) - sum(one.steps for one in before) <= 11
    assert GUARD.failures == {}
    assert engine.scheduled().num_spec_tokens_to_schedule == TOKENS


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("entry", STEERING)
def test_steering_that_goes_on_failing_drafts_nothing(monkeypatch, is_async, entry):
    engine = Engine(monkeypatch, is_async)
    monkeypatch.setattr(engine.steering, STEERING[entry], broken)
    engine.run(FAILURES_MAX + 1)
    assert engine.scheduled().num_spec_tokens_to_schedule == 0
    assert GUARD.is_resting


def test_a_step_of_which_nothing_is_known_is_not_drafted_for(monkeypatch):
    """Whether a sampled request makes drafts unsound is asked before the step is scheduled."""
    engine = Engine(monkeypatch, is_async=False)
    engine.run(4)
    with monkeypatch.context() as failing:
        failing.setattr(engine.steering, "_drafts_are_unsound", broken)
        assert engine.scheduled().num_spec_tokens_to_schedule == 0
    assert engine.scheduled().num_spec_tokens_to_schedule == TOKENS


def test_a_worker_in_this_process_is_counted_once(monkeypatch):
    GUARD.failures["propose"] = 1
    engine = Engine(monkeypatch, is_async=True)
    engine.output_fields = {"specctl": StepReport(Failures.here())}
    engine.run(2)
    assert engine.steering.telemetry().failures == {"propose": 1}


def test_a_lossy_method_stays_the_engines():
    asked = {"method": "specctl_suffix", "rejection_sample_method": "fly"}
    _, options = parse_speculative_config(asked, on_device=True)
    assert not options.verifies_itself()
    with pytest.raises(ValueError, match="'fly' changes the output"):
        parse_speculative_config(asked | {"specctl": {"verify": "specctl"}}, on_device=True)


# torch warns where vLLM's own modules compile at import.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("asked", "passed", "drafts"),
    [pytest.param(3, 0, 3, id="skipped"), pytest.param(0, 0, 0, id="at rest"), (3, 2, 2), (None, 0, 0)],
)
def test_a_step_whose_drafts_nobody_would_verify_is_no_rest_of_the_head(asked, passed, drafts):
    """vLLM 0.33.0 passes 0 where every request is in the middle of its prompt (Scheduler._drafts_unused)."""
    from specctl_vllm.compat.peagle_device import PEagleSpeculator

    made = object.__new__(PEagleSpeculator)
    made.num_speculative_steps, made.draft_tokens = 4, torch.zeros(2, 4)
    made._asked = None
    if asked is not None:
        made.note_step(SimpleNamespace(num_spec_tokens_to_schedule=asked))
    seen = []
    made._copy_request_inputs = lambda *_, **__: None
    made._make_drafts = lambda step, wanted, is_dummy, is_profile: seen.append(wanted)
    batch = SimpleNamespace(num_reqs=2, idx_mapping=BATCH.idx_mapping)
    states = torch.zeros(2, 8)
    one = torch.ones(1, 2)
    made.propose(batch, {}, {}, states, None, one, one, one, one, one, one, num_speculative_tokens=passed)
    assert seen == [drafts]
