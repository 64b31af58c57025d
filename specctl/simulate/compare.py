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

from specctl.contract.setting import Setting
from specctl.simulate import state as at
from specctl.simulate.arms import Arm
from specctl.simulate.closed_loop import ClosedLoad
from specctl.simulate.engine import PLAIN, Load, Series, SimulatedEngine, fitting
from specctl.simulate.engine_profile import EngineProfile
from specctl.simulate.perturbation import Perturbation
from specctl.simulate.scenario import Scenario
from specctl.simulate.trace import Trace

__all__ = ["ArmResult", "Comparison", "capacity_s", "compare", "compared", "quiet_daemon", "simulate"]

OFF, CLAIRVOYANT = "off", "clairvoyant"
MINUTE_S = 60.0


@dataclass(frozen=True)
class ArmResult:
    """One arm's run. Times in seconds of virtual time, from the first arrival to the last token, or to the
    end of a closed loop. ``requests``: those that ended.

    ``lost_ratio``: of the tokens that the decoding part of its steps could have emitted, the share that the
    number of drafts lost, by the law, at the batches that this arm met; prompts' seconds are left out. Unlike
    ``regret_ratio`` (tokens/s against the clairvoyant's) it also counts while arrivals, not the server, bound
    the tokens per second.

    ``switches``: changes of the table that the running batch felt, samples left out. ``sampled_cost_ratio``:
    of the emitted tokens, by the law, what sampled steps emitted less in their seconds than the row's own
    setting would have. ``back_s``: for each time that drafting pays again, the seconds until the row in force
    drafted; 0 where it did already.
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
    sampled_steps: int = 0
    sampled_cost_ratio: float = 0.0
    back_s: tuple[float, ...] = ()
    regret_ratio: float = 0.0
    tpot_regret_ratio: float = 0.0
    to_off: float = 1.0
    to_best_static: float = 1.0
    series: Series = field(default_factory=Series, repr=False, compare=False)

    def record(self) -> dict[str, Any]:
        """For JSON: everything but the series, rounded."""
        fields = asdict(self)
        fields.pop("series")
        return {name: float(f"{v:.6g}") if isinstance(v, float) else v for name, v in fields.items()}


@dataclass(frozen=True)
class Comparison:
    results: tuple[ArmResult, ...]
    best_static: str

    def arm(self, name: str) -> ArmResult:
        return next(result for result in self.results if result.name == name)


def simulate(
    load: Load,
    profile: EngineProfile,
    scenario: Scenario,
    arm: Arm,
    *,
    seed: int,
    settings: Sequence[Setting] = (),
    perturbation: Perturbation = PLAIN,
) -> ArmResult:
    """Run one arm until every request has its tokens, or a closed loop's time is over."""
    engine = SimulatedEngine(
        load if isinstance(load, ClosedLoad) else fitting(load, profile),
        profile,
        scenario,
        seed=seed,
        log_steps=arm.log_steps,
        settings=settings,
        perturbation=perturbation,
    )
    arm.start(engine)
    until_s = arm.poll_interval_s
    while not engine.is_done:
        arm.run(until_s)
        engine.note()
        # A long step may have passed several polls: they would have brought nothing new.
        passed = math.floor(engine.now_s / arm.poll_interval_s) + 1
        until_s = max(passed * arm.poll_interval_s, until_s + arm.poll_interval_s)
    return _result(arm.name, engine)


def compare(
    load: Load,
    profile: EngineProfile,
    scenario: Scenario,
    arms: Sequence[Arm],
    *,
    seed: int = 0,
    settings: Sequence[Setting] = (),
    perturbation: Perturbation = PLAIN,
    on_arm: Callable[[str], None] = lambda name: None,
) -> Comparison:
    """Run all arms. ``on_arm`` is called with the name of each before it runs.

    Ratios need the arms "off" and "clairvoyant" and at least one static number.
    """
    results = []
    with quiet_daemon():
        for arm in arms:
            on_arm(arm.name)
            results.append(
                simulate(
                    load, profile, scenario, arm, seed=seed, settings=settings, perturbation=perturbation
                )
            )
    return compared(results)


def compared(results: Sequence[ArmResult]) -> Comparison:
    """The same results with their ratios to off, the best static setting and the clairvoyant."""
    static = [result for result in results if result.name == OFF or result.name.startswith("static ")]
    best = max(static, key=lambda result: result.tokens_per_s)
    off = next(result for result in results if result.name == OFF)
    clairvoyant = next(result for result in results if result.name == CLAIRVOYANT)
    return Comparison(tuple(_against(result, off, best, clairvoyant) for result in results), best.name)


@contextmanager
def quiet_daemon() -> Iterator[None]:
    """The daemon's log of a simulated target is not news."""
    daemon = logging.getLogger("specctl.autotune")
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
    started, done = requests.first_s >= 0, requests.finish_s >= 0
    ttft = (requests.first_s - requests.arrival_s)[started]
    several = done & (requests.output > 1)
    tpot = (requests.finish_s - requests.first_s)[several] / (requests.output[several] - 1)
    # A closed loop ends in the middle of requests; a trace's last token ends it, and it begins at 0.
    span_s = engine.now_s - float(requests.arrival_s[:1].sum())
    emitted = int(requests.emitted.sum())
    decode_s, best_tokens = float(sums[at.DECODE]), float(sums[at.BEST_TOKENS])
    # The clairvoyant has no table: its switches are the changes from step to step.
    switches = engine.switches if len(engine.table) else int(counts[at.SETTING_CHANGES])
    return ArmResult(
        name=name,
        requests=int(done.sum()),
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
        mean_num_speculative_tokens=float(sums[at.DEPTH_BY_TIME]) / decode_s if decode_s else 0.0,
        acceptance_ratio=float(counts[at.ACCEPTED]) / max(int(counts[at.DRAFTED]), 1),
        lost_ratio=float(sums[at.LOST_TOKENS]) / best_tokens if best_tokens else 0.0,
        switches=switches,
        switches_per_minute=switches / max(span_s / MINUTE_S, 1e-9),
        preemptions=int(counts[at.PREEMPTIONS]),
        kv_peak_tokens=int(counts[at.KV_PEAK]),
        steps=int(counts[at.STEPS]),
        sampled_steps=int(counts[at.SAMPLED_STEPS]),
        sampled_cost_ratio=float(sums[at.SAMPLE_TOKENS]) / emitted,
        back_s=_back_s(engine),
        series=engine.series,
    )


def _back_s(engine: SimulatedEngine) -> tuple[float, ...]:
    """What is not back at the end counts as long as it lasted."""
    flips, known = engine.flips, int(engine.server.counts[at.FLIP])
    open_s = engine.now_s - flips.up_s[known:]
    return (*flips.back_s[:known].tolist(), *open_s[open_s > 0].tolist())


def _quantile(values: npt.NDArray[np.float64], share: float) -> float:
    return float(np.quantile(values, share)) if values.size else 0.0
