"""What is known of every target now, and its last minutes. Written by the reporters, read by page and top."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import datetime

from yarl import URL

from specctl.clock import Clock, iso_utc
from specctl.contract.capabilities import Capabilities
from specctl.contract.table import AppliedTable, TableState, legal_settings
from specctl.core.messages import Choice, Plan, setting_words
from specctl.core.supervision import adaptivity_words
from specctl.plain_text import counted
from specctl.types import Observation
from specctl.watch.views import BucketView, LogLine, Mode, Point, TargetDetail, TargetView
from specctl.watch.window import PART_S, WINDOW_S, Interval, Window, of_poll

__all__ = ["STUCK_S", "Board", "TargetBoard", "instance_of"]

POINTS_MAX = 300
"""10 minutes."""
LINES_MAX = 100
STUCK_S = 90.0
"""Longer than the longest wait between two polls, with every request of a poll at its limit of time."""


class TargetBoard:
    """Of one target. Methods are cheap; what is shown is made when it is asked for."""

    def __init__(self, target: str, owner: str, clock: Clock) -> None:
        """``owner``: the daemon's name in leases."""
        self.target = target
        self._owner = owner
        self.window = Window()
        self.mode: Callable[[], Mode] = lambda: Mode.POLICY
        self._clock = clock
        self.ticked_s = clock.now_s()
        """Of the last poll that ended, whatever came of it; before there is one, of the start."""
        self.is_waiting = True
        """No poll has ended yet."""
        self._is_up: bool | None = None
        self._why_down: str | None = None
        self.is_frozen = self.restart_advised = False
        self.unsound: str | None = None
        """What is wrong with the acceptance, in words."""
        self.speedup_vs_off: float | None = None
        self._polled_s: float | None = None
        self._observation: Observation | None = None
        self._capabilities: Capabilities | None = None
        self._applied: AppliedTable | None = None
        self._lease_ends_s: float | None = None
        self._plan: Plan | None = None
        self._choices: tuple[Choice, ...] = ()
        self._decisions: deque[LogLine] = deque(maxlen=LINES_MAX)
        self._events: deque[LogLine] = deque(maxlen=LINES_MAX)
        self._history: deque[Point] = deque(maxlen=POINTS_MAX)
        self._point_s = float("-inf")

    def polled(self, observation: Observation) -> None:
        self._is_up, self._why_down = True, None
        now_s = self._polled_s = self._clock.utc().timestamp()
        self._observation = observation
        self._capabilities = observation.capabilities
        applied = observation.applied
        if applied is not self._applied:
            # The same object is the same reading, whose remaining seconds were counted then.
            remaining_s = None if applied is None else applied.lease_remaining_s
            self._lease_ends_s = None if remaining_s is None else now_s + remaining_s
            self._applied = applied

    def planned(self, plan: Plan) -> None:
        self._plan = plan
        self._choices = plan.choices or self._choices
        observation = self._observation
        if observation is None:
            return
        interval = of_poll(observation, plan.choices)
        if interval is not None:
            part = self.window.add(interval)
        else:
            # There is still a load to show.
            part = Interval() if observation.time_s - self._point_s >= PART_S else None
        if part is not None:
            self._point_s = observation.time_s
            self._add_point(observation, part)

    def ticked(self) -> None:
        """A poll has ended, whatever came of it."""
        self.ticked_s, self.is_waiting = self._clock.now_s(), False

    def unreachable(self, words: str) -> None:
        self._is_up, self._why_down = False, words

    def restarted(self) -> None:
        """Counters and tables of the engine's last start say nothing of this one."""
        self.window = Window()
        self._applied, self._plan, self._choices = None, None, ()
        self.speedup_vs_off = self.unsound = None

    def decided(self, reason: str, words: str, version: int | None = None) -> None:
        self._decisions.appendleft(self._line(reason, words, version=version))

    def happened(self, name: str, words: str, *, is_warning: bool = False) -> None:
        self._events.appendleft(self._line(name, words, is_warning=is_warning))

    def view(self) -> TargetView:
        return TargetView.model_validate(self._fields(self.window.total()))

    def detail(self) -> TargetDetail:
        total, capabilities, applied = self.window.total(), self._capabilities, self._applied
        more = {
            "window_s": WINDOW_S,
            "buckets": tuple(map(_bucket, self._choices)),
            "survival_at": total.survival_at,
            "fallback": None if applied is None else _fallback(applied),
            **_named(capabilities, "why_not_controllable", "warnings"),
            **_named(self._observation, "gaps"),
            "decisions": tuple(self._decisions),
            "events": tuple(self._events),
            "history": tuple(self._history),
        }
        if capabilities is not None:
            more["settings"] = tuple(map(setting_words, legal_settings(capabilities)))
            more["legal_tokens"] = capabilities.num_speculative_tokens_legal
        return TargetDetail.model_validate(self._fields(total) | more)

    @property
    def busiest(self) -> Choice | None:
        """The busiest bucket's choice; None: no traffic."""
        return None if self._plan is None else self._plan.lead

    def _fields(self, total: Interval) -> dict[str, object]:
        seen, capabilities, lead = self._observation, self._capabilities, self.busiest
        plan = self._plan
        return {
            "target": self.target,
            "instance": instance_of(self.target),
            "is_up": self._is_up,
            "why_down": self._why_down,
            "polled_s": self._polled_s,
            "mode": self.mode(),
            "is_frozen": self.is_frozen,
            **_named(capabilities, "engine", "engine_version", "model", "method"),
            **_named(seen, "running", "waiting", "decoding", "kv_cache_used_ratio"),
            **_named(total, "emitted_tokens_per_s", "decode_tokens_per_s", "off_tokens_per_s"),
            "speedup_vs_off": self.speedup_vs_off,
            "num_speculative_tokens": None if lead is None else lead.before.num_speculative_tokens,
            "setting": None if lead is None else setting_words(lead.before),
            **_named(total, "acceptance_rate", "acceptance_length", "efficiency"),
            "reason": None if plan is None else plan.reason.value,
            "explanation": None if plan is None else plan.explanation,
            **self._table_fields(),
            "restart_advised": self.restart_advised,
            "unsound": self.unsound,
            "adaptivity": self._adaptivity(),
            "failures": 0 if seen is None else int(sum(seen.failures.values())),
        }

    def _adaptivity(self) -> str | None:
        seen, capabilities = self._observation, self._capabilities
        known = None if capabilities is None else capabilities.adaptivity
        if seen is None or known is None:
            return None
        return adaptivity_words(known, seen.adaptivity, seen.cells or ())

    def _table_fields(self) -> dict[str, object]:
        applied = self._applied
        if applied is None:
            return {}
        is_leased = self._lease_ends_s is not None and applied.state is TableState.LIVE
        return {
            "table_version": applied.version,
            "table_state": applied.state.value,
            "table_owner": applied.owner,
            "lease_held": is_leased and applied.owner == self._owner,
            "lease_ends_s": self._lease_ends_s if is_leased else None,
        }

    def _add_point(self, observation: Observation, part: Interval) -> None:
        lead = self.busiest
        self._history.append(
            Point(
                self._clock.utc().timestamp(),
                observation.running,
                observation.waiting,
                part.emitted_tokens_per_s,
                part.decode_tokens_per_s,
                part.off_tokens_per_s,
                None if lead is None else lead.before.num_speculative_tokens,
            )
        )

    def _line(
        self, name: str, words: str, *, is_warning: bool = False, version: int | None = None
    ) -> LogLine:
        now: datetime = self._clock.utc()
        return LogLine(when=iso_utc(now), name=name, words=words, is_warning=is_warning, version=version)


class Board:
    """Of one daemon: its targets, in the order in which they came, and whether each of its loops comes round.

    The daemon's port is served by the same event loop, so that one which is stuck does not answer at all.
    """

    def __init__(self, owner: str, clock: Clock) -> None:
        """``owner``: the daemon's name in leases."""
        self.owner = owner
        self.forgotten: Callable[[str], None] = lambda target: None
        """Called with a target that left."""
        self._clock = clock
        self._roster_s = clock.now_s()
        self._is_started = False
        self._targets: dict[str, TargetBoard] = {}

    def add(self, target: str) -> TargetBoard:
        """Of a target whose loop begins."""
        board = self._targets[target] = TargetBoard(target, self.owner, self._clock)
        return board

    def forget(self, target: str) -> None:
        self._targets.pop(target, None)
        self.forgotten(target)

    def get(self, target: str) -> TargetBoard | None:
        return self._targets.get(target)

    def views(self) -> tuple[TargetView, ...]:
        return tuple(board.view() for board in self._targets.values())

    def roster_read(self) -> None:
        """The loop that starts and ends the targets' loops has come round, as it does once a second."""
        self._roster_s, self._is_started = self._clock.now_s(), True

    def problems(self) -> list[str]:
        """Why a restart is needed; empty: it is not."""
        now_s = self._clock.now_s()
        found = []
        if now_s - self._roster_s > STUCK_S:
            found.append(f"targets were not looked up for {now_s - self._roster_s:.0f} s")
        for target, board in self._targets.items():
            if now_s - board.ticked_s > STUCK_S:
                found.append(f"{target}: not polled for {now_s - board.ticked_s:.0f} s")
        return found

    def not_ready(self) -> list[str]:
        """Why figures are not complete yet; empty: every target was polled, whether it answered or not."""
        found = [] if self._is_started else ["targets were not looked up yet"]
        waiting = sorted(target for target, board in self._targets.items() if board.is_waiting)
        return [*self.problems(), *found, *(f"{target}: not polled yet" for target in waiting)]


def instance_of(target: str) -> str:
    """``host:port`` of a target's URL, which Prometheus has as the label ``instance``."""
    url = URL(target)
    return f"{url.host}:{url.port}" if url.host else url.path


def _named(source: object | None, *names: str) -> dict[str, object]:
    """Where there is nothing yet, a view has its defaults."""
    return {} if source is None else {name: getattr(source, name) for name in names}


def _bucket(choice: Choice) -> BucketView:
    return BucketView(
        decode_batch_from=choice.first,
        decode_batch_to=choice.last,
        setting=choice.before,
        words=setting_words(choice.before),
        sample=None if choice.sample is None else setting_words(choice.sample.setting),
        is_active=choice.is_active,
        reason=choice.reason.value,
        detail=choice.detail,
        present_tokens_per_s=choice.present_tokens_per_s,
        off_tokens_per_s=choice.off_tokens_per_s,
    )


def _fallback(applied: AppliedTable) -> str:
    number = applied.fallback_num_speculative_tokens
    if number is None:
        return "start table"
    return "off" if not number else f"{counted(number, 'token')} for every batch"
