"""What is said of a server without the plugin."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes.observations import observation

from specctl.core.messages import Plan, Reason
from specctl.core.recommend import recommend
from specctl.types import StockDelta


def said(stock: StockDelta | None, why: str | None = None) -> Plan:
    plan = recommend(replace(observation(), stock=stock, why_not_act=why))
    assert plan.rows is None
    return plan


@pytest.mark.parametrize(
    ("accepted_at", "words"),
    [
        ((10, 2, 1), "recommends to turn speculation off"),
        ((80, 50, 5, 1), "recommends num_speculative_tokens 2, later ones are seldom accepted"),
        ((80, 70, 60), "recommends to keep it, or to try more"),
    ],
)
def test_a_stock_server_gets_a_recommendation(accepted_at: tuple[int, ...], words: str) -> None:
    plan = said(StockDelta(100, accepted_at))
    assert plan.reason is Reason.RECOMMENDATION
    assert words in plan.explanation
    assert "cannot act: the server runs without the specctl plugin" in plan.explanation
    assert "the gain is not known" in plan.explanation


def test_what_a_draft_gave_is_in_the_recommendation() -> None:
    plan = said(StockDelta(100, (80, 50, 20)))
    assert "a step with a draft emits 2.5 tokens at a depth of 3" in plan.explanation


def test_a_server_that_does_not_draft() -> None:
    plan = said(StockDelta(None, None))
    assert plan.reason is Reason.NOT_CONTROLLABLE
    assert "it does not draft (no speculative_config): nothing to recommend" in plan.explanation


def test_few_drafts_are_no_ground_for_one() -> None:
    plan = said(StockDelta(49, (10, 2, 1)))
    assert (plan.reason, "too few drafts" in plan.explanation) == (Reason.FEW_SAMPLES, True)


def test_the_observers_reason_is_given_where_there_is_one() -> None:
    plan = said(None, "the plugin speaks another contract")
    assert (plan.reason, plan.explanation) == (Reason.NOT_CONTROLLABLE, "the plugin speaks another contract")
