"""What is told of one target beside its decisions: regret, price of a token, advice to restart it."""

from __future__ import annotations

import logging
from typing import Protocol

from specctl.controller.audit import AuditLog
from specctl.controller.regret import Regret
from specctl.controller.restart_advice import RestartAdvice
from specctl.types import BucketForecast, CandidateForecast, Decision, Observation

__all__ = ["Accounts", "Told"]

logger = logging.getLogger(__name__)

# The window of the regret is minutes long, and telling it takes longer than following it.
TELL_INTERVAL_S = 5.0


class Terms(Protocol):
    """What of a policy counts here."""

    @property
    def is_learned(self) -> bool: ...
    @property
    def advise_restart_after_s(self) -> float: ...

    def cost_per_token(self, forecast: BucketForecast, candidate: CandidateForecast) -> float | None: ...


class Told(Protocol):
    """Where the figures go; None: not known."""

    def regret(
        self,
        target: str,
        *,
        off_ratio: float | None,
        best_static_ratio: float | None,
        best_static: int | None,
        exploration_lost_ratio: float | None,
        exploration_time_ratio: float | None,
        left_out_looks: int,
    ) -> None: ...

    def cost(self, target: str, per_million_tokens: float | None) -> None: ...

    def restart_advised(self, target: str, *, is_advised: bool) -> None: ...


class Accounts:
    """Keeps them over the looks of one target."""

    def __init__(self, target: str, owner: str, audit: AuditLog, told: Told) -> None:
        self._target = target
        self._owner = owner
        self._audit = audit
        self._told = told
        self.forget()

    def forget(self) -> None:
        """The engine restarted."""
        self._regret = Regret()
        self._advice = RestartAdvice()
        self._tell_s = float("-inf")
        self._left_out_told = 0
        self._told.restart_advised(self._target, is_advised=False)

    def add(self, observation: Observation, decision: Decision, policy: Terms) -> None:
        """Take one look in, and tell what follows from it."""
        self._regret = self._regret.updated(observation, decision)
        self._advise(observation, decision, policy)
        if observation.time_s < self._tell_s:
            return
        self._tell_s = observation.time_s + TELL_INTERVAL_S
        self._told.cost(self._target, _cost_per_million(decision, policy))
        self._tell_regret(self._regret)

    def _tell_regret(self, regret: Regret) -> None:
        self._told.regret(
            self._target,
            off_ratio=regret.off_ratio,
            best_static_ratio=regret.best_static_ratio,
            best_static=regret.best_static,
            exploration_lost_ratio=regret.exploration_lost_ratio,
            exploration_time_ratio=regret.exploration_time_ratio,
            left_out_looks=regret.left_out_looks - self._left_out_told,
        )
        self._left_out_told = regret.left_out_looks

    def _advise(self, observation: Observation, decision: Decision, policy: Terms) -> None:
        before, after_s = self._advice, policy.advise_restart_after_s if policy.is_learned else 0.0
        self._advice = advice = before.updated(observation, decision, after_s)
        if advice.is_advised == before.is_advised:
            return
        self._told.restart_advised(self._target, is_advised=advice.is_advised)
        if advice.is_advised:
            logger.warning("%s: %s", self._target, advice.words)
            record = {"owner": self._owner, "explanation": advice.words, **advice.record()}
            self._audit.write("advice", self._target, record)
        else:
            logger.info("%s: no advice to restart any more", self._target)
            self._audit.write("advice_ended", self._target, {"owner": self._owner, **before.record()})


def _cost_per_million(decision: Decision, policy: Terms) -> float | None:
    """Of the setting chosen for the fullest bucket with traffic."""
    forecast = max(decision.forecasts, key=lambda f: f.decode_batch, default=None)
    if forecast is None:
        return None
    chosen = next((c for c in decision.choices if c.decode_batch_to == forecast.decode_batch_to), None)
    candidate = None if chosen is None else forecast.candidate(chosen.num_speculative_tokens)
    cost = None if candidate is None else policy.cost_per_token(forecast, candidate)
    return None if cost is None else cost * 1e6
