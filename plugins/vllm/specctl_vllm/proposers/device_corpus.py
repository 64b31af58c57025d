"""Keeps the device's corpus of finished outputs up to date, from a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from specctl_kernels.suffix_draft import DeviceCorpus

from specctl.draft.chains import ROW_WORDS, SEPARATOR
from specctl.draft.frozen_corpus import FrozenCorpus, build_block, documents_of, newest_within

__all__ = ["DeviceCorpusFeeder"]

logger = logging.getLogger("vllm.specctl")
Ints = npt.NDArray[np.int32]
_LEAST_PAUSE_S = 2.0
"""Between two builds: one takes 0.7 us of a core for each token."""


class DeviceCorpusFeeder:
    """Outputs come in as they finish; a new corpus takes effect between two steps, without a wait.

    A build leaves out the oldest outputs that do not fit. Called from the worker's main thread only. To a
    CorpusKeeper it is what the host's index is: it gives what is new and takes what the file holds.
    """

    def __init__(self, max_bytes: int, rungs: npt.NDArray[np.int64], device: torch.device) -> None:
        self.corpus = DeviceCorpus(max_bytes, ROW_WORDS, device)
        self.rungs = rungs
        self.half_bytes = 4 * self.corpus.half_words
        """What the device drafts from; the other half is being filled."""
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._kept: list[Ints] = []
        """Of the file, older than all others."""
        self._outputs: deque[Ints] = deque()
        self._added = self._given = 0
        """Outputs that came in, and how many of those were given to the keeper."""
        self._attached: tuple[FrozenCorpus, int] | None = None
        self._fresh_tokens = 0
        self._thread: threading.Thread | None = None
        self._built: _Built | None = None
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
                self._added += 1
                self._fresh_tokens += output.size

    def attach(self, corpus: FrozenCorpus) -> None:
        """What the file holds: it takes the place of the outputs that were given for it, and of an earlier
        file. Unpacked beside the steps."""
        self._attached = corpus, self._given
        self._fresh_tokens += corpus.tokens

    def outputs_since(self, position: int) -> tuple[npt.NDArray[np.uint32], int]:
        """(outputs from the ``position``-th on that are still held, SEPARATOR after each; the position after
        them)."""
        first = self._added - len(self._outputs)
        new = list(self._outputs)[max(0, position - first) :]
        self._given = self._added
        end = np.array([SEPARATOR], np.uint32)
        parts = [part for output in new for part in (output.view(np.uint32), end)]
        return np.concatenate([np.empty(0, np.uint32), *parts]), self._added

    def flush(self) -> None:
        """Nothing waits here."""

    def poll(self) -> None:
        """Take up what was built, and start the next build when it is due. Before a step's drafts."""
        if self._thread is not None and not self._thread.is_alive():
            self._thread = None
            built, self._built = self._built, None
            if built is not None:
                self._take(built)
        now_s = time.monotonic()
        if self._fresh_tokens and self._thread is None and now_s >= self._next_s:
            self._next_s = now_s + _LEAST_PAUSE_S
            self._fresh_tokens = 0
            corpus = self._detached()
            arguments = (corpus, self._kept, list(self._outputs))
            self._thread = threading.Thread(
                target=self._build, args=arguments, name="specctl-device-corpus", daemon=True
            )
            self._thread.start()

    def _take(self, built: _Built) -> None:
        if built.event is not None:
            torch.cuda.current_stream().wait_event(built.event)
        self.corpus.commit(built.placed)
        self.tokens = built.tokens
        self._kept = built.kept[built.left_out :]
        for _ in range(built.left_out - len(built.kept)):
            self._outputs.popleft()

    def _detached(self) -> FrozenCorpus | None:
        """The file that came in, if one did; what it holds of the outputs is not held twice."""
        if self._attached is None:
            return None
        (corpus, given), self._attached = self._attached, None
        for _ in range(len(self._outputs) - (self._added - given)):
            self._outputs.popleft()
        return corpus

    def _build(self, corpus: FrozenCorpus | None, kept: list[Ints], outputs: list[Ints]) -> None:
        try:
            if corpus is not None:
                kept = list(documents_of(corpus))
            documents = newest_within([*kept, *outputs], self.rungs, self.half_bytes)
            block = build_block(documents, self.rungs)
            event = None
            with torch.cuda.stream(self._stream):  # does nothing where it is None
                placed = self.corpus.stage(block.mem, block.row)
                if self._stream is not None:
                    event = torch.cuda.Event()
                    event.record(self._stream)
            left_out = len(kept) + len(outputs) - len(documents)
            self._built = _Built(placed, event, block.tokens, kept, left_out)
        except (RuntimeError, ValueError):
            self.failures += 1
            logger.exception("specctl_suffix: the device's corpus was not renewed")


@dataclass(frozen=True)
class _Built:
    placed: torch.Tensor
    event: torch.cuda.Event | None
    tokens: int
    kept: list[Ints]
    left_out: int
    """Of the oldest, those of the file first."""
