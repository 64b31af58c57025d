"""What traffic classes gained between two readings."""

from __future__ import annotations

import pytest
from observe.test_counters import telemetry

from specctl.contract.classes import TrafficClass
from specctl.contract.telemetry import Telemetry
from specctl.observe.counters import class_deltas


def one(kind: str = "code", steps: int = 10, decoding: int = 2, **counts: object) -> TrafficClass:
    return TrafficClass.model_validate(
        {
            "namespace": "",
            "kind": kind,
            "context_to_tokens": 1024,
            "decoding": decoding,
            "request_steps": steps,
            "watched_at": (steps, steps),
            "drafted_at": (steps, steps),
            "reached_at": (steps, steps - 2),
            "accepted_at": (steps - 2, steps - 4),
            **counts,
        }
    )


def told(*classes: TrafficClass, boot_id: str = "a") -> Telemetry:
    return telemetry(boot_id).model_copy(update={"classes": classes})


def test_gain_of_a_class() -> None:
    (delta,) = class_deltas(told(one()), told(one(steps=15, decoding=3))) or ()
    assert (delta.key.kind, delta.decoding, delta.request_steps) == ("code", 3, 5)
    assert (delta.watched_at, delta.reached_at, delta.accepted_at) == ((5, 5), (5, 5), (5, 5))


def test_a_plugin_that_tells_no_classes() -> None:
    assert telemetry().classes is None
    assert class_deltas(telemetry(), told(one())) is None
    assert class_deltas(told(one()), telemetry()) is None
    assert class_deltas(told(one()), told(one(), boot_id="b")) is None


def test_classes_come_and_go() -> None:
    deltas = class_deltas(told(one("code"), one("chat")), told(one("chat", decoding=0), one("new")))
    assert deltas is not None
    assert [(delta.key.kind, delta.request_steps) for delta in deltas] == [("new", 10)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": 9},
        {"steps": 15, "accepted_at": (40, 0)},
        {"steps": 15, "watched_at": (99, 99)},
        {"steps": 15, "watched_at": (15, 15, 15)},
    ],
    ids=["fell", "accepted more than reached", "watched more than happened", "lengths"],
)
def test_a_class_that_cannot_be_is_left_out_alone(wrong: dict[str, object]) -> None:
    after = told(one("code", **wrong), one("chat", steps=12))  # type: ignore[arg-type]
    deltas = class_deltas(told(one("code"), one("chat")), after)
    assert deltas is not None
    assert [delta.key.kind for delta in deltas] == ["chat"]
