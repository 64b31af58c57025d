"""What the daemon was worth, what came of a change, and when a restart is advised."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fakes.forecasts import cost, forecast_of, space_of
from fakes.machine import Machine, Steered
from fakes.observations import cell, chains, observation, shadow

from specctl.core.account import (
    MEASURED_MIN_S,
    OUTCOME_MIN_S,
    SAMPLED_STEPS_MIN,
    Account,
    Outcome,
    RestartAdvice,
)
from specctl.core.messages import Choice, Plan, Reason
from specctl.types import Observation

OFF, TWO = chains(0, 2)
SPACE = space_of((OFF, TWO))
EMITTED, STEP_S = (1.0, 1.8), (0.010, 0.012)
"""100 and 150 tokens a second: drafting is 1.5 times as fast."""


def plan(present: int = 1, *, has_prices: bool = False, **more: Any) -> Plan:
    expected = forecast_of(SPACE, EMITTED, cost(SPACE, STEP_S), present=present)
    priced = replace(expected, price=np.array([[3e-6, 3.6e-6]]))
    return Plan("t", 0.0, Reason.NO_BETTER, "", forecast=priced, has_prices=has_prices, **more)


def second(tokens: int, *, share: float = 1.0, sampled: bool = False) -> Any:
    steps = round(share / STEP_S[bool(tokens)])
    accepted = (round(steps * 0.6), round(steps * 0.2))[:tokens]
    return cell(
        steps=steps, tokens=tokens, accepted_at=accepted, step_s=STEP_S[bool(tokens)],
        sampled_steps=steps if sampled else 0,
    )  # fmt: skip


def watched(account: Account, *cells: Any, polls: int = 20, present: int = 1, **more: Any) -> Account:
    for _ in range(polls):
        account.update(observation(*cells), plan(present, **more))
    return account


def test_drafting_where_it_pays_is_worth_its_gain() -> None:
    account = watched(Account(), second(2))
    assert account.speedup_vs_off == pytest.approx(1.5)
    assert account.speedup_vs_best_static == pytest.approx(1.0)
    assert account.best_static == TWO


def test_off_where_drafting_would_pay_is_a_loss_against_the_best() -> None:
    account = watched(Account(), second(0), present=0)
    assert account.speedup_vs_off == pytest.approx(1.0)
    assert account.speedup_vs_best_static == pytest.approx(1 / 1.5)
    assert account.best_static == TWO


def test_samples_cost_the_tokens_that_their_seconds_would_have_brought() -> None:
    """A tenth of the time runs off, which gives 100 instead of 150 tokens a second."""
    account = watched(Account(), second(2, share=0.9), second(0, share=0.1, sampled=True))
    seen = 0.9 / 0.012 * 1.8 + 10
    assert account.sample_loss_ratio == pytest.approx(5.0 / (seen + 5.0), rel=0.01)
    assert watched(Account(), second(2)).sample_loss_ratio == 0.0


def test_too_few_seconds_and_unknown_costs_are_no_figures() -> None:
    few = watched(Account(), second(2), polls=int(MEASURED_MIN_S) - 2)
    assert (few.speedup_vs_off, few.best_static, few.sample_loss_ratio) == (None, None, None)
    account = Account()
    unknown = forecast_of(SPACE, EMITTED, cost(SPACE, (float("nan"),) * 2))
    for _ in range(30):
        account.update(observation(second(2)), Plan("t", 0.0, Reason.IDLE, "", forecast=unknown))
        account.update(observation(second(2)), Plan("t", 0.0, Reason.NOT_MEASURED, ""))
    assert account.speedup_vs_off is None


def test_steps_with_prompts_are_left_out() -> None:
    prompts = second(0).model_copy(update={"has_prefill": True})
    assert watched(Account(), second(2), prompts).speedup_vs_off == pytest.approx(1.5)


def test_money_per_million_tokens() -> None:
    """3.6e-6 a step of 1.8 tokens."""
    assert watched(Account(), second(2)).cost_per_million is None
    priced = watched(Account(), second(2), polls=1, has_prices=True)
    assert priced.cost_per_million == pytest.approx(3.6e-6 / 1.8 * 1e6)


def test_a_policy_of_kind_cost_answers_in_money_per_million_tokens() -> None:
    machine = Machine(batch=4, accept=0.8)
    steered = Steered(machine, "kind: cost\nprice_per_gpu_hour: 3.6")
    account = Account()
    for _ in range(15):
        seen = machine.poll()
        steered.controller.learn(seen)
        found = steered.controller.plan(seen, steered.policy)
        machine.put(found)
        steered.controller.accepted(found)
        account.update(seen, found)
    expected = 0.001 / machine.rate(machine.at().setting) * 1e6
    assert account.cost_per_million == pytest.approx(expected, rel=0.03)


# What came of a change.

CHANGE = Choice(1, 1, OFF, TWO, Reason.GAIN, is_active=True, predicted_tokens_per_s=150.0)


def changed(*choices: Choice, time_s: float = 10.0) -> Plan:
    return Plan("t", time_s, Reason.GAIN, "", choices=choices, changes=("x",))


def test_a_change_is_followed_and_recorded_once() -> None:
    outcome = Outcome()
    assert outcome.follow(changed(CHANGE), 7, 5.0) is None
    for time_s in (11.0, 13.0):
        assert outcome.collect(observation(second(2), second(0), time_s=time_s)) is None
    assert outcome.collect(observation(second(2), time_s=15.0)) == {
        "version": 7,
        "decode_batch": "1-1",
        "setting": {"num_speculative_tokens": 2, "tree_topk": 1},
        "predicted_tokens_per_s": 150.0,
        "measured_tokens_per_s": pytest.approx(150.0, rel=0.01),
    }
    assert outcome.collect(observation(second(2), time_s=30.0)) is None


def test_a_change_that_nobody_felt_is_not_followed() -> None:
    outcome = Outcome()
    outcome.follow(changed(CHANGE._replace(is_active=False)), 7, 5.0)
    assert outcome.collect(observation(second(2), time_s=99.0)) is None


def test_the_next_change_ends_the_account_of_the_one_before() -> None:
    outcome = Outcome()
    outcome.follow(changed(CHANGE), 7, 100.0)
    outcome.collect(observation(second(2), time_s=11.0))
    record = outcome.follow(changed(CHANGE._replace(before=TWO, after=OFF), time_s=12.0), 8, 0.0)
    assert record is not None
    assert record["version"] == 7
    assert outcome.collect(observation(second(0), time_s=12.0 + OUTCOME_MIN_S))["version"] == 8  # type: ignore[index]


# Advice to restart.

AFTER_S = 100.0


def idle_head(time_s: float, *, draft_s: float = 0.05, sampled: int = 2, **more: Any) -> Observation:
    usual = second(0).model_copy(update={"draft_s": draft_s})
    sample = cell(steps=sampled, tokens=2, accepted_at=(0, 0), sampled_steps=sampled)
    return replace(observation(usual, sample, time_s=time_s), **more)


def off(*, is_active: bool = True, tokens: int = 0, reason: Reason = Reason.NO_BETTER) -> Plan:
    setting = chains(tokens)[0]
    choice = Choice(1, 1, setting, setting, reason, is_active=is_active)
    found = plan(0, choices=(choice,))
    if not is_active:
        expected = forecast_of(SPACE, EMITTED, cost(SPACE, STEP_S), is_active=False)
        return replace(found, forecast=expected)
    return replace(found, reason=reason, is_held=reason is Reason.FROZEN)


def advised(
    advice: RestartAdvice, seconds: int, start_s: float = 0.0, *, after_s: float = AFTER_S, **more: Any
) -> list[bool]:
    return [advice.update(idle_head(start_s + i, **more), off(), after_s) for i in range(seconds)]


def test_off_for_long_with_samples_that_did_not_pay() -> None:
    advice = RestartAdvice()
    changes = advised(advice, 150)
    assert changes.count(True) == 1
    assert changes.index(True) == 100
    assert advice.is_advised
    assert "drafting has been off for" in advice.words
    assert "what is left of drafting takes 5.0% of the step seconds" in advice.words
    assert advice.record() == {
        "off_s": 149.0, "sampled_steps": 300, "draft_share_ratio": 0.05, "squeezed_ratio": 0.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("more", "is_advised"),
    [
        ({"draft_s": 0.0}, False),
        ({"draft_s": 0.0, "waiting": 3}, True),
        ({"draft_s": 0.0, "kv_cache_used_ratio": 0.9}, True),
        ({"draft_s": 0.0, "kv_cache_used_ratio": 0.5}, False),
        ({"sampled": 0}, False),
    ],
    ids=["off costs nothing", "requests wait", "the cache is full", "there is room", "never tried"],
)
def test_when_it_matters(more: dict[str, Any], is_advised: bool) -> None:
    advice = RestartAdvice()
    advised(advice, 150, **more)
    assert advice.is_advised is is_advised


def test_shadow_drafts_are_tries_as_well() -> None:
    advice = RestartAdvice()
    advised(advice, 150, sampled=0, shadow=shadow(SAMPLED_STEPS_MIN, (0,)))
    assert advice.is_advised


def test_it_ends_when_drafting_pays_again() -> None:
    advice = RestartAdvice()
    advised(advice, 150)
    assert advice.update(idle_head(150.0), off(tokens=2), AFTER_S)
    assert not advice.is_advised
    assert advised(advice, 90, 151.0).count(True) == 0, "and begins afresh"


def test_pauses_and_a_freeze_do_not_end_it_and_do_not_count() -> None:
    advice = RestartAdvice()
    advised(advice, 150)
    for held in (off(is_active=False), off(reason=Reason.FROZEN)):
        assert not advice.update(idle_head(151.0), held, AFTER_S)
        assert advice.is_advised
    assert advice.polls == 150


def test_mostly_without_traffic_there_is_none() -> None:
    advice = RestartAdvice()
    for i in range(60):
        advice.update(idle_head(10.0 * i), off(), AFTER_S)
    assert not advice.is_advised


def test_it_can_be_turned_off() -> None:
    advice = RestartAdvice()
    assert not any(advised(advice, 150, after_s=0.0))
