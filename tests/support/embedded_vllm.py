"""A program that embeds vLLM as Ray Serve does: an AsyncLLM in its own process, and no API server.

``python -m support.embedded_vllm MODEL CONFIG``.
"""

import asyncio
import json
import sys
from itertools import count

from support.embedded_program import answer_prompts
from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.v1.engine.async_llm import AsyncLLM


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
    numbers = count(1)

    async def generate(prompt: str) -> list[int]:
        sampling = SamplingParams(temperature=0, max_tokens=32)
        outputs = [output async for output in engine.generate(prompt, sampling, str(next(numbers)))]
        return list(outputs[-1].outputs[0].token_ids)

    await answer_prompts(generate)
    engine.shutdown()


if __name__ == "__main__":
    asyncio.run(course(sys.argv[1], json.loads(sys.argv[2])))
