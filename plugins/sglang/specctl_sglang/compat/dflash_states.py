"""States of a DFLASH worker: of the target, and of a draft model that fills a block of their length."""

from __future__ import annotations

from typing import Any

from sglang.srt.model_executor.model_runner_components.cuda_graph_setup import capture_decode_graph
from sglang.srt.speculative.draft_worker_common import (
    build_block_pos_offsets,
    make_draft_block_spec_info,
    make_draft_sampler_capture_hook,
)

from specctl_sglang.compat.runtime_states import RuntimeStates, as_if_configured, capture_target
from specctl_sglang.terms import OFF, Shape

__all__ = ["DflashStates"]

_BUFFERS = (
    "_draft_block_ids_buf",
    "_draft_block_positions_buf",
    "_draft_block_tokens_buf",
    "_draft_verify_out_cache_loc_buf",
    "_draft_block_end_buf",
    "_draft_seq_lens_cpu_buf",
    "_accept_len_buf",
)
"""Of one block's length, made anew where they are None."""
_LISTS = ("_commit_lens_bufs", "_bonus_id_bufs", "_out_tokens_bufs", "_new_seq_lens_bufs")
_OF_WORKER = (
    "block_size",
    "speculative_num_draft_tokens",
    "_block_pos_offsets",
    "_draft_block_spec_info",
    "_draft_sampler",
    "_accept_bonus_buffer_cap",
    "_accept_bonus_buffer_slot",
    *_BUFFERS,
    *_LISTS,
)


class DflashStates(RuntimeStates[Shape]):
    """By the shape of drafts; a block is the target's own token and a chain."""

    def __init__(self, worker: Any, at_start: Shape) -> None:
        """worker: SGLang's DFlashWorkerV2, after it has captured its graphs."""
        self._worker, self._draft_runner = worker, worker.draft_model_runner
        self._target = worker.target_worker.model_runner
        runner_parts = ("attn_backend", "decode_cuda_graph_runner")
        places = [
            *((worker, name) for name in _OF_WORKER),
            *((runner, name) for runner in (self._draft_runner, self._target) for name in runner_parts),
        ]
        super().__init__(places, at_start)

    def _write(self, parts: tuple[Any, ...]) -> None:
        super()._write(parts)
        self._worker.draft_model.set_block_size(self._worker.block_size)

    def _build(self, key: Shape) -> None:
        if key == OFF:
            with as_if_configured(speculative_num_draft_tokens=1, return_hidden_states_mode="full"):
                capture_target(self._target, is_plain=True)
            return
        _, _, width = key
        with as_if_configured(speculative_num_draft_tokens=width):
            self._make_block(width)
            self._capture_draft()
            capture_target(self._target, is_plain=False)

    def _make_block(self, width: int) -> None:
        worker = self._worker
        worker.block_size = worker.speculative_num_draft_tokens = width
        worker.draft_model.set_block_size(width)
        worker._block_pos_offsets = build_block_pos_offsets(length=width, device=worker.device)
        worker._draft_block_spec_info = make_draft_block_spec_info(
            draft_token_num=width, device=worker.device
        )
        worker._accept_bonus_buffer_cap = worker._accept_bonus_buffer_slot = 0
        for name in _BUFFERS:
            setattr(worker, name, None)
        for name in _LISTS:
            setattr(worker, name, [])

    def _capture_draft(self) -> None:
        """With the head's choice of tokens in the graph, where SGLang puts it there."""
        worker, runner = self._worker, self._draft_runner
        has_graphs = runner.decode_cuda_graph_runner is not None
        kept = runner.init_new_workspace, runner.capture_tail_hooks
        worker._draft_sampler = worker._maybe_build_draft_sampler() if has_graphs else None
        sampler = worker._draft_sampler
        try:
            runner.capture_tail_hooks = [] if sampler is None else [make_draft_sampler_capture_hook(sampler)]
            runner.attn_backend = runner._get_attention_backend(init_new_workspace=True)
            if has_graphs:
                runner.decode_cuda_graph_runner = capture_decode_graph(model_runner=runner).runner
        finally:
            runner.init_new_workspace, runner.capture_tail_hooks = kept
