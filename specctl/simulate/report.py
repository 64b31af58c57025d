"""A comparison as a plain table, and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specctl.errors import SpecctlError
from specctl.simulate.engine_profile import EngineProfile
from specctl.simulate.scenario import Scenario
from specctl.simulate.trace import Trace

if TYPE_CHECKING:
    from specctl.simulate.compare import Comparison

__all__ = ["notes", "table", "write_json"]

COLUMNS = (
    ("", lambda r: r.name),
    ("tokens/s", lambda r: f"{r.tokens_per_s:.0f}"),
    ("TPOT p50 ms", lambda r: f"{r.tpot_p50_s * 1e3:.2f}"),
    ("p99", lambda r: f"{r.tpot_p99_s * 1e3:.2f}"),
    ("TTFT p50 s", lambda r: f"{r.ttft_p50_s:.2f}"),
    ("p99", lambda r: f"{r.ttft_p99_s:.2f}"),
    ("regret", lambda r: f"{r.regret_ratio:+.1%}"),
    ("lost", lambda r: f"{r.lost_ratio:.1%}"),
    ("x off", lambda r: f"{r.to_off:.3f}"),
    ("x best static", lambda r: f"{r.to_best_static:.3f}"),
    ("drafts", lambda r: f"{r.mean_num_speculative_tokens:.1f}"),
    ("switches/min", lambda r: f"{r.switches_per_minute:.1f}"),
)
LEGEND = (
    "regret: tokens/s below the clairvoyant's. lost: share of the tokens of decoding steps that the number "
    "of drafts cost, at the batches met; it counts also while the arrivals bound the tokens/s."
)


def table(comparison: Comparison) -> str:
    """One line for each arm; the best static number is marked with *."""
    rows = [[title for title, _ in COLUMNS]]
    for result in comparison.results:
        rows.append([cell(result) for _, cell in COLUMNS])
        rows[-1][0] += " *" if result.name == comparison.best_static else ""
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    lines = [_line(row, widths) for row in rows]
    return "\n".join([*lines, LEGEND])


def _line(row: list[str], widths: list[int]) -> str:
    first, *rest = (
        cell.ljust(width) if i == 0 else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
    return "  ".join([first, *rest]).rstrip()


def notes(trace: Trace, profile: EngineProfile, scenario: Scenario) -> str:
    """What was simulated, in one line, and what of the trace was left out in another."""
    made = profile.fingerprint
    line = (
        f"{len(trace)} requests over {float(trace.arrival_s[-1]):.0f} s, acceptance {scenario.name}, "
        f"{made.model} {made.dtype} on {made.gpu} ({made.parallelism}), {made.engine}, {profile.method}"
    )
    parts = [f"{count} rows skipped: {why}" for why, count in trace.skipped.items()]
    if trace.gaps:
        parts.append(f"{trace.gaps} waits of over a minute in the trace")
    parts += trace.notes
    return "\n".join([line, "; ".join(parts)] if parts else [line])


def write_json(path: Path, comparison: Comparison, inputs: dict[str, Any]) -> None:
    """To standard output for the path ``-``. Raises SpecctlError when the file cannot be written."""
    record = {
        "inputs": inputs,
        "best_static": comparison.best_static,
        "arms": [result.record() for result in comparison.results],
    }
    text = json.dumps(record, indent=1, allow_nan=False)
    if str(path) == "-":
        print(text)
        return
    try:
        path.write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        raise SpecctlError(f"{path}: cannot be written: {error.strerror or error}") from error
