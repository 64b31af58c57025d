"""The one place from which events go to the log, the audit log, the metrics and the board."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from typing import Any

from specctl.contract.capabilities import Capabilities
from specctl.core.account import Account, RestartAdvice
from specctl.core.messages import Event, Plan, Reason, setting_words
from specctl.core.soundness import Fault
from specctl.daemon.audit import AuditLog, change_record
from specctl.daemon.spans import record_change
from specctl.metrics.exporter import Exporter
from specctl.types import Observation
from specctl.watch.board import TargetBoard

__all__ = ["Reporter"]

logger = logging.getLogger("specctl.autotune")

REPEAT_S = 60.0
"""What cannot be acted on is said again after so long."""
GAP_REPEAT_S = 3600.0
"""A server without metrics, for example, stays so."""
FIGURES_S = 5.0
LINES_MAX_PER_MINUTE = 120
"""Of one target in the log: a server that tells something else at every poll must not fill the disk."""
_NUMBER = re.compile(r"[0-9]+")


class Reporter:
    """Of one target. Says the same thing once, until something else is to be said."""

    def __init__(
        self,
        target: str,
        owner: str,
        audit: AuditLog,
        exporter: Exporter,
        board: TargetBoard | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``board``: where page and top read; None: nobody does. ``monotonic``: what lines a minute go by."""
        self._monotonic = monotonic
        self._board = board or TargetBoard(target, owner, audit.clock)
        self._target = target
        self._owner = owner
        self._audit = audit
        self._exporter = exporter
        self._said: dict[str, tuple[float, str]] = {}
        self._minute, self._lines = -1, 0
        self._reason: Reason | None = None
        self._figures_s = float("-inf")

    def started(self, capabilities: Capabilities | None, *, is_restart: bool) -> None:
        """The first poll of an engine, or of its next start."""
        if is_restart:
            self._happened(logging.INFO, "restarted", "the engine restarted; starting afresh")
            self._board.restarted()
            self._exporter.soundness(self._target, None)
        self._said.clear()
        if capabilities is None:
            return
        known = f"{capabilities.method} on {capabilities.engine} {capabilities.engine_version}"
        self._happened(logging.INFO, "known", known)
        self._exporter.known(self._target, capabilities)
        for warning in capabilities.warnings:
            self._log(logging.WARNING, warning)

    def polled(self, observation: Observation) -> None:
        self._exporter.observed(observation)
        self._board.polled(observation)
        # The same but for its numbers is no news.
        shapes = _NUMBER.sub("#", "; ".join(observation.gaps))
        if shapes and self._is_news("gap", observation.time_s, shapes, repeat_s=GAP_REPEAT_S):
            for gap in observation.gaps:
                self._log(logging.WARNING, gap.removeprefix(f"{self._target}: "))

    def unreachable(self, words: str, time_s: float) -> None:
        self._exporter.failed(self._target, "target", is_down=True)
        words = self._without_target(words)
        self._board.unreachable(words)
        if self._is_news("down", time_s, words, repeat_s=float("inf")):
            self._happened(logging.WARNING, "unreachable", words)

    def reachable(self) -> None:
        if self._said.pop("down", None) is not None:
            self._happened(logging.INFO, "reachable", "answers again")

    def failed_tick(self) -> None:
        """A bug of ours; must be called where the exception is handled."""
        logger.exception("%s: this poll failed", self._target)
        self._exporter.failed(self._target, "bug", is_down=False)

    def ticked(self, seconds: float) -> None:
        self._exporter.ticked(self._target, seconds)
        self._board.ticked()

    def frozen(self, *, is_frozen: bool, version: int | None) -> None:
        words = "frozen: nothing is changed" if is_frozen else "thawed: changes go on"
        name = "frozen" if is_frozen else "thawed"
        self._happened(logging.INFO, name, words)
        self._board.is_frozen = is_frozen
        self._write(name, {"version": version})
        self._exporter.frozen(self._target, is_frozen=is_frozen)

    def planned(self, plan: Plan) -> None:
        self._exporter.planned(plan)
        self._board.planned(plan)
        for event in plan.events:
            if self._is_news(event.name, plan.time_s, event.words):
                self.event(event)
        if plan.rows is None or plan.reason is Reason.NOT_POSSIBLE:
            self._advise(plan)
        self._kept(plan)

    def event(self, event: Event) -> None:
        level = logging.WARNING if event.is_warning else logging.INFO
        self._log(level, event.words, event.target)
        words = event.words if event.target == self._target else f"{event.target}: {event.words}"
        self._board.happened(event.name, words, is_warning=event.is_warning)
        record = {"owner": self._owner, "explanation": event.words, **event.record}
        self._audit.write(event.name, event.target, record)

    def dry_run(self, plan: Plan) -> None:
        """A wanted change, once: the engine's table stays, so every poll wants it again.

        What it would change for batches without traffic varies, and is no news beside a change that is felt.
        """
        felt = [f"{one.last}: {setting_words(one.after)}" for one in plan.changed if one.is_active]
        wanted = "; ".join(felt or plan.changes)
        if self._is_news("dry_run", plan.time_s, wanted, repeat_s=float("inf")) and wanted:
            self._log(logging.INFO, f"dry run: {_change_words(plan)}")
            self._board.decided(plan.reason.value, f"dry run: {_change_words(plan)}")
            self._write("change", change_record(plan, version=None, dry_run=True))

    def applied(self, plan: Plan, version: int) -> None:
        """The plan's table is in force."""
        self._exporter.lease(self._target, is_held=True)
        self._said.pop("refused", None)
        if not plan.is_change:
            return
        self._exporter.changed(self._target)
        self._board.decided(plan.reason.value, _change_words(plan), version)
        level = logging.INFO if plan.is_felt or not plan.changed else logging.DEBUG
        self._log(level, _change_words(plan))
        record = change_record(plan, version=version, dry_run=False)
        self._write("change", record)
        record_change(self._target, self._owner, record)

    def outcome(self, record: dict[str, Any]) -> None:
        self._audit.write("outcome", self._target, record)

    def refused(self, kind: str, words: str, time_s: float) -> None:
        """The engine, or the network, did not take a table."""
        words = self._without_target(words)
        self._exporter.failed(self._target, kind, is_down=False)
        if kind == "lease":
            self._exporter.lease(self._target, is_held=False)
        shape = _NUMBER.sub("#", words if kind != "lease" else "")
        if self._is_news("refused", time_s, f"{kind} {shape}") and self._happened(
            logging.WARNING, "refused", words
        ):
            self._write("refused", {"kind": kind, "error": words})

    def stopped(self, words: str, version: int | None = None, changes: tuple[str, ...] = ()) -> None:
        """``version``: of the table that is left; None where it could not be put."""
        self._log(logging.INFO, words)
        self._write("stopped", {"explanation": words, "version": version, "changes": list(changes)})

    def figures(self, account: Account, time_s: float) -> None:
        if time_s >= self._figures_s:
            self._figures_s = time_s + FIGURES_S
            self._board.speedup_vs_off = account.speedup_vs_off
            self._exporter.figures(self._target, account)
            self._exporter.acceptance(self._target, self._board.window.total(), self._board.busiest)

    def advice(self, advice: RestartAdvice) -> None:
        self._exporter.restart_advised(self._target, is_advised=advice.is_advised)
        self._board.restart_advised = advice.is_advised
        if advice.is_advised:
            self._happened(logging.WARNING, "advice", advice.words)
            self._write("advice", {"explanation": advice.words, **advice.record()})
        else:
            self._happened(logging.INFO, "advice_ended", "no advice to restart any more")
            self._write("advice_ended", advice.record())

    def soundness(self, fault: Fault | None) -> None:
        """The drafts' acceptance shows another fault than before, or none any more."""
        self._exporter.soundness(self._target, None if fault is None else fault.cause.value)
        self._board.unsound = None if fault is None else fault.words
        if fault is None:
            self._happened(logging.INFO, "sound", "acceptance is as of sound drafts again")
            self._write("sound", {})
        else:
            self._happened(logging.WARNING, "unsound", fault.words)
            record = {"cause": fault.cause.value, "ratio": round(fault.ratio, 4), "drafts": fault.drafts}
            self._write("unsound", {"explanation": fault.words, **record})

    def _kept(self, plan: Plan) -> None:
        """A table that stays, for another reason than at the last poll. A change is reported once it is in
        force, and a dwell time ends by itself."""
        if plan.is_change or plan.reason in (self._reason, Reason.DWELL):
            return
        self._reason = plan.reason
        self._board.decided(plan.reason.value, plan.explanation)

    def _happened(self, level: int, name: str, words: str) -> bool:
        """False: there was too much to say, and the log has no line."""
        self._board.happened(name, words, is_warning=level >= logging.WARNING)
        return self._log(level, words)

    def _advise(self, plan: Plan) -> None:
        """What cannot be acted on."""
        if not self._is_news("advice", plan.time_s, plan.reason.value):
            return
        level = logging.WARNING if plan.reason is Reason.NOT_CONTROLLABLE else logging.INFO
        self._log(level, plan.explanation)
        if plan.reason is Reason.RECOMMENDATION:
            self._write("recommendation", {"explanation": plan.explanation, "reason": plan.reason.value})

    def _log(self, level: int, words: str, target: str | None = None) -> bool:
        """A line about this target or another of its group. False: there are too many, and it is left out."""
        minute = int(self._monotonic() // 60.0)
        if minute != self._minute:
            self._minute, self._lines = minute, 0
        self._lines += logger.isEnabledFor(level)
        if self._lines <= LINES_MAX_PER_MINUTE:
            logger.log(level, "%s: %s", target or self._target, words)
        elif self._lines == LINES_MAX_PER_MINUTE + 1:
            logger.warning("%s: too much to say; silent for a minute", self._target)
        return self._lines <= LINES_MAX_PER_MINUTE

    def _write(self, name: str, record: dict[str, Any]) -> None:
        self._audit.write(name, self._target, {"owner": self._owner, **record})

    def _without_target(self, words: str) -> str:
        """Every line begins with it."""
        return words.removeprefix(self._target).removeprefix(": ")

    def _is_news(self, kind: str, time_s: float, words: str, repeat_s: float = REPEAT_S) -> bool:
        said_s, said = self._said.get(kind, (float("-inf"), ""))
        if said == words and time_s - said_s < repeat_s:
            return False
        self._said[kind] = time_s, words
        return True


def _change_words(plan: Plan) -> str:
    """The buckets that change, and what else of the table does."""
    if plan.changed:
        return plan.explanation
    return "; ".join(plan.changes)
