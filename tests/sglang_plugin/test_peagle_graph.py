"""The captured pass of a P-EAGLE head beside an SGLang of which only names are there."""

from types import SimpleNamespace

import pytest
import torch
from specctl_kernels.peagle_rows import PassRows
from support.stand_ins import imported_alone, with_names_alone

ROWS, WIDTH, MOST = 6, 24, 8


class Backend:
    def __init__(self):
        self.replayed = []

    def replay(self, shape_key, _forward_batch):
        self.replayed.append(shape_key)
        drafts = torch.arange(shape_key * 3).view(shape_key, 3)
        return SimpleNamespace(next_token_logits=drafts, hidden_states=drafts)


class Runner:
    """SGLang's, as far as it is relied on."""

    capture_bs, max_bs, captured_req_width, seq_len_fill_value = [1, 2, 4, MOST], MOST, ROWS, 11
    require_gathered_buffer = require_mlp_sync = require_mlp_tp_gather = disable_padding = False

    def __init__(self, drafter):
        if drafter.is_full:
            raise RuntimeError("no room")
        config = SimpleNamespace(model_is_mrope=False)
        self.model_runner = SimpleNamespace(model_config=config, shared_read_done_event=None)
        self.events = []
        self.device_module = SimpleNamespace(Event=lambda: SimpleNamespace(record=self._record))
        self.backend = Backend()
        flat = {
            name: torch.zeros(MOST * ROWS, dtype=torch.int64)
            for name in ("input_ids", "out_cache_loc", "positions")
        }
        of_requests = {
            name: torch.zeros(MOST, dtype=torch.int64)
            for name in ("select_index", "seq_lens", "extend_seq_lens", "req_pool_indices")
        }
        self.buffers = SimpleNamespace(hidden_states=torch.zeros(MOST * ROWS, WIDTH), **flat, **of_requests)

    def _record(self):
        self.events.append(len(self.backend.replayed))

    @staticmethod
    def _pad_to_bucket(size, buckets):
        return next(one for one in buckets if one >= size)

    @staticmethod
    def _make_graph_key(size):
        return size


class Attention:
    def __init__(self, is_refreshed_in_graph):
        self.is_refreshed_in_graph = is_refreshed_in_graph

    def draft_extend_metadata_captured_in_graph(self):
        return self.is_refreshed_in_graph


@pytest.fixture
def engine(monkeypatch):
    environ, config, backend, runner = with_names_alone(
        monkeypatch,
        "sglang.srt.environ",
        "sglang.srt.model_executor.cuda_graph_config",
        "sglang.srt.model_executor.runner_backend.full_cuda_graph_backend",
        "sglang.srt.speculative.eagle_draft_extend_cuda_graph_runner",
    )
    found = SimpleNamespace(is_eager_by_flag=False, has_graphs=True)
    flag = SimpleNamespace(get=lambda: found.is_eager_by_flag)
    environ.envs = SimpleNamespace(SGLANG_DISABLE_DRAFT_EXTEND_CUDA_GRAPH=flag)
    config.Backend = config.Phase = SimpleNamespace(DISABLED="disabled", DECODE="decode")
    config.check_cuda_graph_backend = lambda _phase, _backend: not found.has_graphs
    backend.FullCudaGraphBackend = Backend
    runner.EAGLEDraftExtendCudaGraphRunner = Runner
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    (found.module,) = imported_alone(monkeypatch, "specctl_sglang.compat.peagle_graph")
    return found


def drafter(is_refreshed_in_graph=True, is_full=False):
    return SimpleNamespace(draft_extend_attn_backend=Attention(is_refreshed_in_graph), is_full=is_full)


@pytest.mark.parametrize(("requests", "size"), [(1, 1), (3, 4), (8, 8)])
def test_rows_are_laid_out_where_the_graph_of_the_next_size_reads_them(engine, requests, size):
    graphs = engine.module.captured_pass(drafter())
    asked = []

    def lay_out(into):
        asked.append(into)
        return PassRows(None, None, None, None, last_hidden="last")

    drafts, last_hidden = graphs.replayed(requests, lay_out)
    assert last_hidden == "last"
    assert drafts.tolist() == [[3 * i, 3 * i + 1, 3 * i + 2] for i in range(requests)]
    assert graphs.backend.replayed == [size]
    assert graphs.events == [0], "recorded before the replay, as SGLang does"
    assert graphs.model_runner.shared_read_done_event is not None
    [into], buffers = asked, graphs.buffers
    rows = size * ROWS
    for one, whole in ((into.ids, "input_ids"), (into.slots, "out_cache_loc"), (into.positions, "positions")):
        assert one.shape == (rows,)
        assert one.data_ptr() == getattr(buffers, whole).data_ptr()
    assert into.hidden.shape == (rows, WIDTH)
    assert into.hidden.data_ptr() == buffers.hidden_states.data_ptr()
    for one, whole in (
        (into.first, "select_index"),
        (into.lengths, "seq_lens"),
        (into.row_counts, "extend_seq_lens"),
        (into.requests, "req_pool_indices"),
    ):
        assert one.shape == (size,)
        assert one.data_ptr() == getattr(buffers, whole).data_ptr()
    assert into.padding_length == 11


def test_batches_that_the_graphs_memory_holds(engine):
    graphs = engine.module.captured_pass(drafter())
    states = torch.zeros(3, 4, WIDTH)
    assert graphs.holds(3, states)
    assert graphs.holds(MOST, states)
    assert not graphs.holds(MOST + 1, states)
    assert not graphs.holds(3, torch.zeros(3, 4, WIDTH + 1))
    graphs.disable_padding = True
    assert not graphs.holds(3, states)
    assert graphs.holds(4, states)
    graphs.require_gathered_buffer = True
    assert not graphs.holds(4, states)
    graphs.require_gathered_buffer, graphs.backend = False, object()
    assert not graphs.holds(4, states)


@pytest.mark.parametrize("reason", ["backend", "no backend", "flag", "no graphs", "no GPU", "no room"])
def test_a_pass_that_is_not_captured(engine, reason, monkeypatch):
    one = drafter(reason != "backend", reason == "no room")
    if reason == "no backend":
        one.draft_extend_attn_backend = None
    engine.is_eager_by_flag, engine.has_graphs = reason == "flag", reason != "no graphs"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: reason != "no GPU")
    assert engine.module.captured_pass(one) is None
