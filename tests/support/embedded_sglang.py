"""A program that embeds SGLang as Dynamo does: an Engine in its own event loop, and no HTTP server.

``python -m support.embedded_sglang``, with the arguments of ``specctl_sglang.cpu_serve``.
"""

import asyncio

from specctl_sglang import cpu_serve  # also in each process of SGLang's: the stand-ins
from support.embedded_program import answer_prompts


async def course() -> None:
    from sglang.srt.entrypoints.engine import Engine

    engine = Engine(server_args=cpu_serve.server_args())

    async def generate(prompt: str) -> list[int]:
        sampling = {"temperature": 0, "max_new_tokens": 32, "ignore_eos": True}
        return (await engine.async_generate(prompt, sampling))["output_ids"]

    await answer_prompts(generate)
    engine.shutdown()


if __name__ == "__main__":
    asyncio.run(course())
