"""Keeps the device's corpus of finished outputs up to date, from a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from specctl_kernels.suffix_draft import DeviceCorpus

from specctl.draft.chains import ROW_WORDS
from specctl.draft.document_text import GrowingText, Text, newest_start, packed
from specctl.draft.frozen_corpus import FrozenCorpus, build_text, packed_of, words_within
from specctl.draft.outcomes import Outcomes, added
from specctl_vllm.proposers.device_outcomes import DeviceOutcomes

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

    def __init__(
        self, max_bytes: int, rungs: npt.NDArray[np.int64], device: torch.device, learnt: DeviceOutcomes
    ) -> None:
        """learnt: what a file says of the outcomes of drafts goes there, and comes from there."""
        self.corpus = DeviceCorpus(max_bytes, ROW_WORDS, device)
        self.rungs = rungs
        self._outcomes = learnt
        self.half_bytes = 4 * self.corpus.half_words
        """What the device drafts from; the other half is being filled."""
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._most_words = words_within(rungs, self.half_bytes)
        self._file: Text = np.empty(0, np.uint32)
        """Of the file, older than all others."""
        self._learnt = GrowingText()
        """Outputs that came in, and that the file does not hold."""
        self._given = 0
        """Position in them up to which the keeper has them."""
        self._attached: tuple[FrozenCorpus, int] | None = None
        self._fresh_tokens = 0
        self._thread: threading.Thread | None = None
        self._built: _Built | None = None
        self._next_s = 0.0
        self.tokens = 0
        """In the corpus that the device drafts from."""
        self.failures = 0
        # Compiled here, not beside the first steps.
        warm = packed([np.zeros(8, np.int32)])
        build_text(warm[newest_start(warm, warm.size) :], rungs)

    def add(self, outputs: Iterable[Ints]) -> None:
        """Finished outputs, int32[n] each, the oldest first. One that no corpus can hold is left out."""
        for output in outputs:
            if not 0 < output.size < self._most_words:
                continue
            try:
                self._learnt.append(output)
                self._fresh_tokens += output.size
            except ValueError:
                self.failures += 1
                logger.exception("specctl_suffix: an output was left out of the device's corpus")

    def attach(self, corpus: FrozenCorpus) -> None:
        """What the file holds: it takes the place of the outputs that were given for it, and of an earlier
        file. Unpacked beside the steps."""
        self._attached = corpus, self._given
        self._outcomes.replace(added({"": counts} for counts in corpus.outcomes.values()))
        self._fresh_tokens += corpus.tokens

    @property
    def outcomes(self) -> Outcomes:
        return self._outcomes.outcomes

    def outputs_since(self, position: int) -> tuple[Text, int]:
        """(outputs from a position on that are still held, SEPARATOR after each; the position after them)."""
        self._given = self._learnt.end
        return self._learnt.since(position).copy(), self._given

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
            arguments = (corpus, self._file, self._learnt.since(0))
            self._thread = threading.Thread(
                target=self._build, args=arguments, name="specctl-device-corpus", daemon=True
            )
            self._thread.start()

    def _take(self, built: _Built) -> None:
        if built.event is not None:
            torch.cuda.current_stream().wait_event(built.event)
        self.corpus.commit(built.placed)
        self.tokens = built.tokens
        self._file = built.file[built.left_out :]
        self._learnt.drop_before(self._learnt.start + max(built.left_out - built.file.size, 0))

    def _detached(self) -> FrozenCorpus | None:
        """The file that came in, if one did; what it holds of the outputs is not held twice."""
        if self._attached is None:
            return None
        (corpus, given), self._attached = self._attached, None
        self._learnt.drop_before(given)
        return corpus

    def _build(self, corpus: FrozenCorpus | None, file: Text, learnt: Text) -> None:
        try:
            if corpus is not None:
                file = packed_of(corpus)
            text = np.concatenate((file, learnt))
            left_out = newest_start(text, self._most_words)
            block = build_text(text[left_out:], self.rungs)
            event = None
            with torch.cuda.stream(self._stream):  # does nothing where it is None
                placed = self.corpus.stage(block.mem, block.row)
                if self._stream is not None:
                    event = torch.cuda.Event()
                    event.record(self._stream)
            self._built = _Built(placed, event, block.tokens, file, left_out)
        except (RuntimeError, ValueError):
            self.failures += 1
            logger.exception("specctl_suffix: the device's corpus was not renewed")


@dataclass(frozen=True)
class _Built:
    placed: torch.Tensor
    event: torch.cuda.Event | None
    tokens: int
    file: Text
    left_out: int
    """Words of the oldest, those of the file first."""
