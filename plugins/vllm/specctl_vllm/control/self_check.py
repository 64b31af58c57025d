"""Decodes greedy answers again without drafts while the engine is idle, and compares them.

An answer must not depend on drafts. One of every so many finished requests is kept. When telemetry is read
while nothing runs, the scheduler gets it once more as a request of its own, whose tokens no client sees. The
first other request ends that.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from specctl.contract.telemetry import SelfChecks
from specctl.engine.self_check import ID_PREFIX, KEPT_MAX, TOKENS_MAX, AnswerChecks
from specctl_vllm.control.request_fields import GREEDY_TEMPERATURE_MAX

__all__ = ["SelfCheck", "is_comparable"]

logger = logging.getLogger("vllm.specctl")


@dataclass(slots=True)
class _Open:
    """``request``: the one that has finished; ``at``: tokens that were the same so far."""

    request_id: str
    request: Any
    answer: list[int]
    at: int = 0
    is_over: bool = False


class SelfCheck:
    """Used from the scheduler's thread.

    make: the request that decodes ``request``'s prompt again: (request, its id, its number of tokens). end:
    takes a request of that id out of the scheduler. dtype: of the target.
    """

    def __init__(
        self,
        scheduler: Any,
        ratio: float,
        dtype: str,
        make: Callable[[Any, str, int], Any],
        end: Callable[[Any, str], None],
    ) -> None:
        self._checks = AnswerChecks(ratio, dtype, logger)
        self._scheduler = scheduler
        self._make, self._end = make, end
        self._numbers = count()
        self._kept: deque[Any] = deque(maxlen=KEPT_MAX)
        self._open: _Open | None = None

    @property
    def counts(self) -> SelfChecks:
        return self._checks.counts

    def finished(self, request: Any) -> None:
        """A request of the engine has ended."""
        if self._open is not None and request.request_id == self._open.request_id:
            return
        if is_comparable(request) and self._checks.takes_next():
            self._kept.append(request)

    def begin(self) -> None:
        """The next kept answer, where the engine has nothing to do."""
        scheduler = self._scheduler
        if self._open is not None or not self._kept or scheduler.requests or scheduler.pause_state:
            return
        request = self._kept.popleft()
        answer = list(request.output_token_ids)[:TOKENS_MAX]
        self._open = _Open(f"{ID_PREFIX}{next(self._numbers)}", request, answer)
        scheduler.add_request(self._make(request, self._open.request_id, len(answer)))

    def make_way(self) -> None:
        """Before a step: other requests have come, or all is known."""
        mine = self._open
        if mine is None:
            return
        if mine.request_id not in self._scheduler.requests:
            self._open = None
        elif mine.is_over or len(self._scheduler.requests) > 1:
            self._end(self._scheduler, mine.request_id)
            self._open = None

    def take(self, outputs: Mapping[int, Any]) -> None:
        """The step's outputs by client, out of which the check's own are taken."""
        mine = self._open
        if mine is None:
            return
        for of_client in outputs.values():
            found = [one for one in of_client.outputs if one.request_id == mine.request_id]
            if found:
                of_client.outputs = [one for one in of_client.outputs if one.request_id != mine.request_id]
            for one in found:
                self._compare(mine, one.new_token_ids, one.new_logprobs)

    def _compare(self, mine: _Open, tokens: Sequence[int], logprobs: Any) -> None:
        for row, token in enumerate(tokens):
            if mine.is_over or mine.at >= len(mine.answer):
                return
            expected = mine.answer[mine.at]
            if token != expected:
                mine.is_over = True
                lead = _lead(logprobs, row, expected)
                self._checks.differs(mine.request.request_id, mine.at, token, expected, lead)
                return
            mine.at += 1
            if mine.at == len(mine.answer):
                mine.is_over = True
                self._checks.identical()


def is_comparable(request: Any) -> bool:
    """Whether its answer depends on its prompt's token ids alone."""
    sampling_params = request.sampling_params
    return bool(
        sampling_params is not None
        and sampling_params.temperature < GREEDY_TEMPERATURE_MAX
        and sampling_params.structured_outputs is None
        and not sampling_params.presence_penalty
        and not sampling_params.frequency_penalty
        and sampling_params.repetition_penalty == 1.0
        and not sampling_params.min_tokens
        and not sampling_params.logit_bias
        and not sampling_params.bad_words
        and not sampling_params.allowed_token_ids
        and not request.mm_features
        and request.prompt_embeds is None
        and request.prompt_token_ids
        and request.lora_request is None
        and not request.resumable
        and request.output_token_ids
    )


def _lead(logprobs: Any, row: int, expected: int) -> float:
    """Of the row's own token over ``expected``, in log probability; infinite where that is not among those
    reported."""
    if logprobs is None:
        return float("inf")
    ids, values = list(logprobs.logprob_token_ids[row]), logprobs.logprobs[row]
    return float(values[0] - values[ids.index(expected)]) if expected in ids else float("inf")
