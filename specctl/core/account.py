"""What the daemon was worth on one target, and whether a restart without speculation would be better. Pure.

Seconds of decode-only steps, and of prompts' own steps between them, are set against what off, and every
other setting, would have taken for the same tokens, by the forecast of the same poll: only ratios of one
forecast count, so what misleads all of its parts alike is in none of them. All sums are discounted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from specctl.contract.setting import Setting
from specctl.contract.telemetry import TelemetryCell
from specctl.core.canary import ran
from specctl.core.forecast import Forecast
from specctl.core.messages import Choice, Plan
from specctl.core.prompt_steps import with_prompts
from specctl.core.space import Floats
from specctl.types import Observation

__all__ = ["Account", "Outcome", "RestartAdvice"]

HALF_LIFE_S = 600.0
MEASURED_MIN_S = 10.0
"""Step seconds, discounted, before there is anything to say."""
OUTCOME_MIN_S = 3.0


class Account:
    """Of one target, over its polls."""

    def __init__(self) -> None:
        self._step_s = 0.0
        self._setting_s: Floats = np.zeros(0)
        self._tokens = self._sample_tokens = 0.0
        self._settings: tuple[Setting, ...] = ()
        self.cost_per_million: float | None = None

    def update(self, observation: Observation, plan: Plan) -> None:
        expected = plan.forecast
        if expected is None or observation.cells is None or observation.interval_s is None:
            return
        kept = 0.5 ** (observation.interval_s / HALF_LIFE_S)
        if len(self._setting_s) != len(expected.space.settings):
            self._setting_s = np.zeros(len(expected.space.settings))
        self._settings = expected.space.settings
        self._step_s *= kept
        self._setting_s *= kept
        self._tokens *= kept
        self._sample_tokens *= kept
        for cell in with_prompts(observation.cells):
            self._count(cell, expected)
        if expected.is_active.any() and plan.has_prices:
            fullest = int(np.nonzero(expected.is_active)[0][-1])
            at = fullest, int(expected.present[fullest])
            self.cost_per_million = float(expected.price[at] / expected.tokens[at] * 1e6)

    def _count(self, cell: TelemetryCell, expected: Forecast) -> None:
        space, bucket = expected.space, expected.space.bucket_index.get(cell.decode_batch_to)
        at = space.number_of(cell)
        if bucket is None or at is None or cell.has_prefill or cell.step_s <= 0:
            return
        rates = expected.tokens[bucket] / expected.cost.cycle_s[bucket]
        if not np.isfinite(rates).all():
            return
        self._step_s += cell.step_s
        self._setting_s += cell.step_s * rates[at] / rates
        self._tokens += cell.emitted_tokens
        usual = float(rates[expected.present[bucket]])
        share = cell.sampled_steps / cell.steps
        self._sample_tokens += share * max(cell.step_s * (usual - float(rates[at])), 0.0)

    @property
    def speedup_vs_off(self) -> float | None:
        """Tokens per second against those with speculation off; None: not known."""
        return self._against(0)

    @property
    def speedup_vs_best_static(self) -> float | None:
        """The same against the one setting that would have been best all the time."""
        return self._against(self._best())

    @property
    def best_static(self) -> Setting | None:
        best = self._best()
        return None if best is None else self._settings[best]

    @property
    def sample_loss_ratio(self) -> float | None:
        """Share of the tokens that samples are expected to have cost."""
        if self._step_s < MEASURED_MIN_S or self._tokens <= 0:
            return None
        return self._sample_tokens / (self._tokens + self._sample_tokens)

    def _best(self) -> int | None:
        return int(np.argmin(self._setting_s)) if self._step_s >= MEASURED_MIN_S else None

    def _against(self, setting: int | None) -> float | None:
        if setting is None or self._step_s < MEASURED_MIN_S:
            return None
        return float(self._setting_s[setting] / self._step_s)


class Outcome:
    """What a felt change gave: tokens per second of step time where it took effect, for some seconds."""

    def __init__(self) -> None:
        self._pending: tuple[Choice, int, float] | None = None
        self._emitted = self._step_s = 0.0

    def follow(self, plan: Plan, version: int, seconds: float) -> dict[str, Any] | None:
        """Begin with a change that is in force; returns what came of the one before."""
        choice = next((one for one in plan.changed if one.is_active), None)
        if choice is None:
            return None
        before = self._record()
        self._pending = choice, version, plan.time_s + max(seconds, OUTCOME_MIN_S)
        self._emitted = self._step_s = 0.0
        return before

    def collect(self, observation: Observation) -> dict[str, Any] | None:
        """The record of the audit log once the time is over."""
        if self._pending is None:
            return None
        choice, _, due_s = self._pending
        for cell in with_prompts(observation.cells or ()):
            if cell.decode_batch_to == choice.last and not cell.has_prefill and ran(cell, choice.after):
                self._emitted += cell.emitted_tokens
                self._step_s += cell.step_s
        return self._record() if observation.time_s >= due_s else None

    def _record(self) -> dict[str, Any] | None:
        pending, self._pending = self._pending, None
        if pending is None or self._step_s <= 0:
            return None
        choice, version, _ = pending
        predicted = choice.predicted_tokens_per_s
        return {
            "version": version,
            "decode_batch": f"{choice.first}-{choice.last}",
            "setting": choice.after.model_dump(exclude_none=True),
            "predicted_tokens_per_s": None if predicted is None else round(predicted, 3),
            "measured_tokens_per_s": round(self._emitted / self._step_s, 3),
        }


SAMPLED_STEPS_MIN = 50
"""Samples of drafting, before off is known to be right."""
TRAFFIC_MIN_RATIO = 0.25
DRAFT_SHARE_MIN_RATIO = 0.01
KV_CACHE_FULL_RATIO = 0.8
SQUEEZED_MIN_RATIO = 0.1


@dataclass
class RestartAdvice:
    """Off still costs what speculation occupies: memory of a head, graphs, some drafting. A restart frees it.

    ``since_s``: when off came in force for all traffic; None: it is not. The rest counts from then.
    """

    since_s: float | None = None
    time_s: float = 0.0
    active_s: float = 0.0
    polls: int = 0
    squeezed_polls: int = 0
    step_s: float = 0.0
    draft_s: float = 0.0
    sampled_steps: int = 0
    is_advised: bool = False

    def update(self, observation: Observation, plan: Plan, after_s: float) -> bool:
        """Take in a poll; whether the advice has changed.

        Args:
            after_s: seconds of off before the advice; 0: never.
        """
        was = self.is_advised
        if after_s <= 0 or any(
            choice.is_active and choice.after.num_speculative_tokens for choice in plan.choices
        ):
            self.__init__()  # type: ignore[misc]
            return was
        if plan.forecast is None or not plan.forecast.is_active.any() or plan.is_held:
            return False
        self._count(observation)
        self.is_advised = was or self._is_due(after_s)
        return self.is_advised != was

    @property
    def off_s(self) -> float:
        return 0.0 if self.since_s is None else self.time_s - self.since_s

    @property
    def draft_share_ratio(self) -> float:
        """Share of the step seconds that drafting takes although it is off."""
        return self.draft_s / self.step_s if self.step_s > 0 else 0.0

    @property
    def squeezed_ratio(self) -> float:
        """Share of the polls with requests waiting or a nearly full KV cache."""
        return self.squeezed_polls / self.polls if self.polls else 0.0

    @property
    def words(self) -> str:
        parts = [
            f"drafting has been off for {self.off_s / 60:.0f} min, and {self.sampled_steps} sampled steps "
            "of it did not pay"
        ]
        if self.draft_share_ratio >= DRAFT_SHARE_MIN_RATIO:
            parts.append(f"what is left of drafting takes {self.draft_share_ratio:.1%} of the step seconds")
        if self.squeezed_ratio >= SQUEEZED_MIN_RATIO:
            parts.append(
                f"requests waited or the KV cache was nearly full at {self.squeezed_ratio:.0%} of the polls"
            )
        parts.append("a restart without speculation would free the memory and the scheduling it occupies")
        return "; ".join(parts)

    def record(self) -> dict[str, Any]:
        return {
            "off_s": round(self.off_s, 3),
            "sampled_steps": self.sampled_steps,
            "draft_share_ratio": round(self.draft_share_ratio, 4),
            "squeezed_ratio": round(self.squeezed_ratio, 4),
        }

    def _count(self, observation: Observation) -> None:
        self.since_s = observation.time_s if self.since_s is None else self.since_s
        self.time_s = observation.time_s
        self.active_s += observation.interval_s or 0.0
        self.polls += 1
        is_full = (observation.kv_cache_used_ratio or 0.0) >= KV_CACHE_FULL_RATIO
        self.squeezed_polls += bool(observation.waiting or is_full)
        for cell in observation.cells or ():
            if cell.num_speculative_tokens:
                self.sampled_steps += cell.sampled_steps
            elif not cell.has_prefill:
                self.step_s += cell.step_s
                self.draft_s += cell.draft_s
        if observation.shadow is not None:
            self.sampled_steps += observation.shadow.drafts

    def _is_due(self, after_s: float) -> bool:
        has_traffic = self.active_s >= TRAFFIC_MIN_RATIO * self.off_s
        matters = self.draft_share_ratio >= DRAFT_SHARE_MIN_RATIO or self.squeezed_ratio >= SQUEEZED_MIN_RATIO
        has_tried = self.sampled_steps >= SAMPLED_STEPS_MIN
        return self.off_s >= after_s and has_tried and has_traffic and matters
