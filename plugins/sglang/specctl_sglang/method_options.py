"""SGLang's own options of a method, as the capabilities tell them: they are fixed when the server starts."""

from __future__ import annotations

from typing import Any

__all__ = ["method_options"]

_NGRAM = (
    "speculative_ngram_min_bfs_breadth",
    "speculative_ngram_max_bfs_breadth",
    "speculative_ngram_match_type",
    "speculative_ngram_max_trie_depth",
    "speculative_ngram_capacity",
    "speculative_ngram_external_sam_budget",
)
_DRAFT_MODEL = (
    "speculative_attention_mode",
    "speculative_draft_attention_backend",
    "speculative_draft_kv_cache_dtype",
    "speculative_draft_model_quantization",
    "speculative_draft_sink_size",
    "speculative_draft_window_size",
    "speculative_moe_a2a_backend",
    "speculative_moe_runner_backend",
)


def method_options(algorithm: str, spec: Any) -> dict[str, str]:
    """Those that are set, by SGLang's names. spec: its resolved arguments of speculation."""
    names = {"NGRAM": _NGRAM, "SPECCTL_SUFFIX": ()}.get(algorithm, _DRAFT_MODEL)
    options = {name: getattr(spec, name) for name in names}
    return {name: str(value) for name, value in options.items() if value is not None}
