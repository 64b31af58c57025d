"""The routes on an address of their own, where a program embeds vLLM without its API server."""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import Any

from specctl.engine.control_port import ControlPort
from specctl_vllm.control.endpoint import EngineCores
from specctl_vllm.options import options_from_env

__all__ = ["wrap_run_output_handler"]

logger = logging.getLogger("vllm.specctl")


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
            _opened(options.control.control_address, options.control.token_file, self)
        )

    return _run_output_handler


async def _opened(address: str, token_file: Any, engine_client: Any) -> ControlPort | None:
    """An address that cannot be had costs the control, and never the engine."""
    try:
        port = ControlPort(address, token_file)
        await port.start(EngineCores(engine_client))
    except Exception as error:
        logger.error("specctl: control address %s: %s; this engine cannot be steered", address, error)
        return None
    return port
