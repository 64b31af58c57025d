"""Arrivals from a file: CSV of times and lengths, or a log of ``specctl record``."""

from __future__ import annotations

import csv
import random
from collections import Counter
from pathlib import Path

from specctl.engine_api.stock_metrics import LoadCounters
from specctl.errors import BenchInputError, SpecctlError
from specctl.plain_text import plain_text
from specctl.record.lines import Reading
from specctl.record.reader import read_lines

__all__ = ["read_arrivals"]

_TIME_COLUMNS = ("timestamp_s", "arrival_s")
Arrival = tuple[float, int | None, int | None]


def read_arrivals(path: Path) -> list[Arrival]:
    """(seconds from the first, prompt tokens, output tokens), rising. Raises BenchInputError."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            is_log = file.read(1) == "{"
        found = _of_log(path) if is_log else _of_csv(path)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BenchInputError(f"trace {plain_text(str(path))}: {plain_text(str(error))}") from error
    if not found:
        raise BenchInputError(f"trace {plain_text(str(path))}: no arrivals")
    first_s = found[0][0]
    return [(at_s - first_s, prompt, output) for at_s, prompt, output in found]


def _of_csv(path: Path) -> list[Arrival]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        column = next((name for name in _TIME_COLUMNS if name in (rows.fieldnames or ())), None)
        if column is None:
            raise BenchInputError(
                f"trace {plain_text(str(path))}: expected a column {' or '.join(_TIME_COLUMNS)} in seconds, "
                "and may have prompt_tokens or input_tokens, and output_tokens"
            )
        found: list[Arrival] = []
        for row in rows:
            try:
                prompt = row.get("prompt_tokens") or row.get("input_tokens")
                output = row.get("output_tokens")
                found.append(
                    (
                        float(row[column]),
                        None if not prompt else int(prompt),
                        None if not output else max(int(output), 1),
                    )
                )
            except ValueError as error:
                raise BenchInputError(f"trace {plain_text(str(path))}:{rows.line_num}: {error}") from error
    return sorted(found, key=lambda one: one[0])


def _of_log(path: Path) -> list[Arrival]:
    """A log counts requests a reading; within one they are spread at random, the same way each time."""
    generator = random.Random(0)
    found: list[Arrival] = []
    before: tuple[float, LoadCounters] | None = None
    try:
        for line in read_lines(path, Counter()):
            if not isinstance(line, Reading):
                before = None
            elif line.load is not None and line.load.started_requests is not None:
                if before is not None:
                    came = line.load.started_requests - (before[1].started_requests or 0)
                    output, span_s = _mean_output(before[1], line.load), line.time_s - before[0]
                    found += [(before[0] + span_s * generator.random(), None, output) for _ in range(came)]
                before = line.time_s, line.load
    except SpecctlError as error:
        raise BenchInputError(f"trace {plain_text(str(path))}: {error}") from error
    return sorted(found, key=lambda one: one[0])


def _mean_output(before: LoadCounters, after: LoadCounters) -> int | None:
    """Output tokens of the requests that finished in between; None where none did."""
    counts = (
        before.finished_requests,
        after.finished_requests,
        before.finished_output_tokens,
        after.finished_output_tokens,
    )
    if None in counts:
        return None
    requests_before, requests_after, tokens_before, tokens_after = (count or 0 for count in counts)
    ended = requests_after - requests_before
    return max(round((tokens_after - tokens_before) / ended), 1) if ended > 0 else None
