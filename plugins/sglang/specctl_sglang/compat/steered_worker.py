"""SGLang's NGRAM worker with a table: any prepared number of drafts a step, none of them included.

A subclass, because verification, sampling and the bookkeeping of its overlap scheduler are wanted as they
are. Drafts, masks and the plain step are here; where drafts come from is the subclasses' matter.
"""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from typing import Any

import numpy as np
import torch
from sglang.srt.managers.scheduler import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.runtime_context import get_parallel, get_spec
from sglang.srt.speculative.ngram_info import NgramVerifyInput
from sglang.srt.speculative.ngram_worker import NGRAMWorker, assign_extend_cache_locs_func
from sglang.srt.speculative.spec_utils import prepare_mamba_track_for_verify, record_stream_for_v2_verify

from specctl_sglang.compat.host_lengths import HostLengths
from specctl_sglang.compat.runtime_states import TargetStates
from specctl_sglang.compat.steered import Steered, current_step, start_guarded
from specctl_sglang.compat.verify_masks import full_mask
from specctl_sglang.control.steering import OpenStep
from specctl_sglang.options import Options, options_from_env
from specctl_sglang.proposers.layout import VerifyLayout
from specctl_sglang.terms import checked_candidates, default_candidates, drafts_of, width_of

__all__ = ["SteeredWorker"]

logger = logging.getLogger("sglang.specctl")


class SteeredWorker(Steered, NGRAMWorker):
    """A worker without a draft model."""

    host_lengths: HostLengths | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.options = options_from_env() or Options()
        self._full_width: int = get_spec().speculative_num_draft_tokens
        self._tp_group = get_parallel().tp_group
        self._states: TargetStates | None = None
        self._has_failed = False

    @property
    def prepared(self) -> tuple[int, ...]:
        assert self._states is not None
        return self._states.keys

    @abstractmethod
    def _find(self, batch: Any, step: OpenStep) -> VerifyLayout | None:
        """The drafts of a decode batch, at most step.num_speculative_tokens for each request, as wide as the
        smallest prepared number that holds them; None: there is nothing to verify."""

    def _rest(self, batch: Any) -> None:
        """A decode batch for which nothing may be drafted; what a proposer learns from it."""

    def stats(self) -> dict[str, float]:
        return {} if self._states is None else self._states.stats()

    def _init_preallocated_tensors(self) -> None:
        """Of one width. Ours are made for each step."""

    def init_cuda_graphs(self) -> None:
        super().init_cuda_graphs()
        full = drafts_of(self._full_width)
        asked = self.options.candidates
        has_graphs = self.model_runner.decode_cuda_graph_runner is not None
        numbers = default_candidates(full, has_graphs) if asked is None else checked_candidates(asked, full)
        self._states = TargetStates(self.model_runner, full)
        self._states.prepare(numbers)
        if self._tp_group.world_size > 1:
            ranks = self._tp_group.all_gather_object(self._states.keys)
            self._states.keep(sorted(set.intersection(*map(set, ranks))))

    def smallest_prepared(self, drafts: int) -> int:
        return next(number for number in self.prepared if number >= drafts)

    def forward_batch_generation(
        self, batch: Any, on_publish: Any = None, pp_proxy_tensors: Any = None
    ) -> GenerationBatchResult:
        assert self._states is not None
        self._layout = None
        if batch.forward_mode.is_decode():
            self._layout = self._agreed(batch)
            if self._layout is None:
                self._states.activate(min(self.prepared))
                if self.prepared[0] == 0:
                    return self._plain_step(batch, on_publish, pp_proxy_tensors)
                # Without a plain decode prepared, the smallest verification with nothing in it is the same.
                self._layout = _empty(len(batch.reqs), width_of(self.prepared[0]))
            self._states.activate(drafts_of(self._layout.width))
        else:
            self._states.activate(drafts_of(self._full_width))
        width = self._full_width if self._layout is None else self._layout.width
        self.draft_token_num = self.speculative_num_draft_tokens = width
        old_lengths = batch.seq_lens_cpu
        result = super().forward_batch_generation(batch, on_publish, pp_proxy_tensors)
        if self.host_lengths is not None and not batch.forward_mode.is_idle():
            is_known = self._layout is None
            self.host_lengths.note(batch.req_pool_indices_cpu, old_lengths if is_known else None)
        _widen(result.next_draft_input, width, self._full_width)
        return result

    def _agreed(self, batch: Any) -> VerifyLayout | None:
        """The first rank's drafts are everyone's: leases end and indexes grow by each rank's own clock."""
        if self._tp_group.world_size == 1:
            return self._drafted(batch)
        is_first = self._tp_group.rank_in_group == 0
        layout = self._drafted(batch) if is_first else None
        agreed: VerifyLayout | None = self._tp_group.broadcast_object(layout, src=0)
        return agreed

    def _drafted(self, batch: Any) -> VerifyLayout | None:
        step = current_step(self.specctl, batch, (drafts_of(self._full_width), 1))
        started_s = time.perf_counter()
        layout = None
        start_guarded(step, batch, self.device)
        if not self._has_failed:
            try:
                if step.num_speculative_tokens > 0:
                    layout = self._find(batch, step)
                else:
                    self._rest(batch)
            except Exception:
                logger.exception("specctl: drafting failed; from now on nothing is drafted")
                self._has_failed = True
        step.drafted = [0] * len(batch.reqs) if layout is None else layout.drafted.tolist()
        step.draft_s = time.perf_counter() - started_s
        return layout

    def last_accepted(self, batch: Any) -> list[list[int]] | None:
        """Tokens that are accepted and not yet in output_ids; None where the scheduler does not overlap.

        Waits for the step before, as stock NGRAM does: a draft found on the host needs its tokens.
        """
        if not self.enable_overlap or batch.grammar_needs_sync():
            return None
        tokens = batch.spec_info.accept_tokens.cpu().view(len(batch.reqs), self._full_width).tolist()
        numbers = batch.spec_info.accept_lens.cpu().tolist()
        return [row[:number] for row, number in zip(tokens, numbers, strict=True)]

    def _last_token(self, batch: Any) -> torch.Tensor:
        """int64[n] on the device: the target's own last token of each request."""
        tokens = batch.spec_info.accept_tokens.view(len(batch.reqs), self._full_width)
        # A request whose relay row was never written has 0 tokens; its row is padding.
        last = (batch.spec_info.accept_lens.long() - 1).clamp(min=0)
        return tokens.gather(1, last[:, None]).squeeze(1).long()

    def _prepare_for_speculative_decoding(self, batch: Any) -> None:
        layout = self._layout
        if layout is None:
            return
        requests, width, device = len(batch.reqs), layout.width, self.device
        placed = torch.from_numpy(
            np.stack([layout.tokens, layout.depths, layout.next_token, layout.next_sibling])
        ).to(device, non_blocking=True)
        tree = torch.from_numpy(layout.mask).to(device, non_blocking=True)
        tokens = placed[0].contiguous()
        tokens[:, 0] = self._last_token(batch)
        positions = (placed[1] + batch.seq_lens[:, None]).flatten()
        self.grammar_tree_host = None
        if batch.has_grammar:
            self.grammar_tree_host = (layout.mask.reshape(-1), tokens.cpu().numpy().reshape(-1))
        is_cpu = batch.seq_lens.device.type == "cpu"
        mask = tree.flatten() if is_cpu else full_mask(tree, batch.seq_lens, batch.seq_lens_cpu)
        batch.forward_mode = ForwardMode.TARGET_VERIFY
        batch.input_ids = tokens.flatten()
        batch.out_cache_loc = assign_extend_cache_locs_func(
            req_pool_indices=batch.req_pool_indices,
            req_to_token=batch.req_to_token_pool.req_to_token,
            start_offset=batch.seq_lens,
            end_offset=batch.seq_lens + width,
            batch_size=requests,
            draft_token_num=width,
            device=device,
        )
        prepare_mamba_track_for_verify(batch)
        batch.spec_info = NgramVerifyInput(
            draft_token=batch.input_ids,
            custom_mask=mask,
            positions=positions,
            retrieve_index=torch.arange(requests * width, device=device).view(requests, width),
            retrieve_next_token=placed[2].contiguous(),
            retrieve_next_sibling=placed[3].contiguous(),
            draft_token_num=width,
        )

    def _update_ngram_corpus(self, batch: Any) -> None:
        """Stock NGRAM learns after each step; ours read histories when they draft."""

    def _plain_step(self, batch: Any, on_publish: Any, pp_proxy_tensors: Any) -> GenerationBatchResult:
        """One token of each request by the target's own decode and sampler, told as a verification."""
        stream = torch.get_device_module(self.device).current_stream()
        record_stream_for_v2_verify(batch, None, stream)
        requests = len(batch.reqs)
        places = batch.req_to_token_pool.req_to_token[batch.req_pool_indices, batch.seq_lens]
        batch.input_ids = self._last_token(batch)
        batch.out_cache_loc = places.to(torch.int64)
        batch.seq_lens = batch.seq_lens + 1
        if batch.seq_lens_cpu is not None:
            batch.seq_lens_cpu = batch.seq_lens_cpu + 1
        batch.seq_lens_sum = None
        batch.spec_info = None
        result = self.target_worker.forward_batch_generation(batch, pp_proxy_tensors=pp_proxy_tensors)
        if on_publish is not None:
            on_publish(batch.seq_lens)
        if self.host_lengths is not None:
            self.host_lengths.note(batch.req_pool_indices_cpu, batch.seq_lens_cpu)
        tokens = torch.zeros((requests, self._full_width), dtype=torch.int32, device=self.device)
        tokens[:, 0] = result.next_token_ids
        result.accept_lens = torch.ones(requests, dtype=torch.int32, device=self.device)
        result.new_seq_lens = batch.seq_lens
        result.speculative_num_draft_tokens = self.speculative_num_draft_tokens = 1
        result.next_draft_input = NgramVerifyInput(
            draft_token_num=self._full_width,
            new_seq_lens=batch.seq_lens,
            accept_tokens=tokens.flatten(),
            accept_lens=result.accept_lens,
        )
        if batch.return_logprob:
            logprobs = result.logits_output.next_token_logprobs
            result.logits_output.next_token_logprobs = logprobs[:, None]
        return result


def _widen(draft_input: Any, width: int, full_width: int) -> None:
    """The scheduler keeps accepted tokens in rows of one width for all steps."""
    if width < full_width:
        rows = draft_input.accept_tokens.view(-1, width)
        widened = torch.nn.functional.pad(rows, (0, full_width - width))
        draft_input.accept_tokens = widened.flatten()
    draft_input.draft_token_num = full_width


def _empty(requests: int, width: int) -> VerifyLayout:
    from specctl_sglang.proposers.layout import chain_layout

    return chain_layout(np.zeros((requests, 0), np.int32), np.zeros(requests, np.int32), width)
