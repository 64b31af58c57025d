"""What a decision is: a choice for every bucket, and the plan that holds them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from specctl.contract.classes import ClassLimit
from specctl.contract.setting import KNOBS, RowSample, Setting, knobs_of
from specctl.contract.table import TableRow
from specctl.core.forecast import Forecast

__all__ = ["Choice", "Event", "Plan", "Reason", "knobs_moved", "setting_words"]


class Reason(StrEnum):
    """Why a decision is what it is. Closed: also the label of the decision metric."""

    GAIN = "gain"
    OFF_NO_GAIN = "off_no_gain"
    NO_BETTER = "no_better"
    BREAK_EVEN = "break_even"
    SET_BY_POLICY = "set_by_policy"
    DWELL = "dwell"
    FEW_SAMPLES = "few_samples"
    COST_UNKNOWN = "cost_unknown"
    LATENCY_BOUND = "latency_bound"
    CANARY_WAIT = "canary_wait"
    ROLLBACK = "rollback"
    UNSOUND = "unsound"
    SUPERVISED = "supervised"
    FROZEN = "frozen"
    IDLE = "idle"
    NOT_MEASURED = "not_measured"
    NOT_POSSIBLE = "not_possible"
    NOT_CONTROLLABLE = "not_controllable"
    RECOMMENDATION = "recommendation"


class Choice(NamedTuple):
    """The decision for one bucket. Rates are tokens per second of a decode-only step; None: not known.

    ``gain``, ``sigma``: predicted share of tokens gained by the change, and its standard error.
    """

    first: int
    last: int
    before: Setting
    after: Setting
    reason: Reason
    detail: str = ""
    is_active: bool = False
    gain: float | None = None
    sigma: float | None = None
    predicted_tokens_per_s: float | None = None
    present_tokens_per_s: float | None = None
    off_tokens_per_s: float | None = None
    sample: RowSample | None = None

    @property
    def is_change(self) -> bool:
        return self.before is not self.after and self.before != self.after

    @property
    def batch_words(self) -> str:
        return f"{self.first}" if self.first == self.last else f"{self.first}-{self.last}"


@dataclass(frozen=True, slots=True)
class Event:
    """For log and audit, beside the change of the table. ``name``: canary, canary_passed, rollback, ..."""

    name: str
    target: str
    words: str
    record: dict[str, Any] = field(default_factory=dict)
    is_warning: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """The outcome of one tick. ``rows`` None: there is nothing to apply.

    ``reason`` and ``explanation``: of the busiest bucket that changes, else of one without traffic that does,
    else of the busiest one. ``lead``: the busiest one, and first one that changes.
    ``class_limits``: rules for traffic classes that go with the rows.
    """

    target: str
    time_s: float
    reason: Reason
    explanation: str
    rows: tuple[TableRow, ...] | None = None
    class_limits: tuple[ClassLimit, ...] = ()
    choices: tuple[Choice, ...] = ()
    changes: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()
    forecast: Forecast | None = None
    lead: Choice | None = None
    has_prices: bool = False
    """The forecast's prices are money."""
    is_held: bool = False
    """Nothing may change: frozen, or the policy is not possible here. The rows are those in force."""

    @property
    def is_change(self) -> bool:
        """The table differs from the one in force by more than its samples."""
        return bool(self.changes)

    @property
    def changed(self) -> tuple[Choice, ...]:
        return tuple(choice for choice in self.choices if choice.is_change)

    @property
    def is_felt(self) -> bool:
        """A running batch meets the change."""
        return any(choice.is_active for choice in self.changed)


def knobs_moved(before: Setting, after: Setting) -> tuple[str, ...]:
    old, new = knobs_of(before), knobs_of(after)
    return () if old == new else tuple(knob for knob, a, b in zip(KNOBS, old, new, strict=True) if a != b)


def setting_words(setting: Setting) -> str:
    """For people: "off", "5 tokens", "5 tokens, top-k 3, width 8", "8 tokens, probability >= 0.2"."""
    if setting.num_speculative_tokens == 0:
        return "off"
    number = setting.num_speculative_tokens
    words = ["1 token" if number == 1 else f"{number} tokens"]
    if setting.tree_topk > 1:
        words.append(f"top-k {setting.tree_topk}")
        if setting.verify_width_tokens is not None:
            words.append(f"width {setting.verify_width_tokens}")
    if setting.min_token_prob is not None:
        words.append(f"probability >= {setting.min_token_prob:g}")
    return ", ".join(words)
