from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fakes.observations import cell, observation, shadow

from specctl.controller.restart_advice import RestartAdvice
from specctl.types import BucketChoice, BucketForecast, CandidateForecast, Decision, Observation, Reason

AFTER_S = 100.0


def decision(present: int = 0, reason: Reason = Reason.NO_BETTER, value: int | None = None) -> Decision:
    """``present`` is in force, ``value`` is wanted."""
    wanted = present if value is None else value
    forecast = BucketForecast(
        decode_batch_from=1,
        decode_batch_to=1,
        decode_batch=1.0,
        present_num_speculative_tokens=present,
        candidates=(CandidateForecast(0, 0.1, 10.0, 0.0, 1.0),),
        is_active=True,
        is_extrapolated=False,
        trials=100.0,
    )
    choice = BucketChoice(1, 1, present, wanted, reason, is_active=True)
    return Decision("t", 1.0, (), reason, "", (choice,), forecasts=(forecast,))


PROBE = decision(reason=Reason.PROBE, value=8)
IDLE = Decision("t", 1.0, (), Reason.IDLE, "")


def look(time_s: float, **more: Any) -> Observation:
    draft_s = more.pop("draft_s", 0.05)
    seen = replace(cell(tokens=0, accepted_at=()), draft_s=draft_s)
    return replace(observation(seen, time_s=time_s), **more)


def course(seconds: int = 110, **more: Any) -> RestartAdvice:
    """Off throughout, with a probe of a second every 20 s."""
    advice = RestartAdvice()
    for second in range(seconds):
        advice = advice.updated(look(second, **more), PROBE if second % 20 == 10 else decision(), AFTER_S)
    return advice


def test_off_for_long_with_probes_that_did_not_pay() -> None:
    assert not course(100).is_advised
    advice = course()
    assert advice.is_advised
    assert "off for 2 min and 5 probes did not pay" in advice.words
    assert "5.0% of the step seconds" in advice.words
    assert "a restart without speculation would free the memory" in advice.words
    assert "keeps watching" in advice.words
    assert advice.record() == {
        "off_s": 109.0,
        "probes": 5,
        "shadow_drafts": 0,
        "draft_share_ratio": 0.05,
        "squeezed_ratio": 0.0,
    }


@pytest.mark.parametrize(
    ("more", "is_advised"),
    [
        ({"draft_s": 0.0}, False),
        ({"draft_s": 0.0, "waiting": 3}, True),
        ({"draft_s": 0.0, "kv_cache_used_ratio": 0.9}, True),
        ({"interval_s": 0.1}, False),
        ({"may_act": False}, False),
    ],
    ids=["nothing to win", "requests wait", "full KV cache", "little traffic", "dry run"],
)
def test_when_it_matters(more: dict[str, Any], is_advised: bool) -> None:
    assert course(**more).is_advised is is_advised


def test_without_probes_nothing_is_known_but_from_shadow_drafts() -> None:
    blind, followed = RestartAdvice(), RestartAdvice()
    for second in range(110):
        blind = blind.updated(look(second), decision(), AFTER_S)
        seen = look(second, shadow=shadow(2, (0, 0)))
        followed = followed.updated(seen, decision(), AFTER_S)
    assert not blind.is_advised
    assert followed.is_advised
    assert "220 drafts followed in shadow" in followed.words


@pytest.mark.parametrize(
    "seen",
    [
        decision(present=4),
        decision(reason=Reason.GAIN, value=4),
        decision(reason=Reason.CANARY_WAIT),
    ],
    ids=["drafts", "will draft", "would draft"],
)
def test_it_ends_when_drafting_pays_again(seen: Decision) -> None:
    advice = course().updated(look(110), seen, AFTER_S)
    assert advice == RestartAdvice()


def test_probes_and_pauses_do_not_end_it() -> None:
    advice = course().updated(look(110), PROBE, AFTER_S)
    assert advice.is_advised
    assert advice.updated(look(111), IDLE, AFTER_S) == advice
    assert advice.updated(look(111), decision(reason=Reason.FROZEN), AFTER_S) == advice


def test_never() -> None:
    assert course().updated(look(110), decision(), 0.0) == RestartAdvice()
