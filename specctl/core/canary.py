"""A change on trial on one server: what it gave before and after, and the verdict. No I/O, no clock."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from specctl.contract.classes import ClassLimit
from specctl.contract.setting import Setting
from specctl.contract.telemetry import TelemetryCell
from specctl.core.messages import setting_words
from specctl.core.settings import RolloutSettings

__all__ = ["EVERY_BUCKET", "Canary", "Samples", "Verdict", "ran"]

EVERY_BUCKET = 0

SAMPLES_MIN = 3
SAMPLES_MAX = 60
PATIENCE = 3.0
"""A canary without enough traffic may take this many times its seconds; then it ends without a verdict."""
SIGMAS = 2.0
TOLERANCE_MAX_RATIO = 0.3
"""However noisy the figures are: a server that lost more than this is worse."""


def ran(cell: TelemetryCell, setting: Setting) -> bool:
    """Whether the cell's steps ran this setting; a tree without a width has whichever was prepared."""
    width = setting.verify_width_tokens
    is_width = width is None or (cell.verify_width_tokens or cell.num_speculative_tokens + 1) == width
    return is_width and (cell.num_speculative_tokens, cell.tree_topk) == (
        setting.num_speculative_tokens,
        setting.tree_topk,
    )


class Verdict(StrEnum):
    RUNNING = "running"
    PASSED = "passed"
    WORSE = "worse"
    NOT_MEASURED = "not_measured"


class Samples:
    """Emitted tokens per second of a decoding request, poll by poll, at one setting of one bucket."""

    def __init__(self) -> None:
        self._polls: deque[tuple[float, int, float]] = deque(maxlen=SAMPLES_MAX)

    def add(self, time_s: float, cell: TelemetryCell) -> None:
        request_s = cell.step_s * cell.request_steps / cell.steps if cell.steps else 0.0
        if request_s > 0:
            self._polls.append((time_s, cell.emitted_tokens, request_s))

    def forget_before(self, time_s: float) -> None:
        while self._polls and self._polls[0][0] < time_s:
            self._polls.popleft()

    @property
    def is_enough(self) -> bool:
        return len(self._polls) >= SAMPLES_MIN

    @property
    def tokens_per_request_s(self) -> float:
        """0 without a poll."""
        request_s = sum(poll[2] for poll in self._polls)
        return sum(poll[1] for poll in self._polls) / request_s if request_s > 0 else 0.0

    @property
    def error_ratio(self) -> float:
        """Standard error of the mean, as a share of it."""
        rates = [emitted / request_s for _, emitted, request_s in self._polls]
        mean = statistics.fmean(rates) if rates else 0.0
        if len(rates) < 2 or mean <= 0:
            return 1.0
        return statistics.stdev(rates) / mean / math.sqrt(len(rates))


@dataclass(slots=True)
class Canary:
    """``before``, ``to``: settings by bucket's last decode batch, each one with more speculation; of
    ``EVERY_BUCKET``: the rules for traffic classes, which all buckets' steps measure."""

    target: str
    started_s: float
    before: Mapping[int, Setting]
    to: Mapping[int, Setting]
    baseline: Mapping[int, Samples]
    measured: dict[int, Samples] = field(default_factory=dict)
    class_limits_before: tuple[ClassLimit, ...] = ()

    def add(self, time_s: float, cell: TelemetryCell) -> None:
        wanted = self.to.get(cell.decode_batch_to)
        if wanted is not None and ran(cell, wanted):
            self.measured.setdefault(cell.decode_batch_to, Samples()).add(time_s, cell)
        if EVERY_BUCKET in self.to:
            self.measured.setdefault(EVERY_BUCKET, Samples()).add(time_s, cell)

    @property
    def judged(self) -> tuple[int, ...]:
        """Buckets with enough polls after the change."""
        return tuple(bucket for bucket in self.to if self._after(bucket).is_enough)

    def verdict(self, time_s: float, settings: RolloutSettings) -> Verdict:
        took_s = time_s - self.started_s
        is_due = took_s >= settings.canary_s
        for bucket in self.judged:
            left = self.left_ratio(bucket)
            tolerance = self._tolerance(bucket, settings.canary_loss_max_ratio)
            # Before its time is over only what is far too slow ends it.
            if left < 1.0 - tolerance * (1.0 if is_due else 2.0):
                return Verdict.WORSE
        if took_s < 0 or took_s >= PATIENCE * settings.canary_s:
            return Verdict.PASSED if self.judged and took_s >= 0 else Verdict.NOT_MEASURED
        return Verdict.PASSED if is_due and self.judged else Verdict.RUNNING

    def left_ratio(self, bucket: int) -> float:
        """Tokens per second of a request after the change, as a share of before."""
        before = self.baseline[bucket].tokens_per_request_s
        return self._after(bucket).tokens_per_request_s / before if before > 0 else math.inf

    def record(self) -> dict[str, object]:
        """For the audit log."""
        return {
            "from": {str(bucket): setting_words(value) for bucket, value in self.before.items()},
            "to": {str(bucket): setting_words(value) for bucket, value in self.to.items()},
            "before_tokens_per_request_s": {
                str(bucket): round(self.baseline[bucket].tokens_per_request_s, 3) for bucket in self.to
            },
            "after_tokens_per_request_s": {
                str(bucket): round(self._after(bucket).tokens_per_request_s, 3) for bucket in self.judged
            },
        }

    def _after(self, bucket: int) -> Samples:
        return self.measured.get(bucket) or Samples()

    def _tolerance(self, bucket: int, loss_max_ratio: float) -> float:
        error = math.hypot(self.baseline[bucket].error_ratio, self._after(bucket).error_ratio)
        return min(loss_max_ratio + SIGMAS * error, max(TOLERANCE_MAX_RATIO, loss_max_ratio))
