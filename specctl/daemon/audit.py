"""Audit log: one JSON line for every change, and one for what came of it.

Fields of a change: ``when`` (ISO 8601, UTC), ``event`` "change", ``target``, ``owner``, ``from`` and ``to``
(value by decode-batch range), ``reason``, ``explanation``, ``predicted_tokens_per_s``,
``present_tokens_per_s``, ``off_tokens_per_s``, ``version`` (None when nothing was applied), ``dry_run``.
After the dwell time an ``event`` "outcome" with the same ``version`` follows, with ``measured_tokens_per_s``:
emitted tokens per second of step time. Refusals are ``event`` "refused" with ``error``.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specctl.clock import Clock, iso_utc
from specctl.contract.setting import Setting
from specctl.core.messages import Plan, knobs_moved
from specctl.errors import SpecctlError
from specctl.local_file import append_lines, open_lines

__all__ = ["AuditLog", "change_record"]

logger = logging.getLogger(__name__)


class AuditLog:
    """Appends whole lines with one write each and opens the file anew, so it may be rotated at any time."""

    def __init__(self, path: Path | None, clock: Clock, on_lost: Callable[[], None] = lambda: None) -> None:
        """Raises SpecctlError when the file cannot be opened for appending. ``path`` None: no log.
        ``on_lost`` is called for every record that the file did not take."""
        self._path = path
        self._on_lost = on_lost
        self.clock = clock
        self._lost = 0
        if path is not None:
            try:
                os.close(open_lines(path))
            except OSError as error:
                raise SpecctlError(f"audit log {path}: {error.strerror or error}") from error

    def write(self, event: str, target: str, record: dict[str, Any]) -> None:
        """A failing disk is logged once and never stops the daemon. Once it takes records again, an event
        ``lost`` with ``records`` says how many it did not take."""
        if self._path is None:
            return
        data = self._line(event, target, record)
        if self._lost:
            data = self._line("lost", "", {"records": self._lost}) + data
        try:
            descriptor = open_lines(self._path)
            try:
                append_lines(descriptor, data)
            finally:
                os.close(descriptor)
        except OSError as error:
            if not self._lost:
                logger.error("audit log %s: %s", self._path, error.strerror or error)
            self._lost += 1
            self._on_lost()
            return
        if self._lost:
            logger.warning("audit log %s: is written again, %d record(s) are lost", self._path, self._lost)
        self._lost = 0

    def _line(self, event: str, target: str, record: dict[str, Any]) -> bytes:
        line = {"when": iso_utc(self.clock.utc()), "event": event, "target": target, **record}
        return (json.dumps(line, allow_nan=False) + "\n").encode()


def change_record(plan: Plan, *, version: int | None, dry_run: bool) -> dict[str, Any]:
    lead = plan.lead
    return {
        "from": {one.batch_words: _setting(one.before) for one in plan.choices},
        "to": {one.batch_words: _setting(one.after) for one in plan.choices},
        "moved": {one.batch_words: list(knobs_moved(one.before, one.after)) for one in plan.changed},
        "changes": list(plan.changes),
        "class_limits": [one.model_dump() for one in plan.class_limits],
        "reason": plan.reason.value,
        "explanation": plan.explanation,
        "predicted_tokens_per_s": None if lead is None else _rounded(lead.predicted_tokens_per_s),
        "present_tokens_per_s": None if lead is None else _rounded(lead.present_tokens_per_s),
        "off_tokens_per_s": None if lead is None else _rounded(lead.off_tokens_per_s),
        "version": version,
        "dry_run": dry_run,
    }


def _setting(setting: Setting) -> dict[str, Any]:
    return setting.model_dump(exclude_none=True)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
