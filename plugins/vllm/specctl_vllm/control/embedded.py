"""The routes on an address of their own, where a program embeds vLLM without its API server."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

from specctl.engine.control_port import opened
from specctl_vllm.control.endpoint import EngineCores
from specctl_vllm.options import options_from_env

__all__ = ["wrap_run_output_handler"]


def wrap_run_output_handler(original: Any) -> Any:
    """vLLM calls it in the event loop that talks to the engine: at the start, or with the first request."""

    @functools.wraps(original)
    def _run_output_handler(self: Any) -> None:
        original(self)
        options = options_from_env()
        if options is None or options.control.control_address is None or hasattr(self, "specctl_port"):
            return
        # The task is kept, as the loop itself would not.
        self.specctl_port = asyncio.get_running_loop().create_task(
            opened(options.control.control_address, options.control.token_file, EngineCores(self))
        )

    return _run_output_handler
