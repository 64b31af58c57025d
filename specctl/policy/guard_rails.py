"""Guard rails around any policy: bounds, minimum samples, off below a gain, hysteresis, dwell, patience."""

from __future__ import annotations

from specctl.policy.base import GuardRails, Proposal
from specctl.types import BucketChoice, BucketForecast, CandidateForecast, Reason

__all__ = ["guarded"]

# A bucket without traffic follows its estimates at leisure; its changes serve nobody now.
INACTIVE_DWELL_S = 5.0
INACTIVE_MIN_GAIN_RATIO = 0.1


def guarded(
    proposal: Proposal,
    forecast: BucketForecast,
    rails: GuardRails,
    since_change_s: float,
    changes_left: int,
) -> BucketChoice:
    """The proposal within the rails; a refused change keeps the present value and says which rail it was.

    Args:
        since_change_s: seconds since this bucket last changed.
        changes_left: table changes that the minute still allows.
    """
    present = forecast.present_num_speculative_tokens
    wanted, reason, detail = _bounded(proposal, forecast, rails)
    if not rails.num_speculative_tokens_min <= present <= rails.num_speculative_tokens_max:
        return _choice(forecast, wanted, Reason.SET_BY_POLICY, f"{present} is outside the policy's bounds")
    if proposal.is_learned and proposal.reason is not Reason.COST_UNKNOWN:
        if forecast.trials < rails.min_samples_tokens:
            words = f"{forecast.trials:.0f} of {rails.min_samples_tokens} token outcomes seen"
            return _choice(forecast, present, Reason.FEW_SAMPLES, words)
        wanted, reason = _off_unless_it_pays(wanted, reason, forecast, rails)
    if wanted == present:
        return _choice(forecast, present, Reason.NO_BETTER if reason is Reason.GAIN else reason, detail)
    if proposal.is_learned and reason is Reason.GAIN:
        short = _short_of_gain(wanted, forecast, rails)
        if short and not _has_lost_its_pay(forecast, rails):
            return _choice(forecast, present, Reason.WITHIN_NOISE, short)
        if short:
            wanted, reason, detail = 0, Reason.OFF_NO_GAIN, ""
    words = _too_soon(wanted, reason, forecast, rails, since_change_s)
    if words:
        return _choice(forecast, present, Reason.DWELL, words)
    if changes_left <= 0:
        return _choice(forecast, present, Reason.CHANGE_RATE, "the minute's changes are used up")
    return _choice(forecast, wanted, reason, detail)


def _too_soon(
    wanted: int, reason: Reason, forecast: BucketForecast, rails: GuardRails, since_change_s: float
) -> str:
    """Why the last change must hold a while longer; empty when it need not.

    After ``dwell_s`` a change must have been worth its wait: gain x seconds since the last change at least
    ``min_gain_ratio`` x ``patience_s``. So waiting costs at most that many seconds of work for each change,
    and estimates that go to and fro by a little change the setting seldom. Drafting that is slower than off
    is worth no wait.
    """
    dwell_s = rails.dwell_s if forecast.is_active else max(rails.dwell_s, INACTIVE_DWELL_S)
    told = f"changed {since_change_s:.1f} s ago"
    if since_change_s < dwell_s:
        return f"{told}, stays for {dwell_s:g} s"
    is_learned = reason in (Reason.GAIN, Reason.OFF_NO_GAIN)
    if not forecast.is_active or not is_learned or since_change_s >= rails.patience_s:
        return ""
    present = forecast.candidate(forecast.present_num_speculative_tokens)
    gain = _gain(forecast.candidate(wanted), present)
    needed = rails.min_gain_ratio * rails.patience_s / max(since_change_s, 1e-9)
    lost = _gain(forecast.candidate(0), present) if wanted < forecast.present_num_speculative_tokens else None
    if gain is None or gain >= needed or (lost is not None and lost > rails.min_gain_ratio):
        return ""
    return f"{told}, {wanted} tokens would gain {gain:+.1%}, so soon {needed:.1%} is needed"


def _bounded(proposal: Proposal, forecast: BucketForecast, rails: GuardRails) -> tuple[int, Reason, str]:
    lowest, highest = rails.num_speculative_tokens_min, rails.num_speculative_tokens_max
    wanted = proposal.num_speculative_tokens
    if lowest <= wanted <= highest and forecast.candidate(wanted) is not None:
        return wanted, proposal.reason, proposal.detail
    legal = [candidate.num_speculative_tokens for candidate in forecast.candidates]
    inside = [value for value in legal if lowest <= value <= highest]
    if not inside:
        return wanted, proposal.reason, proposal.detail
    nearest = min(inside, key=lambda value: abs(value - wanted))
    return nearest, Reason.SET_BY_POLICY, f"{wanted} is outside the policy's bounds"


def _off_unless_it_pays(
    wanted: int, reason: Reason, forecast: BucketForecast, rails: GuardRails
) -> tuple[int, Reason]:
    if wanted == 0 or rails.num_speculative_tokens_min > 0 or reason is not Reason.GAIN:
        return wanted, Reason.OFF_NO_GAIN if wanted == 0 and reason is Reason.GAIN else reason
    gain = _gain(forecast.candidate(wanted), forecast.candidate(0))
    if gain is not None and gain < rails.off_below_gain_ratio:
        return 0, Reason.OFF_NO_GAIN
    return wanted, reason


def _has_lost_its_pay(forecast: BucketForecast, rails: GuardRails) -> bool:
    """Drafting as now gains too little over off: off is the safe side, however unsure the best setting is."""
    present = forecast.present_num_speculative_tokens
    if present == 0 or rails.num_speculative_tokens_min > 0:
        return False
    gain = _gain(forecast.candidate(present), forecast.candidate(0))
    return gain is not None and gain < rails.off_below_gain_ratio


def _short_of_gain(wanted: int, forecast: BucketForecast, rails: GuardRails) -> str:
    """Why the gain over the present setting is not enough; empty when it is."""
    best = forecast.candidate(wanted)
    gain = _gain(best, forecast.candidate(forecast.present_num_speculative_tokens))
    if best is None or gain is None:
        # The present value is no candidate (outside the bounds): leaving it needs no gain.
        return ""
    least = rails.min_gain_ratio if forecast.is_active else max(rails.min_gain_ratio, INACTIVE_MIN_GAIN_RATIO)
    needed = max(least, rails.min_gain_sigma * best.sigma_ratio)
    if gain > needed:
        return ""
    return f"{wanted} tokens would gain {gain:+.1%}, {needed:.1%} is needed"


def _gain(better: CandidateForecast | None, base: CandidateForecast | None) -> float | None:
    if better is None or base is None or better.tokens_per_s is None or not base.tokens_per_s:
        return None
    return better.tokens_per_s / base.tokens_per_s - 1.0


def _choice(forecast: BucketForecast, value: int, reason: Reason, detail: str) -> BucketChoice:
    present = forecast.present_num_speculative_tokens
    present_tokens_per_s = forecast.tokens_per_s(present)
    return BucketChoice(
        forecast.decode_batch_from,
        forecast.decode_batch_to,
        present,
        value,
        reason,
        predicted_tokens_per_s=present_tokens_per_s if value == present else forecast.tokens_per_s(value),
        present_tokens_per_s=present_tokens_per_s,
        off_tokens_per_s=forecast.tokens_per_s(0),
        is_active=forecast.is_active,
        is_extrapolated=forecast.is_extrapolated,
        detail=detail,
    )
