"""What a suffix automaton or a suffix array would cost, beside the structure of ``specctl.draft.chains``.

    python -m benchmarks.suffix_candidates --output benchmarks/results/suffix_candidates.json

All three hold the corpus of ``suffix_stream`` and are asked once for every output token of its held-back
requests. The automaton and the array give the longest match and one place of it; ours gives a draft with its
probabilities, from the corpus and the request's own tokens.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from benchmarks.provenance import provenance, summary
from benchmarks.suffix_anchor import filled_own
from benchmarks.suffix_stream import Ints, Request, load_stream, up_to

BUDGET = 8
MOST_MATCH_TOKENS = 32
"""As max_match_tokens of ours: the array is sorted by this many tokens. The automaton has no bound."""
LIVE_TOKENS = 65_536
REPEATS = 3
LENGTH, LINK, END, FIRST = range(4)
STATE, TOKEN, TARGET, SIBLING = range(4)


@intrinsic
def _ticks(typing_context):  # -> int64, the processor's counter of constant rate
    def code(context, builder, signature, arguments):
        kind = ir.FunctionType(ir.IntType(64), [])
        call = cgutils.get_or_insert_function(builder.module, kind, "llvm.readcyclecounter")
        return builder.call(call, [])

    return types.int64(), code


@njit(cache=True)
def _now():
    return _ticks()


def tick_us() -> float:
    started_s, before = time.perf_counter(), _now()
    time.sleep(0.5)
    return (time.perf_counter() - started_s) * 1e6 / (_now() - before)


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


def flat_text(documents: list[Ints]) -> Ints:
    """The separator -1 before, between and after the documents."""
    separator = np.array([-1], np.int32)
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


class Automaton:
    name = "suffix automaton"

    def __init__(self, documents: list[Ints], counts: Any = None) -> None:
        """Counts of a former build give the exact sizes; the table is five sixths full."""
        self.text = flat_text(documents)
        states, transitions = counts if counts is not None else (2 * self.text.size, 3 * self.text.size)
        slots = transitions + transitions // 5 + 1
        self.arrays = np.zeros((states, 4), np.int32), np.zeros((slots, 4), np.int32)
        self.counts = _grow(*self.arrays, self.text)

    def sizes(self, tokens: int) -> dict[str, float]:
        arrays, text = sum(array.nbytes for array in self.arrays), self.text.nbytes
        return {
            "states per token": self.counts[0] / tokens,
            "transitions per token": self.counts[1] / tokens,
            "bytes per token": (arrays + text) / tokens,
            # Without FIRST and SIBLING, which only construction reads.
            "bytes per token, read only": (arrays * 3 / 4 + text) / tokens,
        }

    def look_up(self, request: Request) -> tuple[Any, Any]:
        return longest_matches(_follow, self.arrays, request)


class SuffixArray:
    name = "suffix array"

    def __init__(self, documents: list[Ints]) -> None:
        text = flat_text(documents)[::-1].copy()
        self.arrays = sorted_suffixes(text), text

    def sizes(self, tokens: int) -> dict[str, float]:
        return {"bytes per token": sum(array.nbytes for array in self.arrays) / tokens}

    def look_up(self, request: Request) -> tuple[Any, Any]:
        return longest_matches(_search, self.arrays, request)


def longest_matches(search: Any, arrays: tuple[Ints, ...], request: Request) -> tuple[Any, Any]:
    """int64[n] ticks of each output token, and int64[n, 2] length and end of the longest match after it."""
    ticks, found = np.zeros(request.output.size, np.int64), np.zeros((request.output.size, 2), np.int64)
    search(*arrays, np.concatenate([request.prompt, request.output]), request.prompt.size, ticks, found)
    return ticks, found


class Chains:
    name = "specctl"

    def __init__(self, documents: list[Ints]) -> None:
        self.index = filled_own(documents).index

    def sizes(self, tokens: int) -> dict[str, float]:
        return {"bytes per token": self.index.corpus_bytes / tokens}

    def look_up(self, request: Request) -> tuple[Any, Any]:
        """As longest_matches, of a call from Python; nothing is found."""
        self.index.start(0, request.prompt)
        self.index.flush()
        ticks = np.zeros(request.output.size, np.int64)
        for i in range(ticks.size):
            self.index.extend(0, request.output[i : i + 1])
            started = _now()
            self.index.propose(0, BUDGET)
            ticks[i] = _now() - started
        self.index.discard(0)
        return ticks, np.zeros((ticks.size, 2), np.int64)


def check() -> None:
    """Automaton and array give what a scan of a small random text gives; the automaton the latest end."""
    generator = np.random.default_rng(0)
    documents = [generator.integers(0, 4, size).astype(np.int32) for size in range(1, 60)]
    tokens = generator.integers(0, 5, 500).astype(np.int32)
    request, text = Request("random", tokens[:1], tokens[1:]), flat_text(documents)
    by_automaton = Automaton(documents, Automaton(documents).counts).look_up(request)[1]
    by_array = SuffixArray(documents).look_up(request)[1]
    for i, exact, (capped, end) in zip(range(1, tokens.size), by_automaton, by_array, strict=True):
        expected = max((_same_tokens(text, at, tokens, i), at) for at in range(text.size))
        if tuple(exact) != (expected if expected[0] else (0, 0)):
            raise RuntimeError(f"automaton: expected {expected}, got {exact}")
        if capped != min(expected[0], MOST_MATCH_TOKENS) or _same_tokens(text, end, tokens, i) < capped:
            raise RuntimeError(f"array: expected a match of {expected[0]} tokens, got {capped} at {end}")


def _same_tokens(text: Ints, at: int, tokens: Ints, i: int) -> int:
    same = 0
    while same <= i and text[at - same] == tokens[i - same]:
        same += 1
    return same


def measure(tokens: int, builds: int) -> dict[str, Any]:
    """Structure -> figure: built in turns, then asked in turns; the two longest matches must agree."""
    stream, tick = load_stream(tokens), tick_us()
    live = up_to(stream.fresh, LIVE_TOKENS)
    counts = Automaton(stream.corpus).counts
    makers = {
        Automaton.name: lambda: Automaton(stream.corpus, counts),
        SuffixArray.name: lambda: SuffixArray(stream.corpus),
        Chains.name: lambda: Chains(stream.corpus),
    }
    samples: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in makers}
    built: dict[str, Any] = {}
    for name, make in list(makers.items()) * builds:
        built.pop(name, None)
        started_s = time.perf_counter()
        built[name] = make()
        samples[name]["build, us per token"].append((time.perf_counter() - started_s) * 1e6 / tokens)
    for _ in range(REPEATS):
        started_s = time.perf_counter()
        SuffixArray(live)
        samples[SuffixArray.name]["build of 64k tokens, ms"].append((time.perf_counter() - started_s) * 1e3)
        lengths = {}
        for name, one in built.items():
            ticks, found = zip(*map(one.look_up, stream.requests), strict=True)
            lengths[name] = np.minimum(np.concatenate(found)[:, 0], MOST_MATCH_TOKENS)
            times_us = np.concatenate(ticks) * tick
            p50, p99 = np.percentile(times_us, (50, 99))
            for part, value in {"mean": times_us.mean(), "p50": p50, "p99": p99}.items():
                samples[name][f"step, {part} us"].append(float(value))
        if (lengths[Automaton.name] != lengths[SuffixArray.name]).any():
            raise RuntimeError("expected the same longest matches of automaton and array, got others")
    return {
        name: {**one.sizes(tokens), **{key: summary(values) for key, values in samples[name].items()}}
        for name, one in built.items()
    }


def table(tokens: str, by_name: dict[str, dict[str, Any]]) -> str:
    """Medians with their range."""
    lines = [f"\n| {int(tokens):,} tokens | {' | '.join(by_name)} |", "| --- " * (1 + len(by_name)) + "|"]
    for figure in dict.fromkeys(key for row in by_name.values() for key in row):
        lines.append(f"| {figure} | {' | '.join(_cell(row.get(figure)) for row in by_name.values())} |")
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return f"{value['median']:.2f} ({value['min']:.2f} to {value['max']:.2f})"
    return "-" if value is None else f"{value:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--corpus", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    check()
    # A large corpus is built once.
    figures = {str(size): measure(size, REPEATS if size < 4_000_000 else 1) for size in arguments.corpus}
    print("\n".join(table(size, by_name) for size, by_name in figures.items()))
    if arguments.output is not None:
        report = {"provenance": provenance(), "figures": figures}
        arguments.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
