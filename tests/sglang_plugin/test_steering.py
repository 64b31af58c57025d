"""What a scheduler's batches become: lookups before, counters after, in any order of launch and result."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from specctl_sglang.control import steering
from specctl_sglang.control.steering import Steering
from specctl_sglang.proposers.layout import Drafts
from specctl_sglang.terms import chain, setting_of

from specctl.contract.adaptivity import AdaptivityState
from specctl.contract.capabilities import Capabilities
from specctl.contract.classes import ClassLimit
from specctl.contract.setting import RowSample, Setting
from specctl.contract.table import TablePut, TableRow

SETTINGS = tuple(map(setting_of, [*map(chain, (0, 1, 2, 4)), (2, 3, 5), (4, 3, 8)]))
CAPABILITIES = Capabilities(
    contract_version=2, engine="sglang", engine_version="0", plugin_version="0", boot_id="b", model="m",
    method="specctl_suffix", controllable=True, num_speculative_tokens_legal=(0, 1, 2, 4), settings=SETTINGS,
    decode_batch_max=8, context_max_tokens=4096, decode_batch_buckets=(1, 2, 8), rows_max=8, lease_max_s=60.0,
    has_shadow_acceptance=False, sample_every_min_steps=2,
)  # fmt: skip


def sampling_params(**given):
    without = {
        "custom_params": None, "top_k": 1, "json_schema": None, "regex": None, "ebnf": None,
        "structural_tag": None, "repetition_penalty": 1.0, "presence_penalty": 0.0,
        "frequency_penalty": 0.0, "min_new_tokens": 0,
    }  # fmt: skip
    return SimpleNamespace(**{**without, **given})


class Engine:
    """A scheduler without SGLang, on a clock of its own."""

    def __init__(self, monkeypatch):
        self.now_s = 10.0
        monkeypatch.setattr(steering.time, "monotonic", lambda: self.now_s)
        view = SimpleNamespace(
            running=lambda: 2,
            waiting=lambda: 1,
            kv_cache_used_ratio=lambda: 0.25,
            verified_batches=lambda: {"batches_verified_by_specctl": 3.0},
            adaptivity=lambda known: known and AdaptivityState(is_on=True, num_speculative_tokens=3),
        )
        self.view = view
        self.steering = Steering(CAPABILITIES, view, None)
        self.requests = [self.request(i) for i in range(2)]

    @staticmethod
    def request(number):
        return SimpleNamespace(
            rid=str(number),
            origin_input_ids=[1] * 10,
            output_ids=[2],
            lora_id=None,
            extra_key=None,
            finished_len=None,
            sampling_params=sampling_params(custom_params={"specctl": {"kind": "code"}}),
        )

    def launch(self, drafted, requests=None, is_decode=True, takes_s=0.0):
        requests = self.requests if requests is None else requests
        mode = SimpleNamespace(is_decode=lambda: is_decode)
        batch = SimpleNamespace(forward_mode=mode, reqs=requests, extend_num_tokens=7)
        self.steering.before_run(batch)
        if is_decode and drafted is not None:
            self.steering.current.drafted = list(drafted)
        self.now_s += takes_s
        result = SimpleNamespace(num_correct_drafts_per_req_cpu=None, of=list(requests))
        self.steering.after_run(result)
        return result

    def finish(self, result, accepted, after_s=1.0, emitted=None, takes_s=0.0):
        self.now_s += after_s
        self.steering.before_result(result)
        self.now_s += takes_s
        result.num_correct_drafts_per_req_cpu = accepted
        for request, number in zip(result.of, emitted or [n + 1 for n in accepted], strict=True):
            request.output_ids = request.output_ids + [3] * number
        self.steering.after_result(result)

    def put(self, tokens, topk=1, width=None, sample=None):
        setting = {"num_speculative_tokens": tokens, "tree_topk": topk, "verify_width_tokens": width}
        row = TableRow(decode_batch_from=1, **setting, sample=sample)
        version = self.steering.table.version
        self.steering.table.put(
            TablePut(base_version=version, rows=(row,), fallback_num_speculative_tokens=0, owner="t")
        )

    def cells(self):
        return {cell.num_speculative_tokens: cell for cell in self.steering.telemetry().cells}


@pytest.fixture
def engine(monkeypatch):
    return Engine(monkeypatch)


def test_until_a_table_comes_drafts_are_those_of_the_start(engine):
    steered = Steering(CAPABILITIES, engine.steering._view, None, (2, 3, 5))
    mode = SimpleNamespace(is_decode=lambda: True)
    steered.before_run(SimpleNamespace(forward_mode=mode, reqs=engine.requests))
    current = steered.current
    assert (current.num_speculative_tokens, current.tree_topk, current.verify_width_tokens) == (2, 3, 5)
    assert steered.telemetry().num_speculative_tokens == 2


def test_an_engine_that_has_one_tree_alone_runs_that(engine):
    """An algorithm that is not steered."""
    capabilities = CAPABILITIES.model_copy(
        update={"settings": (setting_of((4, 3, 8)),), "controllable": False, "sample_every_min_steps": None}
    )
    engine.steering = Steering(capabilities, engine.view, None)
    engine.finish(engine.launch(None), [3, 1])
    (cell,) = engine.cells().values()
    assert (cell.tree_topk, cell.verify_width_tokens, cell.verified_tokens) == (3, 8, 16)


def test_a_step_is_counted_by_what_it_drafted_and_what_was_accepted(engine):
    engine.finish(engine.launch([4, 2]), [3, 0])
    (cell,) = engine.cells().values()
    assert (cell.decode_batch_from, cell.num_speculative_tokens, cell.steps) == (2, 4, 1)
    assert (cell.request_steps, cell.emitted_tokens, cell.verified_tokens) == (2, 5, 10)
    assert cell.drafted_at == (2, 2, 1, 1)
    assert cell.accepted_at == (1, 1, 1, 0)
    assert cell.context_tokens == 22
    assert cell.step_s == 1.0


class Stream:
    """A device that works on what was launched, one after the other."""

    def __init__(self):
        self.free_s = 0.0
        self.takes_s = 0.0

    def span(self, now_s):
        stream, began_s = self, max(now_s, self.free_s)

        class Span:
            def end(self):
                self.ended_s = stream.free_s = max(now_s, stream.free_s) + stream.takes_s

            def seconds(self, before):
                return self.ended_s - (began_s if before is None else before.ended_s)

        return Span()


def test_the_launch_of_a_prompt_is_not_a_part_of_the_step_before_it(engine):
    """A prompt of 8 s takes 4 s to launch, before the result of a decode step of 1 s is taken."""
    stream = Stream()
    engine.steering = Steering(CAPABILITIES, engine.view, None, new_span=lambda: stream.span(engine.now_s))
    stream.takes_s = 1.0
    engine.finish(engine.launch([4, 4]), [2, 2], after_s=2.0)
    first, stream.takes_s = engine.launch([4, 4]), 8.0
    prompt = engine.launch(None, [engine.request(7)], is_decode=False, takes_s=4.0)
    engine.finish(first, [2, 2], after_s=0.0)
    engine.finish(prompt, [0], after_s=8.0)
    assert engine.cells()[4].step_s == 2.0
    assert engine.steering.telemetry().cells[0].step_s == pytest.approx(8.0)


def test_a_request_that_ends_inside_its_draft_emits_less(engine):
    engine.requests[1].finished_len = 3
    engine.finish(engine.launch([4, 4]), [4, 4])
    assert engine.cells()[4].emitted_tokens == 7


def test_under_the_overlap_scheduler_results_come_a_launch_later(engine):
    first = engine.launch([4, 4])
    engine.put(2)
    second = engine.launch([2, 2])
    engine.finish(first, [4, 4])
    engine.put(0)
    third = engine.launch([0, 0])
    engine.finish(second, [1, 1], after_s=0.5)
    engine.finish(third, [0, 0], after_s=0.25)
    cells = engine.cells()
    assert {number: cell.step_s for number, cell in cells.items()} == {4: 1.0, 2: 0.5, 0: 0.25}
    assert [cells[number].emitted_tokens for number in (4, 2, 0)] == [10, 4, 2]
    telemetry = engine.steering.telemetry()
    assert (telemetry.num_speculative_tokens, telemetry.decoding, telemetry.waiting) == (0, 2, 1)


def test_where_a_launch_computes_a_step_has_its_own_seconds(engine):
    """A CPU under the overlap scheduler: a step's result comes when the next one is computed too."""
    engine.steering = Steering(CAPABILITIES, engine.view, None, computes_at_launch=True)
    first = engine.launch([4, 4], takes_s=2.0)
    engine.put(2)
    second = engine.launch([2, 2], takes_s=8.0)
    engine.finish(first, [4, 4], after_s=0.0, takes_s=0.5)
    engine.finish(second, [1, 1], after_s=0.0, takes_s=0.25)
    assert {number: cell.step_s for number, cell in engine.cells().items()} == {4: 2.5, 2: 8.25}


def test_a_step_of_prompts_takes_time_and_has_a_cell_of_its_own(engine):
    new = [engine.request(7)]
    prompts = engine.launch([], new, is_decode=False)
    engine.now_s += 3.0
    engine.steering.before_result(prompts)
    engine.steering.after_result(prompts)
    engine.finish(engine.launch([4, 4]), [0, 0], after_s=0.5)
    assert engine.cells()[4].step_s == 0.5
    alone = engine.cells()[0]
    assert (alone.decode_batch_from, alone.decode_batch_to, alone.has_prefill) == (0, 0, True)
    assert (alone.steps, alone.request_steps, alone.prefill_tokens, alone.step_s) == (1, 0, 7, 3.0)
    assert hasattr(new[0], "specctl_class")


def test_requests_are_counted_by_the_kind_that_they_name(engine):
    engine.finish(engine.launch([4, 4]), [1, 2])
    classes = {one.kind: one for one in engine.steering.telemetry().classes}
    assert classes["code"].request_steps == 2
    assert classes["code"].accepted_at == (2, 1, 0, 0)


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({}, "greedy"),
        ({"top_k": 40}, "sampled"),
        ({"json_schema": "{}", "top_k": 40}, "structured"),
        ({"regex": "a+"}, "structured"),
        ({"custom_params": {"specctl_tools": True}, "structural_tag": "{}"}, "tools"),
        ({"custom_params": {"specctl": {"kind": "mine"}, "specctl_tools": True}}, "mine"),
        ({"custom_params": {"specctl": {"kind": "No Kind"}}}, "greedy"),
    ],
)
def test_a_request_has_a_class_without_naming_one(engine, given, kind):
    one = engine.request(9)
    one.sampling_params = sampling_params(**given)
    engine.launch([], [one], is_decode=False)
    assert one.specctl_key.kind == kind


def limits(engine, *requests, number=4, rules=()):
    """Of a step with these requests, which have all arrived."""
    for own in requests:
        engine.launch([], [own], is_decode=False)
    engine.steering.table.class_limits = rules
    sampling = SimpleNamespace(acc_additive_penalties=None, acc_scaling_penalties=torch.ones(3, 9))
    return engine.steering.limits_of(requests, sampling, number)


def asking(engine, number, **given):
    one = engine.request(number)
    one.sampling_params = sampling_params(**given)
    return one


def test_a_request_bounds_its_own_drafts(engine):
    most, never = {"specctl": {"max_draft_tokens": 2}}, {"specctl": {"max_draft_tokens": 0}}
    asked = asking(engine, 1, custom_params=most), asking(engine, 2, custom_params=never), engine.request(3)
    assert limits(engine, *asked) == [2, 0, 4]
    assert limits(engine, *asked, number=1) == [1, 0, 1]
    assert limits(engine, engine.request(4)) is None


def test_rules_for_classes_bound_the_drafts_of_theirs(engine):
    rules = (
        ClassLimit(kind="code", max_num_speculative_tokens=1),
        ClassLimit(kind="sampled", max_num_speculative_tokens=3),
    )
    own = {"specctl": {"max_draft_tokens": 2, "kind": "sampled"}}
    asked = engine.request(1), asking(engine, 2, custom_params=own), asking(engine, 3, top_k=9)
    assert limits(engine, *asked, rules=rules) == [1, 2, 3]
    # In the batch of a request that came in unannounced, and beside one with penalties.
    late = engine.request(4)
    penalised = asking(engine, 5, presence_penalty=1.0)
    sampling = SimpleNamespace(acc_additive_penalties=torch.zeros(2, 9), acc_scaling_penalties=None)
    assert engine.steering.limits_of([late, penalised], sampling, 4) == [1, 0]
    assert engine.steering.telemetry().proposer["penalty_request_steps"] == 1


def test_a_step_launched_for_a_request_that_had_ended_costs_and_emits_nothing(engine):
    first = engine.launch([4, 4])
    second = engine.launch([4, 4])
    engine.finish(first, [4, 4])
    engine.finish(second, [2, 3], emitted=[0, 4])
    cell = engine.cells()[4]
    assert (cell.request_steps, cell.emitted_tokens) == (4, 14)


def test_filled_up_drafts_are_not_counted_as_ours(engine):
    engine.finish(engine.launch([1, 0]), [2, 1])
    assert engine.cells()[4].accepted_at == (1, 0, 0, 0)


def test_every_so_many_steps_run_the_rows_sample(engine):
    tree = Setting(num_speculative_tokens=4, tree_topk=3, verify_width_tokens=8)
    engine.put(2, sample=RowSample(setting=tree, every_steps=3))
    for _ in range(12):
        current_drafts = engine.launch(None)
        engine.finish(current_drafts, [1, 0], after_s=1.0)
    base, sampled = (engine.cells()[number] for number in (2, 4))
    assert (base.steps, base.sampled_steps, base.step_s) == (8, 0, 8.0)
    assert (sampled.steps, sampled.sampled_steps, sampled.step_s) == (4, 4, 4.0)
    assert (sampled.tree_topk, sampled.verify_width_tokens) == (3, 8)


def test_ranks_come_with_the_result(engine):
    engine.put(4, topk=3, width=8)
    for path in ([[0, 1, -1], [8, -1, -1]], [[0, 2, 3], [8, 9, 10]]):
        result = engine.launch(None)
        made, nodes = torch.tensor([[0, 1, 3, 4, 5, 6, 7]] * 2), torch.tensor(path, dtype=torch.int32)
        result.specctl_accepted = SimpleNamespace(made=made, nodes=nodes)
        engine.finish(result, [sum(node > -1 for node in one) - 1 for one in path])
    (cell,) = engine.cells().values()
    # 1, then 2 and 3, and 1 and 2 of the second request: 0; 1 and 3; 0 and 1.
    assert cell.accepted_rank_at == ((2, 1, 0), (1, 1, 0), (0, 0, 0), (0, 0, 0))
    assert sum(map(sum, cell.accepted_rank_at)) == sum(cell.accepted_at)


def test_ranks_of_trees_on_the_host(engine):
    engine.put(4, topk=3, width=8)
    result = engine.launch([2, 1])
    parts = ([[5, 6, 7], [5, 8, 0]], [[-1, -1, 1], [-1, -1, -1]], [3, 2])
    result.specctl_step.tree = Drafts(*(np.array(part, np.int32) for part in parts), 8)
    result.next_token_ids = torch.tensor([6, 7, 1, 0, 8, 2, 0, 0], dtype=torch.int32)
    engine.finish(result, [2, 1])
    (cell,) = engine.cells().values()
    assert cell.accepted_rank_at[:2] == ((0, 2, 0), (1, 0, 0))


def test_the_table_tells_the_branches_too(engine):
    engine.put(4, topk=3)
    engine.launch([4, 4])
    assert (engine.steering.current.num_speculative_tokens, engine.steering.current.tree_topk) == (4, 3)


def test_a_sample_of_off_takes_two_steps_of_which_the_second_is_measured(engine):
    """The first waits for the host: its seconds are no steady step's."""
    engine.put(4, sample=RowSample(setting=setting_of(chain(0)), every_steps=5))
    order = []
    for _ in range(40):
        result = engine.launch(None)
        order.append(result.specctl_step.num_speculative_tokens)
        engine.finish(result, [0, 0])
    assert order == ([*[4] * 9, 0, 0] * 4)[:40]
    cells = {
        (cell.num_speculative_tokens, cell.after_rest): (cell.steps, cell.sampled_steps)
        for cell in engine.steering.telemetry().cells
    }
    assert cells == {(4, False): (34, 0), (0, True): (3, 3), (0, False): (3, 3)}


def test_a_sample_of_off_is_one_step_where_a_launch_computes_it(engine):
    engine.steering = Steering(CAPABILITIES, engine.view, None, computes_at_launch=True)
    engine.put(4, sample=RowSample(setting=setting_of(chain(0)), every_steps=5))
    for _ in range(40):
        engine.finish(engine.launch(None), [0, 0])
    assert (engine.cells()[0].steps, engine.cells()[0].after_rest) == (8, False)


def test_only_the_first_step_without_drafts_is_told_apart_where_drafting_is_off(engine):
    engine.finish(engine.launch(None), [0, 0])
    engine.put(0)
    for _ in range(10):
        engine.finish(engine.launch(None), [0, 0])
    steps = {
        cell.after_rest: cell.steps for cell in engine.steering.telemetry().cells if not cell.drafted_at[0]
    }
    assert steps == {True: 1, False: 9}
