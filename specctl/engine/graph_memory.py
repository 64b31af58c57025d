"""Device memory of full CUDA graphs for every number of drafts on vLLM. Estimates from sizes alone.

Scaled from what vLLM 0.33.0 said for an 8B shape (hidden size 4,096, 32 layers) on an H100, for batches of up
to 2,304 tokens, beside what stock takes: specctl_suffix with 8 drafts 2.7 GiB, specctl_peagle with 5 drafts
3.0, eagle3 with 5 drafts 3.9.
"""

from __future__ import annotations

__all__ = ["GIB", "MEASURED_SHAPE", "WIDE_TOKENS", "tokens_beside", "wide_graph_bytes"]

GIB = 2**30
MEASURED_SHAPE = 4096 * 32
WIDE_TOKENS = 2304
"""The most that are captured unless the user sets a bound."""
_BYTES = 4 * GIB
_STEP, _STOCK_TOKENS = 128, 512
_ROOM_SHARE = 0.5
"""Of the memory outside gpu_memory_utilization: the rest is the CUDA context's and other programs'."""


def wide_graph_bytes(tokens: int, hidden_size: int, num_layers: int, ranks: int = 1) -> int:
    """Of graphs of up to ``tokens`` tokens on one of ``ranks`` devices, beside stock vLLM's."""
    return int(_BYTES * hidden_size * num_layers / MEASURED_SHAPE / ranks * tokens / WIDE_TOKENS)


def tokens_beside(
    device_bytes: float, utilization: float, hidden_size: int, num_layers: int, ranks: int = 1
) -> int:
    """Of the largest batch to capture: 512, as in stock vLLM, to 2,304. Graphs are made beside the KV cache,
    which takes the rest of ``utilization`` (vLLM's gpu_memory_utilization), so that they have to fit into
    what that leaves free."""
    room_bytes = device_bytes * max(1.0 - utilization, 0.0) * _ROOM_SHARE
    most_bytes = wide_graph_bytes(WIDE_TOKENS, hidden_size, num_layers, ranks)
    fitting = int(WIDE_TOKENS * min(room_bytes / max(most_bytes, 1), 1.0))
    return max(fitting // _STEP * _STEP, _STOCK_TOKENS)
