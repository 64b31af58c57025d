"""States of a worker with a draft model of several passes: beside the target's, the draft's own attention
backends and graphs, for its passes and for catching up with what was accepted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from sglang.srt.layers.moe.utils import speculative_moe_a2a_backend_context, speculative_moe_backend_context
from sglang.srt.mem_cache.allocation_sizing import get_alloc_len_per_decode

from specctl_sglang.compat.accepted_nodes import note_made
from specctl_sglang.compat.releases import draft_context
from specctl_sglang.compat.runtime_states import RuntimeStates, as_if, as_if_configured, capture_target
from specctl_sglang.terms import Shape

__all__ = ["EagleStates", "as_drafter", "wrap_draft"]

_OF_WORKER = ("topk", "speculative_num_steps", "speculative_num_draft_tokens")
_OF_DRAFTER = (
    "speculative_num_steps",
    "speculative_num_draft_tokens",
    "draft_attn_backend",
    "draft_extend_attn_backend",
    "cuda_graph_runner",
    "cuda_graph_runner_for_draft_extend",
    "_topk1_parents_prealloc",
    "_topk1_score_indices_prealloc",
)


class EagleStates(RuntimeStates[Shape]):
    """By the shape of drafts; without any it has the target's own decode, with graphs as without speculation.

    A drafter's ``topk`` is no part of a state: what is carried from step to step has the start's number of
    columns, whatever a draft takes of them.
    """

    def __init__(self, worker: Any, at_start: Shape) -> None:
        """worker: SGLang's EAGLEWorkerV2 or one derived from it, after it has captured its graphs."""
        self._worker, self._drafter = worker, worker.draft_worker
        self._target = worker.target_worker.model_runner
        self._reserved_tokens = get_alloc_len_per_decode()
        draft_runner = self._drafter.draft_runner
        places = [
            *((worker, name) for name in _OF_WORKER),
            *((self._drafter, name) for name in _OF_DRAFTER),
            *((draft_runner, name) for name in ("draft_attn_backend", "attn_backend")),
            *((self._target, name) for name in ("attn_backend", "decode_cuda_graph_runner")),
        ]
        super().__init__(places, at_start)

    @property
    def steps(self) -> int:
        """Of the active state: how deep a draft is."""
        return int(self._worker.speculative_num_steps)

    def _build(self, key: Shape) -> None:
        steps, topk, width = key
        worker, drafter = self._worker, self._drafter
        configured = {"speculative_num_steps": steps, "speculative_num_draft_tokens": width}
        with as_if_configured(speculative_eagle_topk=topk, **configured), as_if(drafter, topk=topk):
            self._check_places(get_alloc_len_per_decode())
            worker.topk = topk
            for thing in (worker, drafter):
                thing.speculative_num_steps, thing.speculative_num_draft_tokens = steps, width
            drafter._rebuild_topk1_chain_buffers()
            with as_drafter(drafter):
                drafter.init_attention_backend()
                drafter._capture_cuda_graphs()
            self._capture_target(is_plain=steps == 0)

    def _check_places(self, tokens: int) -> None:
        """The scheduler reserves KV places for what the server was started with."""
        if tokens > self._reserved_tokens:
            raise torch.OutOfMemoryError(
                f"a step takes up to {tokens} KV places of a request, {self._reserved_tokens} are reserved"
            )

    def _capture_target(self, is_plain: bool) -> None:
        if is_plain and self._worker.reads_hidden_states:
            # The draft model's KV is kept up with the target's hidden states, so plain decodes give them too.
            with as_if_configured(return_hidden_states_mode="full"):
                capture_target(self._target, is_plain)
        else:
            capture_target(self._target, is_plain)


@contextmanager
def as_drafter(drafter: Any) -> Iterator[None]:
    """What SGLang's worker puts around everything its draft model does."""
    with ExitStack() as stack:
        stack.enter_context(draft_context(drafter))
        stack.enter_context(speculative_moe_backend_context())
        stack.enter_context(speculative_moe_a2a_backend_context())
        yield


def wrap_draft(original: Any) -> Any:
    """A draft takes as many first tokens as the active state has branches, of those that were carried over,
    which are the start's; what the passes of a tree have made is noted."""

    def draft(drafter: Any, batch: Any, **more: Any) -> Any:
        worker, carried = getattr(drafter, "specctl_worker", None), drafter.topk
        if worker is None or carried == 1:
            return original(drafter, batch, **more)
        topk = worker.topk
        if batch.forward_mode.is_idle():
            with as_if(drafter, topk=topk):
                return original(drafter, batch, **more)
        if topk == carried:
            return noted(drafter, batch, **more)
        first = batch.spec_info
        first.topk_p, first.topk_index = (
            one[:, :topk].contiguous() for one in (first.topk_p, first.topk_index)
        )
        with as_if(drafter, topk=topk):
            return original(drafter, batch, **more) if topk == 1 else noted(drafter, batch, **more)

    def noted(drafter: Any, batch: Any, with_topology: bool = False) -> Any:
        verify_input, parents, made = original(drafter, batch, with_topology=True)
        note_made(verify_input, made)
        return (verify_input, parents, made) if with_topology else verify_input

    return draft
