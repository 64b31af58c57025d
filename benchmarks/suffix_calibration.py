"""How well the suffix index's probabilities hold, and its tokens a step beside the anchor's, kind by kind.

    python -m benchmarks.suffix_calibration [--budget 8] [--code 400000] [--kinds sql swe] [--output FILE]

Each kind of ``suffix_kinds`` is the only traffic of a server, as if it were told apart by its class: STEPS
steps on one half of its requests, again and again where they are few, then the exam on the other half, then
the same with the halves exchanged. Beside it stands what the built-in table does on the same exams. Tokens a
step are compared at the anchor's drafted tokens of the kind.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.run_cpu import install_arctic
from benchmarks.suffix_anchor import (
    DEFAULT_MIN_TOKEN_PROB,
    Anchor,
    Own,
    filled_anchor,
    filled_own,
)
from benchmarks.suffix_kinds import Kind, load_kinds
from benchmarks.suffix_replay import Replay, at_threshold, calibration_error, matching_threshold, replay
from benchmarks.suffix_stream import Request
from testing.provenance import provenance

STEPS = 2000
LEAST_SPREAD_TOKENS = 1000
"""Drafted tokens below which an exam says little of a calibration error."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--budget", type=int, default=8)
    parser.add_argument("--code", type=int, default=400_000, help="tokens of code in the corpus")
    parser.add_argument("--kinds", nargs="*", default=[])
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    source = provenance()
    install_arctic()
    stream = load_kinds(options.code, options.kinds)
    own, anchor = filled_own(stream.corpus), filled_anchor(stream.corpus)
    rows: dict[str, dict[str, Any]] = {}
    for kind in stream.kinds:
        rows[kind.name] = row = compare(own, anchor, kind, options.budget)
        print(f"{kind.name:14} {json.dumps(row)}", flush=True)
    report = {
        "provenance": source,
        "corpus tokens": sum(part.size for part in stream.corpus),
        "budget": options.budget,
        "steps before the exam": STEPS,
        "by kind": rows,
        **summary(rows),
    }
    print(json.dumps({**report, "by kind": ...}, indent=1, default=str))
    if options.output is not None:
        options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


def compare(own: Own, anchor: Anchor, kind: Kind, budget: int) -> dict[str, Any]:
    halves = (kind.lessons, kind.exam), (kind.exam, kind.lessons)
    theirs = joined([at_threshold(anchor, exam, budget, DEFAULT_MIN_TOKEN_PROB) for _, exam in halves])
    row: dict[str, Any] = {"anchor": figures(theirs)}
    for name, steps in (("built-in table", 0), ("learnt", STEPS)):
        exams: dict[float, Replay] = {}

        def drafted_at(prob: float, steps: int = steps, exams: dict[float, Replay] = exams) -> float:
            one = exams[round(prob, 9)] = joined(
                [examined(own, *half, budget, prob, steps) for half in halves]
            )
            return one.drafted_per_step

        least_prob = matching_threshold(drafted_at, theirs.drafted_per_step)
        matched = exams[round(least_prob, 9)]
        row[name] = figures(exams[DEFAULT_MIN_TOKEN_PROB]) | {
            "min_token_prob at the anchor's drafted tokens": round(least_prob, 4),
            "tokens a step at the anchor's drafted tokens, ratio": round(
                matched.tokens_per_step / theirs.tokens_per_step, 4
            ),
        }
    return row


def examined(
    own: Own, lessons: Sequence[Request], exam: Sequence[Request], budget: int, least_prob: float, steps: int
) -> Replay:
    """From a table without outcomes; none are learnt where ``steps`` is 0."""
    own.forget_outcomes()
    own.index.outcomes.is_learning = steps > 0
    own.set_min_token_prob(least_prob)
    while steps > 0:
        steps -= replay(own, lessons, budget).steps
    return replay(own, exam, budget)


def joined(replays: Sequence[Replay]) -> Replay:
    return Replay(
        steps=sum(one.steps for one in replays),
        emitted_tokens=sum(one.emitted_tokens for one in replays),
        drafted_tokens=sum(one.drafted_tokens for one in replays),
        estimates=[estimate for one in replays for estimate in one.estimates],
    )


def figures(exam: Replay) -> dict[str, Any]:
    count = max(1, len(exam.estimates))
    bias = sum(prob - came_true for prob, came_true in exam.estimates) / count
    return {
        "steps": exam.steps,
        "drafted tokens": exam.drafted_tokens,
        "drafted a step": round(exam.drafted_per_step, 4),
        "tokens a step": round(exam.tokens_per_step, 4),
        "calibration error": round(calibration_error(exam.estimates), 4),
        "mean of estimates minus accepted share": round(bias, 4),
    }


def summary(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    ratio = "tokens a step at the anchor's drafted tokens, ratio"
    found: dict[str, Any] = {}
    for name in ("built-in table", "learnt"):
        large = [row for row in rows.values() if row[name]["drafted tokens"] >= LEAST_SPREAD_TOKENS]
        found[name] = {
            "worst calibration error": max(row[name]["calibration error"] for row in large),
            "mean ratio": round(statistics.fmean(row[name][ratio] for row in rows.values()), 4),
            "least ratio": min(row[name][ratio] for row in rows.values()),
        }
    return found


if __name__ == "__main__":
    raise SystemExit(main())
