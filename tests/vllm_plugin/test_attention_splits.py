"""Which batches FlashAttention may split, by vLLM's own builder without a GPU."""

from types import SimpleNamespace

import pytest
from specctl_vllm.compat import attention_splits
from specctl_vllm.options import OPTIONS_ENV, Options

flash_attn = pytest.importorskip("vllm.v1.attention.backends.flash_attn")
DRAFTS, SPLITS = 8, 32


@pytest.fixture
def builder(monkeypatch):
    """A builder with graphs up to 2,304 tokens, as far as ``build`` asks for its bound."""
    from vllm.config.compilation import CUDAGraphMode

    monkeypatch.setenv(OPTIONS_ENV, Options(method="specctl_suffix").model_dump_json())
    base = flash_attn.FlashAttentionMetadataBuilder

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        is_captured = common_attn_metadata.num_actual_tokens <= self.max_cudagraph_size
        return SPLITS if is_captured else 0

    monkeypatch.setattr(base, "build", attention_splits.wrap_build(build))
    made = object.__new__(base)
    made.max_cudagraph_size = 2304
    made.vllm_config = SimpleNamespace(
        num_speculative_tokens=DRAFTS,
        compilation_config=SimpleNamespace(cudagraph_mode=CUDAGraphMode.FULL_AND_PIECEWISE),
    )
    return made


def splits(builder, tokens, longest_query):
    batch = SimpleNamespace(num_actual_tokens=tokens, max_query_len=longest_query)
    return builder.build(0, batch)


def test_a_batch_with_a_prompt_over_stocks_bound_is_not_split(builder):
    assert splits(builder, 766, 256) == 0
    assert builder.max_cudagraph_size == 2304, "the next batch asks again"


@pytest.mark.parametrize(("tokens", "longest_query"), [(2304, 9), (768, 3), (256, 1), (511, 256), (512, 300)])
def test_decode_batches_and_those_up_to_stocks_bound_are_as_before(builder, tokens, longest_query):
    assert splits(builder, tokens, longest_query) == SPLITS


def test_over_the_largest_graph_nothing_is_split_anyway(builder):
    assert splits(builder, 4096, 2048) == 0


def test_full_graphs_of_mixed_batches_keep_their_bound(builder):
    from vllm.config.compilation import CUDAGraphMode

    builder.vllm_config.compilation_config.cudagraph_mode = CUDAGraphMode.FULL
    assert splits(builder, 766, 256) == SPLITS


def test_a_server_that_is_not_ours_is_left_alone(builder, monkeypatch):
    monkeypatch.delenv(OPTIONS_ENV)
    assert splits(builder, 766, 256) == SPLITS


def test_the_bound_comes_back_after_an_error(builder, monkeypatch):
    def failing(self, *_):
        raise RuntimeError("no metadata")

    monkeypatch.setattr(type(builder), "build", attention_splits.wrap_build(failing))
    with pytest.raises(RuntimeError):
        splits(builder, 766, 256)
    assert builder.max_cudagraph_size == 2304


def test_vllms_builder_reads_the_bound_when_it_builds():
    """What the patch relies on beside the names."""
    import inspect

    source = inspect.getsource(flash_attn.FlashAttentionMetadataBuilder.build)
    assert "num_actual_tokens <= self.max_cudagraph_size" in source
