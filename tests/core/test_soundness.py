"""Acceptance that sound drafts do not have: each cause, and what is ordinary."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from fakes.observations import capabilities, cell, observation

from specctl.contract.telemetry import SelfChecks
from specctl.core.soundness import BLOCK_DRAFTS, BLOCK_S, Cause, Soundness, near_zero
from specctl.types import Observation, StockDelta

K = 4


def poll(
    acceptance: float, method: str = "eagle3", boot: str = "a", drafts: int = 400, model: str = "m"
) -> Observation:
    """A second in which each drafted token is accepted with this chance, once those before it were."""
    rng = random.Random(f"{acceptance} {boot} {drafts}")
    accepted_at, reached = [], drafts
    for _ in range(K):
        reached = sum(rng.random() < acceptance for _ in range(reached))
        accepted_at.append(reached)
    engine_capabilities = capabilities().model_copy(
        update={"method": method, "boot_id": boot, "model": model}
    )
    counted = cell(steps=drafts, tokens=K, accepted_at=tuple(accepted_at))
    return observation(counted, capabilities=engine_capabilities)


def watch(soundness: Soundness, *polls: Observation) -> list[Cause | None]:
    """The cause after each change of it."""
    return [
        None if soundness.fault is None else soundness.fault.cause for one in polls if soundness.update(one)
    ]


@pytest.mark.parametrize(
    ("method", "acceptance", "cause"),
    [
        ("eagle3", 0.01, Cause.WRONG_HEAD),
        ("EAGLE3", 0.01, Cause.WRONG_HEAD),
        ("qwen3_next_mtp", 0.01, Cause.WRONG_HEAD),
        ("draft_model", 0.01, Cause.WRONG_HEAD),
        ("eagle3", 0.0, Cause.WRONG_VOCABULARY),
        ("draft_model", 0.0, Cause.WRONG_VOCABULARY),
        ("specctl_suffix", 0.0, Cause.NO_REPEATS),
        ("ngram", 0.01, Cause.NO_REPEATS),
        ("specctl_suffix", 1.0, Cause.LOOP),
        ("eagle3", 1.0, Cause.LOOP),
    ],
)
def test_causes(method: str, acceptance: float, cause: Cause) -> None:
    soundness = Soundness()
    assert watch(soundness, *[poll(acceptance, method)] * 30) == [cause]
    assert soundness.fault is not None
    assert soundness.fault.ratio == pytest.approx(acceptance, abs=0.005)
    if cause is Cause.WRONG_HEAD:
        assert near_zero(method.lower()).what in soundness.fault.words


def test_sound_again() -> None:
    soundness = Soundness()
    polls = [*[poll(1.0)] * 20, *[poll(0.6)] * 30]
    assert watch(soundness, *polls) == [Cause.LOOP, None]


@pytest.mark.parametrize("method", ["eagle3", "specctl_suffix", "draft_model", "specctl_hybrid"])
def test_ordinary_traffic(method: str) -> None:
    """Any acceptance from 0.05 to 0.95, gaps in the traffic, and restarts with the same acceptance."""
    rng = random.Random(1)
    for acceptance in (0.05, 0.1, 0.3, 0.6, 0.8, 0.95):
        soundness = Soundness()
        for minute in range(20):
            boot = f"{minute // 5}"
            for _ in range(60):
                drafts = rng.choice((0, 1, 3, 400))
                assert not soundness.update(poll(acceptance, method, boot, drafts))


def test_a_burst_is_no_fault() -> None:
    """Thousands of tokens of one batch within a second: the block goes on with the next traffic."""
    soundness = Soundness()
    polls = [poll(1.0, drafts=3 * BLOCK_DRAFTS), *[poll(0.5)] * 60]
    assert watch(soundness, *polls) == []


def test_a_block_needs_drafts_and_seconds() -> None:
    soundness = Soundness()
    assert watch(soundness, *[poll(0.0, drafts=BLOCK_DRAFTS)] * int(BLOCK_S - 1)) == []
    assert watch(soundness, poll(0.0, drafts=BLOCK_DRAFTS)) == [Cause.WRONG_VOCABULARY]
    seldom = Soundness()
    assert watch(seldom, *[poll(0.0, drafts=1)] * (BLOCK_DRAFTS - 1)) == []


@pytest.mark.parametrize("after", [0.2, 0.0])
def test_acceptance_falls_with_a_restart(after: float) -> None:
    soundness = Soundness()
    assert watch(soundness, *[poll(0.7)] * 40) == []
    assert watch(soundness, *[poll(after, boot="b")] * 40) == [Cause.BROKEN_CHECKPOINT]
    assert soundness.fault is not None
    assert "71% before the restart" in soundness.fault.words
    # A restart that mends it, and one that does not: still compared with the last sound start.
    assert watch(soundness, *[poll(after, boot="c")] * 40) == [Cause.BROKEN_CHECKPOINT]
    assert watch(soundness, *[poll(0.7, boot="d")] * 40) == []
    assert soundness.fault is None


def test_a_restart_before_the_first_block_forgets_nothing() -> None:
    soundness = Soundness()
    polls = [*[poll(0.7)] * 40, poll(0.2, boot="b"), *[poll(0.2, boot="c")] * 40]
    assert watch(soundness, *polls) == [Cause.BROKEN_CHECKPOINT]


@pytest.mark.parametrize("method", ["specctl_suffix", "ngram", "specctl_hybrid"])
def test_what_a_restart_forgets_is_no_fault(method: str) -> None:
    soundness = Soundness()
    assert watch(soundness, *[poll(0.9, method)] * 40, *[poll(0.3, method, "b")] * 40) == []


def test_another_model_is_not_compared() -> None:
    soundness = Soundness()
    assert watch(soundness, *[poll(0.9)] * 40, *[poll(0.3, boot="b", model="other")] * 40) == []


def test_traffic_that_changes_within_a_start_is_no_fault() -> None:
    soundness = Soundness()
    assert watch(soundness, *[poll(0.9)] * 40, *[poll(0.1)] * 40) == []


def test_a_tree_is_as_deep_as_its_drafts() -> None:
    full = cell(steps=400, tokens=4, accepted_at=(400,) * 4, drafted_at=(400,) * 8, topk=2, width=9)
    soundness = Soundness()
    engine_capabilities = capabilities().model_copy(update={"method": "eagle3"})
    assert watch(soundness, *[observation(full, capabilities=engine_capabilities)] * 20) == [Cause.LOOP]


def stock_polls(accepted: int) -> Iterator[Observation]:
    for _ in range(20):
        yield replace(observation(), cells=None, stock=StockDelta(400, (accepted,) * 3))


def test_a_stock_server() -> None:
    assert watch(Soundness(), *stock_polls(0)) == [Cause.WRONG_VOCABULARY]
    assert watch(Soundness(), *stock_polls(400)) == [Cause.LOOP]
    assert watch(Soundness(), *stock_polls(200)) == []


def test_an_answer_that_differs_without_drafts_stays_a_fault_until_the_engine_restarts() -> None:
    soundness = Soundness()
    sound, differs = SelfChecks(checked=9, identical=9), SelfChecks(checked=10, identical=9, differing=1)
    polls = [replace(poll(0.6), self_checks=checks) for checks in (sound, differs, differs)]
    assert watch(soundness, *polls, *polls[1:] * 15) == [Cause.DIFFERENT_OUTPUT]
    assert soundness.fault is not None
    assert "10.0% of 10 checked answers" in soundness.fault.words
    soundness.update(replace(poll(0.6, boot="b"), self_checks=SelfChecks()))
    assert soundness.fault is None
