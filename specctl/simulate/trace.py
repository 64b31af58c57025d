"""Arrivals and lengths from a CSV file."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from specctl.errors import SimulationInputError

__all__ = ["Trace", "load_trace"]

HEADERS = (
    ("timestamp_s", "input_tokens", "output_tokens"),
    ("arrival_s", "prompt_tokens", "output_tokens"),
)
# A wait between two arrivals that is reported as a hole in the trace. It is simulated as idle time.
GAP_S = 60.0
# Idle time takes time, too: a longer trace would seem to hang.
SPAN_MAX_S = 31 * 86_400.0
# Stamps of which more than this share are repeats come from a coarse clock.
COARSE_RATIO = 0.5
TOKENS_MAX = 100_000_000


@dataclass(frozen=True)
class Trace:
    """Requests by arrival. ``skipped``: rows that were left out, by reason; ``gaps``: waits over GAP_S;
    ``notes``: what else to know of it."""

    arrival_s: npt.NDArray[np.float64]
    prompt_tokens: npt.NDArray[np.int64]
    output_tokens: npt.NDArray[np.int64]
    skipped: Mapping[str, int]
    gaps: int = 0
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.arrival_s)

    def scaled(self, speed: float) -> Trace:
        """Arrivals ``speed`` times as dense."""
        if not speed > 0 or not math.isfinite(speed):
            raise SimulationInputError(f"speed: expected a number over 0, got {speed}")
        last_s = float(self.arrival_s.max(initial=0.0))
        if last_s > SPAN_MAX_S * speed:
            raise SimulationInputError(
                f"expected arrivals within {SPAN_MAX_S:g} s at a speed of {speed:g}, got {last_s:g} s; "
                "is the trace in seconds?"
            )
        return replace(self, arrival_s=self.arrival_s / speed)

    def first(self, requests: int) -> Trace:
        return replace(
            self,
            arrival_s=self.arrival_s[:requests],
            prompt_tokens=self.prompt_tokens[:requests],
            output_tokens=self.output_tokens[:requests],
        )

    def since(self, request: int) -> Trace:
        """Without the requests before that one, which arrives at 0."""
        arrival_s = self.arrival_s[request:]
        return replace(
            self,
            arrival_s=arrival_s - arrival_s[:1],
            prompt_tokens=self.prompt_tokens[request:],
            output_tokens=self.output_tokens[request:],
        )

    def spread(self) -> Trace:
        """Equal stamps of a coarse clock, spread evenly up to the next stamp; other traces as they are."""
        stamps, counts = np.unique(self.arrival_s, return_counts=True)
        if len(stamps) < 2 or 1.0 - len(stamps) / len(self) <= COARSE_RATIO:
            return self
        steps = np.append(np.diff(stamps), np.median(np.diff(stamps)))
        within = np.concatenate([np.arange(count) / count for count in counts])
        return replace(self, arrival_s=self.arrival_s + within * np.repeat(steps, counts))

    def that_fit(self, most_tokens: int) -> Trace:
        """Without requests that could never run: prompt and output over ``most_tokens``."""
        fits = self.prompt_tokens + self.output_tokens <= most_tokens
        left_out = int(len(self) - fits.sum())
        if not left_out:
            return self
        skipped = {**self.skipped, f"over {most_tokens} tokens": left_out}
        return replace(
            self,
            arrival_s=self.arrival_s[fits],
            prompt_tokens=self.prompt_tokens[fits],
            output_tokens=self.output_tokens[fits],
            skipped=skipped,
        )


def load_trace(path: Path) -> Trace:
    """Read a trace; the header says which columns are which.

    A row with a length of 0 (a failed request of the recorded service) is skipped and counted. Everything
    else that is wrong refuses the file: SimulationInputError with file, line, expected and got.
    """
    skipped: Counter[str] = Counter()
    rows = list(_rows(path, skipped))
    if not rows:
        raise SimulationInputError(f"{path}: expected at least one request, got none ({dict(skipped)})")
    arrival_s = np.array([row[0] for row in rows])
    return Trace(
        arrival_s=arrival_s - arrival_s[0],
        prompt_tokens=np.array([row[1] for row in rows], np.int64),
        output_tokens=np.array([row[2] for row in rows], np.int64),
        skipped=dict(skipped),
        gaps=int((np.diff(arrival_s) > GAP_S).sum()),
    )


def _rows(path: Path, skipped: Counter[str]) -> Iterator[tuple[float, int, int]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = csv.reader(file)
            header = tuple(name.strip() for name in next(lines, []))
            if header not in HEADERS:
                known = " or ".join(",".join(names) for names in HEADERS)
                raise SimulationInputError(
                    f"{path}:1: expected the header {known}, or a log of specctl record, "
                    f"got {','.join(header)!r}"
                )
            latest_s = 0.0
            for cells in lines:
                place = f"{path}:{lines.line_num}"
                arrival_s, prompt, output = _row(cells, header, place)
                if arrival_s < latest_s:
                    raise SimulationInputError(
                        f"{place}: {header[0]}: expected at least {latest_s:g}, the row before's, "
                        f"got {arrival_s:g}"
                    )
                latest_s = arrival_s
                if prompt == 0 or output == 0:
                    skipped[f"{header[1] if prompt == 0 else header[2]} is 0"] += 1
                    continue
                yield arrival_s, prompt, output
    except OSError as error:
        raise SimulationInputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise SimulationInputError(f"{path}: expected CSV in UTF-8, got {error}") from error


def _row(cells: list[str], header: tuple[str, ...], place: str) -> tuple[float, int, int]:
    if len(cells) != len(header):
        raise SimulationInputError(f"{place}: expected {len(header)} values, got {len(cells)}")
    try:
        arrival_s = float(cells[0])
    except ValueError:
        arrival_s = math.nan
    if not 0 <= arrival_s < math.inf:
        raise SimulationInputError(f"{place}: {header[0]}: expected seconds from 0, got {cells[0]!r}")
    lengths = []
    for name, text in zip(header[1:], cells[1:], strict=True):
        length = int(text) if text.strip().isascii() and text.strip().isdigit() and len(text) < 20 else -1
        if not 0 <= length <= TOKENS_MAX:
            raise SimulationInputError(
                f"{place}: {name}: expected a whole number from 0 to {TOKENS_MAX}, got {text!r}"
            )
        lengths.append(length)
    return arrival_s, lengths[0], lengths[1]
