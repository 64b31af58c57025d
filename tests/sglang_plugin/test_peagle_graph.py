"""The captured pass of a P-EAGLE head beside an SGLang of which only names are there."""

from types import SimpleNamespace

import pytest
import torch
from support.stand_ins import imported_alone, with_names_alone


class Runner:
    """SGLang's: a backend's metadata are made outside of the graph for a capture and before each replay."""

    def __init__(self, drafter):
        if drafter.is_full:
            raise RuntimeError("no room")
        self.draft_extend_attn_backend = drafter.draft_extend_attn_backend
        self.draft_extend_attn_backend.init_forward_metadata_out_graph("capture", in_capture=True)

    def execute(self, forward_batch, select_index):
        self.draft_extend_attn_backend.init_forward_metadata_out_graph(forward_batch)
        if forward_batch == "fails":
            raise RuntimeError(forward_batch)
        return forward_batch, select_index


class Attention:
    def __init__(self, is_refreshed_in_graph):
        self.is_refreshed_in_graph, self.made = is_refreshed_in_graph, []

    def draft_extend_metadata_captured_in_graph(self):
        return self.is_refreshed_in_graph

    def init_forward_metadata_out_graph(self, forward_batch, in_capture=False):
        self.made.append(forward_batch)


@pytest.fixture
def engine(monkeypatch):
    environ, config, runner = with_names_alone(
        monkeypatch,
        "sglang.srt.environ",
        "sglang.srt.model_executor.cuda_graph_config",
        "sglang.srt.speculative.eagle_draft_extend_cuda_graph_runner",
    )
    found = SimpleNamespace(is_eager_by_flag=False, has_graphs=True)
    flag = SimpleNamespace(get=lambda: found.is_eager_by_flag)
    environ.envs = SimpleNamespace(SGLANG_DISABLE_DRAFT_EXTEND_CUDA_GRAPH=flag)
    config.Backend = config.Phase = SimpleNamespace(DISABLED="disabled", DECODE="decode")
    config.check_cuda_graph_backend = lambda _phase, _backend: not found.has_graphs
    runner.EAGLEDraftExtendCudaGraphRunner = Runner
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    (found.module,) = imported_alone(monkeypatch, "specctl_sglang.compat.peagle_graph")
    return found


def drafter(is_refreshed_in_graph=True, is_full=False):
    return SimpleNamespace(draft_extend_attn_backend=Attention(is_refreshed_in_graph), is_full=is_full)


def test_a_replay_that_refreshes_its_metadata_is_not_prepared_for_once_more(engine):
    one = drafter()
    graphs = engine.module.captured_pass(one)
    assert graphs.execute("batch", "rows") == ("batch", "rows")
    with pytest.raises(RuntimeError, match="fails"):
        graphs.execute("fails", "rows")
    assert one.draft_extend_attn_backend.made == ["capture"]
    assert graphs.draft_extend_attn_backend is one.draft_extend_attn_backend


@pytest.mark.parametrize("reason", ["backend", "no backend", "flag", "no graphs", "no GPU", "no room"])
def test_a_pass_that_is_not_captured(engine, reason, monkeypatch):
    one = drafter(reason != "backend", reason == "no room")
    if reason == "no backend":
        one.draft_extend_attn_backend = None
    engine.is_eager_by_flag, engine.has_graphs = reason == "flag", reason != "no graphs"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: reason != "no GPU")
    assert engine.module.captured_pass(one) is None
