"""Compiled: steps of the engine on virtual time, until a moment or a number of steps.

A step is scheduled, weighed, drawn and counted; the arrays that it reads and writes are in ``state``.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from specctl.simulate.acceptance import accepted_nodes, set_conditional
from specctl.simulate.compiled import inner
from specctl.simulate.costs import Scratch, draft_seconds, setting_seconds, wave_factor, weigh
from specctl.simulate.luck import finds, jitter, stalls
from specctl.simulate.scheduling import (
    admit_arrivals,
    decoding,
    keep_in_flight,
    next_arrival_s,
    pending_prefill,
    release,
    schedule,
    schedule_prompts,
)
from specctl.simulate.state import (
    ACCEPTED,
    BATCH_BY_TIME,
    BEST_TOKENS,
    BUSY,
    DECODE,
    DEPTH_BY_TIME,
    DRAFTED,
    EMITTED_TOKENS,
    EVERY_STEPS,
    FINISHED,
    FLIP,
    FRONT_END,
    HEAD,
    LAST_BATCH,
    LAST_SETTING,
    LOG_BATCH,
    LOG_CONTEXT,
    LOG_DRAFT_S,
    LOG_EMITTED,
    LOG_ENDED_S,
    LOG_PREFILL,
    LOG_SAMPLED,
    LOG_SETTING,
    LOG_STEP_S,
    LOGGED,
    LOGGED_REQUESTS,
    LOST_TOKENS,
    MAX_BATCHED,
    NOW,
    RUNNING,
    SAMPLE,
    SAMPLE_TOKENS,
    SAMPLED_STEPS,
    SCHEDULED,
    SEED,
    SETTING,
    SETTING_CHANGES,
    SINCE_SAMPLE,
    STEPS,
    TAIL,
    WAS_OFF,
)

__all__ = ["advance"]


@inner
def _add_member(requests, r, ends):
    to_go = requests.output[r] - requests.emitted[r]
    ends[requests.kind[r], min(to_go, ends.shape[1] - 1)] += 1
    return requests.prompt[r] + requests.emitted[r]


@inner
def _load(requests, server, ends):
    """(context tokens of decoding requests, prompt tokens, pairs of the prompts) of the scheduled step."""
    context, prefill, pairs = 0, 0, 0.0
    ends[:] = 0
    scheduled = 0
    for i in range(server.counts[RUNNING]):
        r, chunk = server.running[i], server.chunk[i]
        scheduled += chunk != 0
        if chunk < 0:
            context += _add_member(requests, r, ends)
        else:
            prefill += chunk
            pairs += chunk * (requests.computed[r] + 0.5 * chunk)
    server.counts[SCHEDULED] = scheduled
    return context, prefill, pairs


@inner
def _has_drafts(world, r):
    law, seed = world.law, world.server.limits[SEED]
    return finds(law.found_ratio, law.stretch_tokens, seed, r, world.requests.emitted[r])


@inner
def _found(world):
    """Decoding requests of the scheduled step that have drafts."""
    server, found = world.server, 0.0
    for i in range(server.counts[RUNNING]):
        found += server.chunk[i] < 0 and _has_drafts(world, server.running[i])
    return found


@inner
def _clairvoyant(world, scratch):
    """The best setting for who decodes now, with the prompts that the step could take."""
    requests, server = world.requests, world.server
    scratch.ends[:] = 0
    context = 0
    for i in range(server.counts[RUNNING]):
        r = server.running[i]
        if requests.computed[r] == requests.target[r]:
            context += _add_member(requests, r, scratch.ends)
    batch = scratch.ends.sum()
    if batch == 0:
        return 0
    prefill = min(pending_prefill(requests, server), server.limits[MAX_BATCHED] - batch)
    set_conditional(world.law, server.sums[NOW], batch, scratch.conditional)
    weigh(world.law, world.costs, world.prepared, scratch, context, prefill, 0.0)
    return int(np.argmax(scratch.values))


@inner
def _chosen(world, table, by_scheduled, scratch, decodes):
    """(setting of the row in force, setting of the step, whether the step is a sample of the row)."""
    counts = world.server.counts
    if table.shape[0] == 0:
        best = _clairvoyant(world, scratch)
        return best, best, False
    batch = counts[SCHEDULED] if by_scheduled else decoding(world.requests, world.server)
    row = table[min(max(batch, 1), table.shape[0] - 1)]
    if batch == 0 or not decodes:
        return row[SETTING], row[SETTING], False
    counts[SINCE_SAMPLE] += 1
    if row[EVERY_STEPS] == 0 or counts[SINCE_SAMPLE] < row[EVERY_STEPS]:
        return row[SETTING], row[SETTING], False
    counts[SINCE_SAMPLE] = 0
    return row[SETTING], row[SAMPLE], True


@inner
def _finish_step(world, setting, conditional, log):
    """Emit, finish, free. Returns (emitted tokens of decoding requests, of prompts)."""
    requests, server, prepared = world.requests, world.server, world.prepared
    counts, now_s, seed = server.counts, server.sums[NOW], server.limits[SEED]
    by_decode, by_prefill, kept = 0, 0, 0
    for i in range(counts[RUNNING]):
        r, chunk = server.running[i], server.chunk[i]
        if chunk < 0:
            at = counts[LOGGED_REQUESTS] if log.ranks.shape[0] else 0
            ranks = log.ranks[at] if log.ranks.shape[0] else log.accepted[:0]
            has_drafts, accepted = _has_drafts(world, r), 0
            if has_drafts:
                first, kind = requests.emitted[r], requests.kind[r]
                accepted = accepted_nodes(
                    world.law, prepared, conditional, seed, r, first, kind, setting, ranks
                )
                counts[DRAFTED] += prepared.depth[setting]
            counts[ACCEPTED] += accepted
            if log.floats.shape[0]:
                log.accepted[counts[LOGGED_REQUESTS]] = accepted
                log.found[counts[LOGGED_REQUESTS]] = has_drafts
                log.requests[counts[LOGGED_REQUESTS]] = r
                counts[LOGGED_REQUESTS] += 1
            tokens = min(accepted + 1, requests.output[r] - requests.emitted[r])
            requests.emitted[r] += tokens
            by_decode += tokens
        elif chunk > 0:
            by_prefill += _prefill(requests, r, chunk, now_s)
        if requests.emitted[r] == requests.output[r]:
            requests.finish_s[r] = server.sums[FRONT_END]
            server.finished[counts[FINISHED]] = r
            counts[FINISHED] += 1
            release(requests, server, r)
        else:
            server.running[kept] = r
            kept += 1
    counts[RUNNING] = kept
    return by_decode, by_prefill


@inner
def _prefill(requests, r, chunk, now_s):
    """Emitted tokens: one with the last chunk of the prompt."""
    requests.computed[r] += chunk
    if requests.computed[r] != requests.target[r]:
        return 0
    requests.emitted[r] += 1
    if requests.first_s[r] < 0:
        requests.first_s[r] = now_s
    return 1


@inner
def _account(world, scratch, batch, base, setting, is_sampled, step_s, best_tokens):
    counts, sums = world.server.counts, world.server.sums
    counts[STEPS] += 1
    sums[BUSY] += step_s
    if batch == 0:
        return
    values, tokens, seconds = scratch.values, scratch.tokens, scratch.seconds
    sums[DECODE] += step_s
    sums[BATCH_BY_TIME] += batch * step_s
    sums[DEPTH_BY_TIME] += world.prepared.depth[setting] * step_s
    sums[BEST_TOKENS] += best_tokens
    sums[LOST_TOKENS] += values.max() - values[setting]
    if is_sampled:
        counts[SAMPLED_STEPS] += 1
        rate = tokens[base] / scratch.alone[base]
        sums[SAMPLE_TOKENS] += tokens[base] - tokens[setting] + rate * (seconds[setting] - seconds[base])
    counts[SETTING_CHANGES] += counts[LAST_SETTING] >= 0 and base != counts[LAST_SETTING]
    counts[LAST_SETTING] = base
    counts[LAST_BATCH] = batch


@inner
def _watch_flips(world, base):
    """Before a step with decoding requests: is the row in force back from off since drafting pays again?"""
    flips, counts, now_s = world.flips, world.server.counts, world.server.sums[NOW]
    while counts[FLIP] < flips.up_s.size and now_s >= flips.up_s[counts[FLIP]]:
        at = counts[FLIP]
        if now_s < flips.end_s[at] and world.prepared.depth[base] == 0:
            counts[WAS_OFF] = 1
            return
        flips.back_s[at] = min(now_s, flips.end_s[at]) - flips.up_s[at] if counts[WAS_OFF] else 0.0
        counts[FLIP] += 1
        counts[WAS_OFF] = 0


@inner
def _write(log, counts, now_s, setting, batch, emitted, context, prefill, is_sampled, step_s, draft_s):
    if log.floats.shape[0] == 0:
        return
    at = counts[LOGGED]
    log.integers[at, LOG_SETTING] = setting
    log.integers[at, LOG_BATCH] = batch
    log.integers[at, LOG_EMITTED] = emitted
    log.integers[at, LOG_CONTEXT] = context
    log.integers[at, LOG_PREFILL] = prefill
    log.integers[at, LOG_SAMPLED] = is_sampled
    log.floats[at, LOG_STEP_S] = step_s
    log.floats[at, LOG_DRAFT_S] = draft_s
    log.floats[at, LOG_ENDED_S] = now_s
    counts[LOGGED] += 1


@inner
def _step(world, table, by_scheduled, log, scratch):
    requests, server, costs, prepared = world.requests, world.server, world.costs, world.prepared
    counts, sums = server.counts, server.sums
    is_apart = schedule_prompts(requests, server)
    base, setting, is_sampled = _chosen(world, table, by_scheduled, scratch, not is_apart)
    if not is_apart:
        schedule(requests, server, prepared.width[setting])
    context, prefill, pairs = _load(requests, server, scratch.ends)
    batch = scratch.ends.sum()
    set_conditional(world.law, sums[NOW], batch, scratch.conditional)
    best_tokens = 0.0
    if batch:
        _watch_flips(world, base)
        rate = weigh(world.law, costs, prepared, scratch, context, prefill, pairs)
        # The seconds of prompts are nobody's loss: they are left out of what could have been emitted.
        best_tokens = rate * scratch.alone[setting]
    found = _found(world)
    step_s = setting_seconds(costs, prepared, setting, batch, found, context, prefill, pairs)
    step_s *= jitter(costs.jitter_ratio, server.limits[SEED], counts[STEPS])
    step_s *= wave_factor(costs.wave, sums[NOW])
    if costs.stall_s > 0.0 and stalls(step_s, costs.stall_every_s, server.limits[SEED], counts[STEPS]):
        step_s += costs.stall_s
    if batch:
        step_s += costs.first_step_s[setting]
        costs.first_step_s[setting] = 0.0
    sums[NOW] += step_s
    sums[FRONT_END] = max(sums[FRONT_END], sums[NOW]) + batch * costs.front_end_s
    by_decode, by_prefill = _finish_step(world, setting, scratch.conditional, log)
    sums[EMITTED_TOKENS] += by_decode + by_prefill
    _account(world, scratch, batch, base, setting, is_sampled, step_s, best_tokens)
    draft_s = draft_seconds(costs.steps, batch, prepared.depth[setting], context)
    if batch or is_apart:
        now_s = sums[NOW]
        _write(log, counts, now_s, setting, batch, by_decode, context, prefill, is_sampled, step_s, draft_s)


@inner
def _scratch(world):
    kinds, positions = world.law.conditional.shape[1], world.law.conditional.shape[2]
    settings = world.prepared.depth.size
    return Scratch(
        np.zeros((kinds, positions + 2), np.int64),
        np.zeros((kinds, positions)),
        np.zeros(world.prepared.parent.shape[1]),
        np.zeros(positions),
        np.zeros(settings),
        np.zeros(settings),
        np.zeros(settings),
        np.zeros(settings),
    )


@njit(cache=True)
def advance(world, table, by_scheduled, log, until_s, steps_max):
    """Run steps; idle time is skipped. Ends after the step that reaches ``until_s``, when the log is full,
    and when a closed loop is out of requests.

    table: columns SETTING, SAMPLE, EVERY_STEPS by decode batch (index 0 unused); of no length: the
    clairvoyant chooses. by_scheduled: the row is that of the requests of the step before, prompts included.
    """
    requests, server, arrivals = world.requests, world.server, world.arrivals
    counts, sums = server.counts, server.sums
    scratch = _scratch(world)
    logged_max = log.floats.shape[0]
    steps = 0
    while sums[NOW] < until_s and steps < steps_max and (logged_max == 0 or counts[LOGGED] < logged_max):
        if arrivals.in_flight.size == 0:
            admit_arrivals(requests, server)
        elif not keep_in_flight(requests, server, arrivals):
            break
        if counts[RUNNING] == 0 and counts[HEAD] == counts[TAIL]:
            next_s = next_arrival_s(requests, server, arrivals)
            if next_s < 0.0:
                break
            sums[NOW] = min(next_s, until_s)
            continue
        _step(world, table, by_scheduled, log, scratch)
        steps += 1
    return steps
