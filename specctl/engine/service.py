"""Operations of the control path inside the engine's process: JSON in, status and JSON out."""

from __future__ import annotations

import json
import logging
from typing import Any, Protocol

from pydantic import ValidationError

from specctl.contract.capabilities import Capabilities
from specctl.contract.table import TablePut
from specctl.engine.live_table import LiveTable
from specctl.engine.ranks import Adoption
from specctl.engine.request_classes import EngineTelemetry
from specctl.errors import LeaseHeld, TableError, VersionConflict

__all__ = ["Steered", "handle"]


class Steered(Protocol):
    """An engine with a table: what each plugin has in the process that runs the scheduler."""

    is_active: bool
    capabilities: Capabilities
    table: LiveTable
    log: logging.Logger
    """Of a name that the engine shows in its own log."""

    def telemetry(self) -> EngineTelemetry:
        """Counters so far, and the gauges now."""


def handle(steering: Steered, operation: str, payload: str) -> str:
    """``{"status": HTTP status, "body": ...}``. Never raises: the engine's loop calls it."""
    try:
        status, body = _dispatch(steering, operation, payload)
    except Exception:
        steering.log.exception("specctl: operation %s failed", operation)
        status, body = 500, {"error": "internal", "message": "see the server's log"}
    return json.dumps({"status": status, "body": body})


def _dispatch(steering: Steered, operation: str, payload: str) -> tuple[int, dict[str, Any]]:
    if not steering.is_active:
        message = "specctl does not steer this engine; see the server's log"
        return 503, {"error": "not_steered", "message": message}
    if operation == "capabilities":
        return 200, steering.capabilities.model_dump(mode="json")
    if operation == "table":
        return 200, steering.table.read().model_dump(mode="json")
    if operation == "telemetry":
        return 200, steering.telemetry().model_dump(mode="json")
    if operation == "put_table":
        return _put_table(steering, payload)
    if operation == "adopt_table":
        return _adopt_table(steering, payload)
    return 404, {"error": "unknown_operation", "message": operation}


def _put_table(steering: Steered, payload: str) -> tuple[int, dict[str, Any]]:
    if not steering.capabilities.controllable:
        message = steering.capabilities.why_not_controllable
        return 422, {"error": "not_controllable", "message": message, "refusals": []}
    try:
        change = TablePut.model_validate_json(payload)
        before = steering.table.read()
        applied = steering.table.put(change)
    except ValidationError as error:
        return 400, {"error": "malformed", "message": str(error)}
    except LeaseHeld as error:
        body = {"error": "lease_held", "message": str(error), "owner": error.owner}
        return 409, {**body, "remaining_s": error.remaining_s}
    except VersionConflict as error:
        return 409, {"error": "version_conflict", "message": str(error), "version": error.expected}
    except TableError as error:
        return _table_refused(error)
    if any(getattr(before, name) != getattr(applied, name) for name in ("rows", "owner", "class_limits")):
        steering.log.info(
            "specctl: table %d -> %d by %s: %s -> %s, %d rules for classes (%s)",
            before.version,
            applied.version,
            applied.owner,
            _short(before.rows),
            _short(applied.rows),
            len(applied.class_limits),
            applied.reason or "no reason given",
        )
    return 200, applied.model_dump(mode="json")


def _adopt_table(steering: Steered, payload: str) -> tuple[int, dict[str, Any]]:
    try:
        applied = steering.table.adopt(Adoption.model_validate_json(payload))
    except TableError as error:
        return _table_refused(error)
    return 200, applied.model_dump(mode="json")


def _table_refused(error: TableError) -> tuple[int, dict[str, Any]]:
    refusals = [refusal.model_dump(mode="json") for refusal in error.refusals]
    return 422, {"error": "table_refused", "message": str(error), "refusals": refusals}


def _short(rows: Any) -> str:
    return " ".join(
        f"{row.decode_batch_from}-{row.decode_batch_to or ''}:{row.num_speculative_tokens}" for row in rows
    )
