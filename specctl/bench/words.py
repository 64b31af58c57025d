"""What a result says, as lines and cells that the terminal, Markdown and the page share."""

from __future__ import annotations

from specctl.bench.loads import Load
from specctl.bench.results import ArmFigures, BenchResult, OutputCheck, Percentiles
from specctl.plain_text import counted

__all__ = ["HEADINGS", "cells_of", "markdown", "outputs_words", "ran_words"]

HEADINGS = (
    "arm", "tokens/s", "range", "against baseline", "TTFT ms", "TPOT ms", "E2E ms", "acceptance", "length",
    "cost/1M tokens", "ITL ms", "steady", "decode/request",
)  # fmt: skip
NOT_MEASURED = "-"


def cells_of(one: ArmFigures, result: BenchResult) -> tuple[str, ...]:
    """In the order of HEADINGS."""
    found = next((c for c in result.comparisons if (c.arm, c.load) == (one.arm, one.load)), None)
    acceptance = one.acceptance
    rate = None if acceptance is None else acceptance.acceptance_rate
    length = None if acceptance is None else acceptance.acceptance_length
    return (
        one.arm,
        f"{one.tokens_per_s:.1f}",
        f"{one.tokens_per_s_min:.1f} to {one.tokens_per_s_max:.1f}",
        "baseline" if found is None else found.words,
        *(_milliseconds(each) for each in (one.ttft, one.tpot, one.e2el)),
        _number(rate, "{:.0%}"),
        _number(length, "{:.2f}"),
        _number(one.cost_per_million_tokens, "{:.3f}"),
        _milliseconds(one.itl),
        _number(one.steady_tokens_per_s, "{:.1f}"),
        _number(one.decode_tokens_per_s, "{:.1f}"),
    )


def outputs_words(result: BenchResult) -> list[str]:
    """Below the verdict: what each constant arm loses, and whether outputs are the same."""
    return [*result.losses, *(_outputs_of(check) for check in result.outputs)]


def _outputs_of(check: OutputCheck) -> str:
    text = f"outputs identical {check.identical}/{check.compared}: {check.arm} and {check.baseline}"
    if not check.differing:
        return text
    ties = sum(one.is_tie is True for one in check.differing)
    unknown = sum(one.is_tie is None for one in check.differing)
    parts = [_ties_words(ties, len(check.differing))] if ties else []
    if unknown:
        parts.append(f"{unknown} could not be scored")
    worst = [one.margin for one in check.differing if one.is_tie is False and one.margin is not None]
    if worst:
        verb = "is no tie" if len(worst) == 1 else "are no ties"
        parts.append(f"{len(worst)} {verb}: up to {max(worst):.3g} in log probability")
    return f"{text}; {', '.join(parts)}"


def _ties_words(ties: int, differences: int) -> str:
    if ties < differences:
        return f"{ties} of {differences} differences {'is a tie' if ties == 1 else 'are ties'}"
    return "the difference is a tie" if ties == 1 else f"all {ties} differences are ties"


def ran_words(result: BenchResult) -> list[str]:
    lines = []
    for server in result.servers:
        known = [f"{server[name]}" for name in ("engine", "engine_version", "method") if server.get(name)]
        gpu = f" on {server['gpu']}" if server.get("gpu") else ""
        lines.append(
            f"{server['name']}: {server['served_model']}{gpu}{', ' if known else ''}{' '.join(known)}"
        )
        if server.get("launch"):
            lines.append(f"started by: {server['launch']}")
    lines.append("; ".join(f"{load.title}: {_load_words(load)}" for load in result.loads))
    lines.append(
        f"{counted(result.rounds, 'round')}, in each every arm once, the order turned from round to round. "
        f"Arms: {', '.join(arm.name for arm in result.arms)}."
    )
    machine = result.machine
    lines.append(f"{result.utc}, specctl {machine['specctl']}; load sent from {machine['cpu']}.")
    lines.append(result.command)
    return lines


def _load_words(load: Load) -> str:
    if load.concurrency is not None:
        how = f"{counted(load.concurrency, 'request')} at once"
    elif load.rate_per_s is not None:
        how = f"Poisson arrivals, {load.rate_per_s:g}/s"
    else:
        how = "arrivals of a trace"
    least = "up to" if load.min_tokens is None else f"{load.min_tokens} to"
    return f"prompts {load.prompts}, {how}, {least} {load.max_tokens} output tokens"


def markdown(result: BenchResult) -> str:
    lines = ["# specctl bench", "", f"**{result.verdict}**", ""]
    lines += [f"{line}." for line in outputs_words(result)]
    lines += [f"Warning: {line}." for line in result.warnings]
    for load in result.loads:
        lines += ["", f"## {load.title}", "", _row(HEADINGS), _row(["---"] * len(HEADINGS))]
        lines += [_row(cells_of(one, result)) for one in result.figures if one.load == load.title]
    over_all = [one for one in result.comparisons if one.load is None]
    if len(result.loads) > 1:
        lines += ["", "## All loads (geometric mean)", ""]
        lines += [f"- {one.arm} against {one.baseline}: {one.words}" for one in over_all]
    if result.search is not None:
        lines += ["", "## Search", "", "```", result.search["launch"], "```", "", "```yaml"]
        lines += [result.search["policy"].rstrip(), "```", ""]
        lines += [f"- with this setting, {line}" for line in result.search["others_words"]]
    lines += ["", "Latencies are p50 / p95 / p99.", "", "## What ran", ""]
    return "\n".join([*lines, *(f"- {line}" for line in ran_words(result)), ""])


def _row(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _milliseconds(found: Percentiles | None) -> str:
    if found is None:
        return NOT_MEASURED
    values = (found.p50_s, found.p95_s, found.p99_s)
    return " / ".join(NOT_MEASURED if value is None else _three(1000.0 * value) for value in values)


def _three(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _number(value: float | None, form: str) -> str:
    return NOT_MEASURED if value is None else form.format(value)
