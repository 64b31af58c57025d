"""Fits the weights of specctl/draft/calibration.py on replays, and prints them with their calibration error.

    python -m benchmarks.suffix_calibration [--corpus 1000000 10000000] [--requests 120]

Rows: every drafted token whose predecessors came true, of the sets of benchmarks.suffix_index and of Python
source that follows the corpus of benchmarks.suffix_stream (none of the requests of ``make bench-suffix``). A
token's votes are not given out; they are read from its estimated probability, which no other votes after the
same match have. An eighth of the requests is held back for the error.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

from benchmarks.suffix_anchor import Own, sized_options
from benchmarks.suffix_index import MAX_REQUEST_TOKENS, SETS, Replay, Request, calibration_error, load, replay
from benchmarks.suffix_stream import Stream, load_stream
from specctl.draft.calibration import MOST_MATCH, chances, features
from specctl.draft.gather import CANDIDATES
from specctl.draft.suffix_index import SuffixIndex, SuffixIndexOptions

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]
"""[n, 5]: source (0 own, 1 corpus), match, votes, voters, whether it came true"""
DRAFT_TOKENS = 12
LEAST_PROB = 0.02
CODE_WEIGHT = 3.0
_RIDGE = 0.05
_HELD_BACK = 8


def rows_of(result: Replay) -> Rows:
    """Tokens whose predecessors came true."""
    table = chances().reshape(2, MOST_MATCH + 1, CANDIDATES + 1, CANDIDATES + 1)
    found = []
    before = True
    for source, match, estimate, came_true, chance in result.estimates:
        if before or estimate == chance:  # the first of a draft
            kind, matched = min(source, 2) - 1, min(match, MOST_MATCH)
            votes, voters = _votes_of(table[kind, matched], chance)
            found.append((kind, matched, votes, voters, int(came_true)))
        before = came_true
    return np.array(found, np.int64).reshape(-1, 5)


def _votes_of(known: npt.NDArray[np.float32], chance: float) -> tuple[int, int]:
    votes, voters = np.tril_indices(CANDIDATES + 1)[::-1]
    gaps = np.where(votes > 0, np.abs(known[votes, voters] - chance), np.inf)
    best = int(np.argmin(gaps))
    return int(votes[best]), int(voters[best])


def code_requests(stream: Stream) -> Iterator[Request]:
    """A piece of code after the pieces before it."""
    for at in range(4, len(stream.fresh), 12):
        yield np.concatenate(stream.fresh[at - 4 : at]), stream.fresh[at]


def filled_index(stream: Stream) -> SuffixIndex:
    tokens = sum(part.size for part in stream.corpus)
    options = dataclasses.replace(sized_options(tokens, len(stream.corpus)), min_token_prob=LEAST_PROB)
    own = Own(options, 2, MAX_REQUEST_TOKENS)
    own.fill(stream.corpus)
    return own.index


def fit(rows: Rows, weight: Floats) -> Floats:
    """Weights of least log loss; the ridge keeps them small where rows are few."""
    seen, came_true = features(rows[:, 1], rows[:, 2], rows[:, 3]), rows[:, 4]

    def loss(weights: Floats) -> tuple[float, Floats]:
        logits = weights @ seen
        value = float(weight @ (np.logaddexp(0.0, logits) - came_true * logits)) + _RIDGE * weights @ weights
        slope = seen @ (weight * (1.0 / (1.0 + np.exp(-logits)) - came_true)) + 2 * _RIDGE * weights
        return value, slope

    found: Floats = minimize(loss, np.zeros(seen.shape[0]), jac=True, method="L-BFGS-B").x
    return found


def error_of(weights: Floats, rows: Rows) -> float:
    """Expected calibration error of single tokens."""
    estimate = 1.0 / (1.0 + np.exp(-(weights @ features(rows[:, 1], rows[:, 2], rows[:, 3]))))
    return calibration_error(estimate, rows[:, 4])


def collect(requests: Sequence[Request], index: SuffixIndex | None) -> tuple[Rows, Rows]:
    """Rows to fit, and rows held back."""
    options = SuffixIndexOptions(min_token_prob=LEAST_PROB)
    aside = [request for i, request in enumerate(requests) if i % _HELD_BACK == 0]
    rest = [request for i, request in enumerate(requests) if i % _HELD_BACK]
    fitted, held = (rows_of(replay(part, options, DRAFT_TOKENS, index)) for part in (rest, aside))
    return fitted, held


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--corpus", type=int, nargs="*", default=[1_000_000, 10_000_000])
    parser.add_argument("--requests", type=int, default=120, help="of each set")
    arguments = parser.parse_args()
    parts = [(*collect(load(name, arguments.requests), None), 1.0) for name in SETS]
    for tokens in arguments.corpus:
        stream = load_stream(tokens)
        parts.append((*collect(list(code_requests(stream)), filled_index(stream)), CODE_WEIGHT))
    rows = np.concatenate([fitted for fitted, _, _ in parts])
    held = np.concatenate([aside for _, aside, _ in parts])
    weight = np.concatenate([np.full(len(fitted), value) for fitted, _, value in parts])
    for kind, name in enumerate(("_OWN", "_CORPUS")):
        is_kind = rows[:, 0] == kind
        weights = np.round(fit(rows[is_kind], weight[is_kind]), 4)
        error = error_of(weights, held[held[:, 0] == kind])
        print(f"{name} = {tuple(weights.tolist())}")
        print(f"# {is_kind.sum():,} tokens; calibration error of those held back {error:.3f}")


if __name__ == "__main__":
    main()
