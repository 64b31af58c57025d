"""States of a DFLASH worker: one for each length of a block, swapped whole with what was made for it."""

from types import SimpleNamespace

import pytest
from specctl_sglang.terms import OFF
from support.stand_ins import (
    STATES,
    Configuration,
    imported_alone,
    sglang_of_states,
    with_names_alone,
)

WIDTH = 8


class Runner:
    """Of the target or of the draft model; its captures tell how they were made."""

    def __init__(self, context, has_graphs):
        self.device = "cpu"
        self.context, self.init_new_workspace, self.spec_algorithm = context, False, "dflash"
        self.attn_backend, self.decode_cuda_graph_runner = "own", "own" if has_graphs else None
        self.capture_tail_hooks = ["own"]

    def _get_attention_backend(self, init_new_workspace):
        return self.context.speculative_num_draft_tokens

    def capture(self):
        context = self.context
        shape = (context.speculative_num_draft_tokens, self.spec_algorithm, context.return_hidden_states_mode)
        return SimpleNamespace(runner=(*shape, tuple(self.capture_tail_hooks)))


class Worker:
    def __init__(self, context, has_graphs):
        self.device, self.block_size, self.speculative_num_draft_tokens = "cpu", WIDTH, WIDTH
        self._block_pos_offsets = self._draft_block_spec_info = self._draft_sampler = "own"
        self._accept_bonus_buffer_cap, self._accept_bonus_buffer_slot = 4, 1
        for name in ("ids", "positions", "tokens", "end"):
            setattr(self, f"_draft_block_{name}_buf", WIDTH)
        self._draft_verify_out_cache_loc_buf = self._draft_seq_lens_cpu_buf = self._accept_len_buf = WIDTH
        for name in ("commit_lens", "bonus_id", "out_tokens", "new_seq_lens"):
            setattr(self, f"_{name}_bufs", [WIDTH])
        self.draft_model = SimpleNamespace(block_size=WIDTH)
        self.draft_model.set_block_size = lambda size: setattr(self.draft_model, "block_size", size)
        self.draft_model_runner = Runner(context, has_graphs)
        self.target_worker = SimpleNamespace(model_runner=Runner(context, has_graphs))

    def _maybe_build_draft_sampler(self):
        return f"sampler of {self.block_size}"


@pytest.fixture(params=[True, False], ids=["graphs", "eager"])
def engine(monkeypatch, request):
    context = Configuration(speculative_num_draft_tokens=WIDTH, return_hidden_states_mode=None)
    sglang = sglang_of_states(monkeypatch, context)
    if not request.param:
        sglang.cuda_graph_setup.capture_decode_graph = lambda model_runner: SimpleNamespace(runner=None)
    (common,) = with_names_alone(monkeypatch, "sglang.srt.speculative.draft_worker_common")
    common.build_block_pos_offsets = lambda length, device: f"offsets of {length}"
    common.make_draft_block_spec_info = lambda draft_token_num, device: f"block of {draft_token_num}"
    common.make_draft_sampler_capture_hook = lambda sampler: f"hook of the {sampler}"
    *_, module = imported_alone(monkeypatch, *STATES, "specctl_sglang.compat.dflash_states")
    worker = Worker(context, request.param)
    states = module.DflashStates(worker, (WIDTH - 1, 1, WIDTH))
    states.prepare([OFF, (3, 1, 4), (WIDTH - 1, 1, WIDTH)])
    return SimpleNamespace(worker=worker, states=states, has_graphs=request.param)


def parts(worker):
    target, draft = worker.target_worker.model_runner, worker.draft_model_runner
    attributes = {name: value for name, value in vars(worker).items() if isinstance(value, int | str | list)}
    captured = [(one.attn_backend, one.decode_cuda_graph_runner) for one in (target, draft)]
    return attributes, captured, worker.draft_model.block_size, draft.capture_tail_hooks


def test_a_state_is_swapped_whole_and_back(engine):
    worker, states = engine.worker, engine.states
    before = parts(worker)
    states.activate((3, 1, 4))
    assert (worker.block_size, worker.speculative_num_draft_tokens, worker.draft_model.block_size) == (
        4,
        4,
        4,
    )
    assert (worker._block_pos_offsets, worker._draft_block_spec_info) == ("offsets of 4", "block of 4")
    assert (worker._draft_block_ids_buf, worker._out_tokens_bufs, worker._accept_bonus_buffer_cap) == (
        None,
        [],
        0,
    )
    hook = ("hook of the sampler of 4",)
    graph = (4, "dflash", None, hook) if engine.has_graphs else None
    assert worker.draft_model_runner.attn_backend == 4
    assert worker.draft_model_runner.decode_cuda_graph_runner == graph
    assert worker._draft_sampler == ("sampler of 4" if engine.has_graphs else None)
    states.activate((WIDTH - 1, 1, WIDTH))
    assert parts(worker) == before


def test_what_a_state_has_grown_stays_with_it(engine):
    worker, states = engine.worker, engine.states
    states.activate((3, 1, 4))
    worker._draft_block_ids_buf = "grown"
    states.activate((WIDTH - 1, 1, WIDTH))
    assert worker._draft_block_ids_buf == WIDTH
    states.activate((3, 1, 4))
    assert worker._draft_block_ids_buf == "grown"


def test_off_changes_the_target_alone_and_gives_hidden_states(engine):
    worker, states = engine.worker, engine.states
    attributes, (_, draft), block, _ = parts(worker)
    states.activate(OFF)
    off_attributes, (target, off_draft), off_block, _ = parts(worker)
    assert (off_attributes, off_draft, off_block) == (attributes, draft, block)
    captured = (1, "none", "full", ("own",)) if engine.has_graphs else None
    assert target == (1, captured)
