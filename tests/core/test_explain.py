"""Plans in plain words, and the words themselves."""

from __future__ import annotations

import numpy as np
import pytest
from fakes.observations import chains, tree

from specctl.contract.classes import ClassLimit
from specctl.contract.setting import RowSample, Setting
from specctl.contract.table import TableRow, uniform_rows
from specctl.core import explain as words_of
from specctl.core.explain import choice_words, class_limits_words, explain, table_changes
from specctl.core.messages import Choice, Plan, Reason, knobs_moved, setting_words

OFF, ONE, EIGHT = chains(0, 1, 8)
GAIN = Choice(1, 1, OFF, EIGHT, Reason.GAIN, is_active=True, predicted_tokens_per_s=41.2,
              present_tokens_per_s=17.3, off_tokens_per_s=17.3)  # fmt: skip


def test_a_change_as_a_line_of_the_log() -> None:
    survival = np.array([0.82, 0.79, 0.77, 0.76, 0.7])
    assert explain([GAIN], survival) == (
        "batch 1: off -> 8 tokens, predicted 41 tok/s instead of 17 (acceptance 0.82/0.79/0.77/0.76/...)"
    )


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        (GAIN._replace(after=ONE, before=EIGHT, reason=Reason.LATENCY_BOUND, detail="bound broken"),
         "batch 1: 8 tokens -> 1 token, predicted 41 tok/s instead of 17, latency bound: bound broken"),
        (GAIN._replace(before=EIGHT, after=ONE, gain=0.034, predicted_tokens_per_s=38.0,
                       present_tokens_per_s=41.0),
         "batch 1: 8 tokens -> 1 token, predicted 38 tok/s instead of 41 without prompts in the step, +3.4% "
         "with them"),
        (GAIN._replace(before=ONE, after=ONE.model_copy(update={"min_token_prob": 0.2}),
                       reason=Reason.BREAK_EVEN, detail="probability 0.17"),
         "batch 1: 1 token -> 1 token, probability >= 0.2, break-even of a drafted token: "
         "probability 0.17"),
        (Choice(3, 4, ONE, ONE, Reason.DWELL, "changed less than 2 s ago", True, present_tokens_per_s=9.87,
                off_tokens_per_s=5.0),
         "batch 3-4: stays at 1 token, too soon after the last change, predicted 9.9 tok/s, off 5.0: "
         "changed less than 2 s ago"),
        (Choice(1, 1, OFF, OFF, Reason.NO_BETTER, is_active=True, present_tokens_per_s=12.0,
                off_tokens_per_s=12.0),
         "batch 1: stays at off, nothing is better, predicted 12 tok/s"),
        (Choice(1, 1, OFF, OFF, Reason.COST_UNKNOWN, is_active=True),
         "batch 1: stays at off, the cost of a step is not known yet"),
    ],
)  # fmt: skip
def test_a_choice_in_words(choice: Choice, words: str) -> None:
    assert choice_words(choice) == words


def test_every_reason_of_a_choice_has_words() -> None:
    of_plans = {
        Reason.IDLE, Reason.NOT_MEASURED, Reason.NOT_CONTROLLABLE, Reason.RECOMMENDATION, Reason.GAIN,
    }  # fmt: skip
    assert set(words_of._KEPT) == set(Reason) - of_plans


def test_busy_buckets_are_named_and_the_others_counted() -> None:
    idle = [GAIN._replace(first=bucket, last=bucket, is_active=False) for bucket in (2, 3)]
    assert explain([*idle, GAIN], None).endswith("instead of 17; 2 buckets without traffic follow")
    assert explain([idle[0], GAIN], None).endswith("; 1 bucket without traffic follows")
    stays = Choice(4, 4, ONE, ONE, Reason.NO_BETTER, is_active=True)
    assert "batch 4" not in explain([GAIN, stays], None), "what changes is what is said"
    assert explain([idle[0]._replace(after=OFF)], None) == "no traffic, nothing to change"


def test_changes_of_a_table_are_all_of_its_settings() -> None:
    long = TableRow(decode_batch_from=1, context_from_tokens=1000, num_speculative_tokens=1)
    before = (TableRow(decode_batch_from=1, context_to_tokens=999, num_speculative_tokens=4), long)
    after = (before[0], long.model_copy(update={"min_token_prob": 0.2}))
    assert table_changes(before, after) == (
        "batch 1 on: 1 token -> 1 token, probability >= 0.2 from context 1000",
    )
    assert table_changes(before, before) == ()
    split = (
        TableRow(decode_batch_from=1, decode_batch_to=2, num_speculative_tokens=1),
        TableRow(decode_batch_from=3, decode_batch_to=4, num_speculative_tokens=0),
        TableRow(decode_batch_from=5, num_speculative_tokens=1),
    )
    assert table_changes(uniform_rows(0), split) == ("batch 1, 5 on: off -> 1 token",)


def test_the_same_settings_in_other_rows_are_no_change() -> None:
    halves = (
        TableRow(decode_batch_from=1, decode_batch_to=2, num_speculative_tokens=4),
        TableRow(decode_batch_from=3, num_speculative_tokens=4, sample=RowSample(setting=OFF, every_steps=9)),
    )
    assert table_changes(uniform_rows(4), halves) == ()


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (OFF, "off"),
        (Setting(num_speculative_tokens=0, min_token_prob=0.2), "off"),
        (chains(5)[0], "5 tokens"),
        (tree(5, 3, 8), "5 tokens, top-k 3, width 8"),
        (Setting(num_speculative_tokens=8, min_token_prob=0.2), "8 tokens, probability >= 0.2"),
    ],
)
def test_a_setting_in_words(setting: Setting, words: str) -> None:
    assert setting_words(setting) == words


def test_rules_for_classes_in_words() -> None:
    limits = (ClassLimit(kind="chat", max_num_speculative_tokens=0),)
    assert class_limits_words(limits) == "kind chat: at most 0 tokens"
    assert class_limits_words(()) == "none"


def test_which_knobs_moved() -> None:
    assert knobs_moved(tree(5, 3, 8), tree(5, 3, 8)) == ()
    assert knobs_moved(tree(5, 3, 8), tree(4, 3, 16)) == ("num_speculative_tokens", "verify_width_tokens")


def test_a_plan_is_felt_where_a_running_batch_meets_its_change() -> None:
    plan = Plan("t", 0.0, Reason.GAIN, "", choices=(GAIN,), changes=("batch 1 on: off -> 8 tokens",))
    assert (plan.is_change, plan.is_felt, plan.changed) == (True, True, (GAIN,))
    idle = Plan("t", 0.0, Reason.GAIN, "", choices=(GAIN._replace(is_active=False),), changes=plan.changes)
    assert (idle.is_change, idle.is_felt) == (True, False)
    assert not Plan("t", 0.0, Reason.IDLE, "").is_change
