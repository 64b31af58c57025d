"""SGLang's own options of a method, as the capabilities tell them."""

from types import SimpleNamespace

import pytest
from specctl_sglang.method_options import method_options

SPEC = SimpleNamespace(
    speculative_ngram_min_bfs_breadth=1,
    speculative_ngram_max_bfs_breadth=4,
    speculative_ngram_match_type="PROB",
    speculative_ngram_max_trie_depth=12,
    speculative_ngram_capacity=1000,
    speculative_ngram_external_sam_budget=0,
    speculative_attention_mode="prefill",
    speculative_draft_attention_backend="triton",
    speculative_draft_kv_cache_dtype=None,
    speculative_draft_model_quantization="fp8",
    speculative_draft_sink_size=None,
    speculative_draft_window_size=512,
    speculative_moe_a2a_backend=None,
    speculative_moe_runner_backend="triton",
)


@pytest.mark.parametrize("algorithm", ["EAGLE3", "STANDALONE", "DFLASH", "SPECCTL_PEAGLE"])
def test_a_draft_model_has_backends_and_quantization(algorithm):
    assert method_options(algorithm, SPEC) == {
        "speculative_attention_mode": "prefill",
        "speculative_draft_attention_backend": "triton",
        "speculative_draft_model_quantization": "fp8",
        "speculative_draft_window_size": "512",
        "speculative_moe_runner_backend": "triton",
    }


def test_ngram_has_its_trie():
    assert method_options("NGRAM", SPEC) == {
        "speculative_ngram_min_bfs_breadth": "1",
        "speculative_ngram_max_bfs_breadth": "4",
        "speculative_ngram_match_type": "PROB",
        "speculative_ngram_max_trie_depth": "12",
        "speculative_ngram_capacity": "1000",
        "speculative_ngram_external_sam_budget": "0",
    }


def test_a_method_of_ours_has_none_of_sglangs():
    assert method_options("SPECCTL_SUFFIX", SPEC) == {}
