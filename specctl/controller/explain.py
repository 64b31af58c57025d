"""Decisions in plain words."""

from __future__ import annotations

from specctl.types import BucketChoice, Reason, SurvivalEstimate

__all__ = ["acceptance_words", "explain"]

POSITIONS_SHOWN = 4

_KEPT = {
    Reason.NO_BETTER: "nothing better",
    Reason.WITHIN_NOISE: "the gain is too small or too unsure",
    Reason.DWELL: "too soon after the last change",
    Reason.FEW_SAMPLES: "too few samples",
    Reason.COST_UNKNOWN: "the cost of a step is not known yet",
    Reason.CHANGE_RATE: "too many changes",
    Reason.SET_BY_POLICY: "set by the policy",
    Reason.OFF_NO_GAIN: "drafting does not pay",
    Reason.PROBE: "probe",
    Reason.PROBE_END: "end of the probe",
    Reason.LATENCY_BOUND: "latency bound",
    Reason.CANARY_WAIT: "waits for a canary",
    Reason.ROLLBACK: "rolled back",
    Reason.FROZEN: "frozen",
}


def explain(choices: tuple[BucketChoice, ...], survival: SurvivalEstimate | None) -> str:
    """One line: the changes (busy buckets first), else why the busy bucket stays as it is."""
    changed = sorted((c for c in choices if c.is_change), key=lambda c: not c.is_active)
    shown = changed or [choice for choice in choices if choice.is_active]
    if not shown:
        return "no traffic, nothing to change"
    named = max(sum(choice.is_active for choice in shown), 1)
    words = [_bucket_words(choice) for choice in shown[:named]]
    if len(shown) > named:
        words.append(f"{len(shown) - named} rows without traffic follow")
    line = "; ".join(words)
    return f"{line} ({acceptance_words(survival)})" if survival is not None else line


def acceptance_words(survival: SurvivalEstimate) -> str:
    """Survival by position: share of drafts whose first 1, 2, ... tokens were all accepted."""
    shown = "/".join(f"{value:.2f}" for value in survival.survival_at[:POSITIONS_SHOWN])
    dots = "/..." if len(survival.survival_at) > POSITIONS_SHOWN else ""
    return f"acceptance {shown}{dots}"


def _bucket_words(choice: BucketChoice) -> str:
    low, high = choice.decode_batch_from, choice.decode_batch_to
    batch = f"{low}" if low == high else f"{low}-{high}"
    predicted, present = choice.predicted_tokens_per_s, choice.present_tokens_per_s
    if choice.is_change:
        before, after = choice.from_num_speculative_tokens, choice.num_speculative_tokens
        line = f"{batch} decoding: {before} -> {after} tokens"
        if predicted is not None and present is not None:
            line += f", predicted {_rate(predicted)} tok/s instead of {_rate(present)}"
        if choice.reason is not Reason.GAIN:
            line += f", {_KEPT.get(choice.reason, choice.reason)}"
    else:
        why = _KEPT.get(choice.reason, choice.reason)
        line = f"{batch} decoding: stays at {choice.num_speculative_tokens} tokens, {why}"
        if present is not None:
            line += f", predicted {_rate(present)} tok/s"
            if choice.off_tokens_per_s is not None and choice.num_speculative_tokens:
                line += f", off {_rate(choice.off_tokens_per_s)}"
    return f"{line}: {choice.detail}" if choice.detail else line


def _rate(tokens_per_s: float) -> str:
    return f"{tokens_per_s:.1f}" if tokens_per_s < 10 else f"{tokens_per_s:.0f}"
