"""States of an EAGLE worker: built as if the server had been started with each, swapped whole."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from specctl_sglang.terms import OFF
from support.stand_ins import STATES, Configuration, imported_alone, sglang_of_states

TREE = (3, 4, 8)
"""Of the server's start: passes, branches and positions."""


class Drafter:
    def __init__(self, context, topk):
        self.context, self.topk = context, topk
        self.draft_runner = SimpleNamespace(draft_attn_backend="own", attn_backend="own", tp_group=None)
        self.draft_attn_backend = self.draft_extend_attn_backend = "own"
        self.cuda_graph_runner = self.cuda_graph_runner_for_draft_extend = "own"
        self._topk1_parents_prealloc = self._topk1_score_indices_prealloc = None
        self.draft_owns_attention = False

    def draft_tp_context(self, _group, owns_attention):
        return nullcontext()

    def shape(self):
        context = self.context
        assert context.speculative_eagle_topk == self.topk
        assert context.speculative_num_steps == self.speculative_num_steps
        assert context.speculative_num_draft_tokens == self.speculative_num_draft_tokens
        return self.speculative_num_steps, self.speculative_num_draft_tokens, self.topk

    def _rebuild_topk1_chain_buffers(self):
        self._topk1_parents_prealloc = self._topk1_score_indices_prealloc = self.shape()

    def init_attention_backend(self):
        self.draft_attn_backend = self.draft_extend_attn_backend = self.shape()
        self.draft_runner.draft_attn_backend = self.draft_runner.attn_backend = self.shape()

    def _capture_cuda_graphs(self):
        self.cuda_graph_runner = self.cuda_graph_runner_for_draft_extend = self.shape()


class Target:
    """A runner whose captures tell how they were made."""

    def __init__(self, context):
        self.context = context
        self.attn_backend = self.decode_cuda_graph_runner = "own"
        self.device = "cpu"
        self.init_new_workspace = False
        self.spec_algorithm = "eagle3"
        self.full_for = ()

    def _get_attention_backend(self, init_new_workspace):
        return self.context.speculative_num_draft_tokens

    def capture(self):
        width = self.context.speculative_num_draft_tokens
        if width in self.full_for:
            raise torch.OutOfMemoryError("no room")
        is_plain = self.spec_algorithm == "none"
        return SimpleNamespace(runner=(width, is_plain, self.context.return_hidden_states_mode))


@pytest.fixture
def engine(monkeypatch):
    context = Configuration(
        speculative_num_steps=3,
        speculative_num_draft_tokens=8,
        speculative_eagle_topk=4,
        return_hidden_states_mode=None,
    )
    target = Target(context)
    sglang = sglang_of_states(monkeypatch, context)
    sglang.allocation_sizing.get_alloc_len_per_decode = lambda: max(
        context.speculative_num_steps * context.speculative_eagle_topk, context.speculative_num_draft_tokens
    )
    *_, module = imported_alone(monkeypatch, *STATES)
    worker = SimpleNamespace(
        topk=4,
        speculative_num_steps=3,
        speculative_num_draft_tokens=8,
        reads_hidden_states=True,
        draft_worker=Drafter(context, 4),
        target_worker=SimpleNamespace(model_runner=target),
    )
    worker.draft_worker.speculative_num_steps, worker.draft_worker.speculative_num_draft_tokens = 3, 8
    states = module.EagleStates(worker, TREE)
    return SimpleNamespace(
        module=module,
        context=context,
        worker=worker,
        target=target,
        states=states,
        clamped=sglang.clamped,
    )


def parts(engine):
    drafter, target = engine.worker.draft_worker, engine.target
    return (
        (engine.worker.speculative_num_steps, engine.worker.speculative_num_draft_tokens, engine.worker.topk),
        drafter.draft_attn_backend,
        drafter.draft_runner.attn_backend,
        drafter.cuda_graph_runner,
        target.attn_backend,
        target.decode_cuda_graph_runner,
    )


def test_what_the_server_was_started_with_stays_in_force_while_states_are_made(engine):
    before, configured = parts(engine), vars(engine.context).copy()
    engine.states.prepare([OFF, (3, 1, 4), (7, 1, 8), (2, 4, 8), TREE])
    assert engine.states.keys == (OFF, (2, 4, 8), (3, 1, 4), TREE, (7, 1, 8))
    assert parts(engine) == before
    assert vars(engine.context) == configured
    assert engine.worker.draft_worker.topk == 4


def test_what_a_step_without_drafts_compiles_is_compiled_with_its_state(engine):
    engine.states.prepare([(3, 1, 4)])
    assert not engine.clamped
    engine.states.prepare([OFF])
    assert [lengths.dtype for lengths in engine.clamped] == [torch.int64]


@pytest.mark.parametrize(
    "shape", [(3, 1, 4), (7, 1, 8), (2, 4, 3), (1, 1, 2), (3, 2, 8), (3, 4, 5), (1, 4, 5)]
)
def test_a_state_is_swapped_whole(engine, shape):
    steps, topk, width = shape
    engine.states.prepare([shape])
    before = parts(engine)
    engine.states.activate(shape)
    made = (steps, width, topk)
    assert parts(engine) == (made, made, made, made, width, (width, False, None))
    assert engine.states.steps == steps
    engine.states.activate(TREE)
    assert parts(engine) == before


def test_off_is_the_targets_own_decode_which_gives_hidden_states_to_the_draft_model(engine):
    engine.states.prepare([OFF])
    engine.states.activate(OFF)
    assert engine.target.decode_cuda_graph_runner == (1, True, "full")
    assert engine.worker.draft_worker.cuda_graph_runner_for_draft_extend == (0, 1, 1)


def test_a_draft_model_that_reads_no_hidden_states_is_given_none(engine):
    engine.worker.reads_hidden_states = False
    engine.states.prepare([OFF])
    engine.states.activate(OFF)
    assert engine.target.decode_cuda_graph_runner == (1, True, None)


def test_what_memory_does_not_hold_is_left_out_and_said(engine, caplog):
    engine.target.full_for = (8,)
    before = parts(engine)
    engine.states.prepare([OFF, (3, 1, 4), (7, 1, 8)])
    assert engine.states.keys == (OFF, (3, 1, 4), TREE)
    assert (7, 1, 8) not in engine.states
    assert parts(engine) == before
    assert "no memory for 7 drafts" in caplog.text


def test_bytes_of_each_state_are_reported(engine, monkeypatch):
    used = iter([0, 100, 100, 350])
    monkeypatch.setitem(engine.states.prepare.__globals__, "_device_bytes", lambda: next(used))
    engine.states.prepare([(3, 1, 4), (3, 4, 5)])
    assert engine.states.stats() == {
        "graph_bytes": 350.0, "graph_bytes_3_4_5": 100.0, "graph_bytes_3": 250.0,
    }  # fmt: skip


def test_a_tree_that_memory_does_not_hold_is_named_by_its_shape(engine, caplog):
    engine.target.full_for = (5,)
    engine.states.prepare([(3, 4, 5)])
    assert engine.states.keys == (TREE,)
    assert "no memory for trees 3 deep with 4 branches and 5 positions" in caplog.text


def test_a_draft_takes_the_first_tokens_of_the_active_branches(engine):
    """What a tree was made of is copied with the draft: the target's graph may write where it is."""
    seen = []
    drafter, worker = engine.worker.draft_worker, engine.worker

    def draft(drafter, batch, with_topology=False):
        seen.append((drafter.topk, batch.spec_info.topk_p.shape, batch.spec_info.topk_index.tolist()))
        verify_input = SimpleNamespace()
        return (verify_input, "parents", "made") if with_topology else verify_input

    drafter.specctl_worker, draft = worker, engine.module.wrap_draft(draft)
    for topk in (4, 2, 1):
        worker.topk = topk
        carried = SimpleNamespace(topk_p=torch.ones(1, 4), topk_index=torch.tensor([[9, 8, 7, 6]]))
        mode = SimpleNamespace(is_idle=lambda: False)
        drafted = draft(drafter, SimpleNamespace(spec_info=carried, forward_mode=mode))
        assert getattr(drafted, "specctl_made", None) == ("copy of made" if topk > 1 else None)
        assert drafter.topk == 4
    assert seen == [(4, (1, 4), [[9, 8, 7, 6]]), (2, (1, 2), [[9, 8]]), (1, (1, 1), [[9]])]


def test_what_needs_more_places_than_the_server_reserves_is_left_out(engine, caplog):
    engine.states.prepare([(15, 1, 16), (2, 4, 8)])
    assert engine.states.keys == ((2, 4, 8), TREE)
    assert "up to 16 KV places of a request, 12 are reserved" in caplog.text
