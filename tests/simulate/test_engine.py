"""What the simulated server must keep, whatever steers it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from simulate.made import scenario_of, trace_of

from specctl.policy.loader import find_policy, load_policy
from specctl.simulate import state as at
from specctl.simulate.arms import Arm, Clairvoyant, SglangAdaptive, Static, StockTable
from specctl.simulate.compare import ArmResult, capacity_s, compare, simulate
from specctl.simulate.daemon import Autotune
from specctl.simulate.engine import SimulatedEngine, table_of
from specctl.simulate.engine_profile import EngineProfile
from specctl.simulate.luck import uniform
from specctl.simulate.trace import Trace

SMALL_KV = {"kv_tokens": 2000, "max_num_seqs": 16, "max_num_batched_tokens": 512, "max_model_len": 2000}


def arms() -> list[Arm]:
    balanced = load_policy(find_policy("balanced"))
    return [Static(0), Static(5), StockTable(), SglangAdaptive(), Clairvoyant(), Autotune("ours", balanced)]


def run(engine: SimulatedEngine, arm: Arm) -> None:
    arm.start(engine)
    until_s = 1.0
    while not engine.is_done:
        arm.run(until_s)
        until_s = max(engine.now_s, until_s) + 1.0


@pytest.mark.parametrize("prompts_apart", [False, True])
@pytest.mark.parametrize("arm", arms(), ids=lambda arm: arm.name)
def test_every_request_emits_its_tokens_within_the_kv_cache(
    arm: Arm, prompts_apart: bool, bursty: Trace, small: Callable[..., EngineProfile]
) -> None:
    profile = small(**SMALL_KV, prompts_apart=prompts_apart)
    engine = SimulatedEngine(bursty, profile, scenario_of(0.7), seed=3, log_steps=arm.log_steps)
    run(engine, arm)
    requests, counts = engine.requests, engine.server.counts
    assert (requests.emitted == bursty.output_tokens).all()
    assert (requests.first_s > requests.arrival_s).all()
    assert (requests.finish_s >= requests.first_s).all()
    assert int(engine.server.sums[at.EMITTED_TOKENS]) == int(bursty.output_tokens.sum())
    assert counts[at.PREEMPTIONS] > 0, "the case must meet a full KV cache"
    assert counts[at.KV_PEAK] <= SMALL_KV["kv_tokens"]
    assert counts[at.KV_USED] == 0
    assert counts[at.RUNNING] == 0
    assert not requests.allocated.any()


def test_kv_use_never_passes_the_limit_while_it_runs(
    bursty: Trace, small: Callable[..., EngineProfile]
) -> None:
    engine = SimulatedEngine(bursty, small(**SMALL_KV), scenario_of(0.7), seed=3)
    engine.set_table(table_of(np.full(2, 4)))
    while not engine.is_done:
        engine.run(1e9, 1)
        running = engine.server.running[: engine.server.counts[at.RUNNING]]
        assert engine.requests.allocated[running].sum() == engine.server.counts[at.KV_USED]
        assert engine.server.counts[at.KV_USED] <= SMALL_KV["kv_tokens"]
        assert len(set(running.tolist())) == len(running) <= SMALL_KV["max_num_seqs"]


@pytest.mark.parametrize("arm_at", range(6))
def test_a_seed_gives_the_same_run_bit_for_bit(arm_at: int, bursty: Trace, h200: EngineProfile) -> None:
    def once(seed: int) -> ArmResult:
        return simulate(bursty, h200, scenario_of(0.8, 0.6), arms()[arm_at], seed=seed)

    first, again, other = once(1), once(1), once(2)
    assert first == again
    assert first.series == again.series
    assert first.span_s != other.span_s


def test_off_is_static_0_and_drafts_nothing(bursty: Trace, h200: EngineProfile) -> None:
    off = simulate(bursty, h200, scenario_of(0.9), Static(0), seed=0)
    never = simulate(bursty, h200, scenario_of(0.0), Static(0), seed=0)
    assert off.name == "off"
    # What was lost follows from the law; nothing else may depend on it.
    assert replace(off, lost_ratio=0.0) == replace(never, lost_ratio=0.0)
    assert off.mean_num_speculative_tokens == off.acceptance_ratio == 0.0


def test_the_off_policy_is_off_from_its_first_look_on(bursty: Trace, h200: EngineProfile) -> None:
    policy = load_policy(find_policy("off"))
    ours = simulate(bursty, h200, scenario_of(0.9), Autotune("ours", policy), seed=0)
    off = simulate(bursty, h200, scenario_of(0.9), Static(0), seed=0)
    assert ours.mean_num_speculative_tokens == 0.0
    assert ours.span_s == off.span_s


@pytest.mark.parametrize("prompts_apart", [False, True])
def test_prompts_that_run_apart_hold_up_who_decodes(
    prompts_apart: bool, bursty: Trace, small: Callable[..., EngineProfile]
) -> None:
    engine = SimulatedEngine(
        bursty, small(prompts_apart=prompts_apart), scenario_of(0.7), seed=3, log_steps=20_000
    )
    run(engine, Static(3))
    steps = engine.log.integers[: engine.server.counts[at.LOGGED]]
    has_both = (steps[:, at.LOG_BATCH] > 0) & (steps[:, at.LOG_PREFILL] > 0)
    assert has_both.any() != prompts_apart
    assert (steps[:, at.LOG_BATCH] == 0).any() == prompts_apart


def test_a_lone_request_takes_the_seconds_of_the_profile(small: Callable[..., EngineProfile]) -> None:
    profile = small()
    done = simulate(trace_of([0.0], 100, 11), profile, scenario_of(0.0), Static(0), seed=0)
    step_s = profile.forward[0].seconds
    context = sum(range(101, 111)) * profile.context_token_s
    assert done.steps == 11
    assert done.span_s - done.ttft_p50_s == pytest.approx(10 * step_s + context, rel=1e-9)


def test_full_acceptance_emits_the_whole_width(small: Callable[..., EngineProfile]) -> None:
    done = simulate(trace_of([0.0], 100, 41), small(), scenario_of(1.0), Static(4), seed=0)
    assert done.steps == 1 + 40 // 5
    assert done.acceptance_ratio == 1.0


def test_acceptance_follows_the_law(h200: EngineProfile) -> None:
    law = (0.8, 0.5, 0.25)
    done = simulate(trace_of([0.0] * 200, 10, 400), h200, scenario_of(*law), Static(3), seed=5)
    survival = np.cumprod(law)
    # 30,000 drafts: the standard error of the mean is under 0.002.
    assert done.acceptance_ratio == pytest.approx(survival.mean(), abs=0.006)


def test_luck_depends_on_seed_request_and_position_alone() -> None:
    drawn = np.array([uniform(0, r, n) for r in range(40) for n in range(250)])
    assert uniform(0, 3, 4) == uniform(0, 3, 4)
    assert len({uniform(0, 3, 4), uniform(1, 3, 4), uniform(0, 4, 3), uniform(0, 3, 5)}) == 4
    assert (drawn >= 0).all()
    assert (drawn < 1).all()
    # 10,000 draws: standard errors 0.003 and 0.01.
    assert drawn.mean() == pytest.approx(0.5, abs=0.012)
    assert np.corrcoef(drawn[:-1], drawn[1:])[0, 1] == pytest.approx(0.0, abs=0.04)


def test_idle_time_is_skipped(h200: EngineProfile) -> None:
    done = simulate(trace_of([0.0, 50_000.0], 10, 5), h200, scenario_of(0.5), Static(1), seed=0)
    assert done.steps < 20
    assert done.span_s > 50_000


def test_the_clairvoyant_is_not_behind_any_static_number(h200: EngineProfile) -> None:
    rng = np.random.default_rng(1)
    trace = Trace(np.sort(rng.random(500) * 20.0), np.full(500, 200), np.full(500, 150), {})
    scenario = scenario_of(0.75, 0.65, 0.6)
    span_s = capacity_s(trace, h200, scenario, Static(0))
    trace = trace.scaled(float(trace.arrival_s[-1]) * 1.4 / span_s)
    static: list[Arm] = [Static(value) for value in range(9)]
    compared = compare(trace, h200, scenario, [*static, Clairvoyant()])
    # It is greedy, and batches end by luck: see its docstring.
    tolerance = 0.005
    assert min(result.regret_ratio for result in compared.results) > -tolerance
    assert compared.arm("clairvoyant").lost_ratio == pytest.approx(0.0, abs=1e-12)
    assert compared.arm("static 8").regret_ratio > 0.1
    assert compared.arm(compared.best_static).to_best_static == 1.0
