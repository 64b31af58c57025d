"""What SGLang's workers with a draft model share under a table: a state is chosen for each decode batch and
swapped in whole, and a batch without drafts takes the target's plain decode.

Drafting, verification and the bookkeeping of the overlap scheduler stay SGLang's.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import Any

import torch
from sglang.srt.managers.scheduler import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.runtime_context import get_parallel, get_spec
from sglang.srt.speculative.base_spec_worker import BaseSpecWorker
from sglang.srt.speculative.spec_utils import record_stream_for_v2_verify

from specctl.engine.guard import GUARD
from specctl_sglang.compat.rank_agreement import AGREEMENT, Wish
from specctl_sglang.compat.releases import has_dp_attention
from specctl_sglang.compat.runtime_states import RuntimeStates
from specctl_sglang.compat.steered import Steered, current_step, limits_of, start_guarded
from specctl_sglang.control.steering import OpenStep
from specctl_sglang.options import Options, options_from_env
from specctl_sglang.terms import (
    OFF,
    Shape,
    chain,
    checked_candidates,
    checked_trees,
    default_candidates,
    default_trees,
    drafts_of,
)

__all__ = ["SteeredByStates"]

_Wanted = tuple[Shape, list[int] | None]
"""Of a step, and the most drafts of each of its requests."""


class SteeredByStates(Steered, BaseSpecWorker):
    """Goes before one of SGLang's workers among the bases of a class."""

    at_start: Shape

    verifies_by_links = True
    """Whether a request's drafts end where its links do; else all of a batch are verified to one depth."""

    @property
    def reads_hidden_states(self) -> bool:
        """Whether the draft model needs the target's, of a plain decode too."""
        return True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.options = options_from_env() or Options()
        width = self.speculative_num_draft_tokens
        # A DFLASH worker has neither: a block is a chain.
        topk, steps = getattr(self, "topk", 1), getattr(self, "speculative_num_steps", 0)
        self.at_start = chain(drafts_of(width)) if topk == 1 else (steps, topk, width)
        parallel = get_parallel()
        self._shares_steps = has_dp_attention(parallel)
        """With ranks that have requests of their own."""
        self._tp_group = parallel.tp_group
        self._request_group = parallel.attn_tp_group if self._shares_steps else parallel.tp_group
        """Of ranks with the same requests."""
        self._wished: tuple[OpenStep, list[int] | None] | None = None
        self._states: RuntimeStates[Shape] | None = None

    @abstractmethod
    def _made_at_start(self) -> RuntimeStates[Shape]:
        """With the one state that SGLang has built."""

    @abstractmethod
    def _carried(self, tokens: torch.Tensor, lengths: torch.Tensor) -> Any:
        """What goes from a plain step to the next, by its tokens int[n] and the lengths int[n] after it."""

    @abstractmethod
    def _follow(self, batch: Any, result: GenerationBatchResult) -> None:
        """The draft model reads what a plain step has written, so that it can go on from anywhere."""

    def _own_candidates(self) -> tuple[int, ...]:
        """Of the algorithm, where the user names none; empty: the usual ones."""
        return ()

    @property
    def shapes(self) -> tuple[Shape, ...]:
        assert self._states is not None
        return self._states.keys

    def stats(self) -> dict[str, float]:
        return {} if self._states is None else self._states.stats()

    def init_cuda_graphs(self) -> None:
        super().init_cuda_graphs()
        self._states = states = self._made_at_start()
        states.prepare({*map(chain, self._chains()), *self._trees()})
        if self._tp_group.world_size > 1:
            ranks = self._tp_group.all_gather_object(states.keys)
            states.keep(sorted(set.intersection(*map(set, ranks))))
        if self.at_start not in states:
            self.at_start = max(states.keys)

    def _chains(self) -> tuple[int, ...]:
        """Numbers of drafts; the start's own is prepared in any case."""
        own, asked = self._own_candidates(), self.options.candidates
        full = max(drafts_of(self.at_start[2]), *own, 0)
        has_graphs = self._has_graphs()
        if asked is None and not own:
            return default_candidates(full, has_graphs)
        asked = own if asked is None else asked
        # Requests that SGLang's verification does not serve take the plain decode.
        return checked_candidates((0, *asked), full)

    def _trees(self) -> tuple[Shape, ...]:
        asked = self.options.trees
        if asked is not None:
            return checked_trees(asked, self.at_start, has_passes=True)
        return () if self.at_start[1] == 1 else default_trees(self.at_start, self._has_graphs())

    def _has_graphs(self) -> bool:
        return self.target_worker.model_runner.decode_cuda_graph_runner is not None

    def forward_batch_generation(
        self, batch: Any, on_publish: Any = None, grammar_barrier: Any = None, pp_proxy_tensors: Any = None
    ) -> GenerationBatchResult:
        assert self._states is not None
        is_decode = batch.forward_mode.is_decode() and not batch.is_extend_in_batch
        # Graphs of prompts were captured with the start's attention backends.
        shape, batch.specctl_limits = self.at_start, None
        is_chosen = AGREEMENT.agreed is not None if self._shares_steps else is_decode
        if is_chosen:
            shape, batch.specctl_limits = self._agreed(batch)
        elif is_decode:
            # No rank knows what all agreed on: they draft as at start, and verify nothing of it.
            batch.specctl_limits = [0] * len(batch.reqs)
        self._states.activate(shape)
        if is_chosen and shape == OFF:
            return self._plain_step(batch, on_publish, grammar_barrier)
        return super().forward_batch_generation(batch, on_publish, grammar_barrier, pp_proxy_tensors)

    def _agreed(self, batch: Any) -> _Wanted:
        """The first rank's choice is everyone's: leases end by each rank's own clock."""
        if self._request_group.world_size == 1:
            return self._tried(batch)
        is_first = self._request_group.rank_in_group == 0
        wanted = self._tried(batch) if is_first else None
        agreed: _Wanted = self._request_group.broadcast_object(wanted, src=0)
        return agreed

    def _tried(self, batch: Any) -> _Wanted:
        assert self._states is not None
        if self._shares_steps:
            return self._shared(batch)
        wanted = GUARD.call("draft", None, self._wanted, batch)
        if wanted is not None:
            return wanted
        least = min(self._states.keys)
        if self.specctl is not None and self.specctl.current is not None:
            self.specctl.current.take(least)
        return least, None

    def _wanted(self, batch: Any) -> _Wanted:
        step = self._opened(batch)
        limits = limits_of(self.specctl, step.num_speculative_tokens, batch)
        shape = self._chosen(step, limits, batch)
        return self._taken(step, shape, limits, batch)

    def _opened(self, batch: Any) -> OpenStep:
        """With a prepared shape that the table asks for."""
        assert self._states is not None
        step = current_step(self.specctl, batch, self.at_start)
        start_guarded(step, batch, self.device)
        shape = self.shape_of(step)
        if shape not in self._states:
            least = min(self._states.keys)
            shape, step.is_sampled = least if shape == OFF else self.at_start, False
        step.take(shape)
        return step

    def _chosen(self, step: OpenStep, limits: list[int] | None, batch: Any) -> Shape:
        wanted = self.shape_of(step)
        if limits is None:
            return wanted
        shape = self._limited(wanted, limits, batch)
        step.is_sampled = step.is_sampled and shape == wanted
        return shape

    def _taken(self, step: OpenStep, shape: Shape, limits: list[int] | None, batch: Any) -> _Wanted:
        step.take(shape)
        if shape != OFF:
            step.after_rest = self._has_rested(batch)
        step.drafted = self._numbers_drafted(batch, shape)
        if limits is not None:
            step.drafted = list(map(min, step.drafted, limits))
        step.verified_tokens = shape[2] * len(batch.reqs)
        return shape, limits

    @cached_property
    def _deepest(self) -> int:
        return max(self.shapes)[0]

    def wish(self, batch: Any) -> Wish:
        """Before ranks agree on what all of them draft, for a decode batch of this one."""
        self._wished = None
        step = self._opened(batch)
        limits = limits_of(self.specctl, self._deepest, batch)
        most = 0 if step.is_guarded or GUARD.is_resting else None
        if limits is not None and most is None:
            if self._ends_by_links(batch):
                within = [min(limit, step.num_speculative_tokens) for limit in limits]
                step.take(self._chosen(step, within, batch))
            else:
                most = min(limits)
        self._wished = step, limits
        return Wish(self.shape_of(step), len(batch.reqs), step.is_sampled, most)

    def _shared(self, batch: Any) -> _Wanted:
        """As all ranks agreed; a rank without requests makes the others' passes with none in them."""
        agreed, wished = AGREEMENT.agreed, self._wished
        assert agreed is not None
        shape = agreed.shape
        if agreed.most is not None and shape[0] > agreed.most:
            within = [one for one in self.shapes if one[1] == 1 and one[0] <= agreed.most]
            shape = max(within, default=min(self.shapes))
        self._wished = None
        if not batch.forward_mode.is_decode():
            return shape, None
        if wished is None:
            # Nobody knows what this rank's requests may have verified.
            return shape, [0] * len(batch.reqs)
        step, limits = wished
        step.is_sampled = agreed.is_sample and shape == agreed.shape
        if limits is not None:
            limits = [min(limit, shape[0]) for limit in limits]
        given = step, shape, limits, batch
        return GUARD.call("draft", (shape, limits), self._taken, *given)

    def _limited(self, shape: Shape, limits: list[int], batch: Any) -> Shape:
        """The smallest prepared draft that holds the longest of a batch; where all requests are verified to
        one depth, the largest that no limit is under."""
        if not self._ends_by_links(batch):
            return max((one for one in self.shapes if one[1] == 1 and one[0] <= min(limits)), default=OFF)
        if max(limits) == 0 and OFF in self.shapes:
            return OFF
        chains = [one for one in self.shapes if one[1] == 1 and max(limits) <= one[0]]
        return min(chains, default=shape) if shape[1] == 1 else shape

    def _ends_by_links(self, batch: Any) -> bool:
        return self.verifies_by_links and (batch.sampling_info.is_all_greedy or not _samples_drafts())

    def _numbers_drafted(self, batch: Any, shape: Shape) -> list[int]:
        """How many tokens are drafted for each request of a decode batch that is about to be launched."""
        return [shape[0]] * len(batch.reqs)

    def _has_rested(self, batch: Any) -> bool:
        """Whether the draft model catches up in this step: most read along while nothing is drafted."""
        return False

    def _plain_step(self, batch: Any, on_publish: Any, grammar_barrier: Any) -> GenerationBatchResult:
        """One token of each request by the target's own decode and sampler, reported as a verification."""
        record_stream_for_v2_verify(batch, None, torch.get_device_module(self.device).current_stream())
        lengths = batch.seq_lens, batch.seq_lens_cpu, batch.seq_lens_sum
        if batch.has_grammar and grammar_barrier is not None:
            grammar_barrier()
        result = self._decoded(batch)
        tokens, new_lengths = result.next_token_ids, batch.seq_lens
        if on_publish is not None:
            on_publish(new_lengths)
        result.accept_lens = torch.ones_like(tokens, dtype=torch.int32)
        result.new_seq_lens = new_lengths
        result.speculative_num_draft_tokens = 1
        result.next_draft_input = self._carried(tokens, new_lengths)
        if batch.return_logprob:
            logprobs = result.logits_output.next_token_logprobs
            result.logits_output.next_token_logprobs = logprobs[:, None]
        batch.seq_lens, batch.seq_lens_cpu, batch.seq_lens_sum = lengths
        self._follow(batch, result)
        return result

    def _decoded(self, batch: Any) -> GenerationBatchResult:
        if not batch.forward_mode.is_idle():
            places = batch.req_to_token_pool.req_to_token[batch.req_pool_indices, batch.seq_lens]
            batch.input_ids = batch.spec_info.bonus_tokens.to(torch.int64)
            batch.out_cache_loc = places.to(torch.int64)
            batch.seq_lens = batch.seq_lens + 1
            if batch.seq_lens_cpu is not None:
                batch.seq_lens_cpu = batch.seq_lens_cpu + 1
            batch.seq_lens_sum = None
        batch.spec_info = None
        mode = CaptureHiddenMode.FULL if self.reads_hidden_states else CaptureHiddenMode.NULL
        result: GenerationBatchResult = self.target_worker.forward_batch_generation(
            batch, capture_hidden_mode=mode
        )
        return result


def _samples_drafts() -> bool:
    """SGLang's kernel for sampled drafts knows chains alone, and does not read their links."""
    return bool(get_spec().speculative_use_rejection_sampling)
