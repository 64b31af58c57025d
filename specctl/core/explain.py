"""Plans in plain words: log lines, audit records and a dry run say the same."""

from __future__ import annotations

from collections.abc import Sequence

from specctl.contract.classes import ClassLimit, class_words
from specctl.contract.setting import Setting
from specctl.contract.table import TableRow
from specctl.core.messages import Choice, Reason, knobs_moved, setting_words
from specctl.core.space import Floats
from specctl.core.table_rows import row_at

__all__ = [
    "acceptance_words",
    "choice_words",
    "class_limits_words",
    "explain",
    "limits_changes",
    "table_changes",
]

DEPTHS_SHOWN = 4
CHANGES_SHOWN = 8

_KEPT = {
    Reason.NO_BETTER: "nothing is better",
    Reason.BREAK_EVEN: "break-even of a drafted token",
    Reason.DWELL: "too soon after the last change",
    Reason.FEW_SAMPLES: "too few samples",
    Reason.COST_UNKNOWN: "the cost of a step is not known yet",
    Reason.SET_BY_POLICY: "set by the policy",
    Reason.OFF_NO_GAIN: "drafting does not pay",
    Reason.LATENCY_BOUND: "latency bound",
    Reason.CANARY_WAIT: "waits for a canary",
    Reason.ROLLBACK: "rolled back",
    Reason.UNSOUND: "drafts are not sound",
    Reason.SUPERVISED: "supervised",
    Reason.FROZEN: "frozen",
    Reason.NOT_POSSIBLE: "the server cannot do what the policy fixes",
}


def explain(choices: Sequence[Choice], survival: Floats | None) -> str:
    """One line: the changes of busy buckets, else why the busy buckets stay as they are."""
    changed = sorted((one for one in choices if one.is_change), key=lambda one: not one.is_active)
    shown = changed or [one for one in choices if one.is_active]
    if not shown:
        return "no traffic, nothing to change"
    named = max(sum(one.is_active for one in shown), 1)
    words = [choice_words(one) for one in shown[:named]]
    if len(shown) > named:
        more = len(shown) - named
        words.append(
            f"{more} buckets without traffic follow" if more > 1 else "1 bucket without traffic follows"
        )
    line = "; ".join(words)
    return line if survival is None else f"{line} ({acceptance_words(survival)})"


def acceptance_words(survival: Floats) -> str:
    """Survival by depth: share of drafts whose first 1, 2, ... tokens were all accepted."""
    shown = "/".join(f"{value:.2f}" for value in survival[:DEPTHS_SHOWN])
    dots = "/..." if len(survival) > DEPTHS_SHOWN else ""
    return f"acceptance {shown}{dots}"


def choice_words(choice: Choice) -> str:
    after, why = setting_words(choice.after), _KEPT.get(choice.reason, choice.reason.value)
    if choice.is_change:
        line = f"batch {choice.batch_words}: {setting_words(choice.before)} -> {after}"
        is_forecast = choice.reason is not Reason.BREAK_EVEN
        if is_forecast and choice.predicted_tokens_per_s and choice.present_tokens_per_s:
            predicted, present = _rate(choice.predicted_tokens_per_s), _rate(choice.present_tokens_per_s)
            line += f", predicted {predicted} tok/s instead of {present}"
            if choice.gain and choice.predicted_tokens_per_s < choice.present_tokens_per_s:
                line += f" without prompts in the step, {choice.gain:+.1%} with them"
        if choice.reason is not Reason.GAIN:
            line += f", {why}"
    else:
        line = f"batch {choice.batch_words}: stays at {after}, {why}"
        if choice.present_tokens_per_s:
            line += f", predicted {_rate(choice.present_tokens_per_s)} tok/s"
            if choice.off_tokens_per_s and choice.after.num_speculative_tokens:
                line += f", off {_rate(choice.off_tokens_per_s)}"
    return f"{line}: {choice.detail}" if choice.detail else line


def table_changes(before: Sequence[TableRow], after: Sequence[TableRow]) -> tuple[str, ...]:
    """What differs between two tables but for their samples, in words; empty: nothing."""
    if tuple(before) == tuple(after):
        return ()
    batches = sorted({row.decode_batch_from for row in (*before, *after)})
    contexts = sorted({row.context_from_tokens for row in (*before, *after)})
    found: dict[str, list[int]] = {}
    for batch in batches:
        for context in contexts:
            old, new = row_at(before, batch, context), row_at(after, batch, context)
            if new is None or (old is not None and _is_same(old, new)):
                continue
            where = f" from context {context}" if context else ""
            was = "nothing" if old is None else setting_words(old.setting)
            found.setdefault(f"{was} -> {setting_words(new.setting)}{where}", []).append(batch)
    words = [f"batch {_listed(starts)} on: {change}" for change, starts in found.items()]
    return tuple(words[:CHANGES_SHOWN])


def _is_same(one: Setting, other: Setting) -> bool:
    return one is other or not knobs_moved(one, other)


def limits_changes(before: Sequence[ClassLimit], after: Sequence[ClassLimit]) -> tuple[str, ...]:
    """As ``table_changes``, of the rules for traffic classes."""
    return () if before == after else (f"rules for traffic classes: {class_limits_words(after)}",)


def class_limits_words(limits: Sequence[ClassLimit]) -> str:
    words = [f"{class_words(one)}: at most {one.max_num_speculative_tokens} tokens" for one in limits]
    return "; ".join(words) or "none"


def _listed(starts: Sequence[int]) -> str:
    return ", ".join(map(str, starts))


def _rate(tokens_per_s: float) -> str:
    return f"{tokens_per_s:.1f}" if tokens_per_s < 10 else f"{tokens_per_s:.0f}"
