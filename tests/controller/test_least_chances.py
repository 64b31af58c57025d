"""The least chance of a verified token: by steps, held against noise, from the policy to the engine."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from fakes.engine import COPYING, FakeEngine
from fakes.group import Group
from fakes.rig import Rig, records

from specctl.contract.capabilities import Capabilities
from specctl.contract.table import TableRow, uniform_rows
from specctl.controller.core import merged_rows
from specctl.controller.least_chances import Setting, mean_wishes, with_least_chances
from specctl.policy.base import Policy
from specctl.policy.loader import parse_policy
from specctl.types import BucketChoice, BucketForecast, CandidateForecast, Reason

WEIGHING = "kind: goodput"
WEIGHS = parse_policy(WEIGHING, "p")


def forecast(wanted: float, *, is_active: bool = True) -> BucketForecast:
    """Of which the policy wants ``wanted``: a token a second, and as many seconds for one more token."""
    candidates = tuple(
        CandidateForecast(number, 1.0 + wanted * number, 1.0, 0.0, 1.0, verified_tokens=1.0 + number)
        for number in range(3)
    )
    return BucketForecast(1, 4, 1.0, 2, candidates, is_active, False, 100.0)


CHOICE = BucketChoice(1, 4, 2, 2, Reason.NO_BETTER, is_active=True)


def chosen(
    wanted: float,
    now: float | None,
    configured: float | None = 0.1,
    policy: Policy = WEIGHS,
    *,
    is_active: bool = True,
) -> float | None:
    present: dict[int, Setting] = {4: (2, now)}
    wishes = mean_wishes({}, [CHOICE], [forecast(wanted, is_active=is_active)], policy, 1.0)
    found = with_least_chances([CHOICE], wishes, present, configured, policy)
    assert found[0]._replace(min_token_prob=None) == CHOICE
    return found[0].min_token_prob


@pytest.mark.parametrize(
    ("wanted", "now", "expected"),
    [
        (0.1, None, None),
        (0.19, None, None),
        (0.21, None, 0.2),
        (0.3, 0.2, 0.2),
        (0.41, 0.2, 0.4),
        (0.11, 0.2, 0.2),
        (0.09, 0.2, None),
        (0.9, 0.4, 0.4),
        (1.0, None, 0.4),
        (0.001, None, 0.0),
        (0.04, 0.0, 0.0),
        (0.06, 0.0, None),
        (0.04, None, 0.05),
    ],
)
def test_steps_that_noise_does_not_shake(wanted: float, now: float | None, expected: float | None) -> None:
    assert chosen(wanted, now) == expected


def test_a_server_without_one_configured_verifies_everything_until_told() -> None:
    assert chosen(0.04, None, configured=0.0) is None
    assert chosen(0.06, None, configured=0.0) == 0.05


def in_turn(*wanted: float) -> list[float | None]:
    """What is in force after each look, a second apart."""
    wishes, now, told = {}, None, []
    for wish in wanted:
        wishes = mean_wishes(wishes, [CHOICE], [forecast(wish)], WEIGHS, 1.0)
        now = with_least_chances([CHOICE], wishes, {4: (2, now)}, 0.1, WEIGHS)[0].min_token_prob
        told.append(now)
    return told


def test_a_moment_of_other_text_changes_nothing() -> None:
    """Each answer begins with tokens that nobody could guess, which a second of work does not pay for."""
    assert in_turn(*[0.4, 0.4, 0.4, 0.4, 0.1] * 12) == [0.4] * 60


def test_a_change_that_lasts_is_followed_within_half_a_minute() -> None:
    told = in_turn(*[0.4] * 20, *[0.05] * 30)
    assert told[19] == 0.4
    assert told[24] == 0.4
    assert told[-1] is None


def test_what_is_not_known_now_or_has_no_traffic_keeps_its_mean() -> None:
    unknown = forecast(0.4)._replace(candidates=())
    for one in (unknown, forecast(0.01, is_active=False)):
        assert mean_wishes({4: 0.3}, [CHOICE], [one], WEIGHS, 1.0) == {4: 0.3}


def test_an_interval_that_was_not_measured_adds_nothing() -> None:
    assert mean_wishes({4: 0.3}, [CHOICE], [forecast(0.01)], WEIGHS, None) == {4: 0.3}


def test_who_keeps_what_is_there() -> None:
    assert chosen(0.4, 0.05, is_active=False) == 0.05
    assert chosen(0.4, None, configured=None) is None
    assert chosen(0.4, 0.2, policy=parse_policy("kind: goodput\nmarginal_gain: false", "p")) is None


def test_neighbours_with_another_chance_are_rows_of_their_own() -> None:
    choices = (
        CHOICE,
        CHOICE._replace(decode_batch_from=5, decode_batch_to=8, min_token_prob=0.2),
        CHOICE._replace(decode_batch_from=9, decode_batch_to=16, min_token_prob=0.2),
    )
    rows = merged_rows(choices)
    assert [(row.decode_batch_from, row.decode_batch_to, row.min_token_prob) for row in rows] == [
        (1, 4, None),
        (5, None, 0.2),
    ]


def test_it_reaches_the_engine_with_its_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="specctl")
    audit = tmp_path / "audit.jsonl"

    async def course() -> Rig:
        rig = Rig(engine, policy=WEIGHING, audit=audit)
        await rig.run(20)
        await rig.client.close()
        return rig

    # Ten times as dear as it is here: verifying one token takes as long as a third of a step.
    with FakeEngine(traffic=COPYING, start_tokens=8, min_token_prob=0.0) as engine:
        rig = asyncio.run(course())
        row = next(row for row in engine.rows if row.decode_batch_from == 1)
    assert row.min_token_prob in (0.05, 0.1, 0.2, 0.4)
    told = records(audit, "min_token_prob")
    assert 1 <= len(told) <= 3
    assert "up to 1 decoding as configured ->" in told[0]["explanation"]
    assert told[0]["explanation"] in caplog.text
    labels = {"target": engine.url, "decode_batch_to": "1"}
    assert rig.metric("specctl_min_token_prob_ratio", **labels) == row.min_token_prob


def test_a_server_that_drops_it_is_found_out(caplog: pytest.LogCaptureFixture) -> None:
    def without(body: bytes) -> bytes:
        table: dict[str, Any] = json.loads(body)
        for row in table.get("rows", ()):
            row["min_token_prob"] = None
        return json.dumps(table).encode()

    async def course() -> None:
        rig = Rig(engine, policy=WEIGHING)
        await rig.run(20)
        await rig.client.close()

    with FakeEngine(traffic=COPYING, start_tokens=8, min_token_prob=0.0) as engine:
        engine.mangle["/specctl/v1/table"] = without
        asyncio.run(course())
    assert "the engine applied another table than asked" in caplog.text


def test_nothing_is_asked_of_a_server_that_cannot() -> None:
    async def course() -> None:
        rig = Rig(engine, policy=WEIGHING)
        await rig.run(12)
        await rig.client.close()

    with FakeEngine(traffic=COPYING, start_tokens=8) as engine:
        asyncio.run(course())
        assert engine.puts
        assert all(row.min_token_prob is None for put in engine.puts for row in put.rows)


def test_frozen_it_stays(tmp_path: Path) -> None:
    async def course() -> None:
        async with Group([engine], WEIGHING, tmp_path / "audit.jsonl") as group:
            await group.run(12)
            rows = engine.rows
            assert any(row.min_token_prob is not None for row in rows)
            group.source.policy = parse_policy(f"{WEIGHING}\nfrozen: true", "p")
            await group.run(20)
            assert engine.rows == rows

    with FakeEngine(traffic=COPYING, start_tokens=8, min_token_prob=0.0) as engine:
        asyncio.run(course())


def test_an_older_engine_hears_nothing_of_it() -> None:
    """It refuses keys that it does not know."""
    from specctl.actuate.http import _left_out
    from specctl.contract.table import TablePut

    rows = (
        TableRow(decode_batch_from=1, decode_batch_to=2, num_speculative_tokens=3, min_token_prob=0.2),
        TableRow(decode_batch_from=3, num_speculative_tokens=1),
    )
    put = TablePut(base_version=0, rows=rows, fallback_num_speculative_tokens=0, owner="me")
    sent = json.loads(put.model_dump_json(exclude=_left_out(put)))
    assert "class_limits" not in sent
    assert sent["rows"][0]["min_token_prob"] == 0.2
    assert "min_token_prob" not in sent["rows"][1]
    assert TablePut.model_validate_json(json.dumps(sent)) == put


def test_only_an_engine_that_knows_chances_takes_it() -> None:
    from specctl.contract.table import SpeculationTable
    from specctl.errors import TableError

    with FakeEngine(min_token_prob=0.1) as engine:
        able = engine.capabilities()
    unable: Capabilities = able.model_copy(update={"min_token_prob": None})
    rows = tuple(row.model_copy(update={"min_token_prob": 0.3}) for row in uniform_rows(2))
    assert SpeculationTable(rows, able).lookup_row(1).min_token_prob == 0.3
    with pytest.raises(TableError, match="cannot be chosen by their chances"):
        SpeculationTable(rows, unable)
