"""Method specctl_peagle on Model Runner V2: all drafts of a step from one pass of the draft head.

P-EAGLE (arXiv 2602.01469). vLLM's own runs on the V1 runner only, where the batch is laid out on the host and
the pass cannot be one CUDA graph. Here every request gets ``2 * k`` rows in a pass of k drafts: room for the
k + 1 target rows of a step of k drafts and k - 1 mask slots, so that the shape does not follow what was
accepted. Rows that are left over write nothing and nothing attends to them.

At 0 drafts the head rests: the target's states of the last positions are kept instead
(specctl_kernels.head_memory), and the first pass afterwards catches up on them.
"""

from __future__ import annotations

from typing import Any

import torch
from specctl_kernels.head_memory import remember, see
from specctl_kernels.peagle_inputs import DraftRows, peagle_inputs
from specctl_kernels.row_argmax import row_argmax
from vllm.config.compilation import CUDAGraphMode
from vllm.forward_context import BatchDescriptor, set_forward_context
from vllm.v1.worker.gpu.attn_utils import build_slot_mappings_by_layer
from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor
from vllm.v1.worker.gpu.spec_decode.eagle.utils import load_eagle_model
from vllm.v1.worker.gpu.spec_decode.speculator import DraftModelSpeculator
from vllm.v1.worker.gpu.spec_decode.utils import get_parallel_drafting_token_id

from specctl_vllm.compat.head_graphs import HeadGraphs
from specctl_vllm.compat.head_states import HeadStep, head_memory
from specctl_vllm.compat.head_tables import HeadBlockTables
from specctl_vllm.options import head_options_from_env

__all__ = ["PEagleSpeculator"]

_CATCH_UP_ROWS_MAX = 8192
_COMBINED_ROWS = 2048
"""Rows of target states that are combined at a time: 48 MiB of them for a hidden size of 4096."""


def _rows_of(drafts: int) -> int:
    return 2 * drafts


def _drafts_of(rows: int) -> int:
    return rows // 2


class PEagleSpeculator(DraftModelSpeculator):
    def __init__(self, vllm_config: Any, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        parallel = vllm_config.parallel_config
        if max(parallel.decode_context_parallel_size, parallel.prefill_context_parallel_size) > 1:
            raise ValueError("specctl_peagle: expected no context parallelism (dcp and pcp of 1)")
        most = self.num_speculative_steps
        self.num_extra_query_per_req = most - 1
        self._mask_id = get_parallel_drafting_token_id(self.draft_model_config.hf_config)
        self._hidden = torch.zeros(self.max_num_tokens, self.hidden_size, dtype=self.dtype, device=device)
        places = self.max_num_reqs * most
        self._sample_rows = torch.zeros(places, dtype=torch.int64, device=device)
        self._sample_positions = torch.zeros(places, dtype=torch.int64, device=device)
        self._sample_requests = torch.full((places,), -1, dtype=torch.int64, device=device)
        self._columns = {
            k: torch.arange(k, dtype=torch.int32, device=device).repeat(self.max_num_reqs)
            for k in range(1, most + 1)
        }
        self._is_resting = False
        self._has_rested = False
        self._asked: int | None = None

    def note_step(self, scheduler_output: Any) -> None:
        """Called before each step, with what the scheduler sends along."""
        self._asked = scheduler_output.num_spec_tokens_to_schedule

    def load_draft_model(self, target_model: Any, target_attn_layer_names: set[str]) -> Any:
        return load_eagle_model(target_model, self.vllm_config)

    def load_model(self, target_model: Any) -> None:
        super().load_model(target_model)
        self.supports_mm_inputs = False
        with torch.inference_mode():
            masked = self.model.mask_hidden.to(self.device, self.dtype).view(1, -1)
            self._state_size = masked.shape[1]
            self._mask_hidden = self.model.combine_hidden_states(masked).view(-1).contiguous()
        # Before vLLM measures what is left for its KV cache.
        self._memory = head_memory(
            self.max_num_reqs, head_options_from_env().resume_tokens, self._state_size, self.dtype,
            self.device, lower="resume_tokens in --speculative-config, or --max-num-seqs",
        )  # fmt: skip

    def set_attn(
        self, model_state: Any, kv_cache_config: Any, block_tables: Any, *args: Any, **kwargs: Any
    ) -> None:
        tables = HeadBlockTables(block_tables)
        super().set_attn(model_state, kv_cache_config, tables, *args, **kwargs)
        groups = [group for group, attn in enumerate(self.attn_groups) if attn]
        if len(groups) != 1:
            raise ValueError(f"{type(self).__name__}: expected a head in one KV cache group, got {groups}")
        self.group = groups[0]
        self._block_tokens: int = block_tables.block_sizes[self.group]
        buffers = self.input_buffers
        self._rows = DraftRows(
            ids=buffers.input_ids,
            positions=buffers.positions,
            slots=block_tables.slot_mappings[self.group],
            starts=buffers.query_start_loc,
            seq_lens=buffers.seq_lens,
            hidden=self._hidden,
            sample_rows=self._sample_rows,
            sample_positions=self._sample_positions,
            sample_requests=self._sample_requests,
        )
        self._memory.set_blocks(kv_cache_config.num_blocks)

    def init_cudagraph_manager(self, cudagraph_mode: CUDAGraphMode) -> None:
        is_full = cudagraph_mode.decode_mode() == CUDAGraphMode.FULL
        mode = CUDAGraphMode.FULL_DECODE_ONLY if is_full else CUDAGraphMode.NONE
        self._graphs = HeadGraphs(self.vllm_config, self.device, mode, self.num_speculative_steps, _rows_of)

    def capture(self) -> None:
        self._sample_rows.zero_()
        self._sample_positions.zero_()
        self._sample_requests.fill_(-1)
        self._compile()
        self._graphs.capture(
            self._captured_draft, self.input_buffers, self.block_tables, self.attn_groups,
            self.kv_cache_config, self.max_model_len, causal=True, prepare_forward=self._refresh_metadata,
            progress_bar_desc="Capturing parallel draft CUDA graphs",
        )  # fmt: skip

    @torch.inference_mode()
    def _compile(self) -> None:
        """A rest and the return from it, of a request that is nobody's: no step is to wait for a compiler."""
        step = HeadStep.of_nobody(
            self.target_input_buffers, self.max_num_reqs, self._state_size, self.dtype, self.device
        )
        self.idx_mapping.fill_(-1)
        self._rest(step)
        self._lay_out(step, drafts=1, longest=1, behind=self._memory.ring, width=0)
        self._lay_out(step, drafts=1, longest=1, behind=0, width=0)
        self._is_resting = self._has_rested = False

    def _refresh_metadata(self, requests: int, attn_metadata: dict[str, Any] | None) -> None:
        if attn_metadata is not None and self.supports_decode_metadata_update:
            self._update_draft_decode_metadata(attn_metadata, requests)

    def _captured_draft(
        self,
        requests: int,
        rows: int,
        attn_metadata: dict[str, Any] | None,
        slots: dict[str, torch.Tensor] | None,
        _rows_across_dp: torch.Tensor | None,
        _mode: CUDAGraphMode = CUDAGraphMode.NONE,
    ) -> None:
        self._draft(requests, rows, _drafts_of(rows // requests), attn_metadata, slots)

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
        """int64[num_reqs, num_speculative_tokens_max]; columns behind the number asked for are not drafts."""
        requests, most = input_batch.num_reqs, self.num_speculative_steps
        if dummy_run and skip_attn_for_dummy_run:
            self._profile(requests, input_batch.num_tokens + requests * (most - 1))
            return self.draft_tokens[:requests]
        self._copy_request_inputs(requests, input_batch.idx_mapping, temperature, seeds, dummy_run=dummy_run)
        step = HeadStep(
            input_batch, torch.cat(aux_hidden_states or [last_hidden_states], dim=-1), num_sampled,
            num_rejected, last_sampled.view(-1), next_prefill_tokens[0],
        )  # fmt: skip
        wanted = most if num_speculative_tokens is None else num_speculative_tokens
        if wanted == 0 and not dummy_run and self._asked:
            # vLLM 0.33 asks for none after a prompt's middle chunk, which nobody would verify. The head has
            # to read it all the same.
            wanted = self._asked
        self._make_drafts(step, wanted, dummy_run, is_profile)
        return self.draft_tokens[:requests]

    def _make_drafts(self, step: HeadStep, wanted: int, is_dummy: bool, is_profile: bool) -> None:
        if wanted == 0:
            self._rest(step)
        else:
            self._draft_step(step, wanted, is_profile)

    def _places(self, step: HeadStep) -> dict[str, torch.Tensor]:
        return step.places(self.idx_mapping, self.block_tables.specctl_target.input_block_tables[self.group])

    def _rest(self, step: HeadStep) -> None:
        remember(
            self._memory, **self._places(step), target_ids=step.batch.input_ids,
            target_states=step.states, **step.outcome(), block_tokens=self._block_tokens,
        )  # fmt: skip
        self._is_resting = self._has_rested = True

    def _draft_step(self, step: HeadStep, wanted: int, is_profile: bool) -> None:
        requests = step.batch.num_reqs
        longest = int(step.batch.num_scheduled_tokens.max())
        drafts, graph = self._plan(requests, longest, wanted, is_profile)
        behind = 0
        if graph is None and self._is_resting:
            room = min(_CATCH_UP_ROWS_MAX, self.max_num_tokens - step.batch.num_tokens) // requests
            behind = max(0, min(self._memory.ring, room - drafts + 1))
        self._lay_out(step, drafts, longest, behind, _rows_of(drafts) if graph is not None else 0)
        self._is_resting = False
        self._run(step.batch, drafts, behind, graph)

    def _lay_out(self, step: HeadStep, drafts: int, longest: int, behind: int, width: int) -> None:
        places = self._places(step)
        peagle_inputs(
            self._rows, **places, target_ids=step.batch.input_ids, mask_hidden=self._mask_hidden,
            target_hidden=self.model.combine_hidden_states(step.states), **step.outcome(),
            longest_query=longest, block_tokens=self._block_tokens, mask_id=self._mask_id, drafts=drafts,
            width=width, max_model_len=self.max_model_len, memory=self._memory,
            behind_hidden=self._remembered(places, behind) if behind else None,
        )  # fmt: skip
        table = self.block_tables.input_block_tables[self.group]
        see(
            self._memory, table, self.input_buffers.seq_lens, **places, num_rejected=step.num_rejected,
            behind=behind, has_unseen=self._has_rested, block_tokens=self._block_tokens,
        )  # fmt: skip

    def _remembered(self, places: dict[str, torch.Tensor], behind: int) -> torch.Tensor:
        """[requests * behind, H], combined in pieces."""
        first = places["target_positions"][places["target_starts"][:-1].long()]
        per_piece = max(1, _COMBINED_ROWS // behind)
        return torch.cat(
            [
                self.model.combine_hidden_states(self._memory.inputs(requests, at, behind))
                for requests, at in zip(
                    places["requests"].split(per_piece), first.split(per_piece), strict=True
                )
            ]
        )

    def _profile(self, requests: int, rows: int) -> None:
        """What a pass takes at most, for vLLM's measurement of device memory."""
        catch_up = torch.empty(_CATCH_UP_ROWS_MAX, self.hidden_size, dtype=self.dtype, device=self.device)
        states = torch.zeros(_COMBINED_ROWS, self._state_size, dtype=self.dtype, device=self.device)
        self.model.combine_hidden_states(states)
        self._draft(requests, rows, self.num_speculative_steps, None, None)
        del catch_up

    def _plan(
        self, requests: int, longest: int, wanted: int, is_profile: bool
    ) -> tuple[int, BatchExecutionDescriptor | None]:
        """How many drafts the pass makes, and the graph that makes them. The step before may have verified
        more than are wanted now: the graph has room for those rows and drafts as many. Coming back from a
        rest is no graph's."""
        drafts = max(wanted, longest - 1, 1)
        if drafts <= self.num_speculative_steps and not is_profile and not self._is_resting:
            graph = self._graphs.find(requests, _rows_of(drafts))
            if graph is not None:
                return drafts, graph
        return wanted, None

    def _run(
        self, input_batch: Any, drafts: int, behind: int, graph: BatchExecutionDescriptor | None
    ) -> None:
        requests = input_batch.num_reqs
        upper = input_batch.seq_lens_cpu_upper_bound
        longest = int(upper[:requests].max()) + _rows_of(drafts)
        self.draft_max_seq_len = min(longest, self.max_model_len)
        if graph is not None:
            if self.supports_decode_metadata_update:
                self._map_blocks()
            else:
                self._build_uniform_attn_metadata(graph, requests, _rows_of(drafts), upper, _rows_of(drafts))
            self._graphs.run_fullgraph(graph)
            return
        added = self.arange_np[: requests + 1] * (drafts - 1 + behind)
        starts = input_batch.query_start_loc_np[: requests + 1] + added
        rows = int(starts[-1])
        desc = BatchExecutionDescriptor(cg_mode=CUDAGraphMode.NONE, num_tokens=rows, num_reqs=requests)
        metadata = self._build_attn_metadata(requests, desc, starts, upper, step=drafts - 1)
        slots = build_slot_mappings_by_layer(self.block_tables.slot_mappings[:, :rows], self.kv_cache_config)
        self._draft(requests, rows, drafts, metadata, slots)

    def sample_draft(
        self, hidden_states: torch.Tensor, *args: Any, draft_logits: torch.Tensor | None = None, **kwargs: Any
    ) -> torch.Tensor:
        """Greedy drafts from one read of the logits; others as vLLM draws them."""
        is_plain = not (self.use_local_argmax_reduction or self.use_acceptance_estimator)
        if draft_logits is None and is_plain:
            return row_argmax(self.compute_draft_logits(hidden_states, 0))
        drawn: torch.Tensor = super().sample_draft(hidden_states, *args, draft_logits=draft_logits, **kwargs)
        return drawn

    def _map_blocks(self) -> None:
        for groups in self.attn_groups:
            for group in groups:
                group.map_to_kernel_block_table(self.block_tables.input_block_tables[group.kv_cache_group_id])

    def _draft(
        self,
        requests: int,
        rows: int,
        drafts: int,
        attn_metadata: dict[str, Any] | None,
        slots: dict[str, torch.Tensor] | None,
    ) -> None:
        """The head over ``rows`` rows, and a draft from each of the ``requests * drafts`` sample rows."""
        self._prepare_eplb_forward(rows)
        # The head has no experts: ranks need not agree on a number of rows.
        across_dp = torch.full((self.dp_size,), rows, dtype=torch.int32) if self.dp_size > 1 else None
        with set_forward_context(
            attn_metadata, self.vllm_config, num_tokens=rows, num_tokens_across_dp=across_dp,
            cudagraph_runtime_mode=CUDAGraphMode.NONE, slot_mapping=slots,
            batch_descriptor=BatchDescriptor(num_tokens=rows),
        ):  # fmt: skip
            hidden, _ = self.model(
                input_ids=self.input_buffers.input_ids[:rows],
                positions=self.input_buffers.positions[:rows],
                hidden_states=self._hidden[:rows],
                inputs_embeds=None,
            )
        places = requests * drafts
        drawn = self.sample_draft(
            hidden[self._sample_rows[:places]], self._sample_positions[:places],
            self._sample_requests[:places], self.temperature, self.seeds, self._columns[drafts][:places],
            draft_logits=self.draft_logits,
        )  # fmt: skip
        self.draft_tokens[:requests, :drafts] = drawn.view(requests, drafts)
