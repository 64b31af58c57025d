"""Entry point ``vllm.general_plugins``: runs in every process of vLLM, before the engine is built.

A server that does not name specctl in its speculative config is left as it is: only the reader of that
config is wrapped, in the process that parses the command line.
"""

from __future__ import annotations

import logging
import sys

from specctl.engine.guard import GUARD
from specctl.engine.patches import PatchConflict, install
from specctl_vllm.options import options_from_env
from specctl_vllm.patches import COMMAND_LINE, ENGINE, for_method

__all__ = ["register"]

logger = logging.getLogger("vllm.specctl")


def register() -> None:
    """Called by vLLM, more than once in a process at times."""
    GUARD.log = logger
    options = options_from_env()
    if options is not None:
        install(for_method(ENGINE, options.method))
    if "vllm.engine.arg_utils" in sys.modules:
        try:
            install(COMMAND_LINE)
        except PatchConflict as error:
            logger.error("specctl: %s. Servers run without specctl.", error)
