"""The result of a benchmark, as its JSON file holds it. Seconds, tokens and requests; None: not measured."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from specctl.bench.arms import Arm
from specctl.bench.intervals import Outcome, Ratio
from specctl.bench.loads import Load

__all__ = [
    "Acceptance",
    "ArmFigures",
    "BenchResult",
    "Comparison",
    "Differing",
    "OutputCheck",
    "Percentiles",
    "Run",
    "TableSeen",
]

_MESSAGE = ConfigDict(extra="ignore", frozen=True)


class Percentiles(BaseModel):
    """Of requests, or of gaps for itl; seconds. Another tool's file may lack some."""

    model_config = _MESSAGE

    count: int
    mean_s: float
    p50_s: float
    p95_s: float | None
    p99_s: float | None


class Acceptance(BaseModel):
    """Of the server's counters over a run. ``source``: telemetry (specctl's plugin) or metrics (/metrics)."""

    model_config = _MESSAGE

    source: Literal["telemetry", "metrics"]
    drafted_tokens: int
    accepted_tokens: int
    drafts: int = Field(description="request-steps that verified a draft")
    request_steps: int | None = Field(description="all decode steps of all requests, without drafts too")
    acceptance_rate: float | None = Field(description="accepted / drafted tokens")
    acceptance_length: float | None = Field(description="emitted tokens per decode step, over ALL of them")
    drafting_acceptance_length: float | None = Field(description="1 + accepted / drafts: steps with a draft")
    survival_at: tuple[float, ...] = Field(
        default=(), description="[k]: share of drafts whose first k + 1 tokens were all accepted"
    )


class Run(BaseModel):
    """One arm under one load in one round."""

    model_config = _MESSAGE

    arm: str
    load: str
    round: int
    place: int = Field(description="of the arm in its round, from 0")
    started_s: float = Field(description="since the benchmark began")
    seconds: float
    requests: int = Field(description="that ran to their end")
    cut_off: int = Field(description="in flight when the run's time was over")
    failed: int
    errors: tuple[str, ...] = ()
    prompt_tokens: int | None
    output_tokens: int
    tokens_per_s: float
    steady_tokens_per_s: float | None = Field(description="while the load was complete")
    decode_tokens_per_s: float | None = Field(description="of one request after its first token")
    requests_per_s: float
    speed: float = Field(description="what the verdict compares: tokens/s, or 1 / mean e2el of an open loop")
    ttft: Percentiles | None
    tpot: Percentiles | None
    itl: Percentiles | None
    e2el: Percentiles | None
    acceptance: Acceptance | None
    timeline: tuple[float, ...] = Field(default=(), description="tokens/s of each second")


class ArmFigures(BaseModel):
    """One arm under one load, over all rounds: medians of runs, percentiles of all requests."""

    model_config = _MESSAGE

    arm: str
    load: str
    tokens_per_s: float
    tokens_per_s_min: float
    tokens_per_s_max: float
    steady_tokens_per_s: float | None
    decode_tokens_per_s: float | None
    ttft: Percentiles | None
    tpot: Percentiles | None
    itl: Percentiles | None
    e2el: Percentiles | None
    acceptance: Acceptance | None
    cost_per_million_tokens: float | None = None


class Comparison(BaseModel):
    """``load`` None: the geometric mean of all loads. ``ratio``: speed of ``arm`` over ``baseline``'s."""

    model_config = _MESSAGE

    arm: str
    baseline: str
    load: str | None
    ratio: float
    low: float | None
    high: float | None
    rounds: int
    outcome: Outcome

    @property
    def words(self) -> str:
        return Ratio(self.ratio, self.low, self.high, self.rounds).words


class Differing(BaseModel):
    """An output unlike the baseline's. ``margin``: how far apart in log probability the server scores the two
    tokens where they part; None: it could not be scored. ``is_tie``: within the rounding of the model."""

    model_config = _MESSAGE

    prompt_id: str
    at_token: int | None
    margin: float | None
    is_tie: bool | None


class OutputCheck(BaseModel):
    model_config = _MESSAGE

    arm: str
    baseline: str
    compared: int
    identical: int
    differing: tuple[Differing, ...] = ()


class TableSeen(BaseModel):
    """A table that an arm's daemon put in force. ``at_s``: since the arm's run began."""

    model_config = _MESSAGE

    round: int
    at_s: float
    table: str
    reason: str


class BenchResult(BaseModel):
    model_config = _MESSAGE

    format: Literal["specctl bench"] = "specctl bench"
    version: Literal[1] = 1
    command: str
    utc: str
    machine: dict[str, Any]
    servers: tuple[dict[str, Any], ...]
    warnings: tuple[str, ...] = ()
    arms: tuple[Arm, ...]
    baseline: str
    loads: tuple[Load, ...]
    rounds: int
    runs: tuple[Run, ...]
    figures: tuple[ArmFigures, ...]
    comparisons: tuple[Comparison, ...]
    outputs: tuple[OutputCheck, ...] = ()
    tables: tuple[TableSeen, ...] = ()
    best_constant: str | None = None
    against_best_constant: Comparison | None = Field(
        default=None, description="autotune against the best constant arm"
    )
    verdict: str
    losses: tuple[str, ...] = Field(default=(), description="where a constant arm is furthest behind")
    is_cut_short: bool = Field(default=False, description="stopped by hand; complete rounds count")
    price_per_hour: float | None = None
    search: dict[str, Any] | None = None

    @property
    def is_behind(self) -> bool:
        """autotune is slower than the best constant arm, or than the baseline, over all loads."""
        ours = [arm.name for arm in self.arms if not arm.is_constant]
        found = [one for one in self.comparisons if one.load is None and one.arm in ours]
        if self.against_best_constant is not None:
            found.append(self.against_best_constant)
        return any(one.outcome is Outcome.SLOWER for one in found)
