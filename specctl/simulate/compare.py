"""Several arms on the same trace, costs, law and luck; what each made of it, and its regret."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from specctl.engine_profile import EngineProfile
from specctl.simulate import state as at
from specctl.simulate.arms import Arm, static_name
from specctl.simulate.engine import Series, SimulatedEngine, fitting
from specctl.simulate.scenario import Scenario
from specctl.simulate.trace import Trace

__all__ = ["ArmResult", "Comparison", "capacity_s", "compare", "quiet_daemon", "simulate"]

OFF, CLAIRVOYANT = static_name(0), "clairvoyant"
MINUTE_S = 60.0


@dataclass(frozen=True)
class ArmResult:
    """One arm's run. Times in seconds of virtual time, from the first arrival to the last token.

    ``lost_ratio``: of the tokens that the decoding part of its steps could have emitted, the share that the
    number of drafts lost, by the law, at the batches that this arm met; prompts' seconds are left out. Unlike
    ``regret_ratio`` (tokens/s against the clairvoyant's) it also tells while arrivals, not the server, bound
    the tokens per second.
    """

    name: str
    requests: int
    emitted_tokens: int
    span_s: float
    busy_s: float
    tokens_per_s: float
    tpot_p50_s: float
    tpot_p99_s: float
    tpot_mean_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    mean_decode_batch: float
    mean_num_speculative_tokens: float
    acceptance_ratio: float
    lost_ratio: float
    switches: int
    switches_per_minute: float
    preemptions: int
    kv_peak_tokens: int
    steps: int
    regret_ratio: float = 0.0
    tpot_regret_ratio: float = 0.0
    to_off: float = 1.0
    to_best_static: float = 1.0
    series: Series = field(default_factory=Series, repr=False, compare=False)

    def record(self) -> dict[str, Any]:
        """For JSON: everything but the series, rounded."""
        told = asdict(self)
        told.pop("series")
        return {name: float(f"{v:.6g}") if isinstance(v, float) else v for name, v in told.items()}


@dataclass(frozen=True)
class Comparison:
    results: tuple[ArmResult, ...]
    best_static: str

    def arm(self, name: str) -> ArmResult:
        return next(result for result in self.results if result.name == name)


def simulate(trace: Trace, profile: EngineProfile, scenario: Scenario, arm: Arm, *, seed: int) -> ArmResult:
    """Run one arm until every request has its tokens."""
    engine = SimulatedEngine(fitting(trace, profile), profile, scenario, seed=seed, log_steps=arm.log_steps)
    arm.start(engine)
    until_s = arm.poll_interval_s
    while not engine.is_done:
        arm.run(until_s)
        engine.note()
        # A long step may have passed several looks: they would have seen nothing new.
        passed = math.floor(engine.now_s / arm.poll_interval_s) + 1
        until_s = max(passed * arm.poll_interval_s, until_s + arm.poll_interval_s)
    return _result(arm.name, engine)


def compare(
    trace: Trace,
    profile: EngineProfile,
    scenario: Scenario,
    arms: Sequence[Arm],
    *,
    seed: int = 0,
    told: Callable[[str], None] = lambda name: None,
) -> Comparison:
    """Run all arms. ``told`` hears the name of each before it runs.

    Ratios need the arms "off" and "clairvoyant" and at least one static number.
    """
    results = []
    with quiet_daemon():
        for arm in arms:
            told(arm.name)
            results.append(simulate(trace, profile, scenario, arm, seed=seed))
    static = [result for result in results if result.name == OFF or result.name.startswith("static ")]
    best = max(static, key=lambda result: result.tokens_per_s)
    off = next(result for result in results if result.name == OFF)
    clairvoyant = next(result for result in results if result.name == CLAIRVOYANT)
    return Comparison(tuple(_against(result, off, best, clairvoyant) for result in results), best.name)


@contextmanager
def quiet_daemon() -> Iterator[None]:
    """The daemon's log of a simulated target is not news."""
    daemon = logging.getLogger("specctl.controller")
    level = daemon.level
    daemon.setLevel(logging.ERROR)
    try:
        yield
    finally:
        daemon.setLevel(level)


def capacity_s(trace: Trace, profile: EngineProfile, scenario: Scenario, off: Arm, *, seed: int = 0) -> float:
    """Seconds that the server needs for the whole trace without speculation when nothing has to be waited
    for."""
    together = trace.scaled(1e9)
    return simulate(together, profile, scenario, off, seed=seed).span_s


def _against(result: ArmResult, off: ArmResult, best: ArmResult, clairvoyant: ArmResult) -> ArmResult:
    return replace(
        result,
        regret_ratio=1.0 - result.tokens_per_s / clairvoyant.tokens_per_s,
        tpot_regret_ratio=result.tpot_mean_s / clairvoyant.tpot_mean_s - 1.0
        if clairvoyant.tpot_mean_s
        else 0.0,
        to_off=result.tokens_per_s / off.tokens_per_s,
        to_best_static=result.tokens_per_s / best.tokens_per_s,
    )


def _result(name: str, engine: SimulatedEngine) -> ArmResult:
    requests, counts, sums = engine.requests, engine.server.counts, engine.server.sums
    ttft = requests.first_s - requests.arrival_s
    several = requests.output > 1
    tpot = (requests.finish_s - requests.first_s)[several] / (requests.output[several] - 1)
    span_s = float(requests.finish_s.max() - requests.arrival_s.min())
    emitted = int(requests.emitted.sum())
    decode_s = float(sums[at.DECODE])
    # The clairvoyant has no table: its switches are the changes from step to step.
    switches = engine.switches if engine.table.size else int(counts[at.SETTING_CHANGES])
    best_tokens = float(sums[at.BEST_TOKENS])
    return ArmResult(
        name=name,
        requests=len(requests.output),
        emitted_tokens=emitted,
        span_s=span_s,
        busy_s=float(sums[at.BUSY]),
        tokens_per_s=emitted / span_s,
        tpot_p50_s=_quantile(tpot, 0.5),
        tpot_p99_s=_quantile(tpot, 0.99),
        tpot_mean_s=float(tpot.mean()) if tpot.size else 0.0,
        ttft_p50_s=_quantile(ttft, 0.5),
        ttft_p99_s=_quantile(ttft, 0.99),
        mean_decode_batch=float(sums[at.BATCH_BY_TIME]) / decode_s if decode_s else 0.0,
        mean_num_speculative_tokens=float(sums[at.DRAFTS_BY_TIME]) / decode_s if decode_s else 0.0,
        acceptance_ratio=float(counts[at.ACCEPTED]) / max(int(counts[at.DRAFTED]), 1),
        lost_ratio=float(sums[at.LOST_TOKENS]) / best_tokens if best_tokens else 0.0,
        switches=switches,
        switches_per_minute=switches / max(span_s / MINUTE_S, 1e-9),
        preemptions=int(counts[at.PREEMPTIONS]),
        kv_peak_tokens=int(counts[at.KV_PEAK]),
        steps=int(counts[at.STEPS]),
        series=engine.series,
    )


def _quantile(values: npt.NDArray[np.float64], share: float) -> float:
    return float(np.quantile(values, share)) if values.size else 0.0
