"""Routes under /specctl/v1/ on vLLM's own API server (entry point ``vllm.endpoint_plugins``)."""

from __future__ import annotations

import logging
from argparse import Namespace
from typing import Any

from fastapi import FastAPI
from starlette.datastructures import State

from specctl.engine import routes
from specctl_vllm.compat.data_parallel import call_rank, ranks_of, waiting_pieces
from specctl_vllm.options import ControlOptions, options_from_env

__all__ = ["EngineCores", "SpecctlEndpointPlugin"]


class SpecctlEndpointPlugin:
    """vLLM's EndpointPlugin protocol."""

    name = "specctl"
    required_tasks: tuple[Any, ...] | None = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        options = options_from_env()
        control = options.control if options is not None else ControlOptions()
        routes.attach(app, control.token_file)

    async def init_state(self, engine_client: Any, state: State, args: Namespace) -> None:
        if options_from_env() is not None:
            routes.open_to(state, EngineCores(engine_client))


class EngineCores:
    """specctl.engine.rank_calls.Ranks."""

    log = logging.getLogger("vllm.specctl")

    def __init__(self, engine_client: Any) -> None:
        self._client = engine_client

    def numbers(self) -> list[int]:
        return ranks_of(self._client)

    async def call(self, rank: int, operation: str, payload: str) -> str:
        return await call_rank(self._client, rank, operation, payload)

    def front_end_waiting_pieces(self) -> int:
        return waiting_pieces(self._client)
