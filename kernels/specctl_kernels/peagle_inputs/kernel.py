"""P-EAGLE's inputs for a whole batch in one launch (arXiv 2602.01469, section 3)."""

from __future__ import annotations

import triton
import triton.language as tl

from specctl_kernels.head_memory.kernel import bits, following_token, is_kept, ring_entry

__all__ = ["peagle_inputs_kernel"]


@triton.jit(do_not_specialize=["width", "masks", "drafts", "behind", "num_reqs"])
def peagle_inputs_kernel(
    ids_ptr, positions_ptr, slots_ptr, starts_ptr, seq_lens_ptr, hidden_ptr,
    sample_rows_ptr, sample_positions_ptr, sample_requests_ptr,
    target_ids_ptr, target_positions_ptr, target_starts_ptr, target_hidden_ptr, target_hidden_stride,
    mask_hidden_ptr, requests_ptr, num_sampled_ptr, num_rejected_ptr, last_sampled_ptr, next_prefill_ptr,
    blocks_ptr, blocks_stride,
    behind_hidden_ptr, ring_positions_ptr, ring_tokens_ptr, ring_blocks_ptr, unseen_ptr,
    width, masks, drafts, behind, num_reqs, most_reqs, most_rows, most_len, mask_id,
    HIDDEN: tl.constexpr, BLOCK_TOKENS: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
    PAD: tl.constexpr, HAS_BEHIND: tl.constexpr, RING: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """Program (request, block of ROWS draft rows). width > 0: that many rows for each request, else
    ``behind`` remembered ones, the request's target rows and ``masks`` more. Rows after the mask slots are
    padding: nothing attends to them."""
    req = tl.program_id(0)
    target_start = tl.load(target_starts_ptr + req)
    query = tl.load(target_starts_ptr + req + 1) - target_start
    known = query - tl.load(num_rejected_ptr + req)
    request = tl.load(requests_ptr + req).to(tl.int64)
    if width > 0:
        base = req * width
        rows = width
    else:
        base = target_start + req * (masks + behind)
        rows = behind + query + masks
    first = tl.load(target_positions_ptr + target_start)

    place = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    row = place - behind
    goal = base + place
    is_row = place < rows
    is_known = (row >= 0) & (row < known)
    position = first + row
    slot_of = tl.maximum(request, 0)
    following = following_token(num_sampled_ptr, last_sampled_ptr, next_prefill_ptr, req, slot_of)
    token = tl.load(target_ids_ptr + target_start + row + 1, mask=(row >= 0) & (row < known - 1), other=0)
    token = tl.where(row == known - 1, following, token)
    token = tl.where(row >= known, mask_id, token)

    is_inside = (position >= 0) & (position < tl.where(request >= 0, most_len, 0)) & (row < known + masks)
    block = tl.load(
        blocks_ptr + req.to(tl.int64) * blocks_stride + position // BLOCK_TOKENS, mask=is_inside, other=0
    )
    is_written = is_inside & (row >= 0) & (block != 0)
    if HAS_BEHIND:
        entry = ring_entry(slot_of, position, RING)
        is_behind = is_inside & (row < 0) & is_row
        kept = is_kept(ring_positions_ptr, ring_blocks_ptr, entry, position, block, is_behind)
        bit = tl.where(kept, position % BLOCK_TOKENS, 0) * BITS // BLOCK_TOKENS
        word = tl.load(unseen_ptr + block, mask=kept, other=0)
        is_written = is_written | (kept & ((word & bits(bit, bit + 1)) != 0))
        token = tl.where(row < 0, tl.load(ring_tokens_ptr + entry, mask=kept, other=0), token)
    tl.store(ids_ptr + goal, token, mask=is_row)
    tl.store(positions_ptr + goal, tl.minimum(tl.maximum(position, 0), most_len - 1), mask=is_row)
    slot = block.to(tl.int64) * BLOCK_TOKENS + position % BLOCK_TOKENS
    tl.store(slots_ptr + goal, tl.where(is_written, slot, PAD), mask=is_row)

    is_given = is_row & (row < known + masks)
    for at in range(0, HIDDEN, TILE):
        column = at + tl.arange(0, TILE)
        is_column = column < HIDDEN
        masked = tl.load(mask_hidden_ptr + column, mask=is_column)
        source = (target_start + row).to(tl.int64)[:, None] * target_hidden_stride + column[None, :]
        hidden = tl.load(target_hidden_ptr + source, mask=is_known[:, None] & is_column[None, :], other=0.0)
        hidden = tl.where(is_known[:, None], hidden, masked[None, :])
        if HAS_BEHIND:
            before = (req * behind + place).to(tl.int64)[:, None] * HIDDEN + column[None, :]
            is_before = (row < 0)[:, None] & is_column[None, :]
            remembered = tl.load(behind_hidden_ptr + before, mask=is_before, other=0.0)
            hidden = tl.where((row < 0)[:, None], remembered, hidden)
        goals = goal.to(tl.int64)[:, None] * HIDDEN + column[None, :]
        tl.store(hidden_ptr + goals, hidden, mask=is_given[:, None] & is_column[None, :])

    if tl.program_id(1) == 0:
        tl.store(starts_ptr + req, base)
        tl.store(seq_lens_ptr + req, tl.minimum(first + rows - behind, most_len).to(tl.int32))
        for i in range(drafts):
            at_sample = req * drafts + i
            tl.store(sample_rows_ptr + at_sample, (base + behind + known - 1 + i).to(tl.int64))
            tl.store(sample_positions_ptr + at_sample, first + known + i)
            tl.store(sample_requests_ptr + at_sample, request)
        if req == num_reqs - 1:
            _pad(
                starts_ptr, seq_lens_ptr, slots_ptr, sample_rows_ptr, sample_positions_ptr,
                sample_requests_ptr, base + rows, drafts, num_reqs, most_reqs, most_rows, PAD,
            )  # fmt: skip


@triton.jit
def _pad(
    starts_ptr, seq_lens_ptr, slots_ptr, sample_rows_ptr, sample_positions_ptr, sample_requests_ptr,
    end, drafts, num_reqs, most_reqs, most_rows, PAD: tl.constexpr,
):  # fmt: skip
    """A captured graph reads more requests and rows than the batch has: those are empty, write nothing to
    the KV cache and sample for nobody."""
    for i in range(num_reqs, most_reqs + 1, 256):
        at = i + tl.arange(0, 256)
        tl.store(starts_ptr + at, end, mask=at <= most_reqs)
        tl.store(seq_lens_ptr + at, 0, mask=at < most_reqs)
    for i in range(num_reqs * drafts, most_reqs * drafts, 256):
        at = i + tl.arange(0, 256)
        inside = at < most_reqs * drafts
        tl.store(sample_rows_ptr + at, 0, mask=inside)
        tl.store(sample_positions_ptr + at, 0, mask=inside)
        tl.store(sample_requests_ptr + at, -1, mask=inside)
    for i in range(end, most_rows, 1024):
        at = i + tl.arange(0, 1024)
        tl.store(slots_ptr + at, PAD, mask=at < most_rows)
