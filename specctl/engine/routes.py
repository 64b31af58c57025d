"""Routes under /specctl/v1/ on an engine's own FastAPI application."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.datastructures import State
from starlette.requests import ClientDisconnect

from specctl.contract import ROUTE_PREFIX
from specctl.contract.capabilities import Capabilities
from specctl.contract.table import TablePut
from specctl.engine import rank_calls
from specctl.engine.auth import AccessDenied, AccessPolicy, Scope, load_tokens
from specctl.engine.checked_table import SpeculationTable
from specctl.engine.own_metrics import OwnMetrics
from specctl.errors import TableError
from specctl.local_file import open_secret

__all__ = ["attach", "open_to"]

_BODY_MAX_BYTES = 64 * 1024


def attach(app: FastAPI, token_file: Path | None) -> None:
    """The routes, closed until ``open_to``. Raises ValueError for a bad token file."""
    tokens = load_tokens(token_file) if token_file is not None else None
    app.state.specctl_access = AccessPolicy(tokens)
    app.state.specctl_token_file = token_file
    app.state.specctl_engine = None
    app.state.specctl_capabilities = None
    app.state.specctl_why_not = "this server was not started with specctl in its speculative config"
    router = APIRouter(prefix=ROUTE_PREFIX, tags=["specctl"])
    for operation in ("capabilities", "table", "telemetry"):
        router.add_api_route(f"/{operation}", _answering(operation), methods=["GET"])
    router.add_api_route("/table", _put_table, methods=["PUT"])
    app.include_router(router)
    app.add_middleware(OwnMetrics)


def open_to(state: State, engine: rank_calls.Ranks) -> None:
    """The engine answers from now on."""
    state.specctl_engine = engine
    who = "token holders" if state.specctl_access.tokens is not None else "this host only"
    engine.log.info("specctl: routes under %s/ are open to %s", ROUTE_PREFIX, who)
    if state.specctl_token_file is not None and (warning := open_secret(state.specctl_token_file)):
        engine.log.warning("specctl: token file %s", warning)


async def _put_table(request: Request) -> JSONResponse:
    denied = _denied(request, Scope.CONTROL)
    if denied is not None:
        return denied
    try:
        body = await _read_body(request)
    except ClientDisconnect:
        return _error(400, "disconnected", "the body ended early")
    if body is None:
        return _error(413, "too_large", f"the body is over {_BODY_MAX_BYTES} bytes")
    try:
        change = TablePut.model_validate_json(body)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, e['loc'])) or 'body'}: {e['msg']}" for e in error.errors()[:8]
        )
        return _error(400, "malformed", problems)
    engine = request.app.state.specctl_engine
    if engine is None:
        return _not_ready(request)
    return await _refusal(request, change) or _response(await rank_calls.put_table(engine, change))


async def _refusal(request: Request, change: TablePut) -> JSONResponse | None:
    """What can be checked beside the engine's loop; a table that takes long to check is refused here."""
    capabilities = await _capabilities(request)
    if capabilities is None:
        return None
    if not capabilities.controllable:
        return _error(422, "not_controllable", capabilities.why_not_controllable or "", refusals=[])
    try:
        await asyncio.to_thread(SpeculationTable, change.rows, capabilities)
    except TableError as error:
        refusals = [refusal.model_dump(mode="json") for refusal in error.refusals]
        return _error(422, "table_refused", str(error), refusals=refusals)
    return None


def _answering(operation: str) -> Callable[[Request], Awaitable[JSONResponse]]:
    async def answer(request: Request) -> JSONResponse:
        denied = _denied(request, Scope.READ)
        if denied is not None:
            return denied
        engine = request.app.state.specctl_engine
        return _not_ready(request) if engine is None else _response(await rank_calls.ask(engine, operation))

    return answer


async def _capabilities(request: Request) -> Capabilities | None:
    """The engine's capabilities do not change while it lives, so one call is enough."""
    state = request.app.state
    if state.specctl_capabilities is None:
        answer = await rank_calls.ask(state.specctl_engine, "capabilities")
        if answer.status != 200:
            return None
        state.specctl_capabilities = Capabilities.model_validate(answer.body)
    known: Capabilities = state.specctl_capabilities
    return known


def _response(answer: rank_calls.Answer) -> JSONResponse:
    return JSONResponse(answer.body, status_code=answer.status)


def _not_ready(request: Request) -> JSONResponse:
    return _error(503, "not_ready", request.app.state.specctl_why_not)


def _denied(request: Request, scope: Scope) -> JSONResponse | None:
    access: AccessPolicy = request.app.state.specctl_access
    try:
        access.check(scope, request.headers, None if request.client is None else request.client.host)
    except AccessDenied as error:
        return _error(error.status, "denied", str(error))
    return None


async def _read_body(request: Request) -> bytes | None:
    """None when the body is over the limit; never holds more than the limit."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _BODY_MAX_BYTES:
            return None
    return bytes(body)


def _error(status: int, code: str, message: str, **more: Any) -> JSONResponse:
    return JSONResponse({"error": code, "message": message, **more}, status_code=status)
