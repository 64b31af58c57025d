"""Samples of another setting on a row's steps: which steps, with how many drafts, in which cell and with
whose seconds. The engines differ in when drafts are made and in who tells what they take."""

from types import SimpleNamespace

import pytest
from specctl_vllm.compat.step_report import StepReport
from specctl_vllm.report import WorkerReport
from support.vllm_steps import TOKENS, Engine

READ_S = 0.25
"""Of a head's first pass, in every step."""


def verify_s(number):
    return 1.0 + 0.125 * number


def draft_s(number):
    return 0.5 * number


def true_s(number):
    return verify_s(number) + READ_S + draft_s(number)


class Timed(Engine):
    """An engine whose steps take as long as a worker's would: verification, a head's first pass over what was
    verified, and the passes that make drafts for the next step."""

    def _runs(self, output):
        verified = output.num_scheduled_tokens["r"] - 1
        self.now_s += verify_s(verified)
        self._drafts(output.num_spec_tokens_to_schedule)


class OnHost(Timed):
    """V1: a step ends with its drafts, and the worker tells what they took with them."""

    def _drafts(self, asked):
        self.now_s += READ_S + draft_s(asked)
        self.report = WorkerReport(draft_s(asked), 1.0, None, None)

    def done(self, output):
        super().done(output)
        self.steering.drafts_arrived(self.report)


class OnDeviceV1(Timed):
    """V1 under asynchronous scheduling: the seconds of drafts come with the step's tokens."""

    def _drafts(self, asked):
        self.now_s += READ_S + draft_s(asked)
        self.output_fields = {"specctl": StepReport(draft_s=draft_s(asked))}


class OnDeviceV2(Timed):
    """V2: a step's tokens come before it drafts; the device's clock runs from tokens to tokens."""

    before_s = None

    def _runs(self, output):
        verified = output.num_scheduled_tokens["r"] - 1
        if self.before_s is None:
            self.now_s += verify_s(verified)
            self.output_fields = {}
        else:
            self.now_s += READ_S + self.before_s + verify_s(verified)
            self.output_fields = {
                "specctl": StepReport(step_s=self.before_s + verify_s(verified), read_s=READ_S)
            }
        self.before_s = draft_s(output.num_spec_tokens_to_schedule)


ENGINES = {
    "on the host": (OnHost, False),
    "on a device, V1": (OnDeviceV1, True),
    "on a device, V2": (OnDeviceV2, True),
}


@pytest.fixture(params=ENGINES)
def engine(monkeypatch, request):
    """With a method that does not rest there."""
    kind, is_async = ENGINES[request.param]
    method = "mtp" if kind is OnDeviceV2 else "draft_model"
    return kind(monkeypatch, is_async, method, method, is_v2=kind is OnDeviceV2)


def sample(number, every_steps):
    return {"setting": {"num_speculative_tokens": number}, "every_steps": every_steps}


def settled(engine, number, sampled, every_steps):
    """Under a table, past the steps that the one before it still had under way."""
    engine.run(0)
    engine.set_table(number, sample=sample(sampled, every_steps))
    engine.run(5 * every_steps)
    return {key: vars(cell).copy() for key, cell in cells(engine).items()}


def cells(engine):
    """Of steps that are nobody else's, by number of drafts and whether they follow a rest."""
    counted = engine.steering.telemetry().cells
    return {(one.num_speculative_tokens, one.after_rest): one for one in counted if not one.has_prefill}


def grown(engine, before, number, is_after_rest=False):
    cell = cells(engine)[number, is_after_rest]
    earlier = before.get((number, is_after_rest), {})
    return SimpleNamespace(
        **{name: getattr(cell, name) - earlier.get(name, 0) for name in ("steps", "sampled_steps", "step_s")}
    )


@pytest.mark.parametrize(("number", "sampled"), [(TOKENS, 0), (0, TOKENS), (2, 1), (1, TOKENS)])
@pytest.mark.parametrize("every_steps", [2, 3, 7])
def test_each_setting_has_its_own_steps_and_seconds(engine, number, sampled, every_steps):
    before = settled(engine, number, sampled, every_steps)
    engine.run(every_steps * 20)
    base, other = grown(engine, before, number), grown(engine, before, sampled)
    assert (base.steps, base.sampled_steps) == (20 * (every_steps - 1), 0)
    assert (other.steps, other.sampled_steps) == (20, 20)
    assert base.step_s / base.steps == pytest.approx(true_s(number))
    assert other.step_s / other.steps == pytest.approx(true_s(sampled))
    assert engine.steering.is_active


def test_a_sample_is_really_drafted_and_verified(engine):
    settled(engine, 0, TOKENS, 4)
    cell = cells(engine)[TOKENS, False]
    assert cell.drafted_at == (cell.steps,) * TOKENS
    assert cell.accepted_at[0] == cell.steps
    assert not any(cells(engine)[0, False].drafted_at)


def test_seconds_of_drafts_are_reported_with_the_step_that_verifies_them(monkeypatch):
    engine = OnHost(monkeypatch, False, "draft_model", "draft_model")
    settled(engine, TOKENS, 0, 5)
    seen = cells(engine)
    assert seen[TOKENS, False].draft_s / seen[TOKENS, False].steps == pytest.approx(draft_s(TOKENS), rel=0.05)
    assert seen[0, False].draft_s == 0


def test_every_step_is_counted_once_and_all_time_with_it(monkeypatch):
    engine = OnHost(monkeypatch, False, "mtp", "mtp")
    engine.run(0)
    engine.set_table(1, sample=sample(TOKENS, 3))
    started_s = engine.now_s
    engine.run(50)
    found = engine.steering.telemetry().cells
    assert sum(cell.steps for cell in found) == 50
    counted_s = sum(cell.step_s for cell in found)
    assert counted_s + engine.steering._carried_s == pytest.approx(engine.now_s - started_s)


@pytest.mark.parametrize(
    ("kind", "is_async", "method"),
    [
        pytest.param(OnDeviceV2, True, "eagle3", id="V2-eagle3"),
        pytest.param(OnDeviceV2, True, "specctl_peagle", id="V2-specctl_peagle"),
    ],
)
def test_a_head_that_rested_catches_up_in_steps_of_their_own_cell(monkeypatch, kind, is_async, method):
    """At 0 drafts it keeps what it has to read; the first drafts behind that come with its catching up."""
    engine = kind(monkeypatch, is_async, method, "eagle3", is_v2=kind is OnDeviceV2)
    before = settled(engine, TOKENS, 0, 5)
    engine.run(50)
    assert grown(engine, before, 0).sampled_steps == 10
    rested = grown(engine, before, TOKENS, is_after_rest=True)
    assert (rested.steps, rested.sampled_steps) == (10, 0)
    assert grown(engine, before, TOKENS).steps == 30


def test_a_sample_after_a_rest_takes_two_steps_of_which_the_second_is_measured(monkeypatch):
    """The first one holds what the head has missed: without another, drafts beside off have no seconds."""
    engine = OnDeviceV2(monkeypatch, True, "eagle3", "eagle3", is_v2=True)
    before = settled(engine, 0, TOKENS, 5)
    engine.run(55)
    for is_after_rest in (True, False):
        sampled = grown(engine, before, TOKENS, is_after_rest)
        assert (sampled.steps, sampled.sampled_steps) == (5, 5)
    assert grown(engine, before, 0).steps == 45


def test_a_head_that_reads_along_never_rests(monkeypatch):
    engine = OnHost(monkeypatch, False, "eagle3", "eagle3")
    settled(engine, TOKENS, 0, 3)
    assert not any(is_after_rest for _, is_after_rest in cells(engine))


def test_a_new_table_ends_a_sample_that_waits(monkeypatch):
    """Without asynchronous scheduling the drafts are cut: a table holds from the next step on."""
    engine = OnHost(monkeypatch, False, "mtp", "mtp")
    engine.run(0)
    engine.set_table(0, sample=sample(TOKENS, 2))
    while not engine.request.spec_token_ids:
        engine.run(1)
    engine.waiting.clear()
    before = cells(engine)
    engine.set_table(1)
    engine.run(1)
    after = cells(engine)
    assert after.get((TOKENS, False)) == before.get((TOKENS, False))
    mixed = [cell for cell in engine.steering.telemetry().cells if cell.has_prefill]
    assert [(cell.num_speculative_tokens, cell.sampled_steps) for cell in mixed][-1] == (1, 0)


def test_nothing_is_sampled_while_drafting_is_unsound(monkeypatch):
    engine = OnHost(monkeypatch, False, "mtp", "mtp")
    engine.run(0)
    engine.set_table(0, sample=sample(TOKENS, 2))
    engine.steering._sampling_problem = "a broken kernel"
    engine.request.sampling_params = SimpleNamespace(temperature=0.7)
    engine.run(4)
    before = cells(engine)
    engine.run(10)
    assert cells(engine).keys() == before.keys()
    assert cells(engine)[0, False].steps == before[0, False].steps + 10
    assert cells(engine)[0, False].sampled_steps == before[0, False].sampled_steps


def test_drafts_made_in_one_pass_with_a_prompt_are_kept_apart(monkeypatch):
    engine = OnDeviceV2(monkeypatch, True, "specctl_peagle", "eagle3", is_v2=True)
    engine.run(3)
    prompt = SimpleNamespace(**{**vars(engine.request), "num_computed_tokens": 0, "spec_token_ids": []})
    prompt.request_id, engine.scheduler.requests["p"] = "p", prompt
    engine.steering.before_schedule()
    output = SimpleNamespace(
        num_scheduled_tokens={"r": TOKENS + 1, "p": 5},
        scheduled_spec_decode_tokens={"r": [7] * TOKENS},
        scheduled_new_reqs=[SimpleNamespace(req_id="p")],
        finished_req_ids=set(),
    )
    engine.steering.after_schedule(output)
    assert engine.steering._plan.beside_prompts
    engine.steering.before_schedule()
    assert engine.steering._step.is_mixed


def test_a_step_of_nothing_leaves_the_drafts_that_wait(monkeypatch):
    engine = OnDeviceV2(monkeypatch, True, "mtp", "mtp", is_v2=True)
    engine.set_table(0, sample=sample(TOKENS, 2))
    engine.run(4)
    plan = engine.steering._plan
    engine.steering.before_schedule()
    nothing = SimpleNamespace(
        num_scheduled_tokens={},
        scheduled_spec_decode_tokens={},
        scheduled_new_reqs=[],
        finished_req_ids=set(),
    )
    engine.steering.after_schedule(nothing)
    assert engine.steering._plan is plan
    assert nothing.num_spec_tokens_to_schedule == plan.number


def test_a_class_bounds_samples_too(monkeypatch):
    engine = OnHost(monkeypatch, False, "mtp", "mtp")
    engine.run(0)
    engine.set_table(0, {"kind": "", "max_num_speculative_tokens": 1}, sample=sample(TOKENS, 2))
    engine.run(20)
    numbers = {cell.num_speculative_tokens for cell in engine.steering.telemetry().cells if cell.steps > 5}
    assert numbers == {0, 1}


def test_batches_in_flight_beside_each_other_are_not_sampled(monkeypatch):
    engine = OnHost(monkeypatch, False, "mtp", "mtp")
    assert engine.steering.capabilities.sample_every_min_steps == 2
    engine.scheduler.vllm_config.parallel_config.pipeline_parallel_size = 2
    capabilities = engine.steering._capabilities("mtp", 60.0)
    assert capabilities.sample_every_min_steps is None
    assert "chains" in capabilities.why_chains_only
