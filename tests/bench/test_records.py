"""Streams as they arrive: tokens by usage, without it, several tokens in an event, events in pieces."""

from __future__ import annotations

import json
from typing import Any

import pytest

from specctl.bench.records import RequestRecord, StreamBytes, read_stream


def event(text: str | None, tokens: int | None, **more: Any) -> bytes:
    choices = [] if text is None else [{"index": 0, "text": text, **more}]
    body: dict[str, Any] = {"choices": choices}
    if tokens is not None:
        body["usage"] = {"prompt_tokens": 5, "completion_tokens": tokens}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def record_of(pieces: list[bytes], *, keep_text: bool = False) -> RequestRecord:
    record = RequestRecord("p", 0.0)
    record.ended_s = float(len(pieces))
    stream = StreamBytes(pieces, [float(i + 1) for i in range(len(pieces))])
    read_stream(record, stream, keep_text=keep_text)
    return record


def test_tokens_come_with_their_event() -> None:
    record = record_of([event("a", 1), event("bcd", 4), event("", 4), b"data: [DONE]\n\n"])
    assert (record.arrival_s, record.arrival_tokens) == ([1.0, 2.0], [1, 3])
    assert (record.ttft_s, record.e2el_s, record.prompt_tokens) == (1.0, 2.0, 5)
    assert record.tpot_s == pytest.approx(1.0 / 3.0)


def test_an_event_counts_when_its_end_has_come() -> None:
    whole = event("a", 1) + event("b", 12)
    record = record_of([whole[:20], whole[20:-6], whole[-6:]])
    assert record.output_tokens == 12
    assert record.arrival_s[-1] in (2.0, 3.0)


def test_text_that_looks_like_usage_is_text() -> None:
    record = record_of([event('"completion_tokens": 99', 1), event("b", 2)])
    assert record.output_tokens == 2


def test_usage_at_the_end_only_is_spread_by_length() -> None:
    record = record_of([event("a", None), event("bbb", None), event(None, 8)])
    assert record.arrival_tokens == [2, 6]


def test_without_usage_an_event_is_a_token() -> None:
    assert record_of([event("a", None), event("b", None)]).arrival_tokens == [1, 1]


def test_ids_and_text_are_kept_on_demand() -> None:
    pieces = [event("a", 1, token_ids=[7], prompt_token_ids=[1, 2]), event("b", 2, token_ids=[8])]
    record = record_of(pieces, keep_text=True)
    assert (record.text, record.token_ids, record.prompt_token_ids) == ("ab", (7, 8), (1, 2))


def test_an_error_in_the_stream_is_the_requests() -> None:
    record = record_of([b'data: {"error": {"message": "out of memory"}}\n\n'], keep_text=True)
    assert "out of memory" in str(record.error)
    assert not record.is_whole


def test_chat_with_reasoning() -> None:
    pieces = [
        b'data: {"choices": [{"delta": {"reasoning_content": "hm"}}]}\n\n',
        b'data: {"choices": [{"delta": {"content": "yes"}}]}\n\n',
    ]
    assert record_of(pieces, keep_text=True).text == "hmyes"
