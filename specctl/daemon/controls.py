"""What operators set over the policy files, by target."""

from __future__ import annotations

from dataclasses import dataclass

from specctl.core.messages import Event, setting_words
from specctl.daemon.context import PolicySource
from specctl.daemon.override import Override
from specctl.daemon.reporter import Reporter
from specctl.errors import TargetError
from specctl.policy.models import Threshold
from specctl.watch.views import ControlChange, Mode

__all__ = ["Controls"]

_WORDS = {
    Mode.POLICY: "resumed: the policy decides again",
    Mode.FREEZE: "frozen by an operator",
    Mode.OFF: "turned off by an operator",
    Mode.DRY_RUN: "dry run by an operator: decisions are shown, the table in force is held",
    Mode.TABLE: "table set by an operator",
}


@dataclass(frozen=True, slots=True)
class _Target:
    override: Override
    reporter: Reporter


class Controls:
    """Of one daemon. What was set lasts until it is taken back or the daemon ends, also where the target left
    and came back."""

    def __init__(self) -> None:
        self._targets: dict[str, _Target] = {}
        # Of targets that left, and may come back: a cluster's pods come and go without end.
        self._left: dict[str, Override] = {}

    def add(self, target: str, source: PolicySource, reporter: Reporter) -> Override:
        """The target's policy from now on."""
        override, known = Override(source), self._targets.get(target)
        before = known.override if known is not None else self._left.pop(target, None)
        if before is not None:
            override.take(before)
        self._targets[target] = _Target(override, reporter)
        return override

    def forget(self, target: str) -> None:
        """It left. Only what was set over its policy is kept."""
        known = self._targets.pop(target, None)
        if known is not None and known.override.mode is not Mode.POLICY:
            self._left[target] = known.override

    def change(self, change: ControlChange, who: str) -> None:
        """Raises TargetError for a target that is not polled, PolicyError for what cannot be set."""
        known = self._targets.get(change.target)
        if known is None:
            raise TargetError(f"{change.target}: not a target of this daemon")
        rows = tuple(
            Threshold(decode_batch_to=row.decode_batch_to, **row.setting.model_dump()) for row in change.rows
        )
        known.override.set(change.mode, rows)
        words = _WORDS[change.mode]
        if change.mode is Mode.TABLE:
            words = f"{words}: {'; '.join(map(_row_words, rows))}"
        record = {"mode": change.mode.value, "who": who}
        known.reporter.event(Event("control", change.target, words, record))


def _row_words(row: Threshold) -> str:
    upper = "above" if row.decode_batch_to is None else f"to batch {row.decode_batch_to}"
    return f"{upper}: {setting_words(row)}"
