"""Operations of the control path on every engine of a server: one for each data-parallel rank."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from specctl.contract.capabilities import Capabilities
from specctl.contract.table import AppliedTable, TablePut
from specctl.engine.ranks import Adoption, merged_capabilities, merged_table, merged_telemetry
from specctl.engine.request_classes import EngineTelemetry

__all__ = ["Answer", "Ranks", "ask", "put_table"]

_ENGINE_TIMEOUT_S = 10.0


class Ranks(Protocol):
    """The engine's own way from its API server to its schedulers."""

    log: logging.Logger

    def numbers(self) -> list[int]:
        """In the engine's order; [0] without data parallelism."""

    async def call(self, rank: int, operation: str, payload: str) -> str:
        """What ``service.handle`` answers there."""

    def front_end_waiting_pieces(self) -> int | None:
        """What requests emitted in steps and this API server has not taken up yet; None: not known."""


@dataclass(frozen=True)
class Answer:
    """``status``: an HTTP status."""

    rank: int
    status: int
    body: dict[str, Any]


async def ask(engine: Ranks, operation: str) -> Answer:
    """capabilities, table or telemetry of the server; the first failure where a rank fails to answer."""
    ranks = engine.numbers()
    answers = await asyncio.gather(*(_ask_rank(engine, rank, operation) for rank in ranks))
    failed = [answer for answer in answers if answer.status != 200]
    if failed and len(ranks) > 1:
        words = f"data-parallel rank {failed[0].rank}: {failed[0].body['message']}"
        return Answer(failed[0].rank, failed[0].status, {**failed[0].body, "message": words})
    if failed:
        return failed[0]
    merged = _merged(operation, answers)
    if operation == "telemetry":
        merged.body["front_end_waiting_pieces"] = engine.front_end_waiting_pieces()
    return merged


async def put_table(engine: Ranks, change: TablePut) -> Answer:
    """The first rank decides, as a lone engine does; the others adopt what it applied.

    Its refusal changes nothing anywhere. Where another rank fails to adopt, the answer names it, GET table
    does so until it has caught up, and it adopts the next table whatever it missed.
    """
    first, *others = engine.numbers()
    decided = await _ask_rank(engine, first, "put_table", change.model_dump_json())
    if decided.status != 200 or not others:
        return decided
    version = decided.body["version"]
    adoption = Adoption(decider=decided.body["boot_id"], version=version, change=change).model_dump_json()
    answers = await asyncio.gather(*(_ask_rank(engine, rank, "adopt_table", adoption) for rank in others))
    failed = [answer for answer in answers if answer.status != 200]
    if failed:
        return _apart(engine, first, version, failed)
    body = _merged("table", [decided, *answers]).body
    # A rank may have adopted a later table meanwhile, of another writer; that one reaches all as well.
    return Answer(first, 200, {**body, "ranks_behind": []})


def _apart(engine: Ranks, first: int, version: int, failed: Sequence[Answer]) -> Answer:
    why = "; ".join(f"rank {answer.rank}: {answer.body['message']}" for answer in failed)
    message = (
        f"expected every data-parallel rank to adopt table {version} of rank {first}, got {why}; "
        f"a PUT against version {version} brings them together"
    )
    engine.log.warning("specctl: %s", message)
    body = {"error": "ranks_apart", "message": message, "ranks": [answer.rank for answer in failed]}
    return Answer(first, 503, {**body, "version": version})


def _merged(operation: str, answers: Sequence[Answer]) -> Answer:
    if len(answers) == 1:
        return answers[0]
    bodies = [answer.body for answer in answers]
    merged: Capabilities | AppliedTable | EngineTelemetry
    if operation == "capabilities":
        merged = merged_capabilities([Capabilities.model_validate(body) for body in bodies])
    elif operation == "table":
        tables = [AppliedTable.model_validate(body) for body in bodies]
        merged = merged_table(tables, [answer.rank for answer in answers])
    else:
        merged = merged_telemetry([EngineTelemetry.model_validate(body) for body in bodies])
    return Answer(answers[0].rank, 200, merged.model_dump(mode="json"))


async def _ask_rank(engine: Ranks, rank: int, operation: str, payload: str = "") -> Answer:
    try:
        text = await asyncio.wait_for(engine.call(rank, operation, payload), _ENGINE_TIMEOUT_S)
    except TimeoutError:
        message = f"the engine did not answer within {_ENGINE_TIMEOUT_S:g} s"
        return Answer(rank, 504, {"error": "engine_busy", "message": message})
    except Exception as error:
        engine.log.warning("specctl: the engine did not answer %s: %s", operation, error)
        message = "the engine did not answer; see the server's log"
        return Answer(rank, 503, {"error": "engine_unreachable", "message": message})
    answer = json.loads(text)
    return Answer(rank, answer["status"], answer["body"])
