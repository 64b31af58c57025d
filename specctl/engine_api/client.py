"""The routes of one server: the contract's and /metrics. One mapping of answers to errors."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from specctl.contract import CONTRACT_VERSION, ROUTE_PREFIX
from specctl.contract.capabilities import Capabilities
from specctl.contract.table import AppliedTable, Refusal, TablePut, legal_settings
from specctl.contract.telemetry import Telemetry
from specctl.errors import (
    AccessRefused,
    ContractError,
    LeaseHeld,
    NotSteered,
    OtherContract,
    TableError,
    TargetError,
    VersionConflict,
)
from specctl.http_client import HttpClient, Response
from specctl.json_bounds import read_message
from specctl.plain_text import plain_text, plain_value

__all__ = ["NO_METRICS", "EngineClient", "parsed"]

NO_METRICS = "is this an engine? SGLang serves its metrics with --enable-metrics only"
"""Said where a server has no page, or another one."""
CAPABILITIES_MAX_BYTES = 256 * 1024
TABLE_MAX_BYTES = 512 * 1024
TELEMETRY_MAX_BYTES = 4 * 1024 * 1024
METRICS_MAX_BYTES = 4 * 1024 * 1024
REFUSALS_MAX = 16
CHOICES_MAX = 8192
"""Settings in all buckets of a server: every decision weighs each of them."""
_NOT_STEERED = ("not_ready", "not_steered", "not_loaded")
"""Errors of the routes of a server that was started without specctl, or where it gave up."""
_Message = TypeVar("_Message", bound=BaseModel)


class EngineClient:
    """Every method raises TargetError for a server that cannot be reached, is late, or is not ready, and
    AccessRefused (a ContractError) where a token is missing or wrong."""

    def __init__(self, http: HttpClient) -> None:
        self._http = http
        self.target = http.target
        self.answered: AppliedTable | None = None
        """The answer to the last PUT that was taken."""

    async def __aenter__(self) -> EngineClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.close()

    async def capabilities(self) -> Capabilities | None:
        """None on a server without the plugin.

        Raises NotSteered, and OtherContract where the two sides do not understand each other.
        """
        response = await self._http.get(f"{ROUTE_PREFIX}/capabilities", body_max_bytes=CAPABILITIES_MAX_BYTES)
        if response.status == 404:
            return None
        if response.status != 200:
            raise self._failed(response, "capabilities")
        # Before anything else is read: another contract may have other keys.
        version = response.fields().get("contract_version")
        if isinstance(version, int) and version != CONTRACT_VERSION:
            raise OtherContract(
                f"{self.target}: its plugin speaks contract {plain_value(version)}, specctl here "
                f"{CONTRACT_VERSION}; upgrade the older one"
            )
        try:
            fresh = parsed(Capabilities, response.body, f"{self.target}: capabilities")
        except ContractError as error:
            words = f"{error}; it speaks contract {plain_value(version)}, specctl here {CONTRACT_VERSION}"
            raise OtherContract(words) from error
        choices = len(legal_settings(fresh)) * len(fresh.decode_batch_buckets)
        if choices > CHOICES_MAX:
            raise OtherContract(f"{self.target}: {choices} settings in all buckets, over {CHOICES_MAX}")
        return fresh

    async def table(self) -> AppliedTable:
        """What is in force. Raises ContractError."""
        response = await self._http.get(f"{ROUTE_PREFIX}/table", body_max_bytes=TABLE_MAX_BYTES)
        return self._read(AppliedTable, response, "table")

    async def telemetry(self) -> Telemetry:
        """Raises ContractError."""
        response = await self._http.get(f"{ROUTE_PREFIX}/telemetry", body_max_bytes=TELEMETRY_MAX_BYTES)
        return self._read(Telemetry, response, "telemetry")

    async def metrics_text(self) -> str:
        response = await self._http.get("/metrics", body_max_bytes=METRICS_MAX_BYTES)
        if response.status == 404:
            raise TargetError(f"{self.target}: /metrics: HTTP 404 ({NO_METRICS})")
        if response.status != 200:
            raise self._failed(response, "/metrics")
        return response.body.decode("utf-8", errors="replace")

    async def put(self, change: TablePut) -> AppliedTable:
        """What the engine says that it applied. What is as by default is not sent: an older plugin refuses
        keys that it does not know.

        Raises VersionConflict, LeaseHeld, TableError (nothing was applied) and ContractError.
        """
        body = change.model_dump_json(exclude_defaults=True).encode()
        response = await self._http.put(f"{ROUTE_PREFIX}/table", body)
        fields = response.fields() if response.status != 200 else {}
        if response.status == 409 and fields.get("error") == "lease_held":
            owner = plain_text(str(fields.get("owner", "unknown"))[:128])
            raise LeaseHeld(owner, _number(fields.get("remaining_s")))
        if response.status == 409:
            raise VersionConflict(expected=int(_number(fields.get("version"))), got=change.base_version)
        if response.status in (400, 422):
            raise TableError(_refusals(fields))
        self.answered = self._read(AppliedTable, response, "table")
        return self.answered

    def _read(self, model: type[_Message], response: Response, what: str) -> _Message:
        if response.status != 200:
            raise self._failed(response, what)
        return parsed(model, response.body, f"{self.target}: {what}")

    def _failed(self, response: Response, what: str) -> Exception:
        status, fields = response.status, response.fields()
        message = _message(fields)
        where = f"{self.target}: {what}: HTTP {status}{': ' if message else ''}{message}"
        if status == 401:
            return AccessRefused(f"{where}; wants a bearer token, or another one (--token-file)")
        if status == 403:
            return AccessRefused(f"{where}; the token may not do this, a change needs the control scope")
        if status == 503 and fields.get("error") in _NOT_STEERED:
            return NotSteered(where)
        if status == 404:
            return TargetError(f"{where}; the plugin's routes are gone (restarted without it?)")
        if status == 413:
            return ContractError(where)
        hint = "the engine is not ready" if status == 503 else "is this an engine, and is it ready?"
        return TargetError(where if message else f"{where}; {hint}")


def parsed(model: type[_Message], body: bytes, what: str) -> _Message:
    """A message of the contract. ``what`` names it in errors. Raises ContractError."""
    try:
        return read_message(model, body)
    except ValueError as error:
        raise ContractError(plain_text(f"{what}: {error}")) from error


def _number(value: object) -> float:
    """Of an error's fields: a float within a day's seconds or a table's versions; 0 for anything else."""
    if not isinstance(value, int | float) or not -1e15 < value < 1e15:
        return 0.0
    return float(value)


def _message(fields: dict[str, Any]) -> str:
    """The server's own words; empty where the answer has none."""
    message = fields.get("message")
    return plain_text(message) if isinstance(message, str) else ""


def _refusals(fields: dict[str, Any]) -> list[Refusal]:
    raw = fields.get("refusals")
    refusals = []
    for item in raw[:REFUSALS_MAX] if isinstance(raw, list) else []:
        try:
            refusal = Refusal.model_validate(item)
        except ValidationError:
            refusal = Refusal(row=None, field="table", reason=plain_value(item))
        refusals.append(
            Refusal(row=refusal.row, field=plain_text(refusal.field, 64), reason=plain_text(refusal.reason))
        )
    return refusals or [Refusal(row=None, field="table", reason=_message(fields) or "refused")]
