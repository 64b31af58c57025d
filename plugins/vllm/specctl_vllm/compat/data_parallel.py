"""Data-parallel ranks: the batch table that they keep, and calls to each rank's engine core.

Ranks of a dense model share no step: vLLM gives each an engine core whose own config says a size of 1. Ranks
of a mixture-of-experts model step together, and keep a size over 1 there.
"""

from __future__ import annotations

import functools
from typing import Any

from specctl_vllm.options import options_from_env

__all__ = ["call_rank", "ranks_of", "waiting_pieces", "wrap_drop_batch_table"]


def wrap_drop_batch_table(original: Any) -> Any:
    """Only where the command line is read does the config say how many ranks a dense model has. Ranks that
    step together agree on a number; the V1 runner has no graphs for fewer drafts, and needs no table."""

    @functools.wraps(original)
    def drop_batch_table(self: Any) -> None:
        model = self.model_config
        keeps = model is not None and (not model.is_moe or self.use_v2_model_runner)
        if options_from_env() is None or not keeps:
            original(self)

    return drop_batch_table


def ranks_of(engine_client: Any) -> list[int]:
    """Those that this API server talks to, in vLLM's order; [0] without data parallelism."""
    return list(engine_client.engine_core.engine_ranks_managed)


def waiting_pieces(engine_client: Any) -> int:
    """What requests emitted in steps that have come to this API server and wait for its event loop.

    Reason for the queue's private part: in public it tells the number of steps, whose batches differ.
    """
    steps = engine_client.engine_core.outputs_queue._queue
    return sum(len(step.outputs) for step in steps if not isinstance(step, Exception))


async def call_rank(engine_client: Any, rank: int, operation: str, payload: str) -> str:
    """The answer of one rank's EngineCore.specctl_call.

    Reason for the client's private method: its public ones reach the first engine, or all of them at once,
    where one failure hides every answer.
    """
    client = engine_client.engine_core
    engine = client.core_engines[client.engine_ranks_managed.index(rank)]
    answer: str = await client._call_utility_async("specctl_call", operation, payload, engine=engine)
    return answer
