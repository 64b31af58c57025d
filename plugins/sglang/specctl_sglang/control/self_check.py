"""Finished greedy answers that are decoded again without drafts: the scheduler's part.

One of every so many is kept. The process with the HTTP server fetches one while the scheduler has nothing to
do, decodes it again as a request like any other (``control.repeated_answers``), and says what came of it. The
first other request ends that.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from specctl.contract.telemetry import SelfChecks
from specctl.engine.self_check import ID_PREFIX, KEPT_MAX, TOKENS_MAX, AnswerChecks
from specctl_sglang.control.draft_limits import has_own_penalties

__all__ = ["DONE", "NEXT", "KeptAnswers", "is_comparable"]

logger = logging.getLogger("sglang.specctl")
NEXT, DONE = "self_check_next", "self_check_done"
"""Operations beside those of the routes."""


class KeptAnswers:
    """Used from the scheduler's thread.

    is_idle: whether no request runs or waits. end: aborts a request of that id.
    """

    def __init__(
        self, ratio: float, dtype: str, is_idle: Callable[[], bool], end: Callable[[str], None]
    ) -> None:
        self._checks = AnswerChecks(ratio, dtype, logger)
        self._is_idle, self._end = is_idle, end
        self._numbers = count()
        self._kept: deque[Any] = deque(maxlen=KEPT_MAX)
        self._open: str | None = None
        """Id of the request that decodes an answer again."""

    @property
    def counts(self) -> SelfChecks:
        return self._checks.counts

    def before_step(self, requests: Sequence[Any]) -> None:
        """Of these requests: others than the one that decodes an answer again end that."""
        for request in requests:
            # SGLang drops media when a request ends.
            if request.multimodal_inputs is not None:
                request.specctl_is_noted = True
        if self._open is not None and any(request.rid != self._open for request in requests):
            opened, self._open = self._open, None
            self._end(opened)

    def after_step(self, requests: Sequence[Any]) -> None:
        """Of these requests: those that it has ended are noted."""
        for request in requests:
            # The overlap scheduler runs a step more for a request that has ended.
            if request.finished() and not hasattr(request, "specctl_is_noted"):
                request.specctl_is_noted = True
                if is_comparable(request) and self._checks.takes_next():
                    self._kept.append(request)

    def handle(self, operation: str, payload: str) -> str | None:
        """As ``service.handle``; None: not an operation of this part."""
        if operation == NEXT:
            return json.dumps({"status": 200, "body": self._next()})
        if operation == DONE:
            self._done(json.loads(payload))
            return json.dumps({"status": 200, "body": {}})
        return None

    def _next(self) -> dict[str, Any]:
        if not self._kept or not self._is_idle():
            return {}
        request = self._kept.popleft()
        self._open = f"{ID_PREFIX}{next(self._numbers)}"
        return {
            "id": self._open,
            "request_id": request.rid,
            "prompt": list(request.origin_input_ids),
            "answer": _answer_of(request),
            "extra_key": request.extra_key,
        }

    def _done(self, result: dict[str, Any]) -> None:
        """Without ``differs``: the answers are the same."""
        self._open = None
        if (differs := result.get("differs")) is None:
            self._checks.identical()
        else:
            self._checks.differs(**differs)


def is_comparable(request: Any) -> bool:
    """Whether its answer depends on its prompt's token ids alone; media are left to ``before_step``."""
    sampling_params = request.sampling_params
    structured = (
        sampling_params.json_schema,
        sampling_params.regex,
        sampling_params.ebnf,
        sampling_params.structural_tag,
    )
    return bool(
        # SGLang gives a request of temperature 0 a top_k of 1.
        sampling_params.top_k == 1
        and not any(structured)
        and not has_own_penalties(request)
        and not sampling_params.logit_bias
        and not request.rid.startswith(ID_PREFIX)
        and request.custom_logit_processor is None
        and request.lora_id is None
        and request.input_embeds is None
        and request.session is None
        and _answer_of(request)
    )


def _answer_of(request: Any) -> list[int]:
    ended = request.finished_len
    return list(request.output_ids)[:ended][:TOKENS_MAX]
