"""What a program that embeds an engine does for a test: prompts as JSON lines in, token ids out."""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable

__all__ = ["answer_prompts"]


async def answer_prompts(generate: Callable[[str], Awaitable[list[int]]]) -> None:
    """Until its input ends. It reads in a thread: the control port is served by this event loop."""
    _tell("ready")
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        _tell(await generate(json.loads(line)))


def _tell(value: object) -> None:
    """On a line of its own, with a mark, in one write: processes of the engine write to the same output."""
    os.write(sys.stdout.fileno(), f"\n@{json.dumps(value)}\n".encode())
