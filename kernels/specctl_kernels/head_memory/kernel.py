"""Steps without the head, kept in a ring by request; and which KV positions the head has not written.

``unseen`` has a word for each KV block, one bit for each position (for several, in blocks of over 64 tokens).
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["remember_kernel", "see_kernel"]


@triton.jit
def bits(low, high):
    """Bits low .. high - 1 of a word, int64, 0 <= low < 64 and high <= 64; none where high <= low."""
    one = (low * 0 + 1).to(tl.int64)
    below_high = tl.where(high >= 64, -one, (one << tl.minimum(tl.maximum(high, 0), 63).to(tl.int64)) - 1)
    below_low = (one << tl.minimum(low, 63).to(tl.int64)) - 1
    return tl.where(high > low, below_high & ~below_low, one * 0)


@triton.jit
def following_token(num_sampled_ptr, last_sampled_ptr, next_prefill_ptr, req, slot):
    """int32: what comes after a request's last accepted row: sampled, or the prompt's next token."""
    last = tl.load(last_sampled_ptr + slot).to(tl.int32)
    after = tl.load(next_prefill_ptr + slot)
    return tl.where(tl.load(num_sampled_ptr + req) > 0, last, after)


@triton.jit
def ring_entry(slot, position, RING: tl.constexpr):
    return slot * RING + tl.maximum(position, 0) % RING


@triton.jit
def is_kept(ring_positions_ptr, ring_blocks_ptr, entry, position, block, is_asked):
    """Whether the ring's entries are still of these positions and KV blocks."""
    kept = is_asked & (tl.load(ring_positions_ptr + entry, mask=is_asked, other=-1) == position)
    return kept & (tl.load(ring_blocks_ptr + entry, mask=is_asked, other=-1) == block)


@triton.jit
def remember_kernel(
    states_ptr, positions_ptr, tokens_ptr, ring_blocks_ptr, unseen_ptr,
    target_ids_ptr, target_positions_ptr, target_starts_ptr, target_states_ptr, target_states_stride,
    requests_ptr, num_sampled_ptr, num_rejected_ptr, last_sampled_ptr, next_prefill_ptr,
    blocks_ptr, blocks_stride,
    STATE: tl.constexpr, RING: tl.constexpr, BLOCK_TOKENS: tl.constexpr, BITS: tl.constexpr,
    TILE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Program (request, piece of the state): the last RING accepted rows go to the ring."""
    req = tl.program_id(0)
    start = tl.load(target_starts_ptr + req)
    known = tl.load(target_starts_ptr + req + 1) - start - tl.load(num_rejected_ptr + req)
    request = tl.load(requests_ptr + req).to(tl.int64)
    if request >= 0:
        first = tl.load(target_positions_ptr + start)
        column = tl.program_id(1) * TILE + tl.arange(0, TILE)
        is_column = column < STATE
        for row in range(tl.maximum(known - RING, 0), known):
            entry = request * RING + (first + row) % RING
            source = (start + row).to(tl.int64) * target_states_stride
            state = tl.load(target_states_ptr + source + column, mask=is_column)
            tl.store(states_ptr + entry * STATE + column, state, mask=is_column)
        if tl.program_id(1) == 0:
            row_blocks = blocks_ptr + req.to(tl.int64) * blocks_stride
            following = following_token(num_sampled_ptr, last_sampled_ptr, next_prefill_ptr, req, request)
            for row in range(tl.maximum(known - RING, 0), known):
                position = first + row
                entry = request * RING + position % RING
                token = following
                if row < known - 1:
                    token = tl.load(target_ids_ptr + start + row + 1)
                tl.store(tokens_ptr + entry, token)
                tl.store(positions_ptr + entry, position.to(tl.int32))
                tl.store(ring_blocks_ptr + entry, tl.load(row_blocks + position // BLOCK_TOKENS))
            mark(row_blocks, unseen_ptr, first, first + known, True, BLOCK_TOKENS, BITS, CHUNK)


@triton.jit
def mark(row_blocks, unseen_ptr, low, high, is_unseen, BLOCK_TOKENS: tl.constexpr, BITS: tl.constexpr,
         CHUNK: tl.constexpr):  # fmt: skip
    """Positions low .. high - 1 of one request are unseen by the head, or seen."""
    for at in range(low // BLOCK_TOKENS, (high + BLOCK_TOKENS - 1) // BLOCK_TOKENS, CHUNK):
        number = at + tl.arange(0, CHUNK)
        inside = number * BLOCK_TOKENS < high
        from_bit = tl.maximum(low - number * BLOCK_TOKENS, 0) * BITS // BLOCK_TOKENS
        to_bit = tl.minimum(high - number * BLOCK_TOKENS, BLOCK_TOKENS) * BITS // BLOCK_TOKENS
        block = tl.load(row_blocks + number, mask=inside, other=0)
        word = tl.load(unseen_ptr + block, mask=inside, other=0)
        change = bits(from_bit, to_bit)
        word = tl.where(is_unseen, word | change, word & ~change)
        tl.store(unseen_ptr + block, word, mask=inside & (block != 0))


@triton.jit(do_not_specialize=["behind", "has_unseen", "table_width"])
def see_kernel(
    unseen_ptr, ring_positions_ptr, ring_blocks_ptr, table_ptr, seq_lens_ptr,
    target_positions_ptr, target_starts_ptr, requests_ptr, num_rejected_ptr, blocks_ptr, blocks_stride,
    table_width, behind, has_unseen,
    RING: tl.constexpr, BLOCK_TOKENS: tl.constexpr, BITS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """One program for each request: after the head's pass over its rows and ``behind`` remembered ones."""
    req = tl.program_id(0)
    request = tl.load(requests_ptr + req).to(tl.int64)
    row_blocks = blocks_ptr + req.to(tl.int64) * blocks_stride
    table = table_ptr + req.to(tl.int64) * blocks_stride
    start = tl.load(target_starts_ptr + req)
    first = tl.load(target_positions_ptr + start)
    known = tl.load(target_starts_ptr + req + 1) - start - tl.load(num_rejected_ptr + req)
    cut = first * 0
    if request >= 0:
        if behind > 0:
            row = tl.arange(0, RING)
            position = first - 1 - row
            is_row = (row < behind) & (position >= 0)
            block = tl.load(row_blocks + tl.maximum(position, 0) // BLOCK_TOKENS, mask=is_row, other=0)
            entry = ring_entry(request, position, RING)
            kept = is_kept(ring_positions_ptr, ring_blocks_ptr, entry, position, block, is_row)
            from_block = tl.maximum(first - behind, 0) // BLOCK_TOKENS
            for number in range(from_block, (first + BLOCK_TOKENS - 1) // BLOCK_TOKENS):
                offset = position - number * BLOCK_TOKENS
                inside = kept & (offset >= 0) & (offset < BLOCK_TOKENS)
                bit = tl.where(inside, offset, 0) * BITS // BLOCK_TOKENS
                change = tl.reduce(tl.where(inside, bits(bit, bit + 1), 0), 0, either)
                at = unseen_ptr + tl.load(row_blocks + number)
                tl.store(at, tl.load(at) & ~change)
        tl.debug_barrier()
        mark(row_blocks, unseen_ptr, first, first + known, False, BLOCK_TOKENS, BITS, CHUNK)
        tl.debug_barrier()
        if has_unseen != 0:
            full = first // BLOCK_TOKENS
            for at in range(0, full, CHUNK):
                number = at + tl.arange(0, CHUNK)
                block = tl.load(row_blocks + number, mask=number < full, other=0)
                word = tl.load(unseen_ptr + block, mask=number < full, other=0)
                cut = tl.maximum(cut, tl.max(tl.where(word != 0, number + 1, 0), axis=0))
    length = tl.load(seq_lens_ptr + req)
    needed = tl.minimum((length + BLOCK_TOKENS - 1) // BLOCK_TOKENS, table_width)
    for at in range(0, needed - cut, CHUNK):
        number = at + tl.arange(0, CHUNK)
        is_copied = number < needed - cut
        tl.store(table + number, tl.load(row_blocks + cut + number, mask=is_copied, other=0), mask=is_copied)
    tl.store(seq_lens_ptr + req, (length - cut * BLOCK_TOKENS).to(tl.int32))


@triton.jit
def either(a, b):
    return a | b
