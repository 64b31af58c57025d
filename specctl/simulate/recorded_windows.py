"""Two readings in a row -> what came, left and was accepted between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from specctl.contract.telemetry import ShadowAcceptance, Telemetry, TelemetryCell
from specctl.engine_api.deltas import CounterReset, cell_deltas, shadow_delta
from specctl.engine_api.stock_metrics import LoadCounters
from specctl.record.lines import Header, Line, Reading
from specctl.record.reader import Cells

__all__ = ["LoadWindow", "Recorded", "StepWindow", "windows_of"]

# Recorder's and engine's seconds of one interval differ by more than this: a clock jumped.
CLOCK_SLACK_S = 2.0
CLOCK_SLACK_RATIO = 0.5
# An interval of so many polls is a hole in the log.
HOLE_POLLS = 5.0


@dataclass(frozen=True, slots=True)
class LoadWindow:
    """Times are seconds of the log. ``in_flight``: started but not finished at its start.

    ``prompt_tokens``: of the requests that started; of those that finished where ``is_by_finish``, as an
    engine reports no others (SGLang). ``continues``: it begins where the window before it ended, on the same
    process, and counts prompts as that one does.
    """

    start_s: float
    end_s: float
    started: int
    prompt_tokens: int
    is_by_finish: bool
    wait_s: float
    finished: int
    output_tokens: int
    in_flight: int
    continues: bool


@dataclass(frozen=True, slots=True)
class StepWindow:
    """Steps between two readings; ``shadow`` None: the engine has no such counters."""

    start_s: float
    end_s: float
    cells: tuple[TelemetryCell, ...]
    shadow: ShadowAcceptance | None


@dataclass
class Recorded:
    """A whole log. ``skipped``: readings left out, by reason. ``notes``: what was not as it should be, and
    counted. ``last_load``: the latest counters, for the shapes of the lengths. ``why_no_load``: why the last
    reading without a load has none, in the recorder's words."""

    loads: list[LoadWindow] = field(default_factory=list)
    steps: list[StepWindow] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    last_load: LoadCounters | None = None
    why_no_load: str | None = None


def windows_of(lines: Iterable[Line], recorded: Recorded) -> Recorded:
    """Fills ``recorded``. Time goes on over the recordings of a log, by their wall clocks where those
    allow."""
    walk = _Walk(recorded)
    for line in lines:
        if isinstance(line, Header):
            walk.begin(line)
        elif isinstance(line, Reading):
            walk.take(line)
    return recorded


@dataclass(slots=True)
class _Seen:
    """A reading with all of its cells; ``log_s``: when, in seconds of the log."""

    log_s: float
    reading: Reading
    telemetry: Telemetry | None


class _Walk:
    def __init__(self, recorded: Recorded) -> None:
        self._out = recorded
        self._before: _Seen | None = None
        self._cells = Cells()
        self._first_utc: datetime | None = None
        self._shift_s = 0.0
        self._every_s = 1.0
        self._is_broken = True
        self._was_by_finish = False
        self._has_fallen = False

    def begin(self, header: Header) -> None:
        """Another recording: nothing is known of the time between, but that the counters may go on."""
        utc = datetime.fromisoformat(header.utc)
        self._first_utc = self._first_utc or utc
        self._every_s = header.every_s
        self._shift_s = (utc - self._first_utc).total_seconds()
        end_s = self._before.log_s if self._before is not None else 0.0
        if self._shift_s < end_s:
            self._out.notes["wall clock went back between two recordings"] += 1
            self._shift_s = end_s

    def take(self, reading: Reading) -> None:
        before = self._before
        seen = _Seen(reading.time_s + self._shift_s, reading, self._cells.whole(reading.telemetry))
        if before is not None:
            if seen.log_s == before.log_s or _is_same(before.reading, reading):
                self._out.skipped["repeated reading"] += 1
                return
            self._right_clock(before, seen)
            if self._is_bad_reading(before, seen):
                return
        self._before = seen
        self._out.last_load = reading.load or self._out.last_load
        if reading.load is None and reading.gaps:
            self._out.why_no_load = reading.gaps[-1]

    def _right_clock(self, before: _Seen, seen: _Seen) -> None:
        """Where the recorder's clock jumped, the engine's seconds are taken; without those, none pass."""
        passed_s = seen.log_s - before.log_s
        right_s = max(passed_s, 0.0)
        old, new = before.telemetry, seen.telemetry
        if old is not None and new is not None and old.boot_id == new.boot_id:
            engine_s = new.uptime_s - old.uptime_s
            if engine_s > 0 and abs(passed_s - engine_s) > CLOCK_SLACK_S + CLOCK_SLACK_RATIO * engine_s:
                right_s = engine_s
        if right_s != passed_s:
            self._out.notes["clock jumped"] += 1
            self._shift_s += right_s - passed_s
            seen.log_s = before.log_s + right_s

    def _is_bad_reading(self, before: _Seen, seen: _Seen) -> bool:
        """Takes the difference. Whether the reading is to be forgotten: its counters fell, and its process is
        the same. Where the next one's are low too they were set back: then that one counts."""
        has_fallen = not self._difference(before, seen)
        old, new = before.telemetry, seen.telemetry
        is_same_process = old is not None and new is not None and old.boot_id == new.boot_id
        is_bad = has_fallen and is_same_process and not self._has_fallen
        self._has_fallen = has_fallen
        if has_fallen and not is_bad:
            self._is_broken = True
        return is_bad

    def _difference(self, before: _Seen, seen: _Seen) -> bool:
        """False where a counter fell."""
        old, new = before.telemetry, seen.telemetry
        if old is not None and new is not None and old.boot_id != new.boot_id:
            self._skip("server restarted")
            return True
        if seen.log_s <= before.log_s:
            self._skip("no time passed")
            return True
        if seen.log_s - before.log_s > HOLE_POLLS * self._every_s:
            self._out.notes["hole in the log, its load spread evenly"] += 1
        steps: list[StepWindow] = []
        try:
            if old is not None and new is not None:
                cells, shadow = cell_deltas(old, new), shadow_delta(old.shadow, new.shadow)
                steps = [StepWindow(before.log_s, seen.log_s, cells, shadow)]
            self._load(before, seen)
            self._out.steps += steps
        except CounterReset:
            self._out.skipped["a counter fell"] += 1
            return False
        return True

    def _load(self, before: _Seen, seen: _Seen) -> None:
        old_load, new_load = before.reading.load, seen.reading.load
        if old_load is None or new_load is None:
            self._skip("no counts of requests")
            return
        is_by_finish = old_load.prompt_tokens is None or new_load.prompt_tokens is None
        old, new = _counts(old_load, is_by_finish), _counts(new_load, is_by_finish)
        if old is None or new is None:
            self._skip("no counts of requests")
            return
        if any(late < early for early, late in zip(old, new, strict=True)):
            raise CounterReset
        started, prompt, wait_s, finished, output = (
            late - early for early, late in zip(old, new, strict=True)
        )
        self._out.loads.append(
            LoadWindow(
                start_s=before.log_s,
                end_s=seen.log_s,
                started=int(started),
                prompt_tokens=int(prompt),
                is_by_finish=is_by_finish,
                wait_s=wait_s,
                finished=int(finished),
                output_tokens=int(output),
                in_flight=_in_flight(before),
                continues=not self._is_broken and is_by_finish == self._was_by_finish,
            )
        )
        self._is_broken, self._was_by_finish = False, is_by_finish

    def _skip(self, why: str) -> None:
        self._out.skipped[why] += 1
        self._is_broken = True


def _is_same(before: Reading, after: Reading) -> bool:
    """The same reading, written twice: the engine's clock stood still."""
    old, new = before.telemetry, after.telemetry
    if old is None or new is None:
        return False
    return old.boot_id == new.boot_id and old.uptime_s == new.uptime_s and before.load == after.load


def _counts(load: LoadCounters, is_by_finish: bool) -> tuple[float, ...] | None:
    counts = (
        load.started_requests,
        load.finished_prompt_tokens if is_by_finish else load.prompt_tokens,
        load.first_token_wait_s,
        load.finished_requests,
        load.finished_output_tokens,
    )
    return None if None in counts else tuple(float(count) for count in counts if count is not None)


def _in_flight(seen: _Seen) -> int:
    """Requests between their first token and their end. Aborted ones may never be counted as finished, so
    that there are no more than run: by the telemetry, as SGLang's own gauge is of some steps ago."""
    load = seen.reading.load
    if load is None or load.started_requests is None or load.finished_requests is None:
        return 0
    begun = max(load.started_requests - load.finished_requests, 0)
    running = load.running if seen.telemetry is None else seen.telemetry.running
    return begun if running is None else min(begun, running)
