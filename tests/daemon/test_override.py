"""What an operator sets over a policy file."""

from __future__ import annotations

import pytest
from fakes.rig import Source

from specctl.daemon.override import Override
from specctl.errors import PolicyError
from specctl.policy.loader import parse_policy
from specctl.policy.models import Threshold
from specctl.watch.views import Mode

FILE = """
kind: goodput
name: ours
lease_s: 30
on_stop: keep
knobs: {num_speculative_tokens: {min: 2, max: 6}}
"""
ROWS = (
    Threshold(num_speculative_tokens=6, decode_batch_to=4),
    Threshold(num_speculative_tokens=2, decode_batch_to=None),
)


@pytest.fixture
def source() -> Source:
    return Source(parse_policy(FILE, "p"))


def test_until_something_is_set_the_file_holds(source: Source) -> None:
    override = Override(source)
    assert override.policy is source.policy
    override.set(Mode.OFF)
    override.set(Mode.POLICY)
    assert override.policy is source.policy


def test_timing_and_bounds_stay_the_files(source: Source) -> None:
    override = Override(source)
    override.set(Mode.FREEZE)
    assert override.policy.frozen
    override.set(Mode.TABLE, ROWS)
    policy = override.policy
    assert (policy.kind, policy.name, policy.lease_s, policy.on_stop) == ("thresholds", "ours", 30, "keep")
    with pytest.raises(PolicyError, match="outside knobs"):
        override.set(Mode.TABLE, (Threshold(num_speculative_tokens=8, decode_batch_to=None),))
    assert override.policy is policy, "a refusal changes nothing"
    override.set(Mode.OFF)
    assert (override.policy.kind, override.policy.fallback_num_speculative_tokens) == ("off", 0)


def test_a_file_that_changes_is_followed(source: Source) -> None:
    override = Override(source)
    override.set(Mode.TABLE, ROWS)
    source.policy = parse_policy(FILE.replace("30", "20"), "p")
    assert (override.policy.kind, override.policy.lease_s) == ("thresholds", 20)
    source.policy = parse_policy(FILE.replace("max: 6", "max: 4"), "p")
    assert override.policy is source.policy, "the table is outside the bounds now"


def test_a_frozen_file_is_not_thawed_from_here(source: Source) -> None:
    source.policy = parse_policy(FILE + "frozen: true\n", "p")
    override = Override(source)
    for mode in (Mode.OFF, Mode.TABLE):
        with pytest.raises(PolicyError, match="frozen"):
            override.set(mode, ROWS)
