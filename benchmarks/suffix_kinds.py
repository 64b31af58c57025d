"""Requests of every kind of $SPECCTL_SHARED/data/prompts, for ``benchmarks.suffix_calibration``.

Of each kind half of its groups, at most MOST_ROWS rows, are held back and no part of the corpus: every other
one is a lesson, from which a table may learn, the rest is the exam. The corpus has what is left of all kinds,
and code.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.suffix_stream import (
    PROMPTS,
    Ints,
    Request,
    Tokens,
    cut_request,
    default_roots,
    hashed,
    pieces,
    rows_of,
    spread,
    turns_of,
    up_to,
)

LEAST_CHARACTERS = 16
MOST_ROWS = 160
TURNS = 8
TRANSCRIPTS = "agentic_traj"
_Turn = tuple[str, str]


@dataclass(frozen=True)
class Kind:
    name: str
    lessons: list[Request]
    exam: list[Request]


@dataclass(frozen=True)
class Kinds:
    corpus: list[Ints]
    kinds: list[Kind]


def load_kinds(code_tokens: int, names: Sequence[str] = ()) -> Kinds:
    """The corpus is of all kinds; ``names``: the kinds that have requests, all of them without."""
    tokens = Tokens(default_roots())
    texts: list[str] = []
    kinds = []
    for name in sorted(path.stem for path in PROMPTS.glob("*.jsonl")):
        groups = _grouped(name)
        held_back = sorted(groups, key=hashed)[: (len(groups) + 1) // 2]
        texts += [out for group, turns in groups.items() if group not in held_back for _, out in turns]
        if not names or name in names:
            turns = _taken(groups[group] for group in held_back)
            lessons, exam = turns[::2], turns[1::2]
            kinds.append(Kind(name, _encoded(tokens, name, lessons), _encoded(tokens, name, exam)))
    # Sets overlap: a text that is held back in one kind may stand in another.
    known = {bytes(request.output[:64]) for kind in kinds for request in (*kind.lessons, *kind.exam)}
    texts = sorted(set(texts), key=hashed)
    encoded = (ids for ids in tokens.encode(texts) if bytes(ids[:64]) not in known)
    responses = [part for ids in encoded for part in pieces(ids)]
    code = up_to((part for ids in tokens.code(code_tokens) for part in pieces(ids)), code_tokens)
    return Kinds(spread(responses, code), kinds)


def _grouped(name: str) -> dict[str, list[_Turn]]:
    """(context, output) of all turns by group, in the file's order."""
    groups: dict[str, list[_Turn]] = {}
    for row in rows_of(name):
        group = str(row["id"] if name == "sql" else row.get("group", row["id"]))
        turns = turns_of(row["messages"]) if name == TRANSCRIPTS else [(row["prompt"], _reference(row))]
        kept = [turn for turn in turns if len(turn[1]) >= LEAST_CHARACTERS]
        if kept:
            groups.setdefault(group, []).extend(kept)
    return groups


def _reference(row: dict[str, Any]) -> str:
    found = row.get("reference") or ""
    return found if isinstance(found, str) else json.dumps(found)


def _taken(groups: Iterable[list[_Turn]]) -> list[_Turn]:
    """At most TURNS turns of each group, without copies."""
    taken: dict[str, _Turn] = {}
    for turns in groups:
        for turn in sorted(turns, key=lambda turn: hashed(turn[0] + turn[1]))[:TURNS]:
            taken.setdefault(turn[1], turn)
    return list(taken.values())[:MOST_ROWS]


def _encoded(tokens: Tokens, kind: str, turns: Sequence[_Turn]) -> list[Request]:
    contexts = tokens.encode([context for context, _ in turns])
    outputs = tokens.encode([output for _, output in turns])
    return [cut_request(kind, *pair) for pair in zip(contexts, outputs, strict=True)]
