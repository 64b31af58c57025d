"""Traffic classes of a simulated engine."""

from __future__ import annotations

import numpy as np
import pytest
from simulate.made import trace_of

from specctl.engine_profile import EngineProfile
from specctl.policy.loader import parse_policy
from specctl.simulate.daemon import Autotune, ClassesTold
from specctl.simulate.engine import SimulatedEngine
from specctl.simulate.scenario import Scenario

MIXED = Scenario.model_validate(
    {
        "name": "made",
        "repeat_s": 10.0,
        "classes": [
            {"name": "code", "share": 0.5, "points": [{"from_s": 0, "conditional_at": [1.0]}]},
            {"name": "chat", "share": 0.5, "points": [{"from_s": 0, "conditional_at": [0.0]}]},
        ],
        "mix": [{"from_s": 0, "shares": [1.0, 0.0]}, {"from_s": 5, "shares": [0.0, 1.0]}],
    }
)


def test_the_mix_follows_the_arrivals() -> None:
    shares, rows = MIXED.shares_at(np.array([0.0, 4.9, 5.0, 12.0, 17.0]))
    assert shares[rows].tolist() == [[1, 0], [1, 0], [0, 1], [1, 0], [0, 1]]
    assert MIXED.scaled(2.0).mix[1].from_s == 2.5


@pytest.mark.parametrize(
    "mix", [[{"from_s": 0, "shares": [1.0]}], [{"from_s": 1, "shares": [1.0, 0.0]}]], ids=["one", "late"]
)
def test_a_wrong_mix_is_refused(mix: list[dict[str, object]]) -> None:
    with pytest.raises(ValueError, match="mix: expected"):
        Scenario.model_validate({**MIXED.model_dump(), "mix": mix})


@pytest.mark.parametrize(
    ("classes", "kinds"), [("none", None), ("contexts", {""}), ("kinds", {"code", "chat"})]
)
def test_classes_are_told_as_the_plugin_tells_them(
    h200: EngineProfile, classes: ClassesTold, kinds: set[str] | None
) -> None:
    arm = Autotune("ours", parse_policy("kind: fixed\nnum_speculative_tokens: 3", "test"), classes=classes)
    trace = trace_of([0.0, 0.0, 5.5, 5.5], 900, 2000)
    engine = SimulatedEngine(trace, h200, MIXED, seed=0, log_steps=arm.log_steps)
    arm.start(engine)
    while not engine.is_done:
        arm.run(engine.now_s + 1.0)
    if arm.classes is None:
        assert kinds is None
        return
    told = arm.classes.counters.told(is_idle=False)
    assert {one.kind for one in told} == kinds
    assert {one.context_to_tokens for one in told} == {1024, 4096}
    for one in told:
        if one.kind:
            shares = {
                accepted / reached
                for accepted, reached in zip(one.accepted_at, one.reached_at, strict=True)
                if reached
            }
            assert shares == {1.0 if one.kind == "code" else 0.0}
