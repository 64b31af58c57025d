"""One look at each of a server's pages, without a memory of the last one."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ValidationError

from specctl.contract import CONTRACT_VERSION, ROUTE_PREFIX
from specctl.contract.capabilities import Capabilities
from specctl.contract.telemetry import Telemetry
from specctl.errors import ContractError, NotSteered, TargetError
from specctl.http_client import HttpClient, Response
from specctl.observe.engine_metrics import NO_METRICS
from specctl.observe.load import LoadCounters, parse_load

__all__ = ["read_capabilities", "read_load", "read_telemetry"]

_NOT_STEERED = ("not_ready", "not_steered", "not_loaded")
"""Errors of the routes of a server that was started without specctl, or where it gave up."""
_WORDS_MAX = 300
_Message = TypeVar("_Message", bound=BaseModel)


async def read_capabilities(client: HttpClient) -> Capabilities | None:
    """None on a server without the plugin. Raises NotSteered, TargetError and ContractError."""
    response = await client.get(f"{ROUTE_PREFIX}/capabilities")
    if response.status == 404:
        return None
    capabilities = _parsed(Capabilities, response, client.target, "capabilities")
    if capabilities.contract_version != CONTRACT_VERSION:
        raise ContractError(
            f"{client.target}: speaks contract {capabilities.contract_version}, "
            f"this command speaks {CONTRACT_VERSION}; upgrade the older one"
        )
    return capabilities


async def read_telemetry(client: HttpClient) -> Telemetry:
    """Raises TargetError and ContractError."""
    response = await client.get(f"{ROUTE_PREFIX}/telemetry")
    return _parsed(Telemetry, response, client.target, "telemetry")


async def read_load(client: HttpClient) -> LoadCounters:
    """Raises TargetError."""
    response = await client.get("/metrics")
    if response.status == 404:
        raise TargetError(f"{client.target}: /metrics: HTTP 404 ({NO_METRICS})")
    if response.status != 200:
        raise TargetError(f"{client.target}: /metrics: HTTP {response.status}")
    return parse_load(response.body.decode("utf-8", errors="replace"))


def _parsed(model: type[_Message], response: Response, target: str, what: str) -> _Message:
    if response.status in (401, 403):
        raise ContractError(f"{target}: {what}: HTTP {response.status}: wants a token (--token-file)")
    if response.status != 200:
        error, words = _refusal(response)
        if error in _NOT_STEERED:
            raise NotSteered(f"{target}: {words}")
        told = f" ({words})" if words else ""
        raise TargetError(
            f"{target}: {what}: HTTP {response.status}{told}; is this an engine, and is it ready?"
        )
    try:
        return model.model_validate_json(response.body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "body"
        raise ContractError(f"{target}: {what}: {where}: {first['msg']}") from error


def _refusal(response: Response) -> tuple[str, str]:
    """Error and message, as the routes tell them; empty from anyone else."""
    told = response.fields()
    return str(told.get("error", "")), str(told.get("message", ""))[:_WORDS_MAX]
