"""The same layout in plain Python, request by request."""

from __future__ import annotations

import torch

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
) -> None:
    """As ``peagle_inputs``. Rows behind the mask slots keep what they had, but for their slot."""
    rows.slots.fill_(PAD_SLOT)
    rows.sample_requests.fill_(-1)
    rows.sample_rows.zero_()
    rows.sample_positions.zero_()
    rows.seq_lens.zero_()
    end = 0
    for req in range(target_starts.shape[0] - 1):
        start, stop = int(target_starts[req]), int(target_starts[req + 1])
        known = stop - start - int(num_rejected[req])
        request = int(requests[req])
        count = width or stop - start + drafts - 1
        first = int(target_positions[start])
        following = int((last_sampled if num_sampled[req] > 0 else next_prefill)[max(request, 0)])
        tokens = [*target_ids[start + 1 : start + known].tolist(), following, *[mask_id] * (count - known)]
        rows.ids[end : end + count] = torch.tensor(tokens, dtype=torch.int32)
        for row in range(count):
            rows.positions[end + row] = min(first + row, max_model_len - 1)
            if row >= known + drafts - 1:
                continue
            rows.hidden[end + row] = target_hidden[start + row] if row < known else mask_hidden
            place = first + row
            if request >= 0 and place < max_model_len:
                block = int(blocks[req, place // block_tokens])
                rows.slots[end + row] = block * block_tokens + place % block_tokens if block else PAD_SLOT
        rows.starts[req] = end
        rows.seq_lens[req] = min(first + count, max_model_len)
        for i in range(drafts):
            rows.sample_rows[req * drafts + i] = end + known - 1 + i
            rows.sample_positions[req * drafts + i] = first + known + i
            rows.sample_requests[req * drafts + i] = request
        end += count
    rows.starts[target_starts.shape[0] - 1 :] = end
