"""A trial on one server: what it is judged by."""

from __future__ import annotations

import pytest
from fakes.observations import cell, chains, tree

from specctl.contract.setting import Setting
from specctl.contract.telemetry import TelemetryCell
from specctl.core.canary import EVERY_BUCKET, PATIENCE, Canary, Samples, Verdict, ran
from specctl.core.settings import RolloutSettings

OFF, FOUR = chains(0, 4)
SETTINGS = RolloutSettings(canary_s=10.0, canary_loss_max_ratio=0.05)


def steps(rate: float, tokens: int = 4, *, bucket: int = 1, request_s: float = 10.0) -> TelemetryCell:
    """Of one decoding request at ``rate`` tokens a second."""
    one = cell(decode_batch=1, bucket=(bucket, bucket), tokens=tokens, accepted_at=(0,) * tokens)
    return one.model_copy(update={"emitted_tokens": round(rate * request_s), "step_s": request_s})


def trial(*before: float) -> Canary:
    baseline = Samples()
    for i, rate in enumerate(before or (10.0,) * 5):
        baseline.add(float(i), steps(rate, 0))
    return Canary("t", 100.0, {1: OFF}, {1: FOUR}, {1: baseline})


def verdict(canary: Canary, *after: float, took_s: float | None = None) -> Verdict:
    for i, rate in enumerate(after):
        canary.add(101.0 + i, steps(rate))
    return canary.verdict(100.0 + (len(after) if took_s is None else took_s), SETTINGS)


def test_it_takes_its_seconds_and_then_passes() -> None:
    canary = trial()
    assert verdict(canary, *(10.0,) * 9) is Verdict.RUNNING
    assert verdict(canary, 10.0, took_s=10.0) is Verdict.PASSED


def test_a_loss_beyond_what_is_allowed_is_worse() -> None:
    assert verdict(trial(), *(9.6,) * 10) is Verdict.PASSED
    assert verdict(trial(), *(9.4,) * 10) is Verdict.WORSE


def test_a_loss_within_the_noise_is_none() -> None:
    noisy = (8.0, 12.0, 8.0, 12.0, 8.0)
    assert verdict(trial(*noisy), *(8.0, 11.0) * 5) is Verdict.PASSED
    assert verdict(trial(*noisy), *(5.5, 7.0) * 5) is Verdict.WORSE, "however noisy: a third is too much"


def test_only_what_is_far_too_slow_ends_it_early() -> None:
    assert verdict(trial(), *(9.2,) * 5) is Verdict.RUNNING
    assert verdict(trial(), *(8.0,) * 5) is Verdict.WORSE


def test_few_polls_are_no_ground() -> None:
    assert verdict(trial(), 1.0, 1.0) is Verdict.RUNNING
    assert verdict(trial(), took_s=PATIENCE * 10.0 - 1) is Verdict.RUNNING
    assert verdict(trial(), took_s=PATIENCE * 10.0) is Verdict.NOT_MEASURED
    assert verdict(trial(), took_s=-5.0) is Verdict.NOT_MEASURED, "the clock went back"


def test_steps_of_another_setting_or_bucket_say_nothing_about_it() -> None:
    canary = trial()
    for i in range(9):
        canary.add(101.0 + i, steps(1.0, 2))
        canary.add(101.0 + i, steps(1.0, 4, bucket=8))
    assert canary.judged == ()


def test_rules_for_classes_are_judged_by_all_steps() -> None:
    baseline = Samples()
    for i in range(4):
        baseline.add(float(i), steps(10.0))
    canary = Canary("t", 100.0, {EVERY_BUCKET: OFF}, {EVERY_BUCKET: OFF}, {EVERY_BUCKET: baseline})
    for i in range(4):
        canary.add(101.0 + i, steps(5.0, i, bucket=2**i))
    assert canary.judged == (EVERY_BUCKET,)
    assert canary.verdict(111.0, SETTINGS) is Verdict.WORSE


def test_what_the_audit_log_gets() -> None:
    canary = trial()
    verdict(canary, *(20.0,) * 4)
    assert canary.record() == {
        "from": {"1": "off"},
        "to": {"1": "4 tokens"},
        "before_tokens_per_request_s": {"1": 10.0},
        "after_tokens_per_request_s": {"1": 20.0},
    }
    assert canary.left_ratio(1) == 2.0


def test_tokens_of_a_request_are_not_those_of_the_server() -> None:
    samples = Samples()
    samples.add(
        0.0, cell(decode_batch=4, accepted_at=(0,) * 4, step_s=0.1).model_copy(update={"emitted_tokens": 80})
    )
    assert samples.tokens_per_request_s == pytest.approx(80 / 4)


def test_old_polls_are_forgotten() -> None:
    samples = Samples()
    for i in range(6):
        samples.add(float(i), steps(10.0 + i))
    samples.forget_before(4.0)
    assert not samples.is_enough
    assert samples.tokens_per_request_s == pytest.approx(14.5)
    assert Samples().tokens_per_request_s == 0.0


@pytest.mark.parametrize(
    ("setting", "is_it"),
    [
        (tree(4, 2, 9), True),
        (Setting(num_speculative_tokens=4, tree_topk=2), True),
        (tree(4, 2, 16), False),
        (tree(4, 4, 9), False),
        (FOUR, False),
    ],
)
def test_whether_steps_ran_a_setting(setting: Setting, is_it: bool) -> None:
    assert ran(cell(tokens=4, topk=2, width=9), setting) is is_it
