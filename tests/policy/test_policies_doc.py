"""docs/policies.md names every key that a policy may have."""

from __future__ import annotations

from pathlib import Path

import pytest

from specctl.contract.classes import ClassLimit
from specctl.policy.settings import ExplorationSettings, GuardRailSettings, PolicySettings, RolloutSettings

TEXT = (Path(__file__).resolve().parents[2] / "docs/policies.md").read_text()
# The table of guard rails writes the two bounds as one row.
SHORTENED = {"num_speculative_tokens_max": "`num_speculative_tokens_min`, `_max`"}


@pytest.mark.parametrize(
    "model", [PolicySettings, GuardRailSettings, ExplorationSettings, RolloutSettings, ClassLimit]
)
def test_every_key_is_documented(model: type) -> None:
    names = [name for name in model.model_fields if name != "name"]  # type: ignore[attr-defined]
    missing = [name for name in names if f"`{name}" not in TEXT and SHORTENED.get(name, "-") not in TEXT]
    # Keys that hold others are told by those.
    assert set(missing) <= {"guard_rails", "exploration"}


def test_the_default_of_a_rule_is_the_documented_one() -> None:
    rule = ClassLimit(max_num_speculative_tokens=0)
    for name in ("namespace", "kind"):
        row = next(line for line in TEXT.splitlines() if line.startswith(f"| `{name}` |"))
        assert row.endswith(f'| `"{getattr(rule, name)}"` |')
