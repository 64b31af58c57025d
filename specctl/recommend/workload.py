"""What the user says of the traffic and the machine."""

from __future__ import annotations

from dataclasses import dataclass

from specctl.recommend.guide import Family, Guide, Method, Rule, When

__all__ = ["Score", "Workload", "score_of"]

_HEADS = ("head", "first_head", "parallel_head", "hybrid")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """None: not said, and no rule asks for it. ``acceptance``: of a running server's first draft token."""

    kind: str = "chat"
    concurrency: int = 16
    output_tokens: int | None = None
    context_tokens: int | None = None
    temperature: float | None = None
    on_cpu: bool = False
    acceptance: float | None = None
    present_method: str | None = None


@dataclass(frozen=True, slots=True)
class Score:
    """Points, and every reason that moved them, with its sources' names."""

    points: float
    reasons: tuple[tuple[str, tuple[str, ...]], ...]


def score_of(method: Method, workload: Workload, guide: Guide) -> Score:
    family = guide.families[method.family]
    points = family.points[workload.kind] + method.points
    reasons = [(_first_reason(family, workload.kind), family.sources)]
    for rule in guide.rules:
        added = _added(rule, method)
        if added and _holds(rule.when, method, workload):
            points += added
            reasons.append((f"{rule.why} ({added:+g})", rule.sources))
    return Score(points, tuple(reasons))


def _first_reason(family: Family, kind: str) -> str:
    why = family.why.get(kind)
    words = f"drafts from {family.drafts_from}" if family.drafts_from else "makes no drafts"
    return words if why is None else f"{words}; {why}"


def _added(rule: Rule, method: Method) -> float:
    general = 0.0 if method.is_none else rule.points.get("all", 0.0)
    return rule.points.get(method.family, general)


def _holds(when: When, method: Method, workload: Workload) -> bool:
    """All conditions that are given; one on what was not said does not hold."""
    given = when.model_dump(exclude_none=True)
    checks = {
        "output_tokens_below": _below(workload.output_tokens, when.output_tokens_below),
        "concurrency_at_least": _at_least(workload.concurrency, when.concurrency_at_least),
        "concurrency_below": _below(workload.concurrency, when.concurrency_below),
        "temperature_at_least": _at_least(workload.temperature, when.temperature_at_least),
        "context_at_least": _at_least(workload.context_tokens, when.context_at_least),
        "acceptance_below": _below(workload.acceptance, when.acceptance_below)
        and workload.present_method == method.id,
        "acceptance_at_least": _at_least(workload.acceptance, when.acceptance_at_least)
        and workload.present_method == method.id,
        "is_head": (method.family in _HEADS) == when.is_head,
        "on_cpu": workload.on_cpu == when.on_cpu,
    }
    return all(checks[name] for name in given)


def _below(value: float | None, bound: float | None) -> bool:
    return value is not None and bound is not None and value < bound


def _at_least(value: float | None, bound: float | None) -> bool:
    return value is not None and bound is not None and value >= bound
