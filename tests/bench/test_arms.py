"""Arms as a user writes them, and the order in which they run."""

from __future__ import annotations

from collections import Counter

import pytest

from specctl.bench.arms import ArmKind, baseline_of, chosen_arms, parse_arm
from specctl.bench.order import round_order
from specctl.contract.capabilities import Capabilities
from specctl.contract.setting import Setting
from specctl.errors import BenchArgumentError, BenchInputError, TargetError


def capabilities(**more: object) -> Capabilities:
    known: dict[str, object] = {
        "contract_version": 1,
        "engine": "vllm",
        "engine_version": "0",
        "plugin_version": "0",
        "boot_id": "b",
        "model": "m",
        "method": "specctl_suffix",
        "controllable": True,
        "num_speculative_tokens_legal": (0, 2, 8),
        "decode_batch_max": 8,
        "context_max_tokens": 2048,
        "decode_batch_buckets": (1, 8),
        "rows_max": 8,
        "lease_max_s": 60.0,
        "has_shadow_acceptance": False,
    }
    return Capabilities.model_validate(known | more)


def test_two_arms_run_in_the_order_a_b_b_a() -> None:
    assert ["".join(round_order("AB", i)) for i in range(4)] == ["AB", "BA", "BA", "AB"]


@pytest.mark.parametrize("arms", ["AB", "ABC", "ABCDE"])
def test_each_arm_has_each_place_equally_often(arms: str) -> None:
    places = Counter(
        (place, arm) for i in range(2 * len(arms)) for place, arm in enumerate(round_order(arms, i))
    )
    assert set(places.values()) == {2}
    assert len(places) == len(arms) ** 2


@pytest.mark.parametrize(
    ("text", "name", "setting"),
    [
        ("off", "off", Setting(num_speculative_tokens=0)),
        ("8", "always 8", Setting(num_speculative_tokens=8)),
        (
            "5:3:16",
            "always 5 top-k 3 width 16",
            Setting(num_speculative_tokens=5, tree_topk=3, verify_width_tokens=16),
        ),
    ],
)
def test_settings(text: str, name: str, setting: Setting) -> None:
    arm = parse_arm(text)
    assert (arm.name, arm.kind, arm.setting) == (name, ArmKind.SETTING, setting)


def test_autotune_has_a_policy() -> None:
    assert parse_arm("autotune").policy == "balanced"
    assert parse_arm("autotune:slo").policy == "slo"


@pytest.mark.parametrize("text", ["", "fast", "8:", "-1", "8:0:x", "99999"])
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(BenchArgumentError, match="arm"):
        parse_arm(text)


def test_arms_of_a_steered_server_and_another_as_it_is() -> None:
    arms = chosen_arms(["off", "8"], ["mine", "never enabled"], [capabilities(), None])
    assert [(arm.name, arm.server) for arm in arms] == [("off", 0), ("always 8", 0), ("never enabled", 1)]
    names = [arm.name for arm in chosen_arms([], ["mine"], [capabilities()])]
    assert names == ["off", "table", "autotune"]


@pytest.mark.parametrize(
    ("text", "name"), [(None, "off"), ("off", "off"), ("8", "always 8"), ("always 8", "always 8"), ("b", "b")]
)
def test_the_baseline_is_named_as_an_arm_is(text: str | None, name: str) -> None:
    arms = chosen_arms(["off", "8"], ["mine", "b"], [capabilities(), None])
    assert baseline_of(text, arms) == name


def test_two_plain_servers() -> None:
    assert [arm.kind for arm in chosen_arms([], ["a", "b"], [None, None])] == [ArmKind.AS_IS] * 2


@pytest.mark.parametrize(
    ("texts", "names", "message"),
    [
        (["5"], ["mine"], "has prepared 0, 2, 8"),
        (["off"], ["plain"], "cannot be steered|no target can be steered"),
        ([], ["plain"], "no comparison"),
        (["off", "0"], ["mine"], "same name"),
    ],
)
def test_what_cannot_be_run_is_refused(texts: list[str], names: list[str], message: str) -> None:
    known = [capabilities() if name == "mine" else None for name in names]
    with pytest.raises((BenchInputError, TargetError), match=message):
        chosen_arms(texts, names, known)


def test_a_tree_gets_the_width_that_was_prepared() -> None:
    trees = (
        Setting(num_speculative_tokens=0),
        Setting(num_speculative_tokens=5, tree_topk=3, verify_width_tokens=16),
    )
    with_trees = capabilities(num_speculative_tokens_legal=(0, 5), settings=trees)
    arms = chosen_arms(["off", "5:3"], ["mine"], [with_trees])
    assert arms[1].setting == trees[1]
