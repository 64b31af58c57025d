"""Feeds mutated inputs to every parser. Guided by what is said: an input with a new kind of answer is kept.

    PYTHONPATH=.:tests python -m fuzz.run --inputs 10000000

Exit code 1 and a file in ``tests/fuzz/cases/`` for an input that raises what its parser may not raise, takes
over a second, hangs, or makes the process grow by over 256 MiB. The test suite reads those files again.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import multiprocessing
import os
import random
import re
import resource
import signal
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import repeat
from math import ceil
from pathlib import Path

from fuzz.mutate import mutated
from fuzz.parsers import PARSERS, Parser

__all__ = ["CASES", "Course", "failure", "run"]

CASES = Path(__file__).parent / "cases"
SECONDS_MAX = 1.0
HANG_S = 30
"""Of wall time, on a machine that others use too."""
GROWTH_MAX_BYTES = 256 * 2**20
POOL_MAX = 512
RATE_INPUTS = 300
"""Of each parser, for a start: how long one takes."""
_VARIABLE = re.compile(r"[0-9]+|'[^']*'|\"[^\"]*\"")


class Hang(BaseException):
    """A parser that waits for something."""


def failure(parser: Parser, data: bytes) -> tuple[str, str]:
    """What is wrong with how an input was taken, empty for nothing; and the shape of the answer."""
    started_s = time.thread_time()
    try:
        shape = type(parser.parse(data)).__name__
        wrong = ""
    except parser.errors as error:
        shape, wrong = _VARIABLE.sub("#", str(error))[:120], ""
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        shape = wrong = f"{type(error).__name__}: {str(error)[:200]}"
    took_s = time.thread_time() - started_s
    return wrong or (f"took {took_s:.1f} s" if took_s > SECONDS_MAX else ""), shape


@dataclass
class Course:
    """One parser's inputs so far."""

    parser: Parser
    rng: random.Random
    pool: list[bytes] = field(default_factory=list)
    shapes: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.pool = list(self.parser.seeds)

    def step(self) -> tuple[str, bytes]:
        """What is wrong, and the input."""
        data = mutated(self.rng, self.pool)
        wrong, shape = failure(self.parser, data)
        if shape not in self.shapes and len(self.pool) < POOL_MAX:
            self.shapes.add(shape)
            self.pool.append(data)
        return wrong, data


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run(name: str, count: int, seed: int) -> int:
    """Inputs of one parser that were not taken as they must be. Prints each, and a line at the end."""
    course = Course(PARSERS[name], random.Random(f"{seed} {name}"))
    before, started_s, wrong_total = _peak_bytes(), time.monotonic(), 0
    signal.signal(signal.SIGALRM, _hang)
    for _ in range(count):
        signal.alarm(HANG_S)
        wrong, data = course.step()
        if not wrong and _peak_bytes() - before > GROWTH_MAX_BYTES:
            wrong, before = "grew by over 256 MiB", _peak_bytes()
        if wrong:
            wrong_total += 1
            path = CASES / f"{name}-{hashlib.sha256(data).hexdigest()[:12]}"
            with contextlib.suppress(OSError):
                path.write_bytes(data)
            print(f"{name}: {wrong}: {path}", flush=True)
    signal.alarm(0)
    grown = (_peak_bytes() - before) // 2**20
    took_s = time.monotonic() - started_s
    print(f"{name}: {count} inputs, {len(course.shapes)} answers, {took_s:.0f} s, +{grown} MiB", flush=True)
    return wrong_total


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--inputs", type=int, default=100_000, help="over all parsers; default: 100000")
    options.add_argument("--parser", choices=PARSERS, action="append", help="default: all")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--processes", type=int, default=os.cpu_count(), help="default: one for each core")
    given = options.parse_args()
    names = given.parser or list(PARSERS)
    counts = shares({name: inputs_per_s(name) for name in names}, given.inputs)
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.processes, mp_context=fresh, max_tasks_per_child=1) as pool:
        wrong = sum(pool.map(run, counts, counts.values(), repeat(given.seed)))
    print(f"{sum(counts.values())} inputs, {wrong} wrong")
    return 1 if wrong else 0


def inputs_per_s(name: str) -> float:
    course, started_s = Course(PARSERS[name], random.Random(name)), time.thread_time()
    for _ in range(RATE_INPUTS):
        course.step()
    return RATE_INPUTS / (time.thread_time() - started_s)


def shares(rates: dict[str, float], inputs: int) -> dict[str, int]:
    """A quarter in equal parts; the rest so that every parser has as much time."""
    equal, rest = ceil(inputs / 4 / len(rates)), inputs - inputs // 4
    return {name: equal + ceil(rest * rate / sum(rates.values())) for name, rate in rates.items()}


def _hang(*_: object) -> None:
    raise Hang


if __name__ == "__main__":
    sys.exit(main())
