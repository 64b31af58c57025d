"""Seconds of a step on the device.

Where launches run ahead, a step's result is taken after the next launch. That of a prompt takes tens of
milliseconds, which by the host's clock are those of the step before it.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["DeviceSpan"]


class DeviceSpan:
    """Of what is launched on a stream from now on, until ``end``."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._began = self._recorded()
        self._ended: Any = None

    def end(self) -> None:
        self._ended = self._recorded()

    def seconds(self, before: DeviceSpan | None) -> float:
        """From the end of ``before``, which was still under way when this one began, or from its own start.
        Waits for its end."""
        self._ended.synchronize()
        began = self._began if before is None else before._ended
        found: float = began.elapsed_time(self._ended) / 1e3
        return found

    def _recorded(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        return event
