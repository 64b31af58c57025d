"""vLLM's sampler and batches of Model Runner V2 by their attributes, without vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

__all__ = ["COLUMNS", "REQUESTS", "batch", "rejection"]

COLUMNS = 100
REQUESTS = 4
_DRAFTS = 2


class LogitBiasState:
    def __init__(self, requests: int) -> None:
        self.use_logit_bias = np.zeros(requests, dtype=bool)


class PenaltiesState:
    def __init__(self, requests: int) -> None:
        self.use_penalty = np.zeros(requests, dtype=bool)


class BadWordsState:
    def __init__(self, requests: int) -> None:
        self.num_bad_words = SimpleNamespace(np=np.zeros(requests, dtype=np.int32))


def _states(requests: int, columns: int, **values: Sequence[float]) -> SimpleNamespace:
    defaults = {"temperature": 0.0, "top_k": columns, "top_p": 1.0, "min_p": 0.0, "seeds": 0}
    made = {}
    for name, default in defaults.items():
        kind = {"top_k": np.int32, "seeds": np.int64}.get(name, np.float32)
        host = np.array(values.get(name, [default] * requests), dtype=kind)
        made[name] = SimpleNamespace(np=host, gpu=torch.from_numpy(host))
    return SimpleNamespace(vocab_size=columns, **made)


def rejection(
    temperature: Sequence[float] = (0, 0, 0, 0),
    *,
    drafts: int = _DRAFTS,
    columns: int = COLUMNS,
    **values: Any,
) -> SimpleNamespace:  # fmt: skip
    """vLLM's RejectionSampler by its attributes, a slot for each temperature; those of the sampler's options
    by name."""
    requests = len(temperature)
    sampler = SimpleNamespace(
        sampling_states=_states(requests, columns, temperature=temperature, **values),
        logits_processors=[LogitBiasState(requests), PenaltiesState(requests), BadWordsState(requests)],
        thinking_budget_state=SimpleNamespace(
            enabled=True, use_thinking_budget=np.zeros(requests, dtype=bool)
        ),
        needs_logits_processing=np.array(temperature) > 0,
        logprobs_mode="raw_logprobs",
        return_sampling_mask=False,
        use_fp64_gumbel=False,
    )
    return SimpleNamespace(
        sampler=sampler,
        synthetic_conditional_rates=None,
        watermark_key=None,
        use_block_verification=False,
        num_speculative_steps=drafts,
        _get_logprobs_tensors=lambda *given: ("logprobs", given[2].dtype, given[-1]),
    )


def batch(slots: Sequence[int], drafts: int = _DRAFTS) -> SimpleNamespace:
    """InputBatch; each request has ``drafts``."""
    starts = np.arange(len(slots) + 1, dtype=np.int32) * (drafts + 1)
    return SimpleNamespace(
        num_reqs=len(slots), cu_num_logits=torch.from_numpy(starts), cu_num_logits_np=starts,
        idx_mapping=torch.tensor(slots), idx_mapping_np=np.array(slots),
    )  # fmt: skip
