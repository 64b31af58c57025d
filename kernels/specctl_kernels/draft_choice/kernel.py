"""One program for the whole batch: what the last drafts came to, then the better source for each request."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["draft_choice_kernel"]


@triton.jit(do_not_specialize=["num_reqs", "wanted", "has_head"])
def draft_choice_kernel(
    drafts_ptr, drafts_stride, suffix_ptr, suffix_stride, suffix_probs_ptr, suffix_counts_ptr,
    requests_ptr, num_sampled_ptr, starts_ptr, sources_ptr, reached_ptr, accepted_ptr, gain_ptr,
    num_reqs, wanted, has_head, decay,
    WIDTH: tl.constexpr, REQS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """drafts holds the head's on the way in. Sources: 0 none, 1 suffix, 2 head."""
    req = tl.arange(0, REQS)
    column = tl.arange(0, COLUMNS)
    is_req = req < num_reqs
    request = tl.load(requests_ptr + req, mask=is_req, other=-1).to(tl.int64)
    is_real = request >= 0
    sampled = tl.load(num_sampled_ptr + req, mask=is_req, other=0)
    verified = tl.load(starts_ptr + req + 1, mask=is_req, other=1)
    verified -= tl.load(starts_ptr + req, mask=is_req, other=0) + 1
    source = tl.load(sources_ptr + request, mask=is_real, other=0)

    accepted = tl.maximum(sampled - 1, 0)
    # More rows than drafts can be are a prompt's; its slot may still name a source from another request.
    was_head = is_real & (source == 2) & (sampled > 0) & (verified <= WIDTH)
    reached_now = was_head[:, None] & (column[None, :] < tl.minimum(accepted + 1, verified)[:, None])
    accepted_now = reached_now & (column[None, :] < accepted[:, None])
    is_column = column < WIDTH
    reached = tl.load(reached_ptr + column, mask=is_column, other=0.0)
    kept = tl.load(accepted_ptr + column, mask=is_column, other=0.0)
    news = tl.sum(reached_now.to(tl.float32), axis=0)
    share = tl.where(news > 0, decay, 1.0)
    reached = reached * share + news
    kept = kept * share + tl.sum(accepted_now.to(tl.float32), axis=0)
    tl.store(reached_ptr + column, reached, mask=is_column)
    tl.store(accepted_ptr + column, kept, mask=is_column)

    chance = tl.where(column < wanted, kept / tl.maximum(reached, 1e-6), 0.0)
    of_head = tl.sum(tl.cumprod(chance, axis=0), axis=0)
    count = tl.load(suffix_counts_ptr + req, mask=is_req, other=0)
    at = req.to(tl.int64)[:, None] * WIDTH + column[None, :]
    is_suffix = is_req[:, None] & (column[None, :] < tl.minimum(count, wanted)[:, None])
    probs = tl.load(suffix_probs_ptr + at, mask=is_suffix, other=0.0)
    of_suffix = tl.sum(probs, axis=1)
    is_drafting = is_real & (sampled > 0)
    rival = tl.where(has_head != 0, of_head, -1.0) + tl.zeros_like(of_suffix)
    takes_suffix = is_drafting & (of_suffix > 0) & (of_suffix >= rival)
    takes_head = is_drafting & (rival >= 0) & (takes_suffix == 0)

    from_suffix = req.to(tl.int64)[:, None] * suffix_stride + column[None, :]
    is_taken = takes_suffix[:, None] & is_column[None, :]
    taken = tl.load(suffix_ptr + from_suffix, mask=is_taken, other=0)
    to = req.to(tl.int64)[:, None] * drafts_stride + column[None, :]
    is_out = is_req[:, None] & is_column[None, :]
    head = tl.load(drafts_ptr + to, mask=is_out & takes_head[:, None], other=0)
    tl.store(drafts_ptr + to, tl.where(takes_suffix[:, None], taken, head), mask=is_out)
    chosen = tl.where(takes_suffix, 1, tl.where(takes_head, 2, 0))
    tl.store(sources_ptr + request, chosen, mask=is_real)

    more = tl.where(is_drafting, tl.maximum(of_head - of_suffix, 0.0), 0.0)
    tl.store(gain_ptr, tl.sum(more, axis=0))
    tl.store(gain_ptr + 1, tl.sum(tl.where(is_drafting, 1.0 + of_suffix, 0.0), axis=0))
    tl.store(gain_ptr + 2, tl.sum(takes_suffix.to(tl.float32), axis=0))
    tl.store(gain_ptr + 3, tl.sum(takes_head.to(tl.float32), axis=0))
