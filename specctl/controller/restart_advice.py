"""Whether a server would be better off without speculation altogether. No I/O, no clock.

Off still costs what speculation occupies: memory of a draft head, graphs, some drafting, the scheduling that
vLLM leaves out with it. Only a restart frees it, so the daemon can do no more than say it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from specctl.types import Decision, Observation, Reason

__all__ = ["RestartAdvice"]

TRAFFIC_MIN_RATIO = 0.25
"""Of the time since off came in force."""
PROBES_MIN = 2
SHADOW_DRAFTS_MIN = 100
"""Where the engine follows shadow drafts, they tell in the place of probes."""
DRAFT_SHARE_MIN_RATIO = 0.01
KV_CACHE_FULL_RATIO = 0.8
SQUEEZED_MIN_RATIO = 0.1
_HELD = (Reason.CANARY_WAIT, Reason.ROLLBACK)


@dataclass(frozen=True, slots=True)
class RestartAdvice:
    """``since_s``: when off came in force for all traffic; None: it is not. The rest counts from then.

    ``squeezed_looks``: of ``looks`` with traffic, those with requests waiting or a nearly full KV cache.
    ``step_s``, ``draft_s``: of steps without prefill at off.
    """

    since_s: float | None = None
    time_s: float = 0.0
    active_s: float = 0.0
    looks: int = 0
    squeezed_looks: int = 0
    step_s: float = 0.0
    draft_s: float = 0.0
    probes: int = 0
    shadow_drafts: int = 0
    is_probing: bool = False
    is_advised: bool = False

    def updated(self, observation: Observation, decision: Decision, after_s: float) -> Self:
        """With one look taken in.

        Args:
            after_s: seconds of off before the advice; 0: never.
        """
        if after_s <= 0 or _is_drafting(decision):
            return type(self)()
        if not decision.forecasts or not observation.may_act or decision.reason is Reason.FROZEN:
            # Idle, or nothing can be found out now.
            return self
        result = self._counted(observation, decision)
        return replace(result, is_advised=result.is_advised or result._is_due(after_s))

    @property
    def off_s(self) -> float:
        return 0.0 if self.since_s is None else self.time_s - self.since_s

    @property
    def draft_share_ratio(self) -> float | None:
        """Share of the step seconds that drafting takes although it is off."""
        return self.draft_s / self.step_s if self.step_s > 0 else None

    @property
    def squeezed_ratio(self) -> float | None:
        return self.squeezed_looks / self.looks if self.looks else None

    @property
    def words(self) -> str:
        tried = f"{self.probes} probes" if self.probes else f"{self.shadow_drafts} drafts followed in shadow"
        parts = [f"drafting has been off for {self.off_s / 60:.0f} min and {tried} did not pay"]
        if (self.draft_share_ratio or 0.0) >= DRAFT_SHARE_MIN_RATIO:
            parts.append(f"what is left of drafting takes {self.draft_share_ratio:.1%} of the step seconds")
        if (self.squeezed_ratio or 0.0) >= SQUEEZED_MIN_RATIO:
            parts.append(
                f"requests waited or the KV cache was nearly full at {self.squeezed_ratio:.0%} of the looks"
            )
        parts.append("a restart without speculation would free the memory and the scheduling it occupies")
        parts.append("until then this daemon keeps watching, and drafts again when it pays")
        return "; ".join(parts)

    def record(self) -> dict[str, Any]:
        """For the audit log."""
        draft, squeezed = self.draft_share_ratio, self.squeezed_ratio
        return {
            "off_s": round(self.off_s, 3),
            "probes": self.probes,
            "shadow_drafts": self.shadow_drafts,
            "draft_share_ratio": None if draft is None else round(draft, 4),
            "squeezed_ratio": None if squeezed is None else round(squeezed, 4),
        }

    def _counted(self, observation: Observation, decision: Decision) -> Self:
        is_probing = any(choice.reason is Reason.PROBE for choice in decision.choices)
        cells = [
            cell
            for cell in observation.cells or ()
            if not cell.has_prefill and cell.num_speculative_tokens == 0
        ]
        is_full = (observation.kv_cache_used_ratio or 0.0) >= KV_CACHE_FULL_RATIO
        return replace(
            self,
            since_s=observation.time_s if self.since_s is None else self.since_s,
            time_s=observation.time_s,
            active_s=self.active_s + (observation.interval_s or 0.0),
            looks=self.looks + 1,
            squeezed_looks=self.squeezed_looks + bool(observation.waiting or is_full),
            step_s=self.step_s + sum(cell.step_s for cell in cells),
            draft_s=self.draft_s + sum(cell.draft_s for cell in cells),
            probes=self.probes + (self.is_probing and not is_probing),
            shadow_drafts=self.shadow_drafts + (observation.shadow.drafts if observation.shadow else 0),
            is_probing=is_probing,
        )

    def _is_due(self, after_s: float) -> bool:
        has_tried = self.probes >= PROBES_MIN or self.shadow_drafts >= SHADOW_DRAFTS_MIN
        has_traffic = self.active_s >= TRAFFIC_MIN_RATIO * self.off_s
        matters = (self.draft_share_ratio or 0.0) >= DRAFT_SHARE_MIN_RATIO or (
            self.squeezed_ratio or 0.0
        ) >= SQUEEZED_MIN_RATIO
        return self.off_s >= after_s and has_tried and has_traffic and matters


def _is_drafting(decision: Decision) -> bool:
    """Some traffic drafts, probes apart, or would if the group let it."""
    if any(forecast.present_num_speculative_tokens > 0 for forecast in decision.forecasts):
        return True
    return any(
        choice.is_active
        and (
            choice.reason in _HELD
            or (choice.num_speculative_tokens > 0 and choice.reason is not Reason.PROBE)
        )
        for choice in decision.choices
    )
