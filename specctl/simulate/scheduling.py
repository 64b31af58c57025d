"""Compiled: who is in a step, with how many tokens, within the token budget and the KV cache.

As vLLM V1 does (vllm/v1/core/sched/scheduler.py): running requests first, in order of admission; prompts in
chunks; a request that finds no KV block preempts the one admitted last, which starts over in front of the
queue; a new request is admitted only while its whole prompt fits, and never in a step that preempted. Where
prompts run apart, as in SGLang (sglang/srt/managers/scheduler.py, ``get_next_batch_to_run``), no request
decodes in a step with prompts.
"""

from __future__ import annotations

from specctl.simulate.compiled import inner
from specctl.simulate.luck import class_of
from specctl.simulate.state import (
    DELIVERED,
    FINISHED,
    HEAD,
    KV_BLOCK,
    KV_PEAK,
    KV_TOKENS,
    KV_USED,
    MAX_BATCHED,
    MAX_SEQS,
    NEXT,
    NOW,
    PREEMPTIONS,
    PROMPTS_APART,
    RUNNING,
    SEED,
    TAIL,
)

__all__ = [
    "admit_arrivals",
    "decoding",
    "keep_in_flight",
    "next_arrival_s",
    "pending_prefill",
    "release",
    "schedule",
    "schedule_prompts",
]


@inner
def admit_arrivals(requests, server):
    """Everything that has arrived by now queues up."""
    counts = server.counts
    while counts[NEXT] < requests.arrival_s.size and requests.arrival_s[counts[NEXT]] <= server.sums[NOW]:
        server.waiting[counts[TAIL]] = counts[NEXT]
        counts[TAIL] += 1
        counts[NEXT] += 1


@inner
def _delivered_s(requests, server):
    """When the next finished request is with its client."""
    return requests.finish_s[server.finished[server.counts[DELIVERED]]]


@inner
def keep_in_flight(requests, server, arrivals):
    """A closed loop: requests start now until as many are in flight as the load says.

    Returns False when it is out of requests.
    """
    counts, now_s = server.counts, server.sums[NOW]
    at = int(now_s / arrivals.bin_s)
    wanted = arrivals.in_flight[min(at, arrivals.in_flight.size - 1)]
    shares = arrivals.shares[arrivals.share_row[at % arrivals.share_row.size]]
    while counts[DELIVERED] < counts[FINISHED] and _delivered_s(requests, server) <= now_s:
        counts[DELIVERED] += 1
    undelivered = counts[FINISHED] - counts[DELIVERED]
    while counts[RUNNING] + counts[TAIL] - counts[HEAD] + undelivered < wanted:
        r = counts[NEXT]
        if r == requests.arrival_s.size:
            return False
        requests.arrival_s[r] = now_s
        requests.kind[r] = class_of(server.limits[SEED], shares, r)
        server.waiting[counts[TAIL]] = r
        counts[TAIL] += 1
        counts[NEXT] += 1
    return True


@inner
def next_arrival_s(requests, server, arrivals):
    """When the next request may start, while the engine has none; -1: there is none."""
    if arrivals.in_flight.size:
        bin_ends_s = (int(server.sums[NOW] / arrivals.bin_s) + 1) * arrivals.bin_s
        if server.counts[DELIVERED] < server.counts[FINISHED]:
            return min(bin_ends_s, _delivered_s(requests, server))
        return bin_ends_s
    at = server.counts[NEXT]
    return requests.arrival_s[at] if at < requests.arrival_s.size else -1.0


@inner
def decoding(requests, server):
    """Running requests past their prefill."""
    count = 0
    for i in range(server.counts[RUNNING]):
        r = server.running[i]
        count += requests.computed[r] == requests.target[r]
    return count


@inner
def pending_prefill(requests, server):
    """Prompt tokens that the next step would take if it had the whole budget."""
    tokens = 0
    for i in range(server.counts[RUNNING]):
        r = server.running[i]
        tokens += requests.target[r] - requests.computed[r]
    room = server.limits[MAX_SEQS] - server.counts[RUNNING]
    at = server.counts[HEAD]
    while at < server.counts[TAIL] and room > 0 and tokens < server.limits[MAX_BATCHED]:
        tokens += requests.target[server.waiting[at]]
        at += 1
        room -= 1
    return min(tokens, server.limits[MAX_BATCHED])


@inner
def release(requests, server, r):
    server.counts[KV_USED] -= requests.allocated[r]
    requests.allocated[r] = 0


@inner
def _blocks(tokens, block):
    """Tokens, rounded up to whole blocks."""
    return (tokens + block - 1) // block * block


@inner
def _grow(requests, server, r, tokens):
    """Whether the request now holds blocks for ``tokens``."""
    counts, limits = server.counts, server.limits
    more = _blocks(tokens, limits[KV_BLOCK]) - requests.allocated[r]
    if more <= 0:
        return True
    if counts[KV_USED] + more > limits[KV_TOKENS]:
        return False
    requests.allocated[r] += more
    counts[KV_USED] += more
    counts[KV_PEAK] = max(counts[KV_PEAK], counts[KV_USED])
    return True


@inner
def _preempt_last(requests, server):
    counts = server.counts
    counts[RUNNING] -= 1
    r = server.running[counts[RUNNING]]
    release(requests, server, r)
    requests.computed[r] = 0
    requests.target[r] = requests.prompt[r] + requests.emitted[r]
    counts[HEAD] -= 1
    server.waiting[counts[HEAD]] = r
    counts[PREEMPTIONS] += 1


@inner
def schedule_prompts(requests, server):
    """Where prompts run apart: fill ``server.chunk`` with prompts alone. False: there are none to run."""
    if server.limits[PROMPTS_APART] == 0:
        return False
    schedule(requests, server, 0)
    return (server.chunk[: server.counts[RUNNING]] > 0).any()


@inner
def schedule(requests, server, width):
    """Fill ``server.chunk`` for the running requests; those left without a token in the step get 0.

    width: positions that are verified for a decoding request; 0: none decodes.
    """
    counts, limits = server.counts, server.limits
    budget = limits[MAX_BATCHED]
    preempted = counts[PREEMPTIONS]
    i = 0
    while i < counts[RUNNING]:
        r = server.running[i]
        left = requests.target[r] - requests.computed[r]
        is_decoding = left == 0
        want = width if is_decoding else min(left, budget)
        base = requests.prompt[r] + requests.emitted[r] if is_decoding else requests.computed[r]
        while i < counts[RUNNING] and want <= budget and not _grow(requests, server, r, base + want):
            _preempt_last(requests, server)
        if i < counts[RUNNING]:
            is_left_out = want > budget or want == 0
            server.chunk[i] = 0 if is_left_out else (-1 if is_decoding else want)
            budget -= want if want <= budget else 0
        i += 1
    if counts[PREEMPTIONS] == preempted:
        _admit(requests, server, budget)


@inner
def _admit(requests, server, budget):
    counts, limits = server.counts, server.limits
    while budget > 0 and counts[HEAD] < counts[TAIL] and counts[RUNNING] < limits[MAX_SEQS]:
        r = server.waiting[counts[HEAD]]
        if counts[KV_USED] + _blocks(requests.target[r] + 1, limits[KV_BLOCK]) > limits[KV_TOKENS]:
            return
        want = min(requests.target[r], budget)
        _grow(requests, server, r, want)
        counts[HEAD] += 1
        server.running[counts[RUNNING]] = r
        server.chunk[counts[RUNNING]] = want
        counts[RUNNING] += 1
        budget -= want
