"""vLLM in a Ray Serve deployment, with an address at which specctl steers it.

    export MODEL=/path/to/model CONTROL=unix:/run/specctl/control-{pid}.sock
    serve run --app-dir deploy/ray --working-dir deploy/ray app:app
    specctl autotune --policy balanced --target unix:///run/specctl/control-1234.sock

A request is JSON: a prompt, and the most tokens. Each replica has an engine and an address of its own.
"""

from __future__ import annotations

import itertools
import os
from typing import Any

from ray import serve
from starlette.requests import Request
from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.v1.engine.async_llm import AsyncLLM

SPECULATION = {
    "method": "specctl_suffix",
    "num_speculative_tokens": 8,
    "specctl": {"control_address": os.environ.get("CONTROL", "unix:/run/specctl/control-{pid}.sock")},
}


@serve.deployment
class Model:
    async def __init__(self) -> None:
        arguments = AsyncEngineArgs(model=os.environ["MODEL"], speculative_config=SPECULATION)
        self._engine = AsyncLLM.from_engine_args(arguments)
        self._numbers = itertools.count()

    async def __call__(self, request: Request) -> dict[str, Any]:
        asked = await request.json()
        sampling = SamplingParams(temperature=0, max_tokens=int(asked.get("max_tokens", 64)))
        last = None
        async for output in self._engine.generate(asked["prompt"], sampling, str(next(self._numbers))):
            last = output
        assert last is not None, "vLLM ends a request with an output"
        return {"text": last.outputs[0].text, "token_ids": list(last.outputs[0].token_ids)}


app = Model.bind()
