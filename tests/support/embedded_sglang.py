"""A program that embeds SGLang as Dynamo does: an Engine in its own event loop, and no HTTP server.

``python -m support.embedded_sglang MODEL``: prompts as JSON lines in, token ids out.
"""

import asyncio
import json
import sys

from specctl_sglang.cpu_serve import DEFAULTS  # also in each process of SGLang's: the stand-ins


def tell(value: object) -> None:
    """On a line of its own, with a mark: processes of SGLang write to the same output."""
    print(f"\n@{json.dumps(value)}", flush=True)


async def course(model: str) -> None:
    from sglang.srt.entrypoints.engine import Engine
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args

    load_plugins()
    arguments = f"--model-path {model} --dtype float32 --max-running-requests 8 --context-length 1024"
    arguments += " --max-total-tokens 8192 --mem-fraction-static 0.9 --disable-overlap-schedule"
    arguments += " --speculative-algorithm SPECCTL_SUFFIX --speculative-num-draft-tokens 9"
    engine = Engine(server_args=prepare_server_args([*DEFAULTS.split(), *arguments.split()]))
    tell("ready")
    loop = asyncio.get_running_loop()
    # In a thread: the control port is served by this loop.
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        sampling = {"temperature": 0, "max_new_tokens": 32, "ignore_eos": True}
        tell((await engine.async_generate(json.loads(line), sampling))["output_ids"])
    engine.shutdown()


if __name__ == "__main__":
    asyncio.run(course(sys.argv[1]))
