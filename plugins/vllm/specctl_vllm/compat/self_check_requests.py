"""Requests of the plugin's own: an answer's prompt again, without drafts."""

from __future__ import annotations

from typing import Any

from specctl.engine.request_field import FIELD_KEY
from specctl.engine.self_check import FIELD
from specctl_vllm.control.self_check import SelfCheck

__all__ = ["self_check_of"]

_LOGPROBS = 5
"""Of the most probable tokens of each position."""


def self_check_of(scheduler: Any, ratio: float) -> SelfCheck | None:
    """None: nothing is checked. Data-parallel ranks share their steps, pipeline stages have several steps in
    flight, and a connector would move the request's cache."""
    if not ratio:
        return None
    vllm_config = scheduler.vllm_config
    parallel_config = vllm_config.parallel_config
    is_alone = parallel_config.data_parallel_size == 1 and parallel_config.pipeline_parallel_size == 1
    if not is_alone or scheduler.connector is not None:
        return None
    return SelfCheck(scheduler, ratio, str(vllm_config.model_config.dtype), _made, _ended)


def _made(request: Any, request_id: str, tokens: int) -> Any:
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request

    return Request(
        request_id=request_id,
        prompt_token_ids=list(request.prompt_token_ids),
        sampling_params=SamplingParams(
            temperature=0.0, max_tokens=tokens, ignore_eos=True, logprobs=_LOGPROBS,
            extra_args={FIELD_KEY: dict(FIELD)},
        ),
        pooling_params=None,
        client_index=request.client_index,
        cache_salt=request.cache_salt,
        block_hasher=request._block_hasher,
    )  # fmt: skip


def _ended(scheduler: Any, request_id: str) -> None:
    from vllm.v1.request import RequestStatus

    scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)
