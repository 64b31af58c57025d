"""Actuator over the plugin's HTTP routes; every engine's plugin serves the same ones."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from specctl.actuate.base import DesiredTable
from specctl.contract import ROUTE_PREFIX
from specctl.contract.table import AppliedTable, Refusal, TablePut
from specctl.errors import ContractError, LeaseHeld, TableError, TargetError, VersionConflict
from specctl.http_client import HttpClient, Response

__all__ = ["HttpActuator"]

TABLE_ROUTE = f"{ROUTE_PREFIX}/table"


class HttpActuator:
    is_dry_run = False

    def __init__(self, client: HttpClient) -> None:
        self._client = client

    async def apply(self, desired: DesiredTable) -> AppliedTable:
        change = TablePut(
            base_version=desired.base_version,
            rows=desired.rows,
            lease_s=desired.lease_s,
            fallback_num_speculative_tokens=desired.fallback_num_speculative_tokens,
            owner=desired.owner,
            reason=desired.reason[:512],
            class_limits=desired.class_limits,
        )
        return await self.put(change)

    async def put(self, change: TablePut) -> AppliedTable:
        """As ``apply``; a change may also be without a lease."""
        body = change.model_dump_json(exclude=_left_out(change)).encode()
        response = await self._client.put(TABLE_ROUTE, body)
        if response.status == 200:
            return self._applied(response)
        raise self._refused(response, change.base_version)

    async def observe(self) -> AppliedTable:
        response = await self._client.get(TABLE_ROUTE)
        if response.status == 200:
            return self._applied(response)
        raise self._refused(response, 0)

    def _applied(self, response: Response) -> AppliedTable:
        try:
            return AppliedTable.model_validate_json(response.body)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise ContractError(f"{self._client.target}: table answer: {where}: {first['msg']}") from error

    def _refused(self, response: Response, base_version: int) -> Exception:
        body = response.fields()
        target = self._client.target
        message = str(body.get("message") or f"HTTP {response.status}")[:1000]
        code = body.get("error")
        if response.status == 409 and code == "lease_held":
            return LeaseHeld(str(body.get("owner", "unknown")), _number(body.get("remaining_s")))
        if response.status == 409:
            return VersionConflict(expected=int(_number(body.get("version"))), got=base_version)
        if response.status in (400, 422):
            refusals = _refusals(body) or [Refusal(row=None, field="table", reason=message)]
            return TableError(refusals)
        if response.status == 401:
            return ContractError(f"{target}: wants a bearer token (--token-file), or another one: {message}")
        if response.status == 403:
            return ContractError(f"{target}: the token has not the control scope: {message}")
        if response.status in (404, 503) or response.status >= 500:
            return TargetError(f"{target}: table: HTTP {response.status}: {message}")
        return ContractError(f"{target}: table: HTTP {response.status}: {message}")


def _left_out(change: TablePut) -> dict[str, Any]:
    """What says nothing: a plugin from before a key refuses it."""
    left_out: dict[str, Any] = {} if change.class_limits else {"class_limits": True}
    silent = [i for i, row in enumerate(change.rows) if row.min_token_prob is None]
    if silent:
        left_out["rows"] = {i: {"min_token_prob"} for i in silent}
    return left_out


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _refusals(body: dict[str, Any]) -> list[Refusal]:
    raw = body.get("refusals")
    refusals = []
    for item in raw if isinstance(raw, list) else []:
        try:
            refusals.append(Refusal.model_validate(item))
        except ValidationError:
            refusals.append(Refusal(row=None, field="table", reason=str(item)[:500]))
    return refusals
