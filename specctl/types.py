"""The nouns that the stages exchange. Frozen; units stand in the names; None means "not measured".

Named tuples are what a decision makes by the hundred: they take a quarter of a dataclass's time.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from specctl.contract.capabilities import Capabilities
from specctl.contract.classes import ClassKey
from specctl.contract.table import AppliedTable, TableRow

__all__ = [
    "BucketChoice",
    "BucketForecast",
    "CandidateForecast",
    "CellDelta",
    "ClassDelta",
    "Decision",
    "Observation",
    "Reason",
    "ShadowDelta",
    "StepCostEstimate",
    "StockDelta",
    "SurvivalEstimate",
    "TtftEstimate",
]


@dataclass(frozen=True, slots=True)
class CellDelta:
    """What one telemetry cell gained between two reads; fields as in ``TelemetryCell``."""

    decode_batch_from: int
    decode_batch_to: int
    num_speculative_tokens: int
    has_prefill: bool
    steps: int
    request_steps: int
    emitted_tokens: int
    verified_tokens: int
    drafted_at: tuple[int, ...]
    accepted_at: tuple[int, ...]
    context_tokens: int
    prefill_tokens: int
    step_s: float
    step_s_squared: float
    verified_tokens_squared: float
    step_s_by_verified_tokens: float
    draft_s: float
    verify_s: float


@dataclass(frozen=True, slots=True)
class ClassDelta:
    """What a traffic class gained between two reads, and how many of its requests decode at the later one.

    Fields as in ``TrafficClass``: a sample of the request-steps.
    """

    key: ClassKey
    decoding: int
    request_steps: int
    watched_at: tuple[int, ...]
    drafted_at: tuple[int, ...]
    reached_at: tuple[int, ...]
    accepted_at: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ShadowDelta:
    """What the shadow counters gained between two reads; fields as in ``ShadowAcceptance``."""

    drafts: int
    drafted_at: tuple[int, ...]
    accepted_at: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StockDelta:
    """What the engine's own /metrics tell of the interval. ``drafts`` leaves out steps without a draft.

    ``started_requests`` got their first token; ``first_token_wait_s``: from arrival until then, summed.
    """

    drafts: int | None
    drafted_tokens: int | None
    accepted_tokens: int | None
    accepted_at: tuple[int, ...] | None
    generated_tokens: int | None
    engine_steps: int | None
    started_requests: int | None = None
    first_token_wait_s: float | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """One look at one target. ``time_s`` is the clock's monotonic time.

    ``interval_s`` and everything that is a difference are None after a start, a reset or a failed read;
    ``gaps`` says why.
    """

    target: str
    time_s: float
    interval_s: float | None = None
    boot_id: str | None = None
    engine_version: str | None = None
    capabilities: Capabilities | None = None
    applied: AppliedTable | None = None
    cells: tuple[CellDelta, ...] | None = None
    shadow: ShadowDelta | None = None
    classes: tuple[ClassDelta, ...] | None = None
    stock: StockDelta | None = None
    running: int | None = None
    waiting: int | None = None
    decoding: int | None = None
    kv_cache_used_ratio: float | None = None
    may_act: bool = True
    why_not_act: str | None = None
    gaps: tuple[str, ...] = ()

    @property
    def has_plugin(self) -> bool:
        return self.capabilities is not None

    @property
    def emitted_tokens(self) -> int | None:
        return None if self.cells is None else sum(cell.emitted_tokens for cell in self.cells)


@dataclass(frozen=True, slots=True)
class SurvivalEstimate:
    """Acceptance by position. Index j stands for the draft's token j + 1.

    ``survival_at[j]``: share of request-steps whose first j + 1 drafted tokens were all accepted (a draft
    that was too short counts as not accepted). ``drafted_at[j]``: share that had more than j drafted tokens.
    ``conditional_at``, ``trials_at``: acceptance given that the position was reached, and how many
    (discounted) trials it rests on. ``measured_positions``: positions with trials; the rest is extrapolated.
    ``watched_positions``: positions that the last interval with traffic could tell about.
    """

    survival_at: tuple[float, ...]
    drafted_at: tuple[float, ...]
    conditional_at: tuple[float, ...]
    trials_at: tuple[float, ...]
    measured_positions: int
    watched_positions: int = 0
    drifted: bool = False

    @property
    def trials(self) -> float:
        return sum(self.trials_at)

    def accepted_tokens(self, num_speculative_tokens: int) -> float:
        """Expected accepted tokens of a request-step."""
        return sum(self.survival_at[:num_speculative_tokens])

    def drafted_tokens(self, num_speculative_tokens: int) -> float:
        """Expected drafted tokens of a request-step."""
        return sum(self.drafted_at[:num_speculative_tokens])


class StepCostEstimate(NamedTuple):
    """Seconds of a decode-only step, or None and the reason. ``sigma_ratio``: standard error / step_s.

    ``decoding_s``: seconds that decoding takes of the bucket's steps on average, where steps with prompts are
    among them: what those prompts take in any case is left out. None: not told apart.
    """

    step_s: float | None
    sigma_ratio: float = 0.0
    is_measured: bool = False
    why_unknown: str | None = None
    decoding_s: float | None = None


@dataclass(frozen=True, slots=True)
class TtftEstimate:
    """Mean time to the first token as measured, and the decode-only steps that it was measured among.

    ``step_s``, ``tokens_per_s``: a step's mean seconds, emitted tokens per second of step time.
    ``is_queued``: requests waited at most of the looks.
    """

    ttft_s: float
    step_s: float
    tokens_per_s: float
    is_queued: bool

    def at_s(self, candidate: CandidateForecast) -> float | None:
        """The same under another setting: a queue drains at the rate of the server; without one a request
        waits for the steps of the others. None without the candidate's cost."""
        if candidate.step_s is None or not candidate.tokens_per_s:
            return None
        if self.is_queued:
            return self.ttft_s * self.tokens_per_s / candidate.tokens_per_s
        return self.ttft_s * candidate.step_s / self.step_s


class Reason(StrEnum):
    """Why a decision is what it is. Closed: also the label of the decision metric."""

    GAIN = "gain"
    OFF_NO_GAIN = "off_no_gain"
    NO_BETTER = "no_better"
    SET_BY_POLICY = "set_by_policy"
    WITHIN_NOISE = "within_noise"
    DWELL = "dwell"
    FEW_SAMPLES = "few_samples"
    COST_UNKNOWN = "cost_unknown"
    CHANGE_RATE = "change_rate"
    PROBE = "probe"
    PROBE_END = "probe_end"
    LATENCY_BOUND = "latency_bound"
    CANARY_WAIT = "canary_wait"
    ROLLBACK = "rollback"
    FROZEN = "frozen"
    IDLE = "idle"
    NOT_MEASURED = "not_measured"
    NOT_CONTROLLABLE = "not_controllable"
    RECOMMENDATION = "recommendation"


class CandidateForecast(NamedTuple):
    """What one num_speculative_tokens would give at one decode batch. Seconds and rates None: unknown.

    ``tokens_per_s``: per second that decoding takes; what prompts in the same steps take is left out where it
    is known. ``verified_tokens``: positions the target scores in a step, all requests together.
    """

    num_speculative_tokens: int
    step_s: float | None
    tokens_per_s: float | None
    sigma_ratio: float
    tokens_per_request_step: float
    is_cost_measured: bool = False
    verified_tokens: float | None = None

    @property
    def tpot_s(self) -> float | None:
        return None if self.step_s is None else self.step_s / self.tokens_per_request_step


class BucketForecast(NamedTuple):
    """All candidates of one decode-batch bucket; the first candidate is off.

    ``decode_batch``: the batch that the forecast is for. ``is_active``: the bucket has traffic now.
    ``trials``: what the acceptance rests on. ``why_unknown``: why step seconds are missing.
    ``ttft``: None when it was not measured, and where there is no traffic.
    """

    decode_batch_from: int
    decode_batch_to: int
    decode_batch: float
    present_num_speculative_tokens: int
    candidates: tuple[CandidateForecast, ...]
    is_active: bool
    is_extrapolated: bool
    trials: float
    why_unknown: str | None = None
    ttft: TtftEstimate | None = None

    def candidate(self, num_speculative_tokens: int) -> CandidateForecast | None:
        candidates = self.candidates
        # Mostly every value from 0 on is a candidate, so that it is its own index.
        if num_speculative_tokens < len(candidates):
            candidate = candidates[num_speculative_tokens]
            if candidate.num_speculative_tokens == num_speculative_tokens:
                return candidate
        for candidate in candidates:
            if candidate.num_speculative_tokens == num_speculative_tokens:
                return candidate
        return None

    def tokens_per_s(self, num_speculative_tokens: int) -> float | None:
        """None: no candidate, or not known."""
        candidate = self.candidate(num_speculative_tokens)
        return None if candidate is None else candidate.tokens_per_s


class BucketChoice(NamedTuple):
    """The decision for one bucket; rates are tokens per second of step time, None where unknown.

    ``min_token_prob``: from which chance on a drafted token is verified; None: as the engine is configured.
    """

    decode_batch_from: int
    decode_batch_to: int
    from_num_speculative_tokens: int
    num_speculative_tokens: int
    reason: Reason
    predicted_tokens_per_s: float | None = None
    present_tokens_per_s: float | None = None
    off_tokens_per_s: float | None = None
    is_active: bool = False
    is_extrapolated: bool = False
    detail: str = ""
    min_token_prob: float | None = None

    @property
    def is_change(self) -> bool:
        return self.num_speculative_tokens != self.from_num_speculative_tokens


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome of one tick. ``rows`` None: nothing to apply (no plugin, or nothing known of the table).

    ``reason`` is that of the bucket with the traffic; ``explanation`` is in plain words. ``forecasts``: of
    the buckets with traffic; during a probe their present value is the one that the probe came from.
    """

    target: str
    time_s: float
    rows: tuple[TableRow, ...] | None
    reason: Reason
    explanation: str
    choices: tuple[BucketChoice, ...] = ()
    survival: SurvivalEstimate | None = None
    predicted_tokens_per_s: float | None = None
    present_tokens_per_s: float | None = None
    off_tokens_per_s: float | None = None
    forecasts: tuple[BucketForecast, ...] = ()

    @property
    def is_change(self) -> bool:
        return any(choice.is_change for choice in self.choices)

    @property
    def changed(self) -> tuple[BucketChoice, ...]:
        return tuple(choice for choice in self.choices if choice.is_change)
