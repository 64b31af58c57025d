"""The arrays that the compiled steps read and write. Without an engine's or a policy's meaning."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specctl.engine_profile import EngineProfile
from specctl.simulate.trace import Trace

__all__ = ["Costs", "Law", "Log", "Requests", "Server", "new_costs", "new_log", "new_requests", "new_server"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# Places in Server.counts.
NEXT, HEAD, TAIL, RUNNING, KV_USED, KV_PEAK, PREEMPTIONS, STEPS, FINISHED = range(9)
LAST_BATCH, LAST_DRAFTS, SETTING_CHANGES, SCHEDULED, LOGGED, LOGGED_REQUESTS, DRAFTED, ACCEPTED = range(9, 17)
COUNTS = 17
# Places in Server.sums: seconds unless said.
NOW, BUSY, DECODE, EMITTED_TOKENS, BATCH_BY_TIME, DRAFTS_BY_TIME, BEST_TOKENS, LOST_TOKENS = range(8)
SUMS = 8
# Places in Costs.scalars.
REQUEST, CONTEXT, PREFILL, PREFILL_STEP, PAIR, UNGRAPHED, JITTER = range(7)
DRAFT_BASE, DRAFT_REQUEST, DRAFT_PASS, DRAFT_ZERO = range(7, 11)
# Places in Server.limits.
MAX_SEQS, MAX_BATCHED, KV_TOKENS, KV_BLOCK, GRAPH_TOKENS, DRAFTS_MAX, SEED = range(7)
# Columns of Log.integers and Log.floats.
LOG_DRAFTS, LOG_BATCH, LOG_EMITTED, LOG_CONTEXT, LOG_PREFILL = range(5)
LOG_STEP_S, LOG_DRAFT_S, LOG_ENDED_S = range(3)


class Requests(NamedTuple):
    """By request. ``target``: tokens to prefill (prompt, and after a preemption what was emitted)."""

    arrival_s: Floats
    prompt: Ints
    output: Ints
    kind: Ints  # class of the acceptance scenario
    target: Ints
    computed: Ints
    emitted: Ints
    allocated: Ints  # KV tokens, whole blocks
    first_s: Floats  # time of the first output token; -1: none yet
    finish_s: Floats  # -1: not finished


class Server(NamedTuple):
    """``running`` in order of admission; ``chunk``: prompt tokens of the step, -1 for a decoding request."""

    running: Ints  # [max_num_seqs]
    chunk: Ints  # [max_num_seqs]
    waiting: Ints  # used from counts[HEAD] to counts[TAIL]; preempted requests go in front
    counts: Ints
    sums: Floats
    limits: Ints


class Law(NamedTuple):
    conditional: Floats  # [bin, class, position]
    bin_s: float
    is_repeated: bool


class Costs(NamedTuple):
    tokens: Floats
    seconds: Floats
    graph_requests: Ints
    scalars: Floats


class Log(NamedTuple):
    """Steps since it was last drained; of no length: nothing is logged."""

    integers: Ints  # [step, LOG_*]
    floats: Floats  # [step, LOG_*]
    accepted: npt.NDArray[np.int8]  # by decoding request, step after step
    requests: Ints  # which request that is


def new_requests(trace: Trace, kind: Ints) -> Requests:
    size = len(trace)

    def zeros() -> Ints:
        return np.zeros(size, np.int64)

    return Requests(
        arrival_s=np.ascontiguousarray(trace.arrival_s, np.float64),
        prompt=np.ascontiguousarray(trace.prompt_tokens, np.int64),
        output=np.ascontiguousarray(trace.output_tokens, np.int64),
        kind=np.ascontiguousarray(kind, np.int64),
        target=np.array(trace.prompt_tokens, np.int64),
        computed=zeros(),
        emitted=zeros(),
        allocated=zeros(),
        first_s=np.full(size, -1.0),
        finish_s=np.full(size, -1.0),
    )


def new_server(profile: EngineProfile, requests: int, seed: int) -> Server:
    limits = profile.scheduler
    counts = np.zeros(COUNTS, np.int64)
    # Preempted requests are put before the head: at most the running ones at once.
    counts[HEAD] = counts[TAIL] = limits.max_num_seqs
    counts[LAST_DRAFTS] = -1
    return Server(
        running=np.zeros(limits.max_num_seqs, np.int64),
        chunk=np.zeros(limits.max_num_seqs, np.int64),
        waiting=np.zeros(requests + 2 * limits.max_num_seqs, np.int64),
        counts=counts,
        sums=np.zeros(SUMS),
        limits=np.array(
            [
                limits.max_num_seqs,
                limits.max_num_batched_tokens,
                limits.kv_tokens - limits.kv_tokens % limits.kv_block_tokens,
                limits.kv_block_tokens,
                profile.graph_tokens_max,
                profile.num_speculative_tokens_max,
                seed,
            ],
            np.int64,
        ),
    )


def new_costs(profile: EngineProfile) -> Costs:
    draft = profile.draft
    scalars = [profile.request_s, profile.context_token_s, profile.prefill_token_s, profile.prefill_step_s]
    scalars += [profile.prefill_pair_s]
    scalars += [profile.ungraphed_min_s, profile.jitter_ratio]
    scalars += [draft.base_s, draft.request_s, draft.pass_s, draft.at_zero_s]
    return Costs(
        tokens=np.array([point.tokens for point in profile.forward], np.float64),
        seconds=np.array([point.seconds for point in profile.forward]),
        graph_requests=np.array(profile.graph_requests, np.int64),
        scalars=np.array(scalars),
    )


def new_log(steps: int, max_num_seqs: int) -> Log:
    members = steps * max_num_seqs
    return Log(
        np.zeros((steps, 5), np.int64),
        np.zeros((steps, 3)),
        np.zeros(members, np.int8),
        np.zeros(members, np.int64),
    )
