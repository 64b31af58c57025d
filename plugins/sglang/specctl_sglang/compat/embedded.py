"""The routes on an address of their own, where a program embeds SGLang's Engine without its HTTP server."""

from __future__ import annotations

import functools
from typing import Any

from specctl.engine.control_port import opened
from specctl_sglang.compat.http_routes import Schedulers
from specctl_sglang.options import options_from_env

__all__ = ["wrap_auto_create_handle_loop"]


def wrap_auto_create_handle_loop(original: Any) -> Any:
    """SGLang calls it with every request, in the event loop that talks to the schedulers."""
    options = options_from_env()

    @functools.wraps(original)
    def auto_create_handle_loop(self: Any) -> None:
        original(self)
        if options is None or options.control_address is None or hasattr(self, "specctl_port"):
            return
        self.specctl_port = None  # the first call of a scheduler comes here again
        # The task is kept, as the loop itself would not.
        self.specctl_port = self.event_loop.create_task(
            opened(options.control_address, options.token_file, Schedulers.of(self))
        )

    return auto_create_handle_loop
