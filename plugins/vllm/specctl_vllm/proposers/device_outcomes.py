"""What becomes of the device's drafts, and the probabilities that follow from it."""

from __future__ import annotations

import logging
import threading

import numpy as np
import torch
from specctl_kernels.suffix_draft import DeviceLessons

from specctl.draft.calibration import ENTRIES
from specctl.draft.lessons import ENTRY_WORDS, OUTCOME_WORDS
from specctl.draft.outcomes import Counts, Outcomes

__all__ = ["DeviceOutcomes"]

logger = logging.getLogger("vllm.specctl")


class DeviceOutcomes:
    """Of all traffic classes together. Called from the worker's main thread only.

    Counts come to the host beside the steps, and are learnt from on a thread of their own.
    """

    def __init__(self, requests: int, drafts: int, device: torch.device, is_learning: bool) -> None:
        """drafts: of a request, at most. is_learning: whether the table follows the outcomes of this process,
        or those of the corpus file alone."""
        self.lessons = DeviceLessons(requests, drafts, ENTRIES, device)
        self._outcomes = Outcomes(1)
        self._outcomes.is_learning = is_learning
        self.chances = torch.from_numpy(self._outcomes.chances_of()).to(device)
        """float32[2, ENTRIES] at a fixed address, so that a captured graph goes on reading it."""
        self.odds = torch.from_numpy(self._outcomes.tokens.odds).to(device, copy=True)
        """float32[PLACES], so too."""
        self._counts = self.lessons.counted.view(-1), self.lessons.of_tokens.view(-1)
        self._places = slice(0, self._counts[0].numel()), slice(ENTRY_WORDS, None)
        """Of the counts in a row of ``Outcomes.counted``."""
        self._arrived = torch.zeros(OUTCOME_WORDS, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._taken = np.zeros(OUTCOME_WORDS, np.int32)
        """Of the counts that arrived, those that were learnt from."""
        self._event = torch.cuda.Event() if device.type == "cuda" else None
        self._thread: threading.Thread | None = None

    @property
    def outcomes(self) -> Outcomes:
        """For the file. Waits for a refit that runs."""
        self._finish()
        return self._outcomes

    def replace(self, counts: Counts) -> None:
        """A file's counts take the place of what is known."""
        self.outcomes.replace(counts)
        self._upload()

    def poll(self) -> None:
        """Before a step's drafts: take up what was refitted, and begin the next refit when it is due."""
        if self._thread is not None:
            if self._thread.is_alive():
                return
            self._finish()
        if self._outcomes.is_due(1):
            for place, counts in zip(self._places, self._counts, strict=True):
                self._arrived[place].copy_(counts, non_blocking=True)
            if self._event is not None:
                self._event.record()
            self._thread = threading.Thread(target=self._refit, name="specctl-outcomes", daemon=True)
            self._thread.start()

    def _refit(self) -> None:
        try:
            if self._event is not None:
                self._event.synchronize()
            arrived = self._arrived.numpy()
            self._outcomes.counted[0] += arrived - self._taken
            self._taken[:] = arrived
            self._outcomes.learn_if_due()
        except Exception:
            self._outcomes.is_learning = False
            logger.exception("specctl_suffix: probabilities no longer follow the outcomes of drafts")

    def _finish(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
            self._upload()

    def _upload(self) -> None:
        self.chances.copy_(torch.from_numpy(self._outcomes.chances_of()))
        self.odds.copy_(torch.from_numpy(self._outcomes.tokens.odds))
