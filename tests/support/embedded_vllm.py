"""A program that embeds vLLM as Ray Serve does: an AsyncLLM in its own process, and no API server.

``python -m support.embedded_vllm MODEL CONFIG``: prompts as JSON lines in, token ids out.
"""

import asyncio
import json
import sys

from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.v1.engine.async_llm import AsyncLLM


def tell(value: object) -> None:
    """On a line of its own, with a mark: processes of vLLM write to the same output."""
    print(f"\n@{json.dumps(value)}", flush=True)


async def course(model: str, config: dict) -> None:
    arguments = AsyncEngineArgs(
        model=model,
        dtype="float32",
        enforce_eager=True,
        max_num_seqs=8,
        max_model_len=1024,
        speculative_config=config,
    )
    engine = AsyncLLM.from_engine_args(arguments)
    tell("ready")
    loop = asyncio.get_running_loop()
    number = 0
    # In a thread: the control port is served by this loop.
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        number += 1
        sampling = SamplingParams(temperature=0, max_tokens=32)
        outputs = [output async for output in engine.generate(json.loads(line), sampling, str(number))]
        tell(list(outputs[-1].outputs[0].token_ids))
    engine.shutdown()


if __name__ == "__main__":
    asyncio.run(course(sys.argv[1], json.loads(sys.argv[2])))
