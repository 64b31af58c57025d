"""The worker of SPECCTL_PEAGLE: SGLang's EAGLE worker with a table, whose draft model makes all drafts in its
draft-extend pass, so that nothing is left to do before the next verification.

The pass has 2 K rows a request (``peagle_rows``) whatever the table says, which decides how many of the K
drafts are verified. Its keys and values stand where the text goes on: those of accepted rows stay, and the
next pass writes over the others before anything reads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from sglang.srt.speculative.eagle_info import EagleDraftExtendInput
from sglang.srt.speculative.eagle_worker_common import build_eagle_verify_input, prepare_for_draft_extend
from sglang.srt.speculative.eagle_worker_v2 import EagleDraftWorker
from specctl_kernels.peagle_rows import PassBuffers, PassRows, peagle_rows
from specctl_kernels.peagle_rows.reference import peagle_rows_reference

from specctl_sglang.compat.eagle_states import EagleStates, as_drafter
from specctl_sglang.compat.eagle_worker import SteeredEagle
from specctl_sglang.compat.peagle_graph import PassGraphs, captured_pass
from specctl_sglang.compat.peagle_prompts import drafted_behind_prompts, make_room
from specctl_sglang.compat.runtime_states import as_if, as_if_configured
from specctl_sglang.proposers.peagle_rows import is_worth_a_pass, rows_of_pass
from specctl_sglang.proposers.recent_rows import RecentRows, chunk
from specctl_sglang.terms import Shape, width_of

__all__ = ["PEagleDrafter", "PEagleStates", "PEagleWorker", "wrap_EagleDraftWorker"]

_KEPT_ROWS = 32
"""Of each request while nothing is drafted, at least."""


class PEagleDrafter(EagleDraftWorker):
    """Between steps a request carries its drafts int64[K] in SGLang's place for the first draft, and the
    target's hidden state of its last row. ``speculative_num_steps`` is K in every state."""

    speculative_num_steps: int
    cuda_graph_runner_for_draft_extend: Any
    _recent: RecentRows | None = None
    has_room = False
    """Behind the prompts of the batch that is being launched."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._by_requests: dict[int, _OfAll] = {}
        super().__init__(*args, **kwargs)

    @property
    def _rows(self) -> int:
        return rows_of_pass(self.speculative_num_steps)

    def init_attention_backend(self) -> None:
        with self._as_one_pass():
            super().init_attention_backend()

    def _capture_cuda_graphs(self) -> None:
        with self._as_one_pass():
            super()._capture_cuda_graphs()
            if self.cuda_graph_runner_for_draft_extend is None:
                self.cuda_graph_runner_for_draft_extend = captured_pass(self)

    @contextmanager
    def _as_one_pass(self) -> Iterator[None]:
        """One pass needs no backend of several; and those of draft-extend take its rows from the server's
        configuration."""
        drafts, rows = self.speculative_num_steps, self._rows
        self.speculative_num_steps, self.speculative_num_draft_tokens = 1, rows
        try:
            with as_if_configured(speculative_num_draft_tokens=rows):
                yield
        finally:
            self.speculative_num_steps, self.speculative_num_draft_tokens = drafts, width_of(drafts)

    def verify_at_most(self, drafts: int) -> None:
        """What SGLang keeps ready for a chain of that length, which ``draft`` goes by."""
        full = self.speculative_num_steps
        self.speculative_num_steps, self.speculative_num_draft_tokens = drafts, width_of(drafts)
        self._rebuild_topk1_chain_buffers()
        self.speculative_num_steps, self.speculative_num_draft_tokens = full, width_of(full)

    def _draft_extend_for_prefill(
        self,
        batch: Any,
        target_hidden_states: torch.Tensor,
        next_token_ids: torch.Tensor,
        mm_input_embeds: torch.Tensor | None = None,
        **plan: Any,
    ) -> Any:
        """The prompt's keys and values, and the first drafts where there are places for mask rows behind it.
        Else these come with the request's first decode step."""
        given, drafts = (batch, target_hidden_states, next_token_ids), None
        if self.has_room and mm_input_embeds is None:
            made, drafts, hidden = drafted_behind_prompts(self, *given)
        else:
            lengths = torch.tensor(batch.extend_lens)
            ends = (torch.cumsum(lengths, 0) - 1).to(target_hidden_states.device, non_blocking=True)
            hidden = target_hidden_states[ends]
            made = super()._draft_extend_for_prefill(*given, mm_input_embeds, **plan)
        for request in batch.reqs:
            request.specctl_has_drafts, request.specctl_missed = drafts is not None, 0
        self._carry(made, drafts, hidden)
        return made

    def draft(self, batch: Any, *, with_topology: bool = False) -> Any:
        """The verify input of drafts that the step before has made. Where a good part of the batch is
        without, after a rest or some prompts, they are made here. A few would verify token 0 instead, which
        is rejected, and get their first drafts from this step's pass: what came before is in their cache."""
        given = batch.spec_info
        if any(request.specctl_missed for request in batch.reqs):
            self._catch_up(batch)
        drafts = given.topk_index
        if _needs_a_pass(batch):
            drafts = self._draft_again(batch)
        requests = len(batch.seq_lens)
        ranks = self._topk1_score_indices_prealloc[:requests]
        number = ranks.shape[1]
        return build_eagle_verify_input(
            batch,
            given,
            self._topk1_parents_prealloc[:requests],
            ranks,
            drafts[:, :number].contiguous(),
            None,
            target_worker=self.target_worker,
            topk=1,
            num_steps=number,
            num_draft_tokens=width_of(number),
            tree_mask_mode=self.tree_mask_mode,
            device=self.device,
        )

    def _draft_again(self, batch: Any) -> torch.Tensor:
        """From each request's last row, which is in the KV cache already and is written there once more."""
        given, ones = batch.spec_info, torch.ones_like(batch.seq_lens)
        tokens, hidden = given.bonus_tokens, given.hidden_states
        with _before_step(batch, batch.seq_lens - 1, _less(batch.seq_lens_cpu, 1)):
            drafts, _ = self._run_pass(batch, tokens[:, None], hidden[:, None], ones)
        _have_drafts(batch)
        return drafts

    def rest(self, batch: Any, result: Any) -> None:
        """After a plain decode: its rows are kept, and the head runs no pass."""
        hidden = result.logits_output.hidden_states
        if self._recent is None:
            kept = -(-_KEPT_ROWS // self._rows) * self._rows
            pool = self.req_to_token_pool.req_to_token.shape[0]
            self._recent = RecentRows(pool, kept, hidden.shape[1], hidden)
        self._recent.put(batch.req_pool_indices, batch.seq_lens, result.next_token_ids, hidden)
        for request in batch.reqs:
            request.specctl_has_drafts = False
            request.specctl_missed += 1
        self._carry(result.next_draft_input, None, hidden.clone())
        # The scheduler waits for the step's last reader of what it writes to: here that is the target.
        self.draft_runner.shared_read_done_event = self.target_worker.model_runner.shared_read_done_event

    def _catch_up(self, batch: Any) -> None:
        """The last rows of a rest. What lies further back is cleared: it is what another request left."""
        assert self._recent is not None
        counts, kept, rows = [request.specctl_missed for request in batch.reqs], self._recent.kept, self._rows
        missed_cpu = torch.tensor(counts)
        missed = missed_cpu.to(batch.seq_lens.device, non_blocking=True)
        if max(counts) > kept:
            self._clear(batch, missed, max(counts) - kept)
        for at in range(0, min(max(counts), kept), rows):
            starts, known = chunk(batch.seq_lens, missed.clamp(max=kept), at, rows)
            starts_cpu = batch.seq_lens_cpu
            if starts_cpu is not None:
                starts_cpu, _ = chunk(starts_cpu, missed_cpu.clamp(max=kept), at, rows)
            with _before_step(batch, starts, starts_cpu):
                tokens, hidden = self._recent.take(batch.req_pool_indices, starts, rows)
                self._run_pass(batch, tokens, hidden, known)
        for request in batch.reqs:
            request.specctl_missed = 0

    def _clear(self, batch: Any, missed: torch.Tensor, most: int) -> None:
        """Keys and values of 0 for the first of the missed rows of each request, ``most`` at most."""
        assert self._recent is not None
        number = torch.arange(most, device=missed.device)
        places = (batch.seq_lens - missed)[:, None] + number
        is_lost = number < (missed - self._recent.kept)[:, None]
        table = self.req_to_token_pool.req_to_token[batch.req_pool_indices.long()].long()
        # Place 0 is nobody's.
        slots = torch.where(is_lost, table.gather(1, places.clamp(max=table.shape[1] - 1)), 0).flatten()
        pool = self.draft_runner.token_to_kv_pool
        for layer in range(self.draft_runner.model_config.num_hidden_layers):
            pool.get_key_buffer(layer).index_fill_(0, slots, 0)
            pool.get_value_buffer(layer).index_fill_(0, slots, 0)

    def _draft_extend_for_decode(self, batch: Any, batch_result: Any, **_plan: Any) -> None:
        """SGLang's plan of KV places is of the verified rows; a pass here has others, and plans its own."""
        requests, known = len(batch.seq_lens), batch_result.accept_lens
        tokens = batch_result.next_token_ids.view(requests, -1)
        hidden = batch_result.logits_output.hidden_states.view(requests, tokens.shape[1], -1)
        drafts, last_hidden = self._run_pass(batch, tokens, hidden, known)
        _have_drafts(batch)
        self._carry(batch_result.next_draft_input, drafts, last_hidden)

    def _run_pass(
        self, batch: Any, tokens: torch.Tensor, hidden: torch.Tensor, known: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """int64[n, K] drafts, for requests with 1 to K + 1 known rows, and the states [n, H] of their last
        known ones. batch.seq_lens: the place of each request's first row; the rest as ``peagle_rows``."""
        runner, requests, rows = self.cuda_graph_runner_for_draft_extend, len(batch.seq_lens), self._rows
        lay_out = partial(self._laid_out, batch, tokens, hidden, known)
        if isinstance(runner, PassGraphs) and runner.holds(requests, hidden):
            return runner.replayed(requests, lay_out)
        made = lay_out()
        batch.out_cache_loc = made.slots
        of_all = self._of_all(requests)
        given = EagleDraftExtendInput(
            hidden_states=made.hidden,
            num_correct_drafts=of_all.num_correct_drafts,
            num_accept_tokens=of_all.num_accept_tokens,
            num_tokens_per_req=rows,
            num_tokens_for_logprob_per_req=rows,
            select_index=made.first,
        )
        more = (made.ids, rows, self.draft_runner, runner)
        forward_batch = prepare_for_draft_extend(given, batch, *more, return_hidden_states_before_norm=False)
        if runner and runner.can_run_graph(forward_batch):
            # The drafts once more, which SGLang copies out of the memory that the graph writes to again.
            drafts: torch.Tensor = runner.execute(forward_batch, made.first).hidden_states
        else:
            drafts = self.draft_runner.forward(forward_batch).logits_output.next_token_logits
        return drafts, made.last_hidden

    def _laid_out(
        self,
        batch: Any,
        tokens: torch.Tensor,
        hidden: torch.Tensor,
        known: torch.Tensor,
        into: PassBuffers | None = None,
    ) -> PassRows:
        """``into``: on a GPU only."""
        head = self.draft_runner.model
        call = partial(peagle_rows, into=into) if tokens.is_cuda else peagle_rows_reference
        return call(
            # A verification's own dtypes: the kernel is not compiled for others in the middle of the day.
            tokens.to(torch.int32),
            hidden,
            known.to(torch.int32),
            head.mask_hidden,
            batch.req_pool_indices,
            batch.seq_lens,
            self.req_to_token_pool.req_to_token,
            mask_id=head.mask_token_id,
            drafts=self.speculative_num_steps,
        )

    def _of_all(self, requests: int) -> _OfAll:
        made = self._by_requests.get(requests)
        if made is None:
            made = self._by_requests[requests] = _OfAll.of(requests, self._rows, self.device)
        return made

    def _carry(self, draft_input: Any, drafts: torch.Tensor | None, hidden: torch.Tensor) -> None:
        """drafts: None where there are none yet, which is token 0 in their places."""
        if drafts is None:
            shape = (hidden.shape[0], self.speculative_num_steps)
            drafts = torch.zeros(shape, dtype=torch.int64, device=hidden.device)
        draft_input.topk_index, draft_input.hidden_states = drafts, hidden
        draft_input.topk_p = self._of_all(hidden.shape[0]).topk_p


class _OfAll(NamedTuple):
    """What SGLang gets for every batch with as many requests, made once: it reads these, and writes to
    copies."""

    num_correct_drafts: torch.Tensor
    """int32[n], as if every row had been accepted: which are is the model's to know."""
    num_accept_tokens: torch.Tensor
    """int32[n]"""
    topk_p: torch.Tensor
    """float32[n, 1], of drafts that nobody ranks."""

    @classmethod
    def of(cls, requests: int, rows: int, device: Any) -> _OfAll:
        return cls(
            torch.full((requests,), rows - 1, dtype=torch.int32, device=device),
            torch.full((requests,), rows, dtype=torch.int32, device=device),
            torch.ones((requests, 1), dtype=torch.float32, device=device),
        )


def _needs_a_pass(batch: Any) -> bool:
    without = sum(not request.specctl_has_drafts for request in batch.reqs)
    return is_worth_a_pass(without, len(batch.reqs))


def _have_drafts(batch: Any) -> None:
    for request in batch.reqs:
        request.specctl_has_drafts = True


def _less(lengths: torch.Tensor | None, number: int) -> torch.Tensor | None:
    return None if lengths is None else lengths - number


def _before_step(
    batch: Any, starts: torch.Tensor, starts_cpu: torch.Tensor | None
) -> AbstractContextManager[None]:
    """A pass before the step's own, from other places; what it writes to the batch is taken back."""
    written = {name: getattr(batch, name) for name in ("spec_info", "forward_mode", "input_ids")}
    return as_if(batch, seq_lens=starts, seq_lens_cpu=starts_cpu, **written)


class PEagleStates(EagleStates):
    """A state is the target's alone: the head's pass is the same for every number."""

    def _build(self, key: Shape) -> None:
        drafts, _, width = key
        with as_if_configured(speculative_num_steps=drafts, speculative_num_draft_tokens=width):
            self._worker.speculative_num_steps, self._worker.speculative_num_draft_tokens = drafts, width
            self._drafter.verify_at_most(drafts)
            self._capture_target(is_plain=drafts == 0)


def wrap_EagleDraftWorker(_original: type) -> type:
    return PEagleDrafter


class PEagleWorker(SteeredEagle):
    @property
    def reads_hidden_states(self) -> bool:
        """Kept at 0 drafts too, for when drafting resumes."""
        return True

    def before_launch(self, batch: Any) -> None:
        drafter = self._draft_worker
        drafter.has_room = make_room(batch, drafter.speculative_num_steps - 1)

    def _made_at_start(self) -> PEagleStates:
        return PEagleStates(self, self.at_start)

    def _has_rested(self, batch: Any) -> bool:
        return any(request.specctl_missed for request in batch.reqs)

    def _numbers_drafted(self, batch: Any, shape: Shape) -> list[int]:
        """0 for requests that verify nobody's drafts: what is accepted says nothing about the head."""
        if _needs_a_pass(batch):
            return super()._numbers_drafted(batch, shape)
        return [shape[0] if request.specctl_has_drafts else 0 for request in batch.reqs]

    def _follow(self, batch: Any, result: Any) -> None:
        with as_drafter(self._draft_worker):
            self._draft_worker.rest(batch, result)
