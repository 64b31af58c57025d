"""Whatever a server sends is a message or one of the named errors."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from fakes.engine import FakeEngine
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from specctl.contract.capabilities import Capabilities
from specctl.contract.table import AppliedTable, TablePut, uniform_rows
from specctl.contract.telemetry import Telemetry
from specctl.engine_api.client import EngineClient, parsed
from specctl.engine_api.deltas import CounterReset, cell_deltas, shadow_delta, stock_delta
from specctl.engine_api.stock_metrics import parse_stock_metrics
from specctl.errors import ContractError, TargetError, TargetsError
from specctl.http_client import Response
from specctl.targets.kubernetes import _Expired, _page

ENGINE = FakeEngine(start_tokens=4)
ENGINE.advance(2.0)
MESSAGES: list[tuple[type[BaseModel], Any]] = [
    (Capabilities, json.loads(ENGINE.capabilities().model_dump_json())),
    (AppliedTable, json.loads(ENGINE.applied().model_dump_json())),
    (Telemetry, json.loads(json.dumps(ENGINE.telemetry()))),
]
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(10**400), 10**400),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from([[], {}, [[]], [{}], "\n\x1b[2J", "\ud800", "9" * 300, [0] * 5000]),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(deeper for key, part in inside for deeper in places(part, (*path, key)))]


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(value[path[0]], path[1:], new)
    return copy


@st.composite
def mutated(draw: st.DrawFn) -> tuple[type[BaseModel], bytes]:
    """A message of an engine with one part replaced, or some bytes of it."""
    model, value = draw(st.sampled_from(MESSAGES))
    value = changed(value, draw(st.sampled_from(places(value))), draw(ODD))
    body = json.dumps(value).encode()
    if draw(st.booleans()):
        at = draw(st.integers(0, len(body)))
        body = body[:at] + draw(st.binary(max_size=4)) + body[at + draw(st.integers(0, 4)) :]
    return model, body


def words_of(call: Callable[[], object], *kinds: type[Exception]) -> str:
    """Of the error; empty without one. Any other kind of error fails the test."""
    try:
        call()
    except kinds as error:
        return str(error)
    return ""


@given(mutated())
def test_a_message_or_a_contract_error(case: tuple[type[BaseModel], bytes]) -> None:
    model, body = case
    words = words_of(lambda: parsed(model, body, "m"), ContractError)
    assert words.isprintable()
    assert len(words) <= 300
    if words or model is not Telemetry:
        return
    after = parsed(Telemetry, body, "m")
    before = parsed(Telemetry, json.dumps(MESSAGES[2][1]).encode(), "m")
    for pair in ((before, after), (after, before)):
        assert len(words_of(lambda pair=pair: cell_deltas(*pair), CounterReset)) < 1000  # type: ignore[misc]
        with contextlib.suppress(CounterReset):
            shadow_delta(pair[0].shadow, pair[1].shadow)


PAGE = ENGINE.metrics()
NAMES = st.sampled_from([line.partition("{")[0] for line in PAGE.splitlines() if not line.startswith("#")])
LABELS = st.one_of(
    st.sampled_from(['{le="1"}', '{le="+Inf"}', '{position="0"}', '{position="1"}', "{", "{}", ""]),
    st.text(max_size=12).map(lambda text: f"{{{text}}}"),
)
VALUES = st.one_of(st.floats().map(str), st.integers().map(str), st.text(max_size=8))
LINES = st.builds(lambda name, labels, value: f"{name}{labels} {value}", NAMES, LABELS, VALUES)


@given(st.lists(LINES | st.text(max_size=20), max_size=12), st.sampled_from(["", PAGE]))
def test_a_page_or_a_target_error(lines: list[str], page: str) -> None:
    text = "\n".join([page, *lines])
    words = words_of(lambda: parse_stock_metrics(text), TargetError)
    assert words.isprintable()
    if words:
        return
    counters = parse_stock_metrics(text)
    try:
        stock_delta(parse_stock_metrics(PAGE), counters)
        delta = stock_delta(counters, counters)
    except CounterReset:
        return
    for histogram in (delta.ttft, delta.tpot):
        assert histogram is None or histogram.quantile(0.5) is None


class Http:
    """In place of a connection: answers with what it is told."""

    target = "http://t:1"

    def __init__(self, response: Response) -> None:
        self._response = response

    async def get(self, path: str, **_: Any) -> Response:
        return self._response

    async def put(self, path: str, body: bytes) -> Response:
        return self._response


FIELDS = st.dictionaries(
    st.sampled_from(["error", "message", "owner", "remaining_s", "version", "refusals", "contract_version"]),
    st.one_of(
        ODD,
        st.sampled_from(["lease_held", "not_steered", [{"row": 0, "field": "x", "reason": "y\n"}], [3, {}]]),
    ),
)
STATUSES = st.sampled_from([200, 204, 302, 400, 401, 403, 404, 409, 413, 422, 500, 503, 504])


@given(STATUSES, st.one_of(FIELDS.map(lambda fields: json.dumps(fields).encode()), st.binary(max_size=20)))
def test_an_answer_or_a_named_error(status: int, body: bytes) -> None:
    client = EngineClient(Http(Response(status, body)))  # type: ignore[arg-type]
    change = TablePut(base_version=0, rows=uniform_rows(1), owner="me")
    for call in (client.capabilities, client.table, client.telemetry, lambda: client.put(change)):
        words = words_of(lambda call=call: asyncio.run(call()), TargetError, ContractError)  # type: ignore[misc]
        assert words.isprintable()
        assert len(words) < 20_000


PODS = {
    "metadata": {"continue": ""},
    "items": [{"metadata": {"labels": {"a": "b"}}, "status": {"podIP": "::1"}}],
}


@given(st.sampled_from(places(PODS)), ODD, STATUSES | st.just(410))
def test_a_list_of_pods_or_a_refusal(path: tuple[Any, ...], odd: Any, status: int) -> None:
    body = json.dumps(changed(PODS, path, odd)).encode()
    assert words_of(lambda: _page(Response(status, body)), TargetsError, _Expired).isprintable()


def test_depth_is_bounded_everywhere() -> None:
    for body in (b"[" * 60_000, b'{"a":' * 60_000, b'{"cells":' + b"[" * 60_000):
        for model, _ in MESSAGES:
            with pytest.raises(ContractError):
                parsed(model, body, "m")
        assert Response(200, body).fields() == {}
