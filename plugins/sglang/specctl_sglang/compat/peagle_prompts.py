"""Drafts of a P-EAGLE head from the pass that reads a prompt: mask rows behind it, in places that SGLang
would give the request before its next step."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.mem_cache.allocation import alloc_for_spec_decode
from sglang.srt.mem_cache.allocation_sizing import page_aligned_decode_alloc_lens
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.speculative.eagle_info import EagleDraftExtendInput, EagleDraftInput

from specctl_sglang.compat.runtime_states import as_if
from specctl_sglang.proposers.peagle_prompts import prompt_rows

__all__ = ["drafted_behind_prompts", "make_room"]

_MOST_ROWS = 4_096
"""Of all prompts: the target's states are copied, 24 KiB a row for a hidden size of 4,096 in bf16."""


def make_room(batch: Any, places: int) -> bool:
    """Before a batch is launched: so many places of the KV cache behind each prompt, as SGLang reserves them
    for a decode step. False, and nothing reserved, where a prompt is not at its end, is given by more than
    tokens, where there are many rows, and where memory is short."""
    is_whole = batch.forward_mode == ForwardMode.EXTEND and all(
        request is not batch.chunked_req for request in batch.reqs
    )
    has_embeddings = batch.input_embeds is not None or batch.replace_embeds is not None
    if not is_whole or has_embeddings or batch.is_prefill_only or not batch.reqs:
        return False
    if batch.extend_num_tokens > _MOST_ROWS:
        return False
    cache = batch.tree_cache
    allocator = cache.token_to_kv_pool_allocator
    current, following, needed = page_aligned_decode_alloc_lens(
        batch.reqs, reserve=places, page_size=allocator.page_size
    )
    if not allocator.check_decode_capacity(
        num_tokens=needed, tree_cache=cache, requests=batch.reqs, spec_algorithm=batch.spec_algorithm
    ):
        return False
    current_cpu, following_cpu = (torch.tensor(one, dtype=torch.int32) for one in (current, following))
    alloc_for_spec_decode(
        cache,
        batch.req_to_token_pool,
        reqs=batch.reqs,
        req_pool_indices=batch.req_pool_indices,
        cur_kv_lens=current_cpu.to(batch.device, non_blocking=True),
        cur_kv_lens_cpu=current_cpu,
        nxt_kv_lens=following_cpu.to(batch.device, non_blocking=True),
        nxt_kv_lens_cpu=following_cpu,
        num_needed_tokens=needed,
        batch=batch,
    )
    return True


def drafted_behind_prompts(
    drafter: Any, batch: Any, hidden: torch.Tensor, next_token_ids: torch.Tensor
) -> tuple[EagleDraftInput, torch.Tensor, torch.Tensor]:
    """What SGLang carries on, drafts int64[n, K], and the target's state [n, H] of each prompt's last row.

    hidden [rows of all prompts, H]: the target's. ``make_room`` has been there.
    """
    runner = drafter.draft_runner
    changes, ends = _with_mask_rows(drafter, batch, hidden, next_token_ids)
    with as_if(batch, **changes):
        forward_batch = ForwardBatch.init_new(
            batch, runner, capture_hidden_mode=CaptureHiddenMode.LAST, return_hidden_states_before_norm=False
        )
        forward_batch.return_logprob = False
        drafts = runner.forward(forward_batch).logits_output.next_token_logits
    made = EagleDraftInput(
        bonus_tokens=next_token_ids, num_tokens_per_req=1, num_tokens_for_logprob_per_req=1
    )
    return made, drafts, hidden[ends]


def _with_mask_rows(
    drafter: Any, batch: Any, hidden: torch.Tensor, next_token_ids: torch.Tensor
) -> tuple[dict[str, Any], torch.Tensor]:
    """The batch's fields of a pass with K - 1 mask rows behind each prompt; int64[n], which rows of
    ``hidden`` are the last of a prompt."""
    head, masks = drafter.draft_runner.model, drafter.speculative_num_steps - 1
    of_all, total = batch.extend_num_tokens, batch.extend_num_tokens + masks * len(batch.reqs)
    lengths = torch.tensor(batch.extend_lens).to(hidden.device, non_blocking=True)
    known, ends = prompt_rows(lengths, of_all, masks)
    first, behind = known[ends], torch.arange(masks, device=hidden.device)
    # As in SGLang's own pass: each row has the token behind its state's.
    ids = batch.input_ids.roll(-1)
    ids[ends] = next_token_ids.to(ids.dtype)
    table, places = drafter.req_to_token_pool.req_to_token, batch.seq_lens[:, None] + behind
    slots = _among(batch.out_cache_loc.new_empty(total), known, batch.out_cache_loc)
    slots[first[:, None] + 1 + behind] = table[batch.req_pool_indices[:, None].long(), places].to(slots.dtype)
    states = _among(head.mask_hidden.to(hidden.dtype).expand(total, -1).clone(), known, hidden)
    changes = {
        "input_ids": _among(ids.new_full((total,), head.mask_token_id), known, ids),
        "out_cache_loc": slots,
        "extend_lens": [length + masks for length in batch.extend_lens],
        "extend_num_tokens": total,
        "seq_lens": batch.seq_lens + masks,
        "seq_lens_cpu": batch.seq_lens_cpu + masks,
        "seq_lens_sum": None,
        "spec_info": EagleDraftExtendInput(
            hidden_states=states,
            num_tokens_per_req=1,
            num_tokens_for_logprob_per_req=1,
            select_index=first,
        ),
    }
    return changes, ends


def _among(memory: torch.Tensor, places: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    memory[places] = values
    return memory
