"""Which graphs are captured and found, on vLLM's own manager without a GPU."""

from types import SimpleNamespace

import pytest
from specctl_vllm.compat import decode_graphs
from specctl_vllm.options import OPTIONS_ENV, Options

from specctl.engine.graph_memory import tokens_beside

cudagraph_utils = pytest.importorskip("vllm.v1.worker.gpu.cudagraph_utils")
MOST_REQUESTS, MOST_DRAFTS = 256, 8


def engine_args(**given):
    sizes = dict.fromkeys(("max_cudagraph_capture_size", "cudagraph_capture_sizes"))
    return SimpleNamespace(
        max_num_seqs=MOST_REQUESTS,
        gpu_memory_utilization=0.9,
        tensor_parallel_size=1,
        compilation_config=SimpleNamespace(**sizes),
        **sizes | given,
    )


@pytest.fixture
def manager(monkeypatch):
    """As vLLM builds it for a live table, with every graph taken as captured."""
    from vllm.config.compilation import CUDAGraphMode

    monkeypatch.setenv(OPTIONS_ENV, Options(method="specctl_suffix").model_dump_json())
    base = cudagraph_utils.CudaGraphManager
    for owner, name, wrap in (
        (base, "_init_candidates", decode_graphs.wrap_init_candidates),
        (base, "dispatch", decode_graphs.wrap_dispatch),
        (cudagraph_utils, "build_dynamic_sd_schedule_lookup", decode_graphs.wrap_schedule_lookup),
    ):
        monkeypatch.setattr(owner, name, wrap(getattr(owner, name)))
    found = object.__new__(base)
    found.max_num_reqs, found.decode_query_len = MOST_REQUESTS, MOST_DRAFTS + 1
    found.cudagraph_mode, found.varlen_decode = CUDAGraphMode.FULL_AND_PIECEWISE, False
    found.lora_capture_cases, found.ubatch_runner = [0], None
    found._candidates, found._capture_descs, found._lora_dispatch_map = {}, {}, {}
    found._graphs_captured = True
    most = MOST_REQUESTS * (MOST_DRAFTS + 1)
    found.compilation_config = SimpleNamespace(
        cudagraph_capture_sizes=[1, 2, 4, *range(8, 256, 8), *range(256, most + 1, 16)],
        max_cudagraph_capture_size=most,
    )
    found.vllm_config = SimpleNamespace(
        speculative_config=SimpleNamespace(
            uses_dynamic_speculative_decoding=lambda: True, num_speculative_tokens_per_batch_size=[]
        ),
        num_speculative_tokens=MOST_DRAFTS,
        cache_config=SimpleNamespace(use_kda_recoverssm=False),
    )
    found._init_candidates()
    return found


@pytest.mark.parametrize("drafts", range(MOST_DRAFTS + 1))
def test_every_batch_has_a_full_graph_of_its_own_number_of_drafts(manager, drafts):
    width = drafts + 1
    for requests in range(1, MOST_REQUESTS + 1):
        desc = manager.dispatch(requests, requests * width, width, 0)
        assert desc.cg_mode.name == "FULL"
        assert desc.uniform_token_count == width
        assert requests <= desc.num_reqs <= requests + 31
        assert desc.num_tokens == desc.num_reqs * width
        assert desc in manager._capture_descs[desc.cg_mode]


def test_graphs_stay_few_and_the_first_one_captured_is_the_largest(manager):
    full, pieces = (manager._capture_descs[mode] for mode in manager._capture_descs)
    if full[0].uniform_token_count is None:
        full, pieces = pieces, full
    assert len(full) == len(decode_graphs.request_counts(MOST_REQUESTS)) * (MOST_DRAFTS + 1)
    sizes = sorted(desc.num_tokens for desc in pieces)
    assert sizes[-9:-1] == list(range(576, 1025, 64))
    assert sizes[-10] == 512
    assert sizes[-1] == full[0].num_tokens


@pytest.mark.parametrize(
    ("tokens", "captured"),
    [(300, 304), (512, 512), (513, 576), (603, 640), (1024, 1024), (2300, 2304)],
)
def test_a_batch_with_a_prompt_is_padded_by_less_than_an_eighth(manager, tokens, captured):
    desc = manager.dispatch(64, tokens, None, 0)
    assert (desc.cg_mode.name, desc.num_tokens, desc.uniform_token_count) == ("PIECEWISE", captured, None)
    assert desc in manager._capture_descs[desc.cg_mode]


@pytest.mark.parametrize("tokens", [1025, 2000, 3000])
def test_a_large_batch_with_a_prompt_runs_without_a_graph(manager, tokens):
    assert manager.dispatch(64, tokens, None, 0).cg_mode.name == "NONE"


def test_a_user_who_captures_decode_batches_alone_gets_no_others(manager):
    from vllm.config.compilation import CUDAGraphMode

    manager.cudagraph_mode = CUDAGraphMode.FULL_DECODE_ONLY
    manager._candidates, manager._capture_descs = {}, {}
    manager._init_candidates()
    assert manager.dispatch(64, 603, None, 0).cg_mode.name == "NONE"
    assert manager.dispatch(64, 64 * 9, 9, 0).cg_mode.name == "FULL"


TARGET = SimpleNamespace(get_hidden_size=lambda: 4096, get_total_num_hidden_layers=lambda: 32)


@pytest.mark.parametrize(
    ("given", "most", "captured"),
    [
        pytest.param({}, 1024, 1024, id="a bound"),
        pytest.param({}, 512, None, id="a bound that stock vLLM has"),
        pytest.param({}, None, 2304, id="what fits"),
        pytest.param({"cudagraph_capture_sizes": [1, 2]}, None, None, id="the user's own sizes"),
    ],
)
def test_the_largest_batch_is_raised_where_the_user_has_not_set_it(
    given, most, captured, caplog, monkeypatch
):
    from vllm.platforms import current_platform

    monkeypatch.setattr(current_platform, "get_device_total_memory", lambda: 139 * 2**30, raising=False)
    caplog.set_level("INFO", logger="vllm.specctl")
    asked = engine_args(**given)
    decode_graphs.ask_for_wide_graphs(asked, most, TARGET)
    assert asked.compilation_config.max_cudagraph_capture_size == captured
    assert ("up to 2304 tokens" in caplog.text) == (captured == 2304)


GIB = 2**30


@pytest.mark.parametrize(
    ("device_gib", "hidden", "layers", "ranks", "tokens"),
    [
        pytest.param(139, 4096, 32, 1, 2304, id="8B on 139 GiB"),
        pytest.param(24, 4096, 32, 1, 640, id="8B on 24 GiB"),
        pytest.param(79, 8192, 80, 2, 896, id="70B on two of 79 GiB"),
        pytest.param(79, 8192, 80, 4, 1792, id="on four of them"),
        pytest.param(8, 8192, 80, 1, 512, id="no room: as stock"),
    ],
)
def test_graphs_fit_into_what_the_cache_leaves_free(device_gib, hidden, layers, ranks, tokens):
    assert tokens_beside(device_gib * GIB, 0.9, hidden, layers, ranks) == tokens


def test_a_heads_pass_finds_the_smallest_captured_graph_of_its_width():
    from specctl_vllm.compat.head_graphs import HeadGraphs
    from vllm.config.compilation import CUDAGraphMode

    graphs = object.__new__(HeadGraphs)
    graphs.cudagraph_mode, graphs.max_num_reqs, graphs._widths = CUDAGraphMode.FULL_DECODE_ONLY, 64, [2, 4, 6]
    graphs.vllm_config = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_batched_tokens=256))
    graphs._by_width, graphs.graphs = {}, {}
    graphs._init_candidates()
    assert graphs.find(3, 4) is None  # nothing is captured yet
    (descs,) = graphs._capture_descs.values()
    assert [desc.num_tokens for desc in descs] == sorted((desc.num_tokens for desc in descs), reverse=True)
    graphs.graphs = dict.fromkeys(descs)
    for requests, width, count in ((1, 2, 1), (3, 4, 4), (9, 6, 16), (64, 4, 64)):
        found = graphs.find(requests, width)
        assert (found.num_reqs, found.num_tokens, found.uniform_token_count) == (count, count * width, width)
    assert graphs.find(64, 6) is None  # 384 rows are more than a step may have
    assert graphs.find(65, 2) is None
    assert graphs.find(1, 8) is None
