"""The worker of SPECCTL_PEAGLE: SGLang's EAGLE worker, whose draft model makes all drafts in its draft-extend
pass, so that nothing is left to do before the next verification.

The pass has 2 K rows a request (``peagle_rows``). Their keys and values stand where the text goes on: those
of accepted rows stay, and the next pass writes over the others before anything reads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from sglang.kernels.ops.speculative.cache_locs import assign_extend_cache_locs_uniform_func
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.runtime_context import get_context
from sglang.srt.speculative import eagle_worker_v2
from sglang.srt.speculative.eagle_info import EagleDraftExtendInput
from sglang.srt.speculative.eagle_worker_common import build_eagle_verify_input, prepare_for_draft_extend
from sglang.srt.speculative.eagle_worker_v2 import EagleDraftWorker, EAGLEWorkerV2

from specctl_sglang.proposers.peagle_rows import last_rows, pass_rows, rows_of_pass
from specctl_sglang.terms import width_of

__all__ = ["PEagleDrafter", "PEagleWorker"]


class PEagleDrafter(EagleDraftWorker):  # type: ignore[misc]
    """Between steps a request carries its drafts int64[K] in SGLang's place for the first draft, and the
    target's hidden state of its last row."""

    @property
    def _rows(self) -> int:
        return rows_of_pass(self.speculative_num_steps)

    def init_attention_backend(self) -> None:
        with self._as_one_pass():
            super().init_attention_backend()

    def _capture_cuda_graphs(self) -> None:
        with self._as_one_pass():
            super()._capture_cuda_graphs()

    @contextmanager
    def _as_one_pass(self) -> Iterator[None]:
        """One pass needs no backend of several; and those of draft-extend take its rows from the server's
        configuration."""
        drafts, rows = self.speculative_num_steps, self._rows
        self.speculative_num_steps, self.speculative_num_draft_tokens = 1, rows
        get_context().override("specctl.peagle", speculative_num_draft_tokens=rows)
        try:
            yield
        finally:
            self.speculative_num_steps, self.speculative_num_draft_tokens = drafts, width_of(drafts)
            get_context().override("specctl.peagle", speculative_num_draft_tokens=width_of(drafts))

    def _draft_extend_for_prefill(
        self,
        batch: Any,
        target_hidden_states: torch.Tensor,
        next_token_ids: torch.Tensor,
        mm_input_embeds: torch.Tensor | None = None,
    ) -> Any:
        """The prompt's keys and values. Places for mask rows come with the request's first decode step."""
        lengths = torch.tensor(batch.extend_lens)
        ends = (torch.cumsum(lengths, 0) - 1).to(target_hidden_states.device, non_blocking=True)
        hidden = target_hidden_states[ends]
        made = super()._draft_extend_for_prefill(batch, target_hidden_states, next_token_ids, mm_input_embeds)
        for request in batch.reqs:
            request.specctl_has_drafts = False
        drafts = made.topk_index.new_zeros((len(lengths), self.speculative_num_steps))
        _carry(made, drafts, hidden)
        return made

    def draft(self, batch: Any, *, with_topology: bool = False) -> Any:
        """The verify input of drafts that the step before has made; after a prompt they are made here."""
        given = batch.spec_info
        drafts = given.topk_index
        if not all(getattr(request, "specctl_has_drafts", False) for request in batch.reqs):
            drafts = self._draft_again(batch, given)
        requests = len(batch.seq_lens)
        return build_eagle_verify_input(
            batch,
            given,
            self._topk1_parents_prealloc[:requests],
            self._topk1_score_indices_prealloc[:requests],
            drafts,
            None,
            target_worker=self.target_worker,
            topk=1,
            num_steps=self.speculative_num_steps,
            num_draft_tokens=self.speculative_num_draft_tokens,
            tree_mask_mode=self.tree_mask_mode,
            device=self.device,
        )

    def _draft_again(self, batch: Any, given: Any) -> torch.Tensor:
        """From each request's last row, which is in the KV cache already and is written there once more."""
        lengths, lengths_cpu = batch.seq_lens, batch.seq_lens_cpu
        batch.seq_lens = lengths - 1
        batch.seq_lens_cpu = None if lengths_cpu is None else lengths_cpu - 1
        ones = torch.ones_like(lengths)
        tokens, hidden = given.bonus_tokens.to(torch.int64), given.hidden_states
        drafts = self._run_pass(batch, tokens[:, None], hidden[:, None], ones)
        batch.seq_lens, batch.seq_lens_cpu = lengths, lengths_cpu
        batch.forward_mode, batch.spec_info, batch.input_ids = ForwardMode.DECODE, given, None
        return drafts

    def _draft_extend_for_decode(self, batch: Any, batch_result: Any) -> None:
        requests = len(batch.seq_lens)
        known = batch_result.accept_lens
        tokens = batch_result.next_token_ids.to(torch.int64).view(requests, -1)
        hidden = batch_result.logits_output.hidden_states.view(requests, tokens.shape[1], -1)
        drafts = self._run_pass(batch, tokens, hidden, known)
        _carry(batch_result.next_draft_input, drafts, last_rows(hidden, known))

    def _run_pass(
        self, batch: Any, tokens: torch.Tensor, hidden: torch.Tensor, known: torch.Tensor
    ) -> torch.Tensor:
        """int64[n, K] drafts. batch.seq_lens: the place of each request's first row; the rest as ``pass_rows``
        takes it."""
        requests, rows, head = len(batch.seq_lens), self._rows, self.draft_runner.model
        ids, states = pass_rows(tokens, hidden, known, head.mask_token_id, head.mask_hidden, rows)
        starts = torch.arange(0, requests * rows, rows, device=known.device)
        select = starts + known - 1
        batch.out_cache_loc = assign_extend_cache_locs_uniform_func(
            req_pool_indices=batch.req_pool_indices,
            req_to_token=self.req_to_token_pool.req_to_token,
            start_offset=batch.seq_lens,
            batch_size=requests,
            draft_token_num=rows,
            device=self.device,
        )
        given = EagleDraftExtendInput(
            hidden_states=states.flatten(0, 1),
            num_correct_drafts=torch.full_like(known, rows - 1),
            num_accept_tokens=torch.full_like(known, rows),
            num_tokens_per_req=rows,
            num_tokens_for_logprob_per_req=rows,
            select_index=select,
        )
        runner = self.cuda_graph_runner_for_draft_extend
        forward_batch = prepare_for_draft_extend(
            given, batch, ids.flatten(), rows, self.draft_runner, runner, return_hidden_states_before_norm=False
        )
        for request in batch.reqs:
            request.specctl_has_drafts = True
        if runner and runner.can_run_graph(forward_batch):
            # The graph's own memory, which the next pass writes over.
            return runner.execute(forward_batch, select).next_token_logits.clone()
        return self.draft_runner.forward(forward_batch).logits_output.next_token_logits


def _carry(draft_input: Any, drafts: torch.Tensor, hidden: torch.Tensor) -> None:
    draft_input.topk_index, draft_input.hidden_states = drafts, hidden
    draft_input.topk_p = torch.ones_like(drafts[:, :1], dtype=torch.float32)


class PEagleWorker(EAGLEWorkerV2):  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        with _own_drafter():
            super().__init__(*args, **kwargs)


@contextmanager
def _own_drafter() -> Iterator[None]:
    """Reason: the worker's constructor makes its draft worker itself, by its module's name for it."""
    original = eagle_worker_v2.EagleDraftWorker
    eagle_worker_v2.EagleDraftWorker = PEagleDrafter
    try:
        yield
    finally:
        eagle_worker_v2.EagleDraftWorker = original
