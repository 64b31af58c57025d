"""A step of vLLM's scheduler while it runs: which of its requests decode, with which drafts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter, lt
from typing import Any

from specctl.contract.setting import Setting
from specctl.engine import steering

__all__ = ["OpenStep", "Plan", "fill"]

# With 256 requests a step, what is asked of each is asked by builtins: a loop takes three times as long.
_COMPUTED, _OF_PROMPT = attrgetter("num_computed_tokens"), attrgetter("num_prompt_tokens")


@dataclass(slots=True)
class OpenStep(steering.OpenStep):
    request_ids: list[str] = field(default_factory=list)
    ended_s: float = 0.0
    device_s: float | None = None
    made_s: float | None = None
    """Seconds of the drafts that were made at its end, for the next step."""
    read_s: float | None = None
    """Of a head's pass over its tokens, reported with the next step's; None: this worker reports none."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the drafts that now wait were made for."""

    number: int
    sample: Setting | None = None
    """Of the row that was in force; None: they are the row's own."""
    min_token_prob: float | None = None
    after_rest: bool = False
    beside_prompts: bool = False


def fill(
    step: OpenStep, requests: Mapping[str, Any], scheduled: Mapping[str, int], drafts: Mapping[str, Any]
) -> tuple[int, int]:
    """Tell ``step`` its decoding requests and the rest of its tokens.

    requests: vLLM's, by id. scheduled: tokens of each request in the step. drafts: those among them that are
    verified. Returns how many requests decode after the step, and the tokens of their contexts.
    """
    if _all_decode(step, requests, scheduled, drafts):
        return len(scheduled), step.context_tokens + sum(scheduled.values())
    next_decoding, next_context_tokens = 0, 0
    for request_id, number in scheduled.items():
        request = requests[request_id]
        computed = request.num_computed_tokens
        drafted = len(drafts.get(request_id, ()))
        if computed >= request.num_prompt_tokens and number == drafted + 1:
            step.requests.append(request)
            step.request_ids.append(request_id)
            step.drafted.append(drafted)
            step.context_tokens += computed
        else:
            step.prefill_tokens += number
            if computed + number < request.num_tokens:
                continue
        next_decoding += 1
        next_context_tokens += computed + number
    return next_decoding, next_context_tokens


def _all_decode(
    step: OpenStep, requests: Mapping[str, Any], scheduled: Mapping[str, int], drafts: Mapping[str, Any]
) -> bool:
    """Whether each request verifies its drafts and a token more; ``step`` is filled then."""
    if sum(scheduled.values()) != len(scheduled) + sum(map(len, drafts.values())):
        return False
    own = list(map(requests.__getitem__, scheduled))
    computed = list(map(_COMPUTED, own))
    if any(map(lt, computed, map(_OF_PROMPT, own))):
        return False
    step.requests, step.request_ids = own, list(scheduled)
    step.drafted = [number - 1 for number in scheduled.values()]
    step.context_tokens = sum(computed)
    return True
