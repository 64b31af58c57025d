"""Finished greedy answers, decoded again without drafts: the part in the process with the HTTP server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from specctl.engine.guard import GUARD
from specctl_sglang.control.self_check import DONE, NEXT

__all__ = ["Generate", "RepeatedAnswers"]


class Generate(Protocol):
    """Greedy tokens without drafts, as SGLang answers; None where the request was aborted."""

    async def __call__(
        self, kept: dict[str, Any], prompt: Sequence[int], tokens: int, **logprobs: Any
    ) -> dict[str, Any] | None: ...


class RepeatedAnswers:
    """ask: an operation with its payload, answered by the scheduler as ``service.handle`` does. The first
    failure is the last one: nothing is checked behind it."""

    def __init__(self, ask: Callable[[str, str], Awaitable[str]], generate: Generate) -> None:
        self._ask, self._generate = ask, generate
        self._task: asyncio.Task[None] | None = None
        self._has_failed = False

    def begin(self) -> None:
        """The next answer, where none is being checked and the scheduler has nothing to do."""
        if not self._has_failed and (self._task is None or self._task.done()):
            self._task = asyncio.ensure_future(self._guarded())

    async def _guarded(self) -> None:
        try:
            await self.check()
        except Exception as error:
            self._has_failed = True
            GUARD.failed("self_check", error)

    async def check(self) -> None:
        kept = _body(await self._ask(NEXT, ""))
        if not kept:
            return
        answer = await self._generate(kept, kept["prompt"], len(kept["answer"]))
        if answer is None:
            return
        result = {}
        at = _first_difference(answer["output_ids"], kept["answer"])
        if at is not None:
            token, expected = answer["output_ids"][at], kept["answer"][at]
            lead = await self._lead(kept, at, token, expected)
            if lead is None:
                return
            place = {"request_id": kept["request_id"], "at": at, "token": token, "expected": expected}
            result = {"differs": {**place, "lead": lead}}
        _body(await self._ask(DONE, json.dumps(result)))

    async def _lead(self, kept: dict[str, Any], at: int, token: int, expected: int) -> float | None:
        """Of ``token`` over ``expected``, in log probability, behind what both answers have."""
        prompt = [*kept["prompt"], *kept["answer"][:at]]
        answer = await self._generate(
            kept, prompt, 1, return_logprob=True, token_ids_logprob=[token, expected]
        )
        if answer is None:
            return None
        found = {number: value for value, number, *_ in answer["meta_info"]["output_token_ids_logprobs"][0]}
        return float(found[token] - found[expected])


def _first_difference(tokens: Sequence[int], expected: Sequence[int]) -> int | None:
    pairs = enumerate(zip(tokens, expected, strict=True))
    return next((at for at, (token, other) in pairs if token != other), None)


def _body(text: str) -> dict[str, Any]:
    answer = json.loads(text)
    if answer["status"] != 200:
        raise RuntimeError(f"the scheduler answered {answer['status']}: {answer['body']}")
    body: dict[str, Any] = answer["body"]
    return body
