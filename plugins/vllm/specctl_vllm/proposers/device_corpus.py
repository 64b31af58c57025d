"""Keeps the device's corpus of finished outputs up to date, from a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch
from specctl_kernels.suffix_draft import DeviceCorpus

from specctl.draft.chains import ROW_WORDS
from specctl.draft.frozen_corpus import build_block, newest_within

__all__ = ["DeviceCorpusFeeder"]

logger = logging.getLogger("vllm.specctl")
Ints = npt.NDArray[np.int32]
_LEAST_PAUSE_S = 2.0
"""Between two builds: one takes 0.7 us of a core for each token."""


class DeviceCorpusFeeder:
    """Outputs come in as they finish; a new corpus takes effect between two steps, without a wait.

    A build leaves out the oldest outputs that do not fit. Called from the worker's main thread only.
    """

    def __init__(self, max_bytes: int, rungs: npt.NDArray[np.int64], device: torch.device) -> None:
        self.corpus = DeviceCorpus(max_bytes, ROW_WORDS, device)
        self._rungs = rungs
        self._half_bytes = 4 * self.corpus.half_words
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._outputs: deque[Ints] = deque()
        self._fresh_tokens = 0
        self._thread: threading.Thread | None = None
        self._staged: tuple[torch.Tensor, torch.cuda.Event | None] | None = None
        self._next_s = 0.0
        self.tokens = 0
        """In the corpus that the device drafts from."""
        self.failures = 0
        # Compiled here, not beside the first steps.
        build_block([np.zeros(8, np.int32)], rungs)

    def add(self, outputs: Iterable[Ints]) -> None:
        """Finished outputs, int32[n] each, the oldest first."""
        for output in outputs:
            if output.size:
                self._outputs.append(output)
                self._fresh_tokens += output.size

    def poll(self) -> None:
        """Take up what was built, and start the next build when it is due. Before a step's drafts."""
        if self._thread is not None and not self._thread.is_alive():
            self._thread = None
            if self._staged is not None:
                placed, event = self._staged
                if event is not None:
                    torch.cuda.current_stream().wait_event(event)
                self.corpus.commit(placed)
                self._staged = None
        now_s = time.monotonic()
        if self._fresh_tokens and self._thread is None and now_s >= self._next_s:
            self._next_s = now_s + _LEAST_PAUSE_S
            self._fresh_tokens = 0
            self._thread = threading.Thread(
                target=self._build, args=(list(self._outputs),), name="specctl-device-corpus", daemon=True
            )
            self._thread.start()

    def _build(self, outputs: list[Ints]) -> None:
        try:
            kept = newest_within(outputs, self._rungs, self._half_bytes)
            block = build_block(kept, self._rungs)
            event = None
            with torch.cuda.stream(self._stream):  # does nothing where it is None
                placed = self.corpus.stage(block.mem, block.row)
                if self._stream is not None:
                    event = torch.cuda.Event()
                    event.record(self._stream)
            self.tokens = block.tokens
            for _ in range(len(outputs) - len(kept)):
                self._outputs.popleft()
            self._staged = placed, event
        except (RuntimeError, ValueError):
            self.failures += 1
            logger.exception("specctl_suffix: the device's corpus was not renewed")
