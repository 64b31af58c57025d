"""``make bench-suffix``: our suffix index beside arctic-inference's suffix cache, on the same tokens.

    python -m benchmarks.suffix_compare [--repeats 3] [--corpus 10000000] [--small-corpus 1000000]
    python -m benchmarks.suffix_compare --only replay --corpus 1000000

Figures: replay (tokens per step, calibration, at the big corpus), request (one request's times, at the big
corpus), step (256 requests, at the small one), admission, eviction, memory and restore (at the big one).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks import suffix_figures
from benchmarks.run_cpu import install_arctic
from benchmarks.suffix_anchor import Anchor, Own, filled_anchor, filled_own
from benchmarks.suffix_replay import BUDGETS, compare_budget, request_times
from benchmarks.suffix_stream import Stream, load_stream
from testing.provenance import ROOT, provenance


class Bench:
    """Streams and filled arms, each built when a figure first asks for it."""

    def __init__(self, corpus_tokens: int, small_tokens: int, repeats: int, steps: int) -> None:
        self.corpus_tokens = corpus_tokens
        self.small_tokens = min(small_tokens, corpus_tokens)
        self.repeats = repeats
        self.steps = steps

    @cached_property
    def stream(self) -> Stream:
        return load_stream(self.corpus_tokens)

    @cached_property
    def small_stream(self) -> Stream:
        return load_stream(self.small_tokens)

    @cached_property
    def arms(self) -> tuple[Own, Anchor]:
        print(f"bench-suffix: filling both arms with {self.corpus_tokens:,} tokens ...", flush=True)
        own, anchor = filled_own(self.stream.corpus), filled_anchor(self.stream.corpus)
        if own.digest != anchor.digest:
            raise RuntimeError("expected the same tokens in both arms")
        return own, anchor

    def replay(self) -> dict[str, Any]:
        requests = self.stream.requests
        return {f"{budget} tokens": compare_budget(*self.arms, requests, budget) for budget in BUDGETS}

    def request(self) -> dict[str, Any]:
        return request_times(*self.arms, self.stream.requests, self.repeats)

    def step(self) -> dict[str, Any]:
        return suffix_figures.batch_steps(self.small_stream, self.repeats, self.steps)

    def admission(self) -> dict[str, Any]:
        return suffix_figures.admission(self.small_stream, self.repeats)

    def eviction(self) -> dict[str, Any]:
        return suffix_figures.eviction(self.small_stream, self.repeats)

    def memory(self) -> dict[str, Any]:
        return suffix_figures.memory(self.corpus_tokens)

    def restore(self) -> dict[str, Any]:
        return suffix_figures.restore_figure(self.stream, self.repeats)


FIGURES: dict[str, Callable[[Bench], dict[str, Any]]] = {
    "replay": Bench.replay,
    "request": Bench.request,
    "restore": Bench.restore,
    "step": Bench.step,
    "admission": Bench.admission,
    "eviction": Bench.eviction,
    "memory": Bench.memory,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=FIGURES, default=list(FIGURES))
    parser.add_argument("--corpus", type=int, default=10_000_000)
    parser.add_argument("--small-corpus", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200, help="of 256 requests, in each repeat")
    parser.add_argument("--output", type=Path, help="default: results/suffix.json for a run of all figures")
    arguments = parser.parse_args()
    source = provenance()
    install_arctic()
    bench = Bench(arguments.corpus, arguments.small_corpus, arguments.repeats, arguments.steps)
    figures = {}
    for name in arguments.only:
        print(f"bench-suffix: {name} ...", flush=True)
        figures[name] = FIGURES[name](bench)
    print("\n".join(markdown(figures)))
    output = arguments.output
    if output is None and set(arguments.only) == set(FIGURES):
        output = ROOT / "benchmarks" / "results" / "suffix.json"
    if output is not None:
        sizes = {"corpus_tokens": bench.corpus_tokens, "small_corpus_tokens": bench.small_tokens}
        report = {"provenance": source, **sizes, "figures": figures}
        output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        print(f"bench-suffix: wrote {output}")
    return 0


def markdown(figures: dict[str, Any]) -> Iterator[str]:
    """Medians of both arms with their range, then the replays."""
    timed = {name: rows for name, rows in figures.items() if name != "replay"}
    if timed:
        yield "| figure | specctl | anchor | anchor / specctl |"
        yield "| --- | --- | --- | --- |"
    for name, arms in timed.items():
        for key in dict.fromkeys(key for row in arms.values() for key in row):
            ours, theirs = (arms.get(arm, {}).get(key) for arm in ("specctl", "anchor"))
            yield f"| {name}: {key} | {_cell(ours)} | {_cell(theirs)} | {_ratio(ours, theirs)} |"
    for budget, compared in (figures.get("replay") or {}).items():
        yield from _replay_table(budget, compared)


def _cell(value: dict[str, float] | None) -> str:
    if value is None:
        return "-"
    return f"{value['median']:,.2f} ({value['min']:,.2f} to {value['max']:,.2f})"


def _ratio(ours: dict[str, float] | None, theirs: dict[str, float] | None) -> str:
    if not ours or not theirs or ours["median"] <= 0:
        return "-"
    return f"{theirs['median'] / ours['median']:.2f}"


def _replay_table(budget: str, compared: dict[str, Any]) -> Iterator[str]:
    yield ""
    yield f"| replay, at most {budget} | least probability | drafted/step | tokens/step | by kind | ECE |"
    yield "| --- | --- | --- | --- | --- | --- |"
    rows = [(name, row) for name, row in compared.items() if isinstance(row, dict) and "by_kind" in row]
    rows += [(f"{arm}, curve", row) for arm, curve in compared["curve"].items() for row in curve]
    for name, row in rows:
        kinds = " ".join(f"{kind} {value:.3f}" for kind, value in row["by_kind"].items())
        yield (
            f"| {name} | {row['min_token_prob']:.4g} | {row['drafted_per_step']:.3f} | "
            f"{row['tokens_per_step']:.4f} | {kinds} | {row['calibration_error']:.3f} |"
        )
    yield ""
    yield (
        f"At most {budget}: {compared['ratio of tokens per step']:.4f} x the anchor's tokens per step "
        f"at {compared['ratio of drafted tokens']:.3f} x its drafted tokens."
    )


if __name__ == "__main__":
    raise SystemExit(main())
