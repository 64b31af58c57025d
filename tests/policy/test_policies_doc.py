"""docs/policies.md names every key that a policy may have, and its examples are policies."""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path

import pytest

from specctl.contract.classes import ClassLimit
from specctl.core.settings import (
    GuardRailSettings,
    Knobs,
    PolicySettings,
    RolloutSettings,
    SamplingSettings,
)
from specctl.policy.loader import parse_policy
from specctl.policy.models import (
    CostPolicy,
    FixedPolicy,
    GoodputPolicy,
    OffPolicy,
    SloPolicy,
    Threshold,
    ThresholdsPolicy,
)

DOCS = Path(__file__).resolve().parents[2] / "docs"
TEXT = (DOCS / "policies.md").read_text()
GROUPS = (DOCS / "groups.md").read_text()


def examples(text: str) -> list[str]:
    """Indented blocks of YAML that could stand in a policy."""
    blocks = (
        "".join(line[4:] + "\n" for line in lines)
        for is_code, lines in groupby(text.splitlines(), lambda line: line.startswith("    "))
        if is_code
    )
    keys = {*PolicySettings.model_fields, "kind"}
    return [
        block
        for block in blocks
        if re.match(r"(\w+):", block) and block.split(":")[0] in keys and "kind: Role" not in block
    ]


def table_row(name: str) -> list[str]:
    line = next(line for line in TEXT.splitlines() if line.startswith("| ") and f"`{name}`" in line)
    return [part.strip() for part in line.strip("|").split("|")]


@pytest.mark.parametrize(
    "model", [PolicySettings, Knobs, GuardRailSettings, SamplingSettings, ClassLimit, CostPolicy, SloPolicy,
              ThresholdsPolicy, GoodputPolicy]
)  # fmt: skip
def test_every_key_is_documented(model: type) -> None:
    names = set(model.model_fields) - {"name"}  # type: ignore[attr-defined]
    missing = {name for name in names if not re.search(rf"[`.]{name}\b|\b{name}:|    .*\b{name}\b", TEXT)}
    assert missing <= {"guard_rails", "thresholds"}, "keys that hold others are shown by those"


def test_the_keys_of_a_rollout_are_in_the_document_of_groups() -> None:
    assert all(name in GROUPS for name in RolloutSettings.model_fields)


@pytest.mark.parametrize("model", [FixedPolicy, OffPolicy, Threshold])
def test_policies_by_hand_have_no_keys_of_their_own_but_those_of_a_setting(model: type) -> None:
    own = set(model.model_fields) - set(PolicySettings.model_fields)  # type: ignore[attr-defined]
    setting = {"num_speculative_tokens", "tree_topk", "verify_width_tokens", "min_token_prob"}
    assert own <= {*setting, "kind", "decode_batch_to"}


def test_there_are_examples() -> None:
    assert len(examples(TEXT)) == 2
    assert len(examples(GROUPS)) == 1


@pytest.mark.parametrize("example", [*examples(TEXT), *examples(GROUPS)])
def test_the_examples_are_policies(example: str) -> None:
    parse_policy(example if "kind: goodput" in example else f"kind: goodput\n{example}", "example")


def test_the_default_of_a_rule_is_the_documented_one() -> None:
    rule = ClassLimit(max_num_speculative_tokens=0)
    for name in ("namespace", "kind"):
        row = next(line for line in TEXT.splitlines() if line.startswith(f"| `{name}` |"))
        assert row.endswith(f'| `"{getattr(rule, name)}"` |')


def test_the_defaults_of_the_guard_rails_are_the_documented_ones() -> None:
    rails = GuardRailSettings()
    for name in GuardRailSettings.model_fields:
        keys, _, defaults = table_row(name)
        at = re.findall(r"`(\w+)`", keys).index(name)
        assert float(defaults.split(", ")[at]) == getattr(rails, name)


def test_the_default_of_the_sampling_share_is_the_documented_one() -> None:
    assert f"`sampling.share_max_ratio` ({SamplingSettings().share_max_ratio:g})" in TEXT
