"""Routes under /specctl/v1/ on vLLM's own API server (entry point ``vllm.endpoint_plugins``)."""

from __future__ import annotations

import asyncio
import json
import logging
from argparse import Namespace
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.datastructures import State

from specctl.contract import ROUTE_PREFIX
from specctl.contract.capabilities import Capabilities, Scope
from specctl.contract.table import SpeculationTable, TablePut
from specctl.engine.auth import AccessDenied, AccessPolicy, load_tokens
from specctl.errors import TableError
from specctl_vllm.options import ControlOptions, options_from_env

__all__ = ["SpecctlEndpointPlugin"]

logger = logging.getLogger("vllm.specctl")
_BODY_MAX_BYTES = 64 * 1024
_ENGINE_TIMEOUT_S = 10.0


class SpecctlEndpointPlugin:
    """vLLM's EndpointPlugin protocol."""

    name = "specctl"
    required_tasks: tuple[Any, ...] | None = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        options = options_from_env()
        control = options.control if options is not None else ControlOptions()
        tokens = load_tokens(control.token_file) if control.token_file is not None else None
        app.state.specctl_access = AccessPolicy(tokens)
        app.state.specctl_engine = None
        app.state.specctl_capabilities = None
        app.include_router(_router())

    async def init_state(self, engine_client: Any, state: State, args: Namespace) -> None:
        state.specctl_engine = engine_client if options_from_env() is not None else None
        if state.specctl_engine is not None:
            who = "token holders" if state.specctl_access.tokens is not None else "this host only"
            logger.info("specctl: routes under %s/ are open to %s", ROUTE_PREFIX, who)


def _router() -> APIRouter:
    router = APIRouter(prefix=ROUTE_PREFIX, tags=["specctl"])
    router.add_api_route("/capabilities", _get_capabilities, methods=["GET"])
    router.add_api_route("/table", _get_table, methods=["GET"])
    router.add_api_route("/table", _put_table, methods=["PUT"])
    router.add_api_route("/telemetry", _get_telemetry, methods=["GET"])
    return router


async def _get_capabilities(request: Request) -> JSONResponse:
    return await _answer(request, Scope.READ, "capabilities")


async def _get_table(request: Request) -> JSONResponse:
    return await _answer(request, Scope.READ, "table")


async def _get_telemetry(request: Request) -> JSONResponse:
    return await _answer(request, Scope.READ, "telemetry")


async def _put_table(request: Request) -> JSONResponse:
    denied = _denied(request, Scope.CONTROL)
    if denied is not None:
        return denied
    body = await _read_body(request)
    if body is None:
        return _error(413, "too_large", f"the body is over {_BODY_MAX_BYTES} bytes")
    try:
        change = TablePut.model_validate_json(body)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, e['loc'])) or 'body'}: {e['msg']}" for e in error.errors()[:8]
        )
        return _error(400, "malformed", problems)
    try:
        # A table that takes long to check is refused here, beside the engine's loop.
        capabilities = await _capabilities(request)
        if capabilities is not None and capabilities.controllable:
            await asyncio.to_thread(SpeculationTable, change.rows, capabilities)
    except TableError as error:
        refusals = [refusal.model_dump(mode="json") for refusal in error.refusals]
        return _error(422, "table_refused", str(error), refusals=refusals)
    return await _call(request, "put_table", change.model_dump_json())


async def _answer(request: Request, scope: Scope, operation: str) -> JSONResponse:
    denied = _denied(request, scope)
    return denied if denied is not None else await _call(request, operation, "")


async def _capabilities(request: Request) -> Capabilities | None:
    """The engine's capabilities do not change while it lives, so one call is enough."""
    state = request.app.state
    if state.specctl_capabilities is None:
        answer = await _call(request, "capabilities", "")
        if answer.status_code != 200:
            return None
        state.specctl_capabilities = Capabilities.model_validate_json(bytes(answer.body))
    known: Capabilities = state.specctl_capabilities
    return known


async def _call(request: Request, operation: str, payload: str) -> JSONResponse:
    engine = request.app.state.specctl_engine
    if engine is None:
        return _error(503, "not_ready", "this server was not started with specctl in its speculative config")
    try:
        text = await asyncio.wait_for(
            engine.engine_core.call_utility_async("specctl_call", operation, payload), _ENGINE_TIMEOUT_S
        )
    except TimeoutError:
        return _error(504, "engine_busy", f"the engine did not answer within {_ENGINE_TIMEOUT_S:g} s")
    except Exception as error:
        logger.warning("specctl: the engine did not answer %s: %s", operation, error)
        return _error(503, "engine_unreachable", "the engine did not answer; see the server's log")
    answer = json.loads(text)
    return JSONResponse(answer["body"], status_code=answer["status"])


def _denied(request: Request, scope: Scope) -> JSONResponse | None:
    access: AccessPolicy = request.app.state.specctl_access
    try:
        access.check(
            scope,
            authorization=request.headers.get("authorization"),
            client_host=request.client.host if request.client is not None else None,
            has_origin="origin" in request.headers,
        )
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
