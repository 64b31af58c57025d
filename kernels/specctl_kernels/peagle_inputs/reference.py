"""The same layout in plain Python, request by request."""

from __future__ import annotations

import torch

from specctl_kernels.head_memory import HeadMemory
from specctl_kernels.peagle_inputs.launch import PAD_SLOT, DraftRows

__all__ = ["peagle_inputs_reference"]


def peagle_inputs_reference(
    rows: DraftRows,
    target_ids: torch.Tensor,
    target_positions: torch.Tensor,
    target_starts: torch.Tensor,
    target_hidden: torch.Tensor,
    mask_hidden: torch.Tensor,
    requests: torch.Tensor,
    num_sampled: torch.Tensor,
    num_rejected: torch.Tensor,
    last_sampled: torch.Tensor,
    next_prefill: torch.Tensor,
    blocks: torch.Tensor,
    *,
    block_tokens: int,
    mask_id: int,
    drafts: int,
    width: int,
    max_model_len: int,
    memory: HeadMemory | None = None,
    behind_hidden: torch.Tensor | None = None,
) -> None:
    """As ``peagle_inputs``, for blocks of at most 64 tokens. Hidden states of padding rows are left alone."""
    rows.slots.fill_(PAD_SLOT)
    rows.sample_requests.fill_(-1)
    rows.sample_rows.zero_()
    rows.sample_positions.zero_()
    rows.seq_lens.zero_()
    behind = 0 if behind_hidden is None else behind_hidden.shape[0] // (target_starts.shape[0] - 1)
    end = 0
    for req in range(target_starts.shape[0] - 1):
        start, stop = int(target_starts[req]), int(target_starts[req + 1])
        known = stop - start - int(num_rejected[req])
        request = int(requests[req])
        count = width or behind + stop - start + drafts - 1
        first = int(target_positions[start])
        following = int((last_sampled if num_sampled[req] > 0 else next_prefill)[max(request, 0)])
        tokens = [*target_ids[start + 1 : start + known].tolist(), following]
        for place in range(count):
            row, at = place - behind, end + place
            position = first + row
            rows.positions[at] = min(max(position, 0), max_model_len - 1)
            rows.ids[at] = tokens[row] if 0 <= row < known else mask_id if row >= known else 0
            if row < 0:
                assert behind_hidden is not None
                rows.hidden[at] = behind_hidden[req * behind + place]
            elif row < known:
                rows.hidden[at] = target_hidden[start + row]
            elif row < known + drafts - 1:
                rows.hidden[at] = mask_hidden
            is_inside = request >= 0 and 0 <= position < max_model_len and row < known + drafts - 1
            block = int(blocks[req, position // block_tokens]) if is_inside else 0
            if is_inside and row < 0:
                assert memory is not None
                entry = request, position % memory.ring
                if memory.positions[entry] != position or memory.blocks[entry] != block:
                    continue
                rows.ids[at] = memory.tokens[entry]
                if not int(memory.unseen[block]) >> position % block_tokens & 1:
                    continue
            if block:
                rows.slots[at] = block * block_tokens + position % block_tokens
        rows.starts[req] = end
        rows.seq_lens[req] = min(first + count - behind, max_model_len)
        for i in range(drafts):
            rows.sample_rows[req * drafts + i] = end + behind + known - 1 + i
            rows.sample_positions[req * drafts + i] = first + known + i
            rows.sample_requests[req * drafts + i] = request
        end += count
    rows.starts[target_starts.shape[0] - 1 :] = end
