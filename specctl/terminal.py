"""What commands share: options in every command, JSON out, progress on a terminal."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import isfinite
from typing import Any, TextIO

import click

__all__ = [
    "LEVELS",
    "FiniteRange",
    "StderrHandler",
    "clock_progress",
    "examples",
    "has_terminal",
    "json_option",
    "log_options",
    "print_json",
    "progress",
]

LEVELS = ("debug", "info", "warning", "error")
_COLOURS = {"WARNING": "yellow", "ERROR": "red", "CRITICAL": "red"}


class FiniteRange(click.FloatRange):
    """No "nan", which lies in every range, and no "inf"."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


class StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to what ``sys.stderr`` is at the time: a progress bar takes its place while it is drawn."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        colour = _COLOURS.get(record.levelname)
        if colour is None or not has_terminal() or _no_colour():
            return line
        return click.style(line, fg=colour)


def has_terminal() -> bool:
    """Whether a person sees standard error."""
    return bool(getattr(sys.stderr, "isatty", bool)())


def _no_colour() -> bool:
    context = click.get_current_context(silent=True)
    return context is not None and context.color is False


def _set_level(_: click.Context, __: click.Parameter, value: Any) -> None:
    """Not set: what came earlier on the line stays."""
    if value:
        level = "debug" if value is True else value
        logging.getLogger().setLevel(getattr(logging, level.upper()))


def log_options() -> list[click.Option]:
    """``--log-level`` and ``-v``, for the program and for every command."""
    return [
        click.Option(
            ["--log-level"],
            type=click.Choice(LEVELS),
            metavar="LEVEL",
            callback=_set_level,
            expose_value=False,
            help=f"{', '.join(LEVELS)}; default: info",
        ),
        click.Option(
            ["-v", "--verbose"],
            is_flag=True,
            callback=_set_level,
            expose_value=False,
            help="the same as --log-level debug",
        ),
    ]


def examples(*lines: str) -> str:
    """For a command's ``epilog``."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def json_option(words: str = "one JSON document on standard output") -> Callable[[Any], Any]:
    return click.option("--json", "as_json", is_flag=True, help=words)


def print_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2))


@contextmanager
def progress(words: str, total: float | None = None) -> Iterator[Callable[..., None]]:
    """On a terminal: a line that says how far a work is. The function takes ``done`` (None: not known) and
    ``words`` that replace the first ones. Nothing is drawn elsewhere."""
    if not has_terminal():
        yield lambda done=None, words=None: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(words, total=total)

        def update(done: float | None = None, words: str | None = None) -> None:
            bar.update(task, completed=done, description=words)

        yield update


@contextmanager
def clock_progress(words: str, seconds: float | None) -> Iterator[None]:
    """For a work of about so many seconds (None: not known), drawn from a thread."""
    import threading

    ended = threading.Event()
    with progress(words, total=seconds) as update:

        def tick(began_s: float) -> None:
            while not ended.wait(0.25):
                update(min(time.monotonic() - began_s, seconds or 0.0))

        thread = threading.Thread(target=tick, args=(time.monotonic(),), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
