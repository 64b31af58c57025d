"""Seconds and bytes of both arms, for ``benchmarks.suffix_compare``. Every figure: arm -> name -> summary.

Work that ours leaves for the engine's own step (slices of prompts and outputs) is waited for between two
timed calls, and reported by itself as "beside the engine's step".
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.suffix_anchor import (
    Anchor,
    Arm,
    Own,
    filled_anchor,
    filled_own,
    sized_options,
)
from benchmarks.suffix_replay import times_us
from benchmarks.suffix_schedule import Step, schedule
from benchmarks.suffix_stream import Ints, Stream, load_stream
from specctl.draft import corpus_file
from specctl.draft.suffix_index import SuffixIndexOptions, rungs_for
from testing.provenance import ROOT, summary

BATCH = 256
BUDGET = 8
LONG_PROMPT_TOKENS = 131_072
_FOLLOWING_STEPS = 400
_EVICTIONS = 300
_STEPS_BETWEEN_FINISHES = 4
Samples = dict[str, dict[str, list[float]]]


def summaries(samples: Samples) -> dict[str, Any]:
    return {arm: {key: summary(values) for key, values in row.items()} for arm, row in samples.items()}


def seconds(call: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    call()
    return time.perf_counter() - started_s


def _note(samples: Samples, arm: str, key: str, samples_s: Sequence[float], percentiles: bool = True) -> None:
    p50, p99 = times_us(samples_s)
    row = samples.setdefault(arm, {})
    row.setdefault(f"{key}, p50 us", []).append(p50)
    if percentiles:
        row.setdefault(f"{key}, p99 us", []).append(p99)


def batch_steps(stream: Stream, repeats: int, steps: int) -> dict[str, Any]:
    """A batch of requests that end and are replaced; both arms take the same steps, in turns of ``steps``."""
    own, anchor = filled_own(stream.corpus, BATCH + 1), filled_anchor(stream.corpus)
    first, *timed = schedule(stream.fresh, BATCH, 1 + repeats * steps)
    own_step(own, first)
    own.index.flush()
    anchor_step(anchor, first)
    samples: Samples = {}
    for i in range(repeats):
        part = timed[i * steps : (i + 1) * steps]
        turns: list[tuple[Any, Any]] = [(own, own_step), (anchor, anchor_step)]
        for arm, take in turns if i % 2 == 0 else turns[::-1]:
            taken = [_settled(arm, take, step) for step in part]
            _note_steps(samples, arm.name, taken, part)
    return summaries(samples)


def _settled(arm: Arm, take: Callable[[Any, Step], Sequence[float]], step: Step) -> tuple[float, ...]:
    taken = take(arm, step)
    return (*taken, seconds(arm.settle))


def _note_steps(samples: Samples, arm: str, taken: Sequence[Sequence[float]], part: Sequence[Step]) -> None:
    turnover, update, speculate, beside = zip(*taken, strict=True)
    _note(samples, arm, "whole step", [sum(row[:3]) for row in taken])
    _note(samples, arm, "update + speculate", [row[1] + row[2] for row in taken])
    _note(samples, arm, "speculate", speculate)
    _note(samples, arm, "update", update)
    tokens = sum(step.tokens.size for step in part)
    samples[arm].setdefault("update per token, mean us", []).append(1e6 * sum(update) / tokens)
    samples[arm].setdefault("ends and starts, mean us per step", []).append(1e6 * float(np.mean(turnover)))
    if arm == "specctl":
        _note(samples, arm, "beside the engine's step", beside)


def own_step(own: Own, step: Step) -> tuple[float, float, float]:
    """Seconds of ends and starts, of the update and of speculate."""
    began_s = time.perf_counter()
    for slot in step.finished:
        own.finish(slot)
    for slot, prompt in step.started:
        own.start(slot, prompt)
    turned_s = time.perf_counter()
    own.index.extend_batch(step.slots, step.tokens, step.offsets)
    updated_s = time.perf_counter()
    own.index.propose_batch(step.slots, np.full(step.slots.size, BUDGET, np.int32))
    return turned_s - began_s, updated_s - turned_s, time.perf_counter() - updated_s


def anchor_step(anchor: Anchor, step: Step) -> tuple[float, float, float]:
    lists = step.token_lists()
    began_s = time.perf_counter()
    for slot in step.finished:
        anchor.finish(slot)
    for slot, prompt in step.started:
        anchor.start(slot, prompt)
    turned_s = time.perf_counter()
    for slot, tokens in enumerate(lists):
        anchor.update(slot, tokens)
    updated_s = time.perf_counter()
    for slot, known in enumerate(step.known):
        anchor.speculate(slot, known, BUDGET)
    return turned_s - began_s, updated_s - turned_s, time.perf_counter() - updated_s


def admission(stream: Stream, repeats: int) -> dict[str, Any]:
    """A prompt of 128k tokens: the part that blocks, and what the steps after it pay."""
    flat = np.concatenate(stream.fresh)
    prompt = flat[:LONG_PROMPT_TOKENS]
    every = flat[: LONG_PROMPT_TOKENS + _FOLLOWING_STEPS]
    samples: Samples = {}
    for i in range(repeats):
        own = Own(SuffixIndexOptions(index_bytes=2**20), 2, LONG_PROMPT_TOKENS + 8192)
        arms: list[Arm] = [own, Anchor()]
        for arm in arms if i % 2 == 0 else arms[::-1]:
            _admit(arm, prompt, every, samples)
        own.index.close()
    return summaries(samples)


def _admit(arm: Arm, prompt: Ints, every: Ints, samples: Samples) -> None:
    blocking_s = seconds(lambda: arm.start(0, prompt))
    samples.setdefault(arm.name, {}).setdefault("start, blocking ms", []).append(1e3 * blocking_s)
    following_s, beside_s = [], []
    for at in range(prompt.size, every.size):
        token = arm.given(every[at : at + 1])
        started_s = time.perf_counter()
        arm.update(0, token)
        arm.speculate(0, every[: at + 1], BUDGET)
        following_s.append(time.perf_counter() - started_s)
        beside_s.append(seconds(arm.settle))
    _note(samples, arm.name, "following step", following_s)
    if arm.name == "specctl":
        _note(samples, arm.name, "following step, beside the engine's", beside_s)
        samples[arm.name].setdefault("beside the engine's steps, all ms", []).append(1e3 * sum(beside_s))


def eviction(stream: Stream, repeats: int) -> dict[str, Any]:
    """A full corpus takes one response more: ours in ``finish``, the anchor at the next start."""
    tokens = sum(part.size for part in stream.corpus)
    own = Own(sized_options(tokens // 2, len(stream.corpus) // 2), 3)
    own.fill(stream.corpus)
    if not own.index.stats()["corpus_evicted_tokens"]:
        raise RuntimeError("expected a full corpus")
    anchor = Anchor(max_cached_requests=len(stream.corpus) // 2)
    anchor.fill(stream.corpus)
    own.start(0, stream.fresh[0])
    samples: Samples = {}
    count = min(_EVICTIONS, len(stream.fresh) // repeats)
    for i in range(repeats):
        responses = stream.fresh[i * count : (i + 1) * count]
        turns = (_evict_own, own), (_evict_anchor, anchor)
        for evict, arm in turns if i % 2 == 0 else turns[::-1]:
            evict(arm, stream.fresh[0], responses, samples)
    return summaries(samples)


def _evict_own(own: Own, known: Ints, responses: Sequence[Ints], samples: Samples) -> None:
    finish_s, usual_s, following_s, beside_s = [], [], [], []
    for response in responses:
        own.start(1, response[:0])
        own.update(1, response)
        own.settle()
        own.speculate(0, known, BUDGET)
        usual_s.append(seconds(lambda: own.speculate(0, known, BUDGET)))
        finish_s.append(seconds(lambda: own.finish(1)))
        for _ in range(_STEPS_BETWEEN_FINISHES):
            following_s.append(seconds(lambda: own.speculate(0, known, BUDGET)))
            beside_s.append(seconds(own.settle))
    _note(samples, own.name, "blocking per response", finish_s)
    _note(samples, own.name, "speculate of a step before", usual_s)
    _note(samples, own.name, "speculate of a following step", following_s)
    _note(samples, own.name, "following step, beside the engine's", beside_s)


def _evict_anchor(anchor: Anchor, known: Ints, responses: Sequence[Ints], samples: Samples) -> None:
    started_s = []
    for response in responses:
        started_s.append(seconds(lambda: anchor.start(1, known[:0])))
        anchor.update(1, response)
        anchor.finish(1)
    _note(samples, anchor.name, "blocking per response", started_s)


def memory(corpus_tokens: int) -> dict[str, Any]:
    """Each arm in a process of its own, once: the sizes do not vary."""
    found: dict[str, Any] = {}
    for arm in ("specctl", "anchor"):
        command = [sys.executable, "-m", "benchmarks.suffix_figures", arm, str(corpus_tokens)]
        answer = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
        row = json.loads(answer.stdout.splitlines()[-1])
        found[arm] = {key: summary([value]) for key, value in row.items()}
    return found


def _memory_of(arm: str, corpus: Sequence[Ints]) -> dict[str, float]:
    """Bytes per cached token; of ours, of a corpus that is just full."""
    tokens = float(sum(part.size for part in corpus))
    if arm == "specctl":
        Own(SuffixIndexOptions()).index.warm_up()
        options = sized_options(int(tokens), len(corpus), margin=0.97)
    gc.collect()
    before = _resident_bytes()
    filled: Any = Own(options) if arm == "specctl" else Anchor()
    filled.fill(corpus)
    gc.collect()
    grown = _resident_bytes() - before
    if arm == "anchor":
        return {"resident bytes per token": grown / tokens}
    stats = filled.index.stats()
    held = stats["corpus_tokens"]
    counted = stats["corpus_bytes"] / held
    return {"resident bytes per token": grown / held, "bytes per token, as counted": counted}


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def restore_figure(stream: Stream, repeats: int) -> dict[str, Any]:
    """Our corpus from its file, in the page cache; the anchor keeps none, so it is filled anew, once."""
    block = corpus_file.build_block(stream.corpus, rungs_for(SuffixIndexOptions()))
    samples: Samples = {"specctl": {}, "anchor": {}}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "corpus"
        corpus_file.save(path, block, "", "")
        for _ in range(repeats):
            for key, verify in (("restore ms", True), ("restore, unverified ms", False)):
                took_s = seconds(lambda check=verify: corpus_file.load(path, verify=check))
                samples["specctl"].setdefault(key, []).append(1e3 * took_s)
    samples["anchor"]["restore ms"] = [1e3 * seconds(lambda: Anchor().fill(stream.corpus))]
    return summaries(samples)


def main() -> None:
    parser = argparse.ArgumentParser(description="The memory of one arm, as a line of JSON.")
    parser.add_argument("arm", choices=("specctl", "anchor"))
    parser.add_argument("corpus", type=int)
    arguments = parser.parse_args()
    print(json.dumps(_memory_of(arguments.arm, load_stream(arguments.corpus).corpus)))


if __name__ == "__main__":
    main()
