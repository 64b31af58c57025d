"""SGLang's NGRAM worker with a table: any prepared number of drafts a step, none of them included.

A subclass, because verification, sampling and the bookkeeping of its overlap scheduler are wanted as they
are. Drafts, masks and the plain step are here; where drafts come from is the subclasses' matter.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from typing import Any

import numpy as np
import torch
from sglang.srt.managers.scheduler import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.runtime_context import get_parallel, get_spec
from sglang.srt.speculative.ngram_info import NgramVerifyInput
from sglang.srt.speculative.ngram_worker import NGRAMWorker
from sglang.srt.speculative.spec_utils import prepare_mamba_track_for_verify, record_stream_for_v2_verify

from specctl.engine.guard import GUARD
from specctl_sglang.compat.first_use import compile_moves
from specctl_sglang.compat.host_relay import HostRelay
from specctl_sglang.compat.runtime_states import TargetStates
from specctl_sglang.compat.steered import Steered, current_step, limits_of, start_guarded
from specctl_sglang.compat.verification import compile_ahead
from specctl_sglang.compat.verify_block import DevicePlaces, VerifyBlock
from specctl_sglang.control.steering import OpenStep
from specctl_sglang.options import Options, options_from_env
from specctl_sglang.proposers.layout import Drafts, Emitted
from specctl_sglang.proposers.ranks import compile_all
from specctl_sglang.terms import (
    OFF,
    Shape,
    chain,
    checked_candidates,
    checked_trees,
    default_candidates,
    drafts_of,
    trees_without_passes,
    width_of,
)

__all__ = ["SteeredWorker"]

_TREE_TOPK_MAX = 64


class SteeredWorker(Steered, NGRAMWorker):
    """A worker without a draft model."""

    host_relay: HostRelay | None = None
    _block: VerifyBlock | None = None
    _drafts: Drafts | None = None
    _emitted: Emitted | None = None
    _branches = 1
    """The most of a tree."""
    _trees: tuple[Shape, ...] | None = None
    """Those that the user names; None: the usual ones."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.options = options_from_env() or Options()
        self._full_width: int = get_spec().speculative_num_draft_tokens
        self._branches = min(_TREE_TOPK_MAX, get_spec().speculative_eagle_topk or 1)
        self._tp_group = get_parallel().tp_group
        self._states: TargetStates | None = None

    @property
    def _is_first_rank(self) -> bool:
        """Of a tensor-parallel group, whose drafts are everyone's."""
        return bool(self._tp_group.rank_in_group == 0)

    @property
    def prepared(self) -> tuple[int, ...]:
        """Numbers of nodes, which a chain or a tree may have."""
        assert self._states is not None
        return self._states.keys

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Trees need nothing but a state of their width."""
        widths = set(map(width_of, self.prepared))
        trees = trees_without_passes(widths, self._branches) if self._trees is None else self._trees
        return (*map(chain, self.prepared), *(tree for tree in trees if tree[2] in widths))

    def _prepare(self, batch: Any) -> None:
        """What can be done for the drafts of a decode batch while the step before it still runs."""

    @abstractmethod
    def _find(self, batch: Any, step: OpenStep, emitted: Emitted) -> Drafts | None:
        """The drafts of a decode batch within the step's shape, as wide as the smallest prepared number that
        holds them; None: there is nothing to verify."""

    def _rest(self, batch: Any, step: OpenStep) -> None:
        """A decode batch for which nothing may be drafted; what a proposer learns from it."""

    def stats(self) -> dict[str, float]:
        return {} if self._states is None else self._states.stats()

    def _init_preallocated_tensors(self) -> None:
        """Of one width. Ours are made for each step."""

    def init_cuda_graphs(self) -> None:
        super().init_cuda_graphs()
        full = drafts_of(self._full_width)
        # On a CPU masks tell of the drafts alone.
        has_context = torch.device(self.device).type != "cpu"
        self._block = VerifyBlock(self.device, self.max_batch_size, self._full_width, has_context=has_context)
        asked = self.options.candidates
        has_graphs = self.model_runner.decode_cuda_graph_runner is not None
        # Requests that SGLang's verification does not serve take the plain decode.
        numbers = default_candidates(full, has_graphs)
        if asked is not None:
            numbers = checked_candidates((0, *asked), full)
        self._trees = self._named_trees()
        if self._branches > 1:
            compile_all()
            compile_moves(self.model_runner, self._full_width)
        self._states = TargetStates(self.model_runner, full)
        self._states.prepare({*numbers, *(drafts_of(width) for _, _, width in self._trees or ())})
        if self._tp_group.world_size > 1:
            ranks = self._tp_group.all_gather_object(self._states.keys)
            self._states.keep(sorted(set.intersection(*map(set, ranks))))

    def _named_trees(self) -> tuple[Shape, ...] | None:
        asked, full = self.options.trees, drafts_of(self._full_width)
        if asked is None:
            return None
        return checked_trees(asked, (full, self._branches, self._full_width), has_passes=False)

    def smallest_prepared(self, drafts: int) -> int:
        return next(number for number in self.prepared if number >= drafts)

    def forward_batch_generation(
        self, batch: Any, on_publish: Any = None, pp_proxy_tensors: Any = None
    ) -> GenerationBatchResult:
        assert self._states is not None
        self._drafts = self._emitted = None
        if batch.forward_mode.is_decode():
            self._drafts = self._agreed(batch)
            if self._drafts is None:
                self._states.activate(min(self.prepared))
                if self.prepared[0] == 0:
                    return self._plain_step(batch, on_publish, pp_proxy_tensors)
                # Without a plain decode prepared, the smallest verification with nothing in it is the same.
                self._drafts = Drafts.none(len(batch.reqs), width_of(self.prepared[0]))
            self._states.activate(drafts_of(self._drafts.width))
        else:
            self._states.activate(drafts_of(self._full_width))
        width = self._full_width if self._drafts is None else self._drafts.width
        self.draft_token_num = self.speculative_num_draft_tokens = width
        result = super().forward_batch_generation(batch, on_publish, pp_proxy_tensors)
        if not batch.forward_mode.is_decode():
            compile_ahead(result)
        _widen(result.next_draft_input, width, self._full_width)
        return result

    def launched(self, batch: Any, result: GenerationBatchResult) -> None:
        if self.host_relay is None or not self.enable_overlap or not batch.reqs:
            return
        rows, lengths = batch.req_pool_indices_cpu, batch.seq_lens_cpu
        copies = result.copy_done, result.next_token_ids, result.accept_lens
        if rows is None:
            return
        if lengths is None or any(one is None for one in copies):
            self.host_relay.forget(rows)
            return
        if not batch.forward_mode.is_decode():
            self.host_relay.note(rows, lengths, copies, 1, is_verification=False)
        elif self._drafts is None:
            self.host_relay.note(rows, lengths + 1, copies, 1, is_verification=False)
        else:
            self.host_relay.note(rows, lengths, copies, self._drafts.width, is_verification=True)

    def _agreed(self, batch: Any) -> Drafts | None:
        """The first rank's drafts are everyone's: leases end and indexes grow by each rank's own clock."""
        if self._tp_group.world_size == 1:
            return self._drafted(batch)
        drafts = self._drafted(batch) if self._is_first_rank else None
        agreed: Drafts | None = self._tp_group.broadcast_object(drafts, src=0)
        return agreed

    def _drafted(self, batch: Any) -> Drafts | None:
        step = current_step(self.specctl, batch, self.at_start or chain(drafts_of(self._full_width)))
        start_guarded(step, batch, self.device)
        step.take(self.shape_of(step))
        step.limits = limits_of(self.specctl, step.num_speculative_tokens, batch)
        if step.limits is not None and max(step.limits) == 0:
            step.take(OFF)
            step.is_sampled = False
        drafts = GUARD.call("draft", None, self._found, batch, step)
        requests = len(batch.reqs)
        step.drafted = [0] * requests if drafts is None else drafts.depths.tolist()
        step.tree = None if drafts is None or step.tree_topk == 1 else drafts
        width = width_of(self.prepared[0]) if drafts is None else drafts.width
        step.verified_tokens = width * requests
        return drafts

    def _found(self, batch: Any, step: OpenStep) -> Drafts | None:
        if step.num_speculative_tokens == 0:
            self._rest(batch, step)
            return None
        self._prepare(batch)
        emitted = self._host(batch)
        started_s = time.perf_counter()
        drafts = self._find(batch, step, emitted)
        if drafts is not None and step.limits is not None:
            drafts = self._cut(drafts, step.limits)
        step.draft_s = time.perf_counter() - started_s
        return drafts

    def _cut(self, drafts: Drafts, limits: list[int]) -> Drafts | None:
        tokens, parents, sizes = drafts.within(np.array(limits, np.int32))
        longest = int(sizes.max(initial=0))
        width = width_of(self.smallest_prepared(longest))
        return None if longest == 0 else Drafts(tokens, parents, sizes, min(width, drafts.width))

    def _host(self, batch: Any) -> Emitted:
        """Waits for the step before, as stock NGRAM does: a draft found on the host needs its tokens."""
        if self._emitted is None:
            relay, rows = self.host_relay, batch.req_pool_indices_cpu
            if relay is not None and rows is not None and relay.knows(rows):
                self._emitted = relay.read(rows)
            else:
                tokens = batch.spec_info.accept_tokens.view(len(batch.reqs), self._full_width)
                counts = batch.spec_info.accept_lens.cpu().numpy().astype(np.int64)
                self._emitted = Emitted(batch.seq_lens_cpu.numpy(), tokens.cpu().numpy(), counts)
            batch.seq_lens_sum = int(self._emitted.lengths.sum())
        return self._emitted

    def _last_token(self, batch: Any) -> torch.Tensor:
        """int64[n] on the device, of which the host need not know: the target's own last token."""
        tokens = batch.spec_info.accept_tokens.view(len(batch.reqs), self._full_width)
        # A request whose relay row was never written has 0 tokens; its row is padding.
        last = (batch.spec_info.accept_lens.long() - 1).clamp(min=0)
        return tokens.gather(1, last[:, None]).squeeze(1).long()

    def _send(
        self, batch: Any, drafts: Drafts, *, wants_mask: bool
    ) -> tuple[DevicePlaces, torch.Tensor, torch.Tensor]:
        """The places on the device, their mask, and int64[n * w], the slots of the KV cache that they are
        written to."""
        assert self._block is not None
        table, rows, emitted = (
            batch.req_to_token_pool.req_to_token,
            batch.req_pool_indices_cpu,
            self._host(batch),
        )
        lengths_sum = batch.seq_lens_sum if wants_mask else 0
        places, mask = self._block.send(drafts, emitted, rows, table.stride(0), lengths_sum)
        return places, mask, table.view(-1)[places.slots].to(torch.int64)

    def _prepare_for_speculative_decoding(self, batch: Any) -> None:
        drafts = self._drafts
        if drafts is None:
            return
        places, mask, batch.out_cache_loc = self._send(batch, drafts, wants_mask=True)
        self.grammar_tree_host = None
        if batch.has_grammar:
            self.grammar_tree_host = (places.host.mask.reshape(-1), places.host.tokens.reshape(-1))
        batch.forward_mode = ForwardMode.TARGET_VERIFY
        batch.input_ids = places.tokens
        prepare_mamba_track_for_verify(batch)
        batch.spec_info = NgramVerifyInput(
            draft_token=places.tokens,
            custom_mask=mask,
            positions=places.positions,
            retrieve_index=places.index,
            retrieve_next_token=places.next_token,
            retrieve_next_sibling=places.next_sibling,
            draft_token_num=drafts.width,
        )
        batch.spec_info.specctl_is_chain = drafts.parents is None

    def _update_ngram_corpus(self, batch: Any) -> None:
        """Stock NGRAM learns after each step; ours read histories when they draft."""

    def _plain_step(self, batch: Any, on_publish: Any, pp_proxy_tensors: Any) -> GenerationBatchResult:
        """One token of each request by the target's own decode and sampler, reported as a verification."""
        stream = torch.get_device_module(self.device).current_stream()
        record_stream_for_v2_verify(batch, None, stream)
        requests = len(batch.reqs)
        if self.host_relay is not None and self.host_relay.unfilled is not None:
            self._host(batch)
        if self._emitted is None:
            places = batch.req_to_token_pool.req_to_token[batch.req_pool_indices, batch.seq_lens]
            batch.input_ids, batch.out_cache_loc = self._last_token(batch), places.to(torch.int64)
        else:
            sent, _, batch.out_cache_loc = self._send(batch, Drafts.none(requests, 1), wants_mask=False)
            batch.input_ids = sent.tokens
        batch.seq_lens = batch.seq_lens + 1
        if batch.seq_lens_cpu is not None:
            batch.seq_lens_cpu = batch.seq_lens_cpu + 1
        batch.seq_lens_sum = None
        batch.spec_info = None
        result = self.target_worker.forward_batch_generation(batch, pp_proxy_tensors=pp_proxy_tensors)
        if on_publish is not None:
            on_publish(batch.seq_lens)
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
