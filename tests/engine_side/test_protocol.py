"""Leases, versions, two daemons and a crash at every point: every course up to a length, on the real table.

A small model says what must be in force after each action. Courses that led to the same state are followed
once.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace

import pytest

from specctl.contract.capabilities import Capabilities
from specctl.contract.table import AppliedTable, TablePut, TableState, uniform_rows
from specctl.engine.live_table import LiveTable
from specctl.engine.ranks import Adoption
from specctl.errors import LeaseHeld, VersionConflict

START, FALLBACK, LEASE_S, ACTIONS_MAX = 4, 1, 2.0, 8
NUMBERS = {"a": 2, "b": 3, "rank": 0}
CAPABILITIES = Capabilities(
    contract_version=1, engine="e", engine_version="0", plugin_version="0", boot_id="b", model="m",
    method="ngram", controllable=True, num_speculative_tokens_legal=(0, 1, 2, 3, 4), decode_batch_max=8,
    context_max_tokens=4096, decode_batch_buckets=(1, 8), rows_max=8, lease_max_s=60.0,
    has_shadow_acceptance=False,
)  # fmt: skip
Action = tuple[str, str]
ACTIONS: tuple[Action, ...] = (
    ("tick", ""),
    *((kind, who) for kind in ("read", "put", "put for ever", "stop", "crash") for who in ("a", "b")),
    ("adopt", "rank"),
    ("adopt late", "rank"),
)


@dataclass(frozen=True)
class Model:
    """What must be in force. ``left_s``: of the lease, None without one. ``known``: each daemon's version."""

    version: int = 0
    state: TableState = TableState.START
    number: int = START
    owner: str | None = None
    left_s: float | None = None
    known: tuple[int | None, int | None] = (None, None)
    decided: int = 0

    def after(self, action: Action) -> Model:
        kind, who = action
        if kind == "tick":
            return self._ticked()
        if kind == "adopt":
            return self._taken(who, LEASE_S, decided=self.version + 1)
        if kind == "adopt late":
            return self
        at = "ab".index(who)
        known = self.known[at]
        if kind == "read":
            return self._knows(at, self.version)
        if kind == "crash":
            return self._knows(at, None)
        is_taken = known == self.version and (self.left_s is None or self.owner == who)
        if not is_taken:
            return self
        taken = self._taken(who, LEASE_S if kind == "put" else None, decided=self.decided)
        return taken._knows(at, None if kind == "stop" else taken.version)

    def _ticked(self) -> Model:
        left_s = None if self.left_s is None else self.left_s - 1.0
        if left_s is None or left_s > 0:
            return replace(self, left_s=left_s)
        return replace(self, state=TableState.FALLBACK, number=FALLBACK, owner=None, left_s=None)

    def _taken(self, who: str, lease_s: float | None, decided: int) -> Model:
        return replace(
            self,
            version=self.version + 1,
            state=TableState.LIVE,
            number=NUMBERS[who],
            owner=who,
            left_s=lease_s,
            decided=decided,
        )

    def _knows(self, at: int, version: int | None) -> Model:
        return replace(self, known=(version, self.known[1]) if at == 0 else (self.known[0], version))


class Real:
    """The table of a server, and two daemons that know what they read last."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.table = LiveTable(CAPABILITIES, uniform_rows(START), lambda: self.now_s)

    def act(self, action: Action, before: Model) -> None:
        kind, who = action
        if kind == "tick":
            self.now_s += 1.0
        elif kind.startswith("adopt"):
            version = before.version + 1 if kind == "adopt" else min(before.decided, before.version)
            change = self._change(who, LEASE_S, 0)
            if version:
                self.table.adopt(Adoption(decider="rank", version=version, change=change))
        elif kind not in ("read", "crash"):
            known = before.known["ab".index(who)]
            if known is not None:
                self.table.put(self._change(who, LEASE_S if kind == "put" else None, known))

    @staticmethod
    def _change(who: str, lease_s: float | None, version: int) -> TablePut:
        return TablePut(
            base_version=version,
            rows=uniform_rows(NUMBERS[who]),
            lease_s=lease_s,
            fallback_num_speculative_tokens=FALLBACK,
            owner=who,
        )

    def seen(self) -> AppliedTable:
        return self.table.read()


def check(course: tuple[Action, ...]) -> Model:
    """The model's state after a course, with the real table compared after each action."""
    real, model = Real(), Model()
    for action in course:
        before, model = model, model.after(action)
        try:
            real.act(action, before)
        except (LeaseHeld, VersionConflict):
            assert model == before, course
        seen = real.seen()
        found = (seen.version, seen.state, real.table.lookup(1), seen.owner, seen.lease_remaining_s)
        assert found == astuple(model)[:5], course
        assert seen.version >= before.version, course
    return model


def test_every_course_of_two_daemons() -> None:
    known: set[Model] = {Model()}
    courses: list[tuple[Action, ...]] = [()]
    for _ in range(ACTIONS_MAX):
        following = []
        for course in courses:
            for action in ACTIONS:
                model = check((*course, action))
                if model not in known:
                    known.add(model)
                    following.append((*course, action))
        courses = following
    assert len(known) > 1000


@pytest.mark.parametrize("crashes_after", range(4))
def test_a_daemon_that_dies_is_followed_by_the_fallback_within_its_lease(crashes_after: int) -> None:
    renewals = [("put", "a"), ("tick", "")] * crashes_after
    model = check((("read", "a"), *renewals, ("crash", "a"), ("tick", ""), ("tick", "")))
    assert (model.state, model.number) == (
        (TableState.FALLBACK, FALLBACK) if crashes_after else (TableState.START, START)
    )
