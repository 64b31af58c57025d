"""What one request did, as its stream shows it. Times are seconds of time.monotonic."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import pydantic_core

__all__ = ["RequestRecord", "StreamBytes", "read_stream"]

_USAGE = re.compile(rb'"completion_tokens": ?(\d+)')
"""Inside a JSON string each quote has a backslash before it: this matches no text of the model."""
_EVENT = re.compile(rb"^data: ?(\{.*\})\r?$", re.MULTILINE)
_ERROR = b'data: {"error"'
_PROMPT_TOKENS = re.compile(rb'"prompt_tokens": ?(\d+)')


@dataclass(slots=True)
class RequestRecord:
    """``arrival_s[i]``: when output arrived, ``arrival_tokens[i]``: how many tokens. ``ended_s`` None: cut
    off by the end of the run. ``error`` None: none. ``text`` and ``token_ids``: only where they were kept."""

    prompt_id: str
    sent_s: float
    arrival_s: list[float] = field(default_factory=list)
    arrival_tokens: list[int] = field(default_factory=list)
    ended_s: float | None = None
    prompt_tokens: int | None = None
    error: str | None = None
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    prompt_token_ids: tuple[int, ...] | None = None

    @property
    def is_whole(self) -> bool:
        return self.ended_s is not None and self.error is None and bool(self.arrival_s)

    @property
    def output_tokens(self) -> int:
        return sum(self.arrival_tokens)

    @property
    def ttft_s(self) -> float | None:
        return self.arrival_s[0] - self.sent_s if self.arrival_s else None

    @property
    def e2el_s(self) -> float | None:
        """Sent to last token."""
        return self.arrival_s[-1] - self.sent_s if self.is_whole else None

    @property
    def tpot_s(self) -> float | None:
        """(last token - first token) / (tokens - 1)."""
        if not self.is_whole or self.output_tokens < 2:
            return None
        return (self.arrival_s[-1] - self.arrival_s[0]) / (self.output_tokens - 1)


@dataclass(slots=True)
class StreamBytes:
    """The bytes of one answer as they came. Nothing is parsed while a run is being timed but at a request's
    end, and then only its token counts."""

    pieces: list[bytes] = field(default_factory=list)
    when_s: list[float] = field(default_factory=list)


def read_stream(record: RequestRecord, stream: StreamBytes, *, keep_text: bool) -> None:
    """Fill the record from a server-sent-event stream of /v1/completions or /v1/chat/completions.

    Tokens come from the usage of each event (continuous_usage_stats). Where a server sends usage only at the
    end, its tokens are spread over the events by the length of their texts.
    """
    body = b"".join(stream.pieces)
    ends = list(accumulate(map(len, stream.pieces)))
    found = [(match.end(), int(match[1])) for match in _USAGE.finditer(body)]
    events = None
    if len(found) < 2 or keep_text or _ERROR in body:
        events = [(match.end(), _event(match[1])) for match in _EVENT.finditer(body)]
    if len(found) >= 2:
        _count(record, stream, ends, found)
    elif events:
        _count(record, stream, ends, _spread(events, found[0][1] if found else None))
    prompt = _PROMPT_TOKENS.search(body)
    record.prompt_tokens = None if prompt is None else int(prompt[1])
    if keep_text and events:
        _keep(record, [event for _, event in events])
    if events:
        errors = [event["error"] for _, event in events if event.get("error")]
        if errors:
            record.error = str(errors[0])[:200]


def _event(raw: bytes) -> dict[str, Any]:
    try:
        event = pydantic_core.from_json(raw)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


def _count(
    record: RequestRecord, stream: StreamBytes, ends: Sequence[int], found: Sequence[tuple[int, int]]
) -> None:
    """``found``: (offset in the answer, tokens so far)."""
    seen, last_piece = 0, -1
    for offset, total in found:
        gained = total - seen
        if gained <= 0:
            continue
        seen = total
        piece = bisect_left(ends, offset)
        if piece == last_piece:
            record.arrival_tokens[-1] += gained
        else:
            record.arrival_s.append(stream.when_s[piece])
            record.arrival_tokens.append(gained)
        last_piece = piece


def _spread(events: Sequence[tuple[int, dict[str, Any]]], total: int | None) -> list[tuple[int, int]]:
    """(offset, tokens so far): ``total`` by length of text; None: one token an event."""
    texts = [(offset, len(_text(event))) for offset, event in events if _text(event)]
    if not texts:
        return []
    if total is None:
        return [(offset, i + 1) for i, (offset, _) in enumerate(texts)]
    lengths = list(accumulate(length for _, length in texts))
    return [
        (offset, max(round(total * length / lengths[-1]), 1))
        for (offset, _), length in zip(texts, lengths, strict=True)
    ]


def _choice(event: dict[str, Any]) -> dict[str, Any]:
    choices = event.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else {}
    return first if isinstance(first, dict) else {}


def _text(event: dict[str, Any]) -> str:
    choice = _choice(event)
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return str(choice.get("text") or "")
    return str(delta.get("reasoning_content") or delta.get("reasoning") or "") + str(
        delta.get("content") or ""
    )


def _keep(record: RequestRecord, events: Sequence[dict[str, Any]]) -> None:
    record.text = "".join(map(_text, events))
    ids: list[int] = []
    for event in events:
        choice = _choice(event)
        ids += choice.get("token_ids") or []
        given = choice.get("prompt_token_ids") or event.get("prompt_token_ids")
        if given:
            record.prompt_token_ids = tuple(given)
    record.token_ids = tuple(ids) if len(ids) == record.output_tokens and ids else None
