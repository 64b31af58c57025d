from __future__ import annotations

import pytest
from fakes.observations import capabilities

from specctl.simulate.profiling.fitted import limits_of

NAMED = {"max_num_batched_tokens": "2048", "kv_tokens": "65536", "kv_block_tokens": "16"}


@pytest.mark.parametrize(("engine", "is_apart"), [("vllm", False), ("sglang", True)])
def test_sglang_runs_prompts_in_steps_of_their_own(engine: str, is_apart: bool) -> None:
    server = capabilities().model_copy(update={"engine": engine, "context_max_tokens": 4096})
    assert limits_of(server, NAMED).prompts_apart is is_apart
