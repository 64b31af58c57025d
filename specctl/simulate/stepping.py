"""Compiled: steps of the engine on virtual time, until a moment or a number of steps.

Luck is counter-based: whether the draft for a request's n-th output token is accepted depends on seed,
request and n alone (and on the law), so that every policy meets the same luck.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from specctl.simulate.costs import best_drafts, draft_seconds, law_bin, step_seconds, worth
from specctl.simulate.scheduling import admit_arrivals, decoding, pending_prefill, release, schedule
from specctl.simulate.state import (
    ACCEPTED,
    BATCH_BY_TIME,
    BEST_TOKENS,
    BUSY,
    DECODE,
    DRAFTED,
    DRAFTS_BY_TIME,
    DRAFTS_MAX,
    EMITTED_TOKENS,
    FINISHED,
    HEAD,
    JITTER,
    LAST_BATCH,
    LAST_DRAFTS,
    LOG_BATCH,
    LOG_CONTEXT,
    LOG_DRAFT_S,
    LOG_DRAFTS,
    LOG_EMITTED,
    LOG_ENDED_S,
    LOG_PREFILL,
    LOG_STEP_S,
    LOGGED,
    LOGGED_REQUESTS,
    LOST_TOKENS,
    MAX_BATCHED,
    NEXT,
    NOW,
    RUNNING,
    SCHEDULED,
    SEED,
    SETTING_CHANGES,
    STEPS,
    TAIL,
)

__all__ = ["advance", "classes_of", "uniform"]

# Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014): SplitMix64's
# finaliser.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11))
_TO_UNIT = 2.0**-53
# Streams of luck beside the drafts'.
_CLASS_STREAM, _JITTER_STREAM = -1, -2


@njit(cache=True)
def _mixed(x):
    x = (x ^ (x >> _SHIFTS[0])) * _MIX_1
    x = (x ^ (x >> _SHIFTS[1])) * _MIX_2
    return x ^ (x >> _SHIFTS[2])


@njit(cache=True)
def uniform(seed, first, second):
    """A number from 0 to 1 that depends on the three alone."""
    x = _mixed(np.uint64(seed) + _GOLDEN)
    x = _mixed(x ^ (np.uint64(first) * _GOLDEN))
    x = _mixed(x ^ (np.uint64(second) * _MIX_1))
    return float(x >> _SHIFTS[3]) * _TO_UNIT


@njit(cache=True)
def classes_of(seed, shares, row, kind):
    """Draw the class of every request r from its shares[row[r]]."""
    for r in range(kind.size):
        luck, k = uniform(seed, r, _CLASS_STREAM), 0
        while k < shares.shape[1] - 1 and luck >= shares[row[r], k]:
            luck -= shares[row[r], k]
            k += 1
        kind[r] = k


@njit(cache=True)
def _accepted(requests, seed, r, drafts, conditional):
    """Leading drafts that are accepted."""
    kind, at = requests.kind[r], requests.emitted[r]
    for j in range(drafts):
        if uniform(seed, r, at + j) >= conditional[kind, j]:
            return j
    return drafts


@njit(cache=True)
def _jitter(costs, seed, step):
    """Factor with the mean 1: sum of three uniforms, which has a deviation of 1/2."""
    ratio = costs.scalars[JITTER]
    if ratio == 0.0:
        return 1.0
    luck = uniform(seed, step, _JITTER_STREAM) + uniform(seed, step, _JITTER_STREAM - 1)
    return 1.0 + 2.0 * ratio * (luck + uniform(seed, step, _JITTER_STREAM - 2) - 1.5)


@njit(cache=True)
def _load(requests, server, members):
    """(context tokens of decoding requests, prompt tokens, pairs of the prompts) of the scheduled step."""
    context, prefill, pairs = 0, 0, 0.0
    members[:] = 0
    scheduled = 0
    for i in range(server.counts[RUNNING]):
        r, chunk = server.running[i], server.chunk[i]
        scheduled += chunk != 0
        if chunk < 0:
            members[requests.kind[r]] += 1
            context += requests.prompt[r] + requests.emitted[r]
        else:
            prefill += chunk
            pairs += chunk * (requests.computed[r] + 0.5 * chunk)
    server.counts[SCHEDULED] = scheduled
    return context, prefill, pairs


@njit(cache=True)
def _clairvoyant(requests, server, law, costs, members, values):
    """The best number of drafts for who decodes now, with the prompts that the step could take."""
    members[:] = 0
    context = 0
    for i in range(server.counts[RUNNING]):
        r = server.running[i]
        if requests.computed[r] == requests.target[r]:
            members[requests.kind[r]] += 1
            context += requests.prompt[r] + requests.emitted[r]
    batch = members.sum()
    if batch == 0:
        return 0
    prefill = min(pending_prefill(requests, server), server.limits[MAX_BATCHED] - batch)
    conditional = law.conditional[law_bin(law, server.sums[NOW])]
    worth(costs, server.limits, conditional, members, context, prefill, 0.0, values)
    return best_drafts(values)


@njit(cache=True)
def _finish_step(requests, server, drafts, conditional, log):
    """Emit, finish, free. Returns (emitted tokens of decoding requests, of prompts)."""
    counts, now_s, seed = server.counts, server.sums[NOW], server.limits[SEED]
    by_decode, by_prefill, kept = 0, 0, 0
    for i in range(counts[RUNNING]):
        r, chunk = server.running[i], server.chunk[i]
        if chunk < 0:
            accepted = _accepted(requests, seed, r, drafts, conditional)
            counts[DRAFTED] += drafts
            counts[ACCEPTED] += accepted
            if log.floats.shape[0]:
                log.accepted[counts[LOGGED_REQUESTS]] = accepted
                log.requests[counts[LOGGED_REQUESTS]] = r
                counts[LOGGED_REQUESTS] += 1
            tokens = min(accepted + 1, requests.output[r] - requests.emitted[r])
            requests.emitted[r] += tokens
            by_decode += tokens
        elif chunk > 0:
            requests.computed[r] += chunk
            if requests.computed[r] == requests.target[r]:
                requests.emitted[r] += 1
                by_prefill += 1
                if requests.first_s[r] < 0:
                    requests.first_s[r] = now_s
        if requests.emitted[r] == requests.output[r]:
            requests.finish_s[r] = now_s
            counts[FINISHED] += 1
            release(requests, server, r)
        else:
            server.running[kept] = r
            kept += 1
    counts[RUNNING] = kept
    return by_decode, by_prefill


@njit(cache=True)
def _account(server, batch, drafts, step_s, best_tokens, values):
    counts, sums = server.counts, server.sums
    counts[STEPS] += 1
    sums[BUSY] += step_s
    if batch == 0:
        return
    sums[DECODE] += step_s
    sums[BATCH_BY_TIME] += batch * step_s
    sums[DRAFTS_BY_TIME] += drafts * step_s
    sums[BEST_TOKENS] += best_tokens
    sums[LOST_TOKENS] += values.max() - values[drafts]
    counts[SETTING_CHANGES] += counts[LAST_DRAFTS] >= 0 and drafts != counts[LAST_DRAFTS]
    counts[LAST_DRAFTS] = drafts
    counts[LAST_BATCH] = batch


@njit(cache=True)
def _write(log, counts, now_s, drafts, batch, emitted, context, prefill, step_s, draft_s):
    if log.floats.shape[0] == 0 or batch == 0:
        return
    at = counts[LOGGED]
    log.integers[at, LOG_DRAFTS] = drafts
    log.integers[at, LOG_BATCH] = batch
    log.integers[at, LOG_EMITTED] = emitted
    log.integers[at, LOG_CONTEXT] = context
    log.integers[at, LOG_PREFILL] = prefill
    log.floats[at, LOG_STEP_S] = step_s
    log.floats[at, LOG_DRAFT_S] = draft_s
    log.floats[at, LOG_ENDED_S] = now_s
    counts[LOGGED] += 1


@njit(cache=True)
def _step(requests, server, law, costs, table, by_scheduled, log, members, values):
    counts, sums, limits = server.counts, server.sums, server.limits
    if table.size == 0:
        drafts = _clairvoyant(requests, server, law, costs, members, values)
    else:
        batch = counts[SCHEDULED] if by_scheduled else decoding(requests, server)
        drafts = table[min(max(batch, 1), table.size - 1)]
    schedule(requests, server, drafts)
    context, prefill, pairs = _load(requests, server, members)
    batch = members.sum()
    conditional = law.conditional[law_bin(law, sums[NOW])]
    best_tokens = 0.0
    if batch:
        rate = worth(costs, limits, conditional, members, context, prefill, pairs, values)
        # The seconds of prompts are nobody's loss: they are left out of what could have been emitted.
        best_tokens = rate * step_seconds(costs, limits, batch, drafts, context, 0, 0.0)
    step_s = step_seconds(costs, limits, batch, drafts, context, prefill, pairs)
    step_s *= _jitter(costs, limits[SEED], counts[STEPS])
    sums[NOW] += step_s
    by_decode, by_prefill = _finish_step(requests, server, drafts, conditional, log)
    sums[EMITTED_TOKENS] += by_decode + by_prefill
    _account(server, batch, drafts, step_s, best_tokens, values)
    draft_s = draft_seconds(costs.scalars, batch, drafts)
    _write(log, counts, sums[NOW], drafts, batch, by_decode, context, prefill, step_s, draft_s)


@njit(cache=True)
def advance(requests, server, law, costs, table, by_scheduled, log, until_s, steps_max):
    """Run steps; idle time is skipped. Ends after the step that reaches ``until_s``, or when the log is full.

    table: number of drafts by decode batch (index 0 unused); of no length: the clairvoyant chooses.
    by_scheduled: look it up by the requests of the step before, prompts included.
    """
    counts, sums = server.counts, server.sums
    members = np.zeros(law.conditional.shape[1], np.int64)
    values = np.zeros(server.limits[DRAFTS_MAX] + 1)
    logged_max = log.floats.shape[0]
    steps = 0
    while sums[NOW] < until_s and steps < steps_max and (logged_max == 0 or counts[LOGGED] < logged_max):
        admit_arrivals(requests, server)
        if counts[RUNNING] == 0 and counts[HEAD] == counts[TAIL]:
            if counts[NEXT] == requests.arrival_s.size:
                break
            sums[NOW] = min(requests.arrival_s[counts[NEXT]], until_s)
            continue
        _step(requests, server, law, costs, table, by_scheduled, log, members, values)
        steps += 1
    return steps
