"""A recommendation for people."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import click

from specctl.doctor.memory_checks import memory_words
from specctl.plain_text import counted
from specctl.recommend.launch import shell_line
from specctl.recommend.log import log_words
from specctl.recommend.ranking import Candidate, Request

__all__ = ["described"]

_WIDTH = 100
_ENGINES = {"vllm": "vLLM", "sglang": "SGLang"}


def described(
    request: Request,
    notes: Sequence[str],
    found: Sequence[Candidate],
    top: int,
    simulated: dict[str, Any] | None,
    training: dict[str, Any] | None,
) -> list[str]:
    work = request.workload
    lines = [
        click.style(
            f"{request.model}: {work.kind}, {counted(work.concurrency, 'request')} at once", bold=True
        )
    ]
    lines += [f"  {note}" for note in notes]
    ready = [one for one in found if one.can_start]
    for place, candidate in enumerate(ready[:top], 1):
        lines += ["", *_candidate(place, candidate, request)]
    if rest := [f"{one.method.id} on {_ENGINES[one.method.engine]}" for one in ready[top:]]:
        lines += ["", *_folded("then", ", ".join(rest))]
    lines += ["", *_not_now([one for one in found if not one.can_start])]
    if simulated is not None:
        lines += ["", *log_words(simulated)]
    if training is not None:
        lines += [
            "",
            *_folded("heads", training["why"]),
            *(f"             {step}" for step in training["steps"]),
        ]
    lines += [
        "",
        *_folded("measure", "specctl bench compares them on your own prompts; the order is a guide's."),
    ]
    return lines


def _candidate(place: int, candidate: Candidate, request: Request) -> Iterator[str]:
    method = candidate.method
    title = f"{place}. {method.id} on {_ENGINES[method.engine]}"
    yield click.style(f"{title:<40}", bold=True, fg="green" if place == 1 else None) + _drafts(candidate)
    for reason in candidate.reasons:
        yield from _folded("why", reason)
    yield f"  start      {shell_line(candidate.command)}"
    if candidate.memory is not None:
        words = memory_words(candidate.memory)
        if request.machine.gpu_memory_bytes is not None:
            fits = candidate.memory.tokens_within(request.machine.gpu_memory_bytes * 0.9)
            words += f"; {fits} tokens of KV cache fit"
        yield from _folded("memory", words)
    if method.needs_package is not None:
        yield from _folded("needs", f"pip install {method.needs_package}")
    yield from _folded("limits", "; ".join(candidate.cannot))


def _drafts(candidate: Candidate) -> str:
    number = candidate.num_speculative_tokens
    return f"{candidate.points:.1f} points" + (f", {number} drafts" if number else "")


def _not_now(found: Sequence[Candidate]) -> Iterator[str]:
    for one in found:
        why = one.missing or "; ".join(one.problems)
        yield from _folded("not now", f"{one.method.id} on {_ENGINES[one.method.engine]}: {why}")


def _folded(name: str, words: str) -> list[str]:
    return textwrap.wrap(
        words,
        width=_WIDTH,
        initial_indent=f"  {name:<10} ",
        subsequent_indent=" " * 13,
        break_long_words=False,
        break_on_hyphens=False,
    )
