"""What a suffix automaton or a suffix array would cost, beside the structure of ``specctl.draft.chains``.

    python -m benchmarks.suffix_candidates --output benchmarks/results/suffix_candidates.json

All three hold the corpus of ``suffix_stream`` and are asked once for every output token of its held-back
requests. The automaton and the array give the longest match and one place of it; ours gives a draft with its
probabilities, from the corpus and the request's own tokens.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from benchmarks.provenance import provenance, summary
from benchmarks.suffix_anchor import filled_own
from benchmarks.suffix_stream import Ints, Request, load_stream, up_to
from specctl.draft.proposal import propose_one

T = TypeVar("T")
BUDGET = 8
MOST_MATCH_TOKENS = 32
"""As max_match_tokens of ours: the array is sorted by this many tokens. The automaton has no bound."""
LIVE_TOKENS = 65_536
REPEATS = 3
SEPARATOR = -1
LENGTH, LINK, END, FIRST = range(4)
STATE, TOKEN, TARGET, SIBLING = range(4)
_MIN_PROB = 0.1


@intrinsic
def _ticks(typing_context):  # -> int64, the processor's counter of constant rate
    def code(context, builder, signature, arguments):
        kind = ir.FunctionType(ir.IntType(64), [])
        call = cgutils.get_or_insert_function(builder.module, kind, "llvm.readcyclecounter")
        return builder.call(call, [])

    return types.int64(), code


@njit(cache=True)
def _slot(table, state, token):
    """Where the transition is, or would be: its target is 0 there."""
    mixed = (np.uint64(state) << np.uint64(32) | np.uint64(token)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    at = np.int64(((mixed >> np.uint64(32)) * np.uint64(table.shape[0])) >> np.uint64(32))
    while table[at, TARGET] != 0 and (table[at, STATE] != state or table[at, TOKEN] != token):
        at = at + 1 if at + 1 < table.shape[0] else 0
    return at


@njit(cache=True)
def _connect(states, table, counts, slot, state, token, target):
    """A transition into a free slot, and into the list of its state, which cloning reads."""
    table[slot, STATE], table[slot, TOKEN], table[slot, TARGET] = state, token, target
    table[slot, SIBLING] = states[state, FIRST]
    states[state, FIRST] = slot + 1
    counts[1] += 1


@njit(cache=True)
def _clone(states, table, counts, state, token, target):
    """The short strings of target get a state of their own; state and its links lead there from now on."""
    clone = counts[0]
    counts[0] += 1
    states[clone, LENGTH] = states[state, LENGTH] + 1
    states[clone, LINK], states[clone, END] = states[target, LINK], states[target, END]
    at = states[target, FIRST] - 1
    while at >= 0:
        free = _slot(table, clone, table[at, TOKEN])
        _connect(states, table, counts, free, clone, table[at, TOKEN], table[at, TARGET])
        at = table[at, SIBLING] - 1
    states[target, LINK] = clone
    while state >= 0:
        at = _slot(table, state, token)
        if table[at, TARGET] != target:
            break
        table[at, TARGET] = clone
        state = states[state, LINK]
    return clone


@njit(cache=True)
def _next(states, table, counts, state, token):
    """The state by which a text that ends with token is linked, found or cloned."""
    target = table[_slot(table, state, token), TARGET]
    is_longest = states[target, LENGTH] == states[state, LENGTH] + 1
    return np.int64(target) if is_longest else _clone(states, table, counts, state, token, target)


@njit(cache=True)
def _append(states, table, counts, last, token, end):
    """One more token of a document (Blumer et al. 1985); last is 0 at its start. Returns the new last."""
    if table[_slot(table, last, token), TARGET] != 0:
        current = _next(states, table, counts, last, token)
    else:
        current = counts[0]
        counts[0] += 1
        states[current, LENGTH] = states[last, LENGTH] + 1
        while last >= 0:
            slot = _slot(table, last, token)
            if table[slot, TARGET] != 0:
                break
            _connect(states, table, counts, slot, last, token, current)
            last = np.int64(states[last, LINK])
        states[current, LINK] = 0 if last < 0 else _next(states, table, counts, last, token)
    suffix = current
    while suffix > 0:
        states[suffix, END] = end
        suffix = np.int64(states[suffix, LINK])
    return current


@njit(cache=True)
def _grow(states, table, text):
    """Automaton of all documents in zeroed arrays; int64[2] states and transitions."""
    counts = np.array([1, 0])
    states[0, LINK] = -1
    last = np.int64(0)
    for i in range(text.size):
        last = np.int64(0) if text[i] < 0 else _append(states, table, counts, last, text[i], i)
    return counts


@njit(cache=True)
def _follow(states, table, tokens, first, ticks, found):  # ticks int64[n], found int64[n, 2]: length, end
    state, length = np.int64(0), np.int64(0)
    for i in range(tokens.size):
        started = _ticks()
        target = table[_slot(table, state, tokens[i]), TARGET]
        while target == 0 and state > 0:
            state = np.int64(states[state, LINK])
            length = np.int64(states[state, LENGTH])
            target = table[_slot(table, state, tokens[i]), TARGET]
        state, length = np.int64(target), length + 1 if target else 0
        if i >= first:
            found[i - first, 0], found[i - first, 1] = length, states[state, END]
            ticks[i - first] = _ticks() - started


@njit(cache=True)
def _search(order, text, tokens, first, ticks, found):  # as _follow; text is reversed
    for i in range(first, tokens.size):
        started = _ticks()
        most = min(i + 1, MOST_MATCH_TOKENS)
        low, high, below, above = 0, order.size, 0, 0
        longest, place = 0, 0
        while low < high and longest < most:
            middle = (low + high) // 2
            length, start = min(below, above), order[middle]
            while length < most and tokens[i - length] == text[start + length]:
                length += 1
            if length > longest:
                longest, place = length, start
            if length < most and text[start + length] < tokens[i - length]:
                low, below = middle + 1, length
            else:
                high, above = middle, length
        found[i - first, 0], found[i - first, 1] = longest, text.size - 1 - place
        ticks[i - first] = _ticks() - started


@njit
def _propose(address):  # not cached: it would keep an old propose_one
    started = _ticks()
    status = propose_one(address, np.int64(0), np.int64(BUDGET), _MIN_PROB)
    return _ticks() - started if status >= 0 else np.int64(-1)


@njit(cache=True)
def _nothing(ticks):
    for i in range(ticks.size):
        started = _ticks()
        ticks[i] = _ticks() - started


def clock() -> tuple[float, float]:
    """(microseconds of a tick, ticks that reading the counter takes)"""
    ticks = np.zeros(10_000_000, np.int64)
    _nothing(ticks[:1])
    started_s, before = time.perf_counter(), _counter()
    _nothing(ticks)
    return (time.perf_counter() - started_s) * 1e6 / (_counter() - before), float(np.median(ticks))


@njit(cache=True)
def _counter():
    return _ticks()


def flat_text(documents: list[Ints]) -> Ints:
    """A separator before, between and after the documents."""
    separator = np.array([SEPARATOR], np.int32)
    return np.concatenate([separator, *(part for document in documents for part in (document, separator))])


def sorted_suffixes(text: Ints) -> Ints:
    """By their first MOST_MATCH_TOKENS tokens, with prefix doubling."""
    ranks, width = text.astype(np.int64) + 1, 1
    while True:
        keys = ranks << 32
        keys[:-width] |= ranks[width:]
        order = np.argsort(keys)
        width *= 2
        if width >= MOST_MATCH_TOKENS:
            return order.astype(np.int32)
        keys = keys[order]
        ranks[order] = np.concatenate([[0], np.cumsum(keys[1:] != keys[:-1])])


class Flat:
    """A structure in flat arrays over ``text``, with its compiled loop over the tokens of a request."""

    name: str
    search: Any
    arrays: tuple[Ints, ...]

    def look_up(self, request: Request) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        tokens = np.concatenate([request.prompt, request.output])
        steps = request.output.size
        ticks, found = np.zeros(steps, np.int64), np.zeros((steps, 2), np.int64)
        self.search(*self.arrays, tokens, request.prompt.size, ticks, found)
        return ticks, found


class Automaton(Flat):
    name = "suffix automaton"
    search = staticmethod(_follow)

    def __init__(self, documents: list[Ints], counts: npt.NDArray[np.int64] | None = None) -> None:
        """Counts of a former build give the exact sizes; the table is five sixths full."""
        text = flat_text(documents)
        states, transitions = (2 * text.size, 3 * text.size) if counts is None else counts.tolist()
        slots = transitions + transitions // 5 + 1
        self.arrays = np.zeros((states, 4), np.int32), np.zeros((slots, 4), np.int32)
        self.counts = _grow(*self.arrays, text)
        self.text = text

    def sizes(self, tokens: int) -> dict[str, float]:
        whole = sum(array.nbytes for array in self.arrays)
        return {
            "states per token": self.counts[0] / tokens,
            "transitions per token": self.counts[1] / tokens,
            "bytes per token": (whole + self.text.nbytes) / tokens,
            # Without FIRST and SIBLING, which only construction needs.
            "bytes per token, read only": (whole * 3 / 4 + self.text.nbytes) / tokens,
        }


class SuffixArray(Flat):
    name = "suffix array"
    search = staticmethod(_search)

    def __init__(self, documents: list[Ints]) -> None:
        text = flat_text(documents)[::-1].copy()
        self.arrays = sorted_suffixes(text), text

    def sizes(self, tokens: int) -> dict[str, float]:
        return {"bytes per token": sum(array.nbytes for array in self.arrays) / tokens}


class Chains:
    """Ours, one call from Python for each step, or all steps of a request in compiled code."""

    name = "specctl"

    def __init__(self, documents: list[Ints]) -> None:
        self.index = filled_own(documents).index

    def sizes(self, tokens: int) -> dict[str, float]:
        return {"bytes per token": self.index.corpus_bytes / tokens}

    def look_up(self, request: Request, is_compiled: bool = False) -> Any:
        """float64[n] microseconds of each call of propose, or int64[n] ticks within its compiled code."""
        index = self.index
        index.start(0, request.prompt)
        index.flush()
        times = np.zeros(request.output.size, np.int64 if is_compiled else np.float64)
        for i in range(times.size):
            index.extend(0, request.output[i : i + 1])
            if is_compiled:
                times[i] = _propose(index._address)
            else:
                started_s = time.perf_counter()
                index.propose(0, BUDGET, _MIN_PROB)
                times[i] = (time.perf_counter() - started_s) * 1e6
        index.discard(0)
        if times.min() < 0:
            raise RuntimeError("the compiled call was refused")
        return times


def check() -> None:
    """Both give what a scan of all documents gives, on a small random text."""
    generator = np.random.default_rng(0)
    documents = [generator.integers(0, 4, size).astype(np.int32) for size in range(1, 60)]
    text = flat_text(documents)
    tokens = generator.integers(0, 5, 500).astype(np.int32)
    request = Request("random", tokens[:1], tokens[1:])
    automaton = Automaton(documents, Automaton(documents).counts)
    by_automaton, by_array = automaton.look_up(request)[1], SuffixArray(documents).look_up(request)[1]
    for i in range(1, tokens.size):
        length, end = 0, 0
        for at in range(text.size):
            same = 0
            while same <= i and text[at - same] == tokens[i - same]:
                same += 1
            if same and same >= length:
                length, end = same, at
        if by_automaton[i - 1].tolist() != [length, end]:
            raise RuntimeError(f"automaton: expected {[length, end]}, got {by_automaton[i - 1].tolist()}")
        capped, place = by_array[i - 1]
        matched = text[place + 1 - capped : place + 1].tolist()
        if capped != min(length, MOST_MATCH_TOKENS) or matched != tokens[i + 1 - capped : i + 1].tolist():
            raise RuntimeError(f"array: expected a match of {length}, got {matched}")


class Samples(dict[str, dict[str, list[float]]]):
    """Structure -> figure -> one value for each repeat."""

    def note(self, name: str, figure: str, value: float) -> None:
        self.setdefault(name, {}).setdefault(figure, []).append(value)

    def note_times(self, name: str, figure: str, times_us: npt.NDArray[np.float64]) -> None:
        for part, value in (
            ("mean", times_us.mean()),
            ("p50", np.percentile(times_us, 50)),
            ("p99", np.percentile(times_us, 99)),
        ):
            self.note(name, f"{figure}, {part} us", float(value))


def timed(build: Callable[[], T], samples: Samples, name: str, figure: str, unit_s: float) -> T:
    gc.collect()
    started_s = time.perf_counter()
    built = build()
    samples.note(name, figure, (time.perf_counter() - started_s) / unit_s)
    return built


def measure(tokens: int, builds: int, clock_us: tuple[float, float]) -> dict[str, Any]:
    """Build in turns, then look up in turns; sizes of what was built."""
    stream = load_stream(tokens)
    live = up_to(stream.fresh, LIVE_TOKENS)
    counts = Automaton(stream.corpus).counts
    samples = Samples()
    makers: list[Callable[[], Any]] = [
        lambda: Automaton(stream.corpus, counts),
        lambda: SuffixArray(stream.corpus),
        lambda: Chains(stream.corpus),
    ]
    kinds = [Automaton, SuffixArray, Chains]
    built: dict[str, Any] = {}
    for _ in range(builds):
        for kind, make in zip(kinds, makers, strict=True):
            built.pop(kind.name, None)
            built[kind.name] = timed(make, samples, kind.name, "build, us per token", tokens * 1e-6)
    for _ in range(REPEATS):
        timed(lambda: SuffixArray(live), samples, SuffixArray.name, "build of 64k live tokens, ms", 1e-3)
        look_up_all(built, stream.requests, samples, clock_us)
    return {
        name: {**one.sizes(tokens), **{key: summary(values) for key, values in samples[name].items()}}
        for name, one in built.items()
    }


def look_up_all(
    built: dict[str, Any], requests: list[Request], samples: Samples, clock_us: tuple[float, float]
) -> None:
    """All requests through each structure; the two longest matches must agree."""
    tick_us, overhead = clock_us
    lengths = []
    for kind in (Automaton, SuffixArray):
        ticks, found = zip(*map(built[kind.name].look_up, requests), strict=True)
        lengths.append(np.minimum(np.concatenate(found)[:, 0], MOST_MATCH_TOKENS))
        samples.note_times(kind.name, "step", (np.concatenate(ticks) - overhead) * tick_us)
    if (lengths[0] != lengths[1]).any():
        raise RuntimeError("expected the same longest matches of automaton and array, got different ones")
    own = built[Chains.name]
    samples.note_times(Chains.name, "propose", np.concatenate([own.look_up(one) for one in requests]))
    ticks = np.concatenate([own.look_up(one, is_compiled=True) for one in requests])
    samples.note_times(Chains.name, "step", (ticks - overhead) * tick_us)


def markdown(figures: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Medians with their range; one table for each size of the corpus."""
    for size, by_name in figures.items():
        yield f"\n| {int(size):,} tokens | {' | '.join(by_name)} |\n| --- | {' | '.join('---' for _ in by_name)} |"
        for figure in dict.fromkeys(key for row in by_name.values() for key in row):
            yield f"| {figure} | {' | '.join(_cell(row.get(figure)) for row in by_name.values())} |"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, dict):
        return f"{value['median']:.2f} ({value['min']:.2f} to {value['max']:.2f})"
    return f"{value:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--corpus", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    check()
    clock_us = clock()
    # From 4 million tokens on, built once.
    figures = {
        str(tokens): measure(tokens, REPEATS if tokens < 4_000_000 else 1, clock_us)
        for tokens in arguments.corpus
    }
    print("\n".join(markdown(figures)))
    if arguments.output is not None:
        report = {"provenance": provenance(), "requests": 60, "figures": figures}
        arguments.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
