"""Routes under /specctl/v1/ on SGLang's own HTTP server, and the way from there to the schedulers."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
from typing import Any

from sglang.srt.entrypoints import http_server
from sglang.srt.managers.io_struct import GetInternalStateReq

from specctl.engine import routes
from specctl.engine.guard import GUARD
from specctl_sglang.compat.mark import MARK
from specctl_sglang.compat.releases import ranks_of
from specctl_sglang.compat.self_checks import generate_by
from specctl_sglang.control.repeated_answers import RepeatedAnswers
from specctl_sglang.options import Options, options_from_env

__all__ = ["Schedulers", "attach_closed", "install", "wrap_set_global_state"]

logger = logging.getLogger("sglang.specctl")


def attach_closed(why_not: str) -> None:
    """Routes that answer nothing but why."""
    routes.attach(http_server.app, None)
    http_server.app.state.specctl_why_not = why_not


def install(options: Options) -> None:
    """In the process of the HTTP server, before it starts. Raises ValueError for a bad token file."""
    routes.attach(http_server.app, options.token_file)
    http_server.app.state.specctl_why_not = "the server is still starting"


def wrap_set_global_state(original: Any) -> Any:
    def set_global_state(*args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        GUARD.call("set_global_state", None, _open)

    return set_global_state


def _open() -> None:
    routes.open_to(http_server.app.state, Schedulers.of(http_server.get_global_state().tokenizer_manager))


class Schedulers:
    """specctl.engine.rank_calls.Ranks."""

    log = logger

    def __init__(self, tokenizer_manager: Any) -> None:
        self._manager = tokenizer_manager
        self._waiting: set[asyncio.Task[Any]] = set()
        options = options_from_env() or Options()
        self._checks: RepeatedAnswers | None = None
        if options.checks_answers(len(self.numbers())):
            ask = functools.partial(self._call, 0)
            self._checks = RepeatedAnswers(ask, generate_by(tokenizer_manager))

    @classmethod
    def of(cls, tokenizer_manager: Any) -> Schedulers:
        """The one of a tokenizer manager, which may be asked on the server's routes and on an address of
        their own: each one more would check answers again."""
        made: Schedulers | None = getattr(tokenizer_manager, "specctl", None)
        if made is None:
            made = tokenizer_manager.specctl = cls(tokenizer_manager)
        return made

    def numbers(self) -> list[int]:
        return list(range(ranks_of(self._manager.server_args)))

    def front_end_waiting_pieces(self) -> None:
        """SGLang's outputs wait in sockets."""

    async def call(self, rank: int, operation: str, payload: str) -> str:
        answer = await self._call(rank, operation, payload)
        if operation == "telemetry" and self._checks is not None:
            self._checks.begin()
        return answer

    async def _call(self, rank: int, operation: str, payload: str) -> str:
        """Every data-parallel rank gets the request and answers it; the one that is meant with more.

        Reason for the request for internal state: it is the one that carries a text (its rid) to the
        scheduler and any answer back.
        """
        asked = json.dumps({"rank": rank, "operation": operation, "payload": payload})
        manager = self._manager
        manager.auto_create_handle_loop()
        call = manager.get_internal_state_communicator(GetInternalStateReq(rid=MARK + asked))
        task = asyncio.ensure_future(call)
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)
        # A call that is given up leaves the next one its answer: it must run to its end.
        answers = [answer.internal_state for answer in await asyncio.shield(task)]
        for answer in answers:
            if "specctl" in answer:
                text: str = answer["specctl"]
                return text
        message = "the scheduler's process has not loaded specctl; its log says why"
        return json.dumps({"status": 503, "body": {"error": "not_loaded", "message": message}})
