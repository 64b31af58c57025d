"""What a server takes of a device's memory, part by part. Estimates from sizes alone: nothing is loaded.

Graphs and prepared states are scaled from what was measured for an 8B shape (hidden size 4,096, 32 layers) on
an H200: 2 GiB of graphs in stock vLLM, and what ``engine.graph_memory`` says of more (docs/results.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from specctl.checkpoints.draft import Draft, Kind
from specctl.checkpoints.facts import ModelFacts
from specctl.engine.graph_memory import GIB, MEASURED_SHAPE, wide_graph_bytes

__all__ = ["GIB", "Memory", "Plan", "estimate"]

_GRAPHS_BYTES = 2 * GIB
_STATE_BYTES = 100 * 2**20
"""Graphs and attention backend of one prepared setting on SGLang: 25 to 247 MB each on that H200."""
_RESUME_TOKENS = 32
_SUFFIX_BYTES = 512 * 2**20
_RUNTIME_BYTES = 2 * GIB
"""CUDA context, workspaces and activations of one step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """``requests`` at once, ``context_tokens`` of each. ``prepared``: settings that SGLang prepares."""

    engine: str
    requests: int
    context_tokens: int
    num_speculative_tokens: int = 0
    tensor_parallel_size: int = 1
    draft_tensor_parallel_size: int | None = None
    graphs: bool = True
    graph_tokens_max: int | None = None
    """Of specctl on vLLM; None: vLLM's own bound."""
    prepared: int = 1
    kv_dtype_bytes: int | None = None
    has_suffix_index: bool = False
    keeps_states: bool = False
    """specctl's own heads keep target states while they rest."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one device by part; ``kv_token_bytes``: of one token, target and draft together."""

    fixed: dict[str, int]
    kv_token_bytes: int
    kv_bytes: int
    unknown: tuple[str, ...] = ()

    @property
    def fixed_bytes(self) -> int:
        return sum(self.fixed.values())

    def tokens_within(self, free_bytes: float) -> int:
        """Tokens of KV cache that are left of so much memory."""
        return max(int((free_bytes - self.fixed_bytes) / max(self.kv_token_bytes, 1)), 0)


def estimate(target: ModelFacts, draft: Draft | None, plan: Plan) -> Memory:
    """``unknown`` names the parts that the configs do not tell; they count as 0."""
    unknown: list[str] = []
    ranks = plan.tensor_parallel_size
    fixed = {"target weights": _part(target.weight_bytes, ranks, "target weights", unknown)}
    kv = _kv_token(target, ranks, plan, "target KV", unknown)
    if draft is not None:
        draft_ranks = plan.draft_tensor_parallel_size or ranks
        fixed["draft weights"] = _part(draft.facts.weight_bytes, draft_ranks, "draft weights", unknown)
        kv += _kv_token(draft.facts, draft_ranks, plan, "draft KV", unknown)
    elif target.mtp_layers and plan.num_speculative_tokens and not plan.has_suffix_index:
        kv += kv * target.mtp_layers // max(target.num_layers or 1, 1)
    fixed |= _of_speculation(target, draft, plan)
    fixed["runtime"] = _RUNTIME_BYTES
    return Memory(fixed, kv, kv * plan.requests * plan.context_tokens, tuple(unknown))


def _part(value: int | None, ranks: int, name: str, unknown: list[str]) -> int:
    if value is None:
        unknown.append(name)
        return 0
    return value // ranks


def _kv_token(facts: ModelFacts, ranks: int, plan: Plan, name: str, unknown: list[str]) -> int:
    whole = facts.kv_bytes_per_token
    if whole is None:
        unknown.append(name)
        return 0
    if plan.kv_dtype_bytes is not None:
        whole = whole * plan.kv_dtype_bytes // facts.dtype_bytes
    # More ranks than heads hold copies; a latent state is on every rank.
    shared = 1 if facts.kv_latent_size is not None else min(ranks, facts.num_kv_heads or 1)
    return whole // shared


def _of_speculation(target: ModelFacts, draft: Draft | None, plan: Plan) -> dict[str, int]:
    found: dict[str, int] = {}
    ranks = plan.tensor_parallel_size
    hidden, layers = target.hidden_size or 0, target.num_layers or 0
    shape_ratio = hidden * layers / MEASURED_SHAPE / ranks
    if plan.graphs:
        found["graphs"] = int(_GRAPHS_BYTES * min(shape_ratio, 4.0))
        if plan.graph_tokens_max is not None and plan.num_speculative_tokens:
            found["graphs of live settings"] = wide_graph_bytes(plan.graph_tokens_max, hidden, layers, ranks)
    if plan.engine == "sglang" and plan.prepared > 1:
        found["prepared states"] = int(_STATE_BYTES * shape_ratio * (plan.prepared - 1))
    if plan.num_speculative_tokens:
        rows = plan.requests * (plan.num_speculative_tokens + 1)
        # The engines' own verification copies the logits to float32.
        found["logits of verification"] = min(rows * (target.vocab_size or 0) * 4, GIB)
    if plan.keeps_states and draft is not None and draft.kind is Kind.PEAGLE:
        size = (draft.target_hidden_size or hidden) * draft.aux_states * target.dtype_bytes
        found["states while resting"] = size * _RESUME_TOKENS * plan.requests
    if plan.has_suffix_index and plan.engine == "vllm":
        found["suffix index"] = _SUFFIX_BYTES
    return found
