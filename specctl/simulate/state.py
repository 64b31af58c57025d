"""The arrays that the compiled steps read and write. Without an engine's or a policy's meaning."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specctl.simulate.engine_profile import EngineProfile
from specctl.simulate.perturbation import Perturbation
from specctl.simulate.scenario import BIN_S, Scenario
from specctl.simulate.settings import Prepared
from specctl.simulate.step_seconds import StepCosts

__all__ = [
    "Arrivals",
    "Costs",
    "Flips",
    "Law",
    "Log",
    "Requests",
    "Server",
    "World",
    "new_costs",
    "new_flips",
    "new_law",
    "new_log",
    "new_requests",
    "new_server",
]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# Places in Server.counts.
NEXT, HEAD, TAIL, RUNNING, KV_USED, KV_PEAK, PREEMPTIONS, STEPS, FINISHED = range(9)
LAST_BATCH, LAST_SETTING, SETTING_CHANGES, SCHEDULED, LOGGED, LOGGED_REQUESTS, DRAFTED, ACCEPTED = range(
    9, 17
)
SINCE_SAMPLE, SAMPLED_STEPS, FLIP, WAS_OFF, DELIVERED = range(17, 22)
COUNTS = 22
# Places in Server.sums: seconds unless said.
NOW, BUSY, DECODE, EMITTED_TOKENS, BATCH_BY_TIME, DEPTH_BY_TIME, BEST_TOKENS, LOST_TOKENS = range(8)
# FRONT_END: when all that was emitted will be delivered.
SAMPLE_TOKENS, FRONT_END = 8, 9
SUMS = 10
# Places in Server.limits.
MAX_SEQS, MAX_BATCHED, KV_TOKENS, KV_BLOCK, SEED, PROMPTS_APART = range(6)
# Columns of a table: the row's setting, its sample's, and how many steps lie between two samples (0: none).
SETTING, SAMPLE, EVERY_STEPS = range(3)
# Columns of Log.integers and Log.floats.
LOG_SETTING, LOG_BATCH, LOG_EMITTED, LOG_CONTEXT, LOG_PREFILL, LOG_SAMPLED = range(6)
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
    finish_s: Floats  # when the last token is delivered; -1: not finished


class Server(NamedTuple):
    """``running`` in order of admission; ``chunk``: prompt tokens of the step, -1 for a decoding request."""

    running: Ints  # [max_num_seqs]
    chunk: Ints  # [max_num_seqs]
    waiting: Ints  # used from counts[HEAD] to counts[TAIL]; preempted requests go in front
    finished: Ints  # in their order, counts[FINISHED] of them; counts[DELIVERED] are with their clients
    counts: Ints
    sums: Floats
    limits: Ints


class Law(NamedTuple):
    conditional: Floats  # [bin, class, position]
    bin_s: float
    is_repeated: bool
    runner_up: Floats  # [class, rank - 1]: of what the first choice misses
    fall_ratio: float  # of acceptance, with each doubling of the decode batch
    found_ratio: float  # of stretches of the output, for which there are drafts
    stretch_tokens: int


class Costs(NamedTuple):
    steps: StepCosts
    graph_tokens: Ints
    cell_factor: Floats  # [decode batch, setting]
    wave: Floats  # by second
    jitter_ratio: float
    first_step_s: Floats  # by setting; 0 once it has run
    stall_s: float
    stall_every_s: float
    front_end_s: float


class Arrivals(NamedTuple):
    """``in_flight`` of no length: an open loop, requests arrive at their own times."""

    in_flight: Ints  # by bin of BIN_S: requests to keep in flight; the last one holds on
    bin_s: float
    shares: Floats  # [row, class]
    share_row: Ints  # by bin; the rows repeat


class Flips(NamedTuple):
    """Moments from which on drafting pays again. ``back_s``: until a row drafted; 0: it did already."""

    up_s: Floats
    end_s: Floats  # of the phase: what is not back by then counts as this long
    back_s: Floats


class Log(NamedTuple):
    """Steps since it was last drained; of no length: nothing is logged."""

    integers: Ints  # [step, LOG_*]
    floats: Floats  # [step, LOG_*]
    accepted: npt.NDArray[np.int8]  # by decoding request, step after step
    found: npt.NDArray[np.bool_]  # whether it had drafts
    requests: Ints  # which request that is
    ranks: npt.NDArray[np.int8]  # [the same, depth]; of no length where all settings are chains


class World(NamedTuple):
    requests: Requests
    server: Server
    law: Law
    costs: Costs
    prepared: Prepared
    arrivals: Arrivals
    flips: Flips


def new_requests(arrival_s: Floats, prompt: Ints, output: Ints, kind: Ints) -> Requests:
    size = len(arrival_s)

    def zeros() -> Ints:
        return np.zeros(size, np.int64)

    return Requests(
        arrival_s=np.array(arrival_s, np.float64),
        prompt=np.array(prompt, np.int64),
        output=np.array(output, np.int64),
        kind=np.array(kind, np.int64),
        target=np.array(prompt, np.int64),
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
    counts[LAST_SETTING] = -1
    kv_tokens = limits.kv_tokens - limits.kv_tokens % limits.kv_block_tokens
    return Server(
        running=np.zeros(limits.max_num_seqs, np.int64),
        chunk=np.zeros(limits.max_num_seqs, np.int64),
        waiting=np.zeros(requests + 2 * limits.max_num_seqs, np.int64),
        finished=np.zeros(requests, np.int64),
        counts=counts,
        sums=np.zeros(SUMS),
        limits=np.array(
            [
                limits.max_num_seqs,
                limits.max_num_batched_tokens,
                kv_tokens,
                limits.kv_block_tokens,
                seed,
                limits.prompts_apart,
            ],
            np.int64,
        ),
    )


def new_law(scenario: Scenario, prepared: Prepared, perturbation: Perturbation) -> Law:
    return Law(
        np.ascontiguousarray(scenario.grid(max(int(prepared.depth.max()), 1))),
        BIN_S,
        scenario.repeat_s is not None,
        scenario.runner_ups(int(prepared.topk.max())),
        perturbation.acceptance_fall_ratio,
        perturbation.found_ratio,
        perturbation.stretch_tokens,
    )


def new_costs(profile: EngineProfile, settings: int, perturbation: Perturbation, seed: int) -> Costs:
    steps = profile.step_costs()
    graphs = () if perturbation.graph_tokens else steps.graph_requests
    return Costs(
        steps._replace(
            tokens=np.array(steps.tokens),
            seconds=np.array(steps.seconds),
            graph_requests=np.array(graphs, np.int64),
        ),
        np.array(perturbation.graph_tokens, np.int64),
        perturbation.cell_factors(profile.scheduler.max_num_seqs, settings, seed),
        perturbation.wave(seed),
        profile.jitter_ratio,
        np.full(settings, perturbation.first_step_s),
        perturbation.stall_s,
        perturbation.stall_every_s,
        perturbation.front_end_s,
    )


def new_flips(spans_s: tuple[tuple[float, float], ...]) -> Flips:
    """Up to how long each phase lasts in which drafting pays: (from, to)."""
    return Flips(
        np.array([up_s for up_s, _ in spans_s], np.float64),
        np.array([end_s for _, end_s in spans_s], np.float64),
        np.zeros(len(spans_s)),
    )


def new_log(steps: int, max_num_seqs: int, prepared: Prepared) -> Log:
    members = steps * max_num_seqs
    has_trees = int(prepared.topk.max()) > 1
    return Log(
        np.zeros((steps, 6), np.int64),
        np.zeros((steps, 3)),
        np.zeros(members, np.int8),
        np.zeros(members, np.bool_),
        np.zeros(members, np.int64),
        np.zeros((members if has_trees else 0, int(prepared.depth.max())), np.int8),
    )
