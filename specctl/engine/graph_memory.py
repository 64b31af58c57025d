"""Device memory of full CUDA graphs for every number of drafts on vLLM. Estimates from sizes alone.

Scaled from what was measured for an 8B shape (hidden size 4,096, 32 layers) on an H200: 1.5 GiB beside the
graphs of stock vLLM, for batches of up to 2,304 tokens (docs/results.md).
"""

from __future__ import annotations

__all__ = ["GIB", "MEASURED_SHAPE", "wide_graph_bytes", "wide_graph_tokens"]

GIB = 2**30
MEASURED_SHAPE = 4096 * 32
_BYTES, _TOKENS = int(1.5 * GIB), 2304
_STEP, _STOCK_TOKENS = 128, 512


def wide_graph_bytes(tokens: int, hidden_size: int, num_layers: int, ranks: int = 1) -> int:
    """Of graphs of up to ``tokens`` tokens on one of ``ranks`` devices, beside stock vLLM's."""
    return int(_BYTES * hidden_size * num_layers / MEASURED_SHAPE / ranks * tokens / _TOKENS)


def wide_graph_tokens(room_bytes: float, hidden_size: int, num_layers: int, ranks: int = 1) -> int:
    """Of the largest batch whose graphs fit into ``room_bytes``: 512, as in stock vLLM, to 2,304."""
    most_bytes = wide_graph_bytes(_TOKENS, hidden_size, num_layers, ranks)
    fitting = int(_TOKENS * min(room_bytes / max(most_bytes, 1), 1.0))
    return max(fitting // _STEP * _STEP, _STOCK_TOKENS)
