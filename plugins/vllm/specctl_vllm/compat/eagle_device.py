"""vLLM's own methods eagle3 and eagle on Model Runner V2: at 0 drafts the head skips most steps.

Stock vLLM runs the head at 0 drafts too, for its KV cache. Here the steps' states are kept
(specctl_kernels.head_memory), and about every 32 steps one pass writes what has gathered: the weights are
read once instead of 32 times, no logits are computed, and the cache is complete when drafts are wanted.
"""

from __future__ import annotations

from typing import Any

import torch
from specctl_kernels.head_memory import remember
from specctl_kernels.peagle_inputs import DraftRows, peagle_inputs
from vllm.config.compilation import CUDAGraphMode
from vllm.v1.worker.gpu.attn_utils import build_slot_mappings_by_layer
from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor
from vllm.v1.worker.gpu.spec_decode.eagle.speculator import EagleSpeculator

from specctl_vllm.compat.head_states import HeadStep, head_memory
from specctl_vllm.compat.step_report import skip_first_pass
from specctl_vllm.proposers.head_backlog import Backlog, Turn

__all__ = ["RestingEagleSpeculator"]

_RING = 32


class RestingEagleSpeculator(EagleSpeculator):
    def __init__(self, vllm_config: Any, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        self._backlog = Backlog(_RING, self.max_num_tokens, self.max_num_reqs, self.num_speculative_steps)
        self._may_rest = False
        places = self.max_num_reqs
        self._nobody = torch.zeros(3, places, dtype=torch.int64, device=device)
        """Places of drafts, which a pass that catches up does not make."""

    def load_model(self, target_model: Any) -> None:
        super().load_model(target_model)
        self._memory = head_memory(
            self.max_num_reqs, _RING, self.hidden_size, self.dtype, self.device, lower="--max-num-seqs"
        )

    def set_attn(
        self, model_state: Any, kv_cache_config: Any, block_tables: Any, *args: Any, **kwargs: Any
    ) -> None:
        super().set_attn(model_state, kv_cache_config, block_tables, *args, **kwargs)
        groups = [group for group, attn in enumerate(self.attn_groups) if attn]
        self._group = groups[0]
        self._block_tokens: int = block_tables.block_sizes[self._group]
        self._may_rest = len(groups) == 1 and self.pcp_manager is None and not self.supports_mm_inputs
        self._memory.set_blocks(kv_cache_config.num_blocks)
        # Whatever was kept is written: a position that the head has seen since is written the same again.
        self._memory.unseen.fill_(-1)
        self._slots = torch.full_like(block_tables.slot_mappings, -1)
        buffers = self.input_buffers
        self._rows = DraftRows(
            ids=buffers.input_ids,
            positions=buffers.positions,
            slots=self._slots[self._group],
            starts=buffers.query_start_loc,
            seq_lens=buffers.seq_lens,
            hidden=self.hidden_states,
            sample_rows=self._nobody[0],
            sample_positions=self._nobody[1],
            sample_requests=self._nobody[2],
        )

    def capture(self) -> None:
        super().capture()
        self._compile()

    @torch.inference_mode()
    def _compile(self) -> None:
        """A step kept and made up for, of a request that is nobody's: no step is to wait for a compiler."""
        step = HeadStep.of_nobody(
            self.target_input_buffers, self.max_num_reqs, self.hidden_size, self.dtype, self.device
        )
        self.idx_mapping.fill_(-1)
        self._keep(step)
        self._lay_out(step, behind=1)

    @torch.inference_mode()
    def propose(
        self,
        input_batch: Any,
        attn_metadata: dict[str, Any],
        slot_mappings: dict[str, torch.Tensor],
        last_hidden_states: torch.Tensor,
        aux_hidden_states: list[torch.Tensor] | None,
        num_sampled: torch.Tensor,
        num_rejected: torch.Tensor,
        last_sampled: torch.Tensor,
        next_prefill_tokens: torch.Tensor,
        temperature: torch.Tensor,
        seeds: torch.Tensor,
        dp_sync_state: Any = None,
        dummy_run: bool = False,
        skip_attn_for_dummy_run: bool = False,
        mm_inputs: Any = None,
        is_profile: bool = False,
        num_speculative_tokens: int | None = None,
    ) -> torch.Tensor:
        """int64[num_reqs, num_speculative_tokens_max], as in vLLM."""
        requests = input_batch.num_reqs
        turn, catches_up = self._turn(input_batch, num_speculative_tokens, dummy_run)
        if turn is Turn.KEEP or catches_up:
            self._copy_request_inputs(requests, input_batch.idx_mapping, temperature, seeds)
            states = self._combined(last_hidden_states, aux_hidden_states)
            outcome = num_sampled, num_rejected, last_sampled.view(-1), next_prefill_tokens[0]
            self._make_up(HeadStep(input_batch, states, *outcome), turn, catches_up)
        if turn is Turn.KEEP:
            return self.draft_tokens[:requests]
        drafts: torch.Tensor = super().propose(
            input_batch, attn_metadata, slot_mappings, last_hidden_states, aux_hidden_states, num_sampled,
            num_rejected, last_sampled, next_prefill_tokens, temperature, seeds, dp_sync_state, dummy_run,
            skip_attn_for_dummy_run, mm_inputs, is_profile, num_speculative_tokens,
        )  # fmt: skip
        if catches_up and num_speculative_tokens != 0:
            skip_first_pass()
        return drafts

    def _make_up(self, step: HeadStep, turn: Turn, catches_up: bool) -> None:
        if catches_up:
            self._catch_up(step)
        if turn is Turn.KEEP:
            self._keep(step)

    def _turn(self, batch: Any, wanted: int | None, is_dummy: bool) -> tuple[Turn, bool]:
        """Whether the head runs, and whether it catches up first."""
        if is_dummy or not self._may_rest:
            return Turn.RUN, False
        wanted = self.num_speculative_steps if wanted is None else wanted
        return self._backlog.next(batch.num_scheduled_tokens[: batch.num_reqs], wanted)

    def _combined(self, last: torch.Tensor, auxiliary: list[torch.Tensor] | None) -> torch.Tensor:
        """[T, hidden_size], what the head takes."""
        if not auxiliary:
            return last
        combined: torch.Tensor = self.model.combine_hidden_states(torch.cat(auxiliary, dim=-1))
        return combined

    def _places(self, step: HeadStep) -> dict[str, torch.Tensor]:
        return step.places(self.idx_mapping, self.block_tables.input_block_tables[self._group])

    def _keep(self, step: HeadStep) -> None:
        remember(
            self._memory, **self._places(step), target_ids=step.batch.input_ids, target_states=step.states,
            **step.outcome(), block_tokens=self._block_tokens,
        )  # fmt: skip

    def _catch_up(self, step: HeadStep) -> None:
        """One pass over each request's kept positions and the first row of the step, for the KV cache."""
        requests = step.batch.num_reqs
        behind = self._backlog.reach(requests)
        self._lay_out(step, behind)
        rows = requests * (behind + 1)
        upper = step.batch.seq_lens_cpu_upper_bound
        self.draft_max_seq_len = min(int(upper[:requests].max()), self.max_model_len)
        metadata = self._build_attn_metadata(
            requests,
            BatchExecutionDescriptor(cg_mode=CUDAGraphMode.NONE, num_tokens=rows, num_reqs=requests),
            self.arange_np[: requests + 1] * (behind + 1),
            upper,
            step=0,
            slot_mappings=self._slots[:, :rows],
        )
        slots = build_slot_mappings_by_layer(self._slots[:, :rows], self.kv_cache_config)
        self._prepare_eplb_forward(rows)
        self._run_model(rows, metadata, slots, num_tokens_across_dp=None)

    def _lay_out(self, step: HeadStep, behind: int) -> None:
        """The step's first rows stand for it: where it has more, vLLM's own pass follows or they are kept."""
        places = self._places(step)
        requests = step.batch.num_reqs
        starts = places["target_starts"][:-1].long()
        places["target_positions"] = step.batch.positions[starts]
        places["target_starts"] = torch.arange(requests + 1, dtype=torch.int32, device=self.device)
        peagle_inputs(
            self._rows, **places, target_ids=step.batch.input_ids[starts], target_hidden=step.states[starts],
            mask_hidden=step.states[0], num_sampled=step.num_sampled,
            num_rejected=torch.zeros_like(step.num_rejected), last_sampled=step.last_sampled,
            next_prefill=step.next_prefill, longest_query=1, block_tokens=self._block_tokens, mask_id=0,
            drafts=1, width=0, max_model_len=self.max_model_len, memory=self._memory,
            behind_hidden=self._memory.inputs(places["requests"], places["target_positions"], behind),
        )  # fmt: skip
