"""Workers with a draft model under a table, on an engine of a few lines."""

from types import SimpleNamespace

import pytest
import torch
from specctl_sglang.compat.rank_agreement import AGREEMENT, Wish
from specctl_sglang.control.draft_limits import penalty_limits
from specctl_sglang.control.steering import OpenStep
from specctl_sglang.terms import OFF, chain
from support.stand_ins import STATES, imported_alone, sglang_of_states, with_names_alone

TREE = (3, 4, 8)
"""Of a server that was started with trees."""


class Base:
    """SGLang's worker: it tells what it was asked for."""

    def __init__(self, drafts, topk, has_graphs):
        self.speculative_num_draft_tokens, self.topk, self.device = drafts + 1, topk, "cpu"
        self.speculative_num_steps = drafts if topk == 1 else 3
        runner = SimpleNamespace(decode_cuda_graph_runner=object() if has_graphs else None)
        self.target_worker = SimpleNamespace(model_runner=runner, forward_batch_generation=self._decode)
        self.ran = []

    def init_cuda_graphs(self):
        self.ran.append("captured")

    def forward_batch_generation(self, batch, on_publish, grammar_barrier, pp_proxy_tensors):
        self.ran.append("drafted")
        return "drafted"

    def _decode(self, batch, capture_hidden_mode):
        self.ran.append((batch.seq_lens.tolist(), batch.input_ids.tolist(), batch.out_cache_loc.tolist()))
        tokens = torch.tensor([7, 8])
        return SimpleNamespace(next_token_ids=tokens, logits_output=SimpleNamespace())


@pytest.fixture
def engine(monkeypatch):
    """Ours, imported beside an SGLang of which only names are there."""
    sglang = sglang_of_states(monkeypatch)
    scheduler, batches, base, utils = with_names_alone(
        monkeypatch,
        "sglang.srt.managers.scheduler",
        "sglang.srt.model_executor.forward_batch_info",
        "sglang.srt.speculative.base_spec_worker",
        "sglang.srt.speculative.spec_utils",
    )
    scheduler.GenerationBatchResult = base.BaseSpecWorker = object
    batches.CaptureHiddenMode = SimpleNamespace(FULL="full", NULL="null")
    utils.record_stream_for_v2_verify = lambda *_: None
    context = sglang.runtime_context
    context.group = SimpleNamespace(world_size=1)
    context.get_spec = lambda: SimpleNamespace(speculative_use_rejection_sampling=False)
    context.attention_ranks, alone = 1, SimpleNamespace(world_size=1)
    context.get_parallel = lambda: SimpleNamespace(
        tp_group=context.group, attn_tp_group=alone, attn_dp_size=context.attention_ranks
    )
    _, runtime, _, module = imported_alone(monkeypatch, *STATES, "specctl_sglang.compat.steered_states")
    return SimpleNamespace(module=module, states=runtime.RuntimeStates, context=context)


def worker_class(engine):
    class States(engine.states):
        def _build(self, key):
            if key in self.full_for:
                raise torch.OutOfMemoryError("no room")

        full_for = ()

    class Worker(engine.module.SteeredByStates, Base):
        own, full_for = (), ()

        def _made_at_start(self):
            states = States([], self.at_start)
            states.full_for = self.full_for
            return states

        def _own_candidates(self):
            return self.own

        def _carried(self, tokens, lengths):
            return ("carried", tokens.tolist(), lengths.tolist())

        def _follow(self, batch, result):
            self.ran.append(("follows", batch.seq_lens.tolist(), result.accept_lens.tolist()))

    return Worker


@pytest.fixture
def make(engine, monkeypatch):
    def made(drafts=7, topk=1, has_graphs=True, options="{}", group=None, **more):
        monkeypatch.setenv("SPECCTL_SGLANG_OPTIONS", options)
        engine.context.group = group or SimpleNamespace(world_size=1)
        worker = worker_class(engine)(drafts, topk, has_graphs)
        vars(worker).update(more)
        worker.init_cuda_graphs()
        return worker

    return made


def step(worker, depth, branches=1, width=None):
    current = OpenStep(depth, tree_topk=branches, verify_width_tokens=width, requests=["a", "b"])
    worker.specctl = SimpleNamespace(is_active=True, current=current, limits_of=lambda *_: None)
    return current


def sampling(is_greedy=True, **more):
    without = {"acc_additive_penalties": None, "acc_scaling_penalties": None}
    return SimpleNamespace(is_all_greedy=is_greedy, has_custom_logit_processor=False, **{**without, **more})


def request_with(emitted=0, **penalty):
    without = {
        "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "min_new_tokens": 0,
    }  # fmt: skip
    params = SimpleNamespace(**{**without, **penalty})
    return SimpleNamespace(sampling_params=params, output_ids=[7] * emitted)


def idle():
    """A batch of none, of a rank beside others that decode."""
    none, launched = torch.tensor([], dtype=torch.int64), batch(is_decode=False)
    launched.forward_mode.is_idle = lambda: True
    launched.reqs, launched.is_extend_in_batch, launched.spec_info = [], False, None
    launched.seq_lens = launched.seq_lens_cpu = launched.req_pool_indices = none
    launched.input_ids = launched.out_cache_loc = none
    return launched


def batch(is_decode=True, is_greedy=True):
    pool = torch.arange(20).view(2, 10)
    return SimpleNamespace(
        forward_mode=SimpleNamespace(is_decode=lambda: is_decode, is_idle=lambda: False),
        is_extend_in_batch=not is_decode,
        reqs=["a", "b"],
        sampling_info=sampling(is_greedy),
        seq_lens=torch.tensor([3, 5]),
        seq_lens_cpu=torch.tensor([3, 5]),
        seq_lens_sum=8,
        req_pool_indices=torch.tensor([1, 0]),
        req_to_token_pool=SimpleNamespace(req_to_token=pool),
        spec_info=SimpleNamespace(bonus_tokens=torch.tensor([5, 6], dtype=torch.int32)),
        has_grammar=True,
        return_logprob=False,
    )


@pytest.mark.parametrize(
    ("more", "chains", "trees"),
    [
        ({}, (0, 1, 2, 3, 5, 7), ()),
        ({"has_graphs": False}, tuple(range(8)), ()),
        ({"options": '{"candidates": [2]}'}, (0, 2, 7), ()),
        ({"options": '{"candidates": [2]}', "has_graphs": False}, (0, 2, 7), ()),
        ({"topk": 4}, (0, 1, 2, 3, 5, 7), ((2, 4, 5), (3, 2, 5), (3, 4, 5), TREE)),
        ({"topk": 4, "options": '{"trees": []}'}, (0, 1, 2, 3, 5, 7), (TREE,)),
        ({"topk": 4, "options": '{"trees": [[2, 3, 6]]}'}, (0, 1, 2, 3, 5, 7), ((2, 3, 6), TREE)),
        ({"topk": 4, "options": '{"candidates": [0]}'}, (0,), ((2, 4, 5), (3, 2, 5), (3, 4, 5), TREE)),
        ({"topk": 4, "full_for": {(3, 4, 5)}}, (0, 1, 2, 3, 5, 7), ((2, 4, 5), (3, 2, 5), TREE)),
        ({"full_for": {(3, 1, 4)}}, (0, 1, 2, 5, 7), ()),
        ({"own": (0, 1, 3, 9)}, (0, 1, 3, 7, 9), ()),
        ({"own": (0, 1, 3, 9), "options": '{"candidates": [5]}'}, (0, 5, 7), ()),
    ],
    ids=["usual", "no graphs", "asked", "asked without graphs", "trees", "no more trees", "named trees",
         "trees and off", "no room for a tree", "no room for a number", "of the algorithm",
         "asked of the algorithm"],
)  # fmt: skip
def test_what_is_prepared(make, more, chains, trees):
    """The start's own shape is prepared in any case."""
    worker = make(**more)
    assert set(worker.shapes) == {*map(chain, chains), *trees}


def test_a_start_that_not_every_rank_could_prepare_gives_way_to_the_largest(make):
    others = (chain(0), chain(5), (2, 4, 5))
    group = SimpleNamespace(world_size=2, rank_in_group=0, all_gather_object=lambda keys: [keys, others])
    worker = make(topk=4, group=group)
    assert set(worker.shapes) == set(others)
    assert worker.at_start == chain(5)


def test_a_table_beyond_the_start_is_refused_by_its_option(make):
    with pytest.raises(ValueError, match="expected at most 7"):
        make(options='{"candidates": [8]}')
    with pytest.raises(ValueError, match="expected at most 1 branches"):
        make(options='{"trees": [[2, 2, 4]]}')


def test_a_batch_takes_the_state_of_its_row(make):
    worker = make(topk=4)
    current = step(worker, 3, 4, width=5)
    assert worker.forward_batch_generation(batch()) == "drafted"
    assert worker._states._active == (3, 4, 5)
    assert (current.drafted, current.verified_tokens) == ([3, 3], 10)
    step(worker, 1)
    worker.forward_batch_generation(batch())
    assert worker._states._active == chain(1)
    worker.forward_batch_generation(batch(is_decode=False))
    assert worker._states._active == TREE


def test_a_draft_model_that_reads_along_never_rests(make):
    worker = make()
    current = step(worker, 3)
    worker.forward_batch_generation(batch())
    assert not current.after_rest


def test_steps_in_which_a_head_catches_up_are_told_apart(make, monkeypatch):
    worker = make()
    monkeypatch.setattr(type(worker), "_has_rested", lambda _self, _batch: True)
    for number, after_rest in ((3, True), (0, False)):
        current = step(worker, number)
        worker.forward_batch_generation(batch())
        assert current.after_rest is after_rest


def test_a_row_that_names_no_width_takes_the_largest(make):
    worker = make(topk=4)
    current = step(worker, 3, 4)
    worker.forward_batch_generation(batch())
    assert worker._states._active == TREE
    assert (current.verify_width_tokens, current.verified_tokens) == (8, 16)


def test_an_algorithm_may_draft_for_some_of_a_batch_alone(make, monkeypatch):
    worker = make()
    monkeypatch.setattr(type(worker), "_numbers_drafted", lambda _self, _batch, shape: [shape[0], 0])
    current = step(worker, 3)
    worker.forward_batch_generation(batch())
    assert (current.num_speculative_tokens, current.drafted) == (3, [3, 0])


def test_without_a_table_the_start_stays_in_force(make):
    worker = make(topk=4)
    worker.forward_batch_generation(batch())
    assert worker._states._active == TREE


def test_at_0_the_target_decodes_and_the_draft_model_follows(make):
    worker = make()
    current, published, decoding = step(worker, 0), [], batch()
    barrier = worker.ran.append
    result = worker.forward_batch_generation(decoding, published.append, lambda: barrier("grammar"))
    assert worker.ran[1:] == [
        "grammar",
        ([4, 6], [5, 6], [13, 5]),
        ("follows", [3, 5], [1, 1]),
    ]
    assert [one.tolist() for one in published] == [[4, 6]]
    assert (decoding.seq_lens.tolist(), decoding.seq_lens_cpu.tolist(), decoding.seq_lens_sum) == (
        [3, 5],
        [3, 5],
        8,
    )
    assert result.next_draft_input == ("carried", [7, 8], [4, 6])
    assert (result.new_seq_lens.tolist(), result.speculative_num_draft_tokens) == ([4, 6], 1)
    assert (current.drafted, current.verified_tokens) == ([0, 0], 2)


def test_sampled_batches_are_guarded_on_a_cpu(make):
    worker = make(has_graphs=False)
    current = step(worker, 5)
    current.is_sampled = True
    worker.forward_batch_generation(batch(is_greedy=False))
    assert (current.is_guarded, current.num_speculative_tokens, current.is_sampled) == (True, 0, False)
    assert "drafted" not in worker.ran


def test_ranks_take_the_first_ones_setting_and_what_all_could_prepare(make):
    others = (chain(0), chain(2), chain(7))
    group = SimpleNamespace(
        world_size=2,
        rank_in_group=1,
        all_gather_object=lambda keys: [keys, others],
        broadcast_object=lambda sent, src: (chain(2), [2, 0]),
    )
    worker = make(group=group)
    assert worker.shapes == others
    step(worker, 7)
    launched = batch()
    worker.forward_batch_generation(launched)
    assert worker._states._active == chain(2)
    assert launched.specctl_limits == [2, 0]


def limited(worker, *penalties, **more):
    """The step that a batch of two requests takes, one penalty each, and the limits for its verification."""
    current = step(worker, *more.pop("shape", (5,)))
    worker.specctl.limits_of = penalty_limits
    launched = batch()
    launched.sampling_info = sampling(acc_scaling_penalties=torch.ones(2, 9), **more)
    launched.reqs = [request_with(**penalty) for penalty in penalties]
    worker.forward_batch_generation(launched)
    return current, launched.specctl_limits


PENALTY = {"repetition_penalty": 1.1}


def test_a_request_with_penalties_gets_no_drafts_and_the_others_keep_theirs(make):
    worker = make()
    current, limits = limited(worker, PENALTY, {})
    assert (current.num_speculative_tokens, current.drafted, limits) == (5, [0, 5], [0, 5])
    assert worker.ran[-1] == "drafted"


def test_a_tree_keeps_its_shape_for_the_other_requests(make):
    current, limits = limited(make(topk=4), {}, PENALTY, shape=TREE)
    assert (current.num_speculative_tokens, current.tree_topk) == TREE[:2]
    assert (current.drafted, limits) == ([3, 0], [3, 0])


def test_a_batch_of_requests_with_penalties_takes_the_plain_decode(make):
    worker = make()
    current, limits = limited(worker, PENALTY, {"min_new_tokens": 3})
    assert (current.num_speculative_tokens, current.drafted, limits) == (0, [0, 0], [0, 0])
    assert "drafted" not in worker.ran


def test_where_links_do_not_end_a_draft_the_whole_batch_rests(make):
    worker = make(verifies_by_links=False)
    current, _ = limited(worker, PENALTY, {})
    assert (current.num_speculative_tokens, current.drafted) == (0, [0, 0])


def test_sampled_drafts_with_penalties_rest_as_a_batch(make, engine, monkeypatch):
    monkeypatch.setattr(engine.module, "start_guarded", lambda *_: None)
    monkeypatch.setattr(
        engine.module, "get_spec", lambda: SimpleNamespace(speculative_use_rejection_sampling=True)
    )
    current, _ = limited(make(), PENALTY, {}, is_greedy=False)
    assert current.num_speculative_tokens == 0


def test_a_batch_with_a_custom_logit_processor_is_guarded(make):
    worker = make()
    current, launched = step(worker, 5), batch()
    launched.sampling_info.has_custom_logit_processor = True
    worker.forward_batch_generation(launched)
    assert (current.is_guarded, current.num_speculative_tokens) == (True, 0)


@pytest.fixture
def shared(make, engine, monkeypatch):
    """A worker whose ranks share steps, and what they agree on."""
    engine.context.attention_ranks = 2

    def agree(wish):
        monkeypatch.setattr(AGREEMENT, "agreed", wish)

    return SimpleNamespace(make=make, agree=agree)


def test_what_a_rank_wants_and_what_all_agree_on(shared):
    worker = shared.make(topk=4)
    current, launched = step(worker, 3, 4, width=5), batch()
    assert worker.wish(launched) == Wish((3, 4, 5), 2)
    shared.agree(Wish(chain(1), 5, is_sample=True))
    assert worker.forward_batch_generation(launched) == "drafted"
    assert worker._states._active == chain(1)
    assert (current.num_speculative_tokens, current.drafted, current.is_sampled) == (1, [1, 1], True)


@pytest.mark.parametrize(("shape", "ran"), [(chain(2), "drafted"), (OFF, ([], [], []))])
def test_a_rank_without_requests_makes_the_passes_of_the_others(shared, shape, ran):
    worker = shared.make()
    shared.agree(Wish(shape, 5))
    worker.forward_batch_generation(idle())
    assert worker._states._active == shape
    assert worker.ran[1] == ran


def test_beside_prompts_of_another_rank_the_start_is_in_force(shared):
    worker = shared.make()
    step(worker, 1)
    shared.agree(None)
    worker.forward_batch_generation(idle())
    assert worker._states._active == chain(7)


def test_a_batch_that_may_not_be_drafted_for_lets_no_rank_draft(shared):
    worker = shared.make()
    current, launched = step(worker, 5), batch(is_greedy=False)
    wish = worker.wish(launched)
    assert wish == Wish(OFF, 2, most=0)
    shared.agree(Wish(chain(5), 9, most=wish.most))
    worker.forward_batch_generation(launched)
    assert (worker._states._active, current.drafted) == (OFF, [0, 0])


def test_more_drafts_than_a_ranks_requests_may_have_end_by_their_links(shared):
    worker = shared.make()
    current, launched = step(worker, 1), batch()
    worker.specctl.limits_of = penalty_limits
    launched.sampling_info = sampling(acc_scaling_penalties=torch.ones(2, 9))
    launched.reqs = [request_with(**PENALTY), request_with()]
    assert worker.wish(launched) == Wish(chain(1), 2)
    shared.agree(Wish(chain(5), 9))
    worker.forward_batch_generation(launched)
    assert (launched.specctl_limits, current.drafted) == ([0, 5], [0, 5])


def test_of_requests_of_which_nobody_knows_the_limits_nothing_is_verified(shared):
    worker = shared.make()
    step(worker, 1)
    shared.agree(Wish(chain(5), 9))
    launched = batch()
    worker.forward_batch_generation(launched)
    assert (worker._states._active, launched.specctl_limits) == (chain(5), [0, 0])


def test_drafts_that_links_do_not_end_are_as_many_as_the_least_of_all_ranks(shared):
    worker = shared.make(verifies_by_links=False)
    step(worker, 5)
    worker.specctl.limits_of = lambda requests, sampling, number: [2, number]
    assert worker.wish(batch()) == Wish(chain(5), 2, most=2)
    shared.agree(Wish(chain(5), 2, most=2))
    worker.forward_batch_generation(batch())
    assert worker._states._active == chain(2)


def test_where_nobody_knows_what_was_agreed_nothing_is_verified(shared):
    worker = shared.make()
    step(worker, 1)
    shared.agree(None)
    launched = batch()
    worker.forward_batch_generation(launched)
    assert (worker._states._active, launched.specctl_limits) == (chain(7), [0, 0])
