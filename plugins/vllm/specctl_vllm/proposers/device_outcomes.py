"""What becomes of the device's drafts, and the table of probabilities that follows from it."""

from __future__ import annotations

import logging
import threading

import numpy as np
import torch
from specctl_kernels.suffix_draft import DeviceLessons

from specctl.draft.calibration import ENTRIES
from specctl.draft.outcomes import Counts, Outcomes

__all__ = ["DeviceOutcomes"]

logger = logging.getLogger("vllm.specctl")


class DeviceOutcomes:
    """Of all traffic classes together. Called from the worker's main thread only.

    Counts come to the host beside the steps, and the table is refitted on a thread of its own.
    """

    def __init__(self, requests: int, drafts: int, device: torch.device, is_learning: bool) -> None:
        """drafts: of a request, at most. is_learning: whether the table follows the outcomes of this process,
        or those of the corpus file alone."""
        self.lessons = DeviceLessons(requests, drafts, ENTRIES, device)
        self._outcomes = Outcomes(1)
        self._outcomes.is_learning = is_learning
        self.chances = torch.from_numpy(self._outcomes.chances_of()).to(device)
        """float32[2, ENTRIES] at a fixed address, so that a captured graph goes on reading it."""
        self._arrived = torch.zeros((2, ENTRIES, 2), dtype=torch.int32, pin_memory=device.type == "cuda")
        self._taken = np.zeros((2, ENTRIES, 2), np.int32)
        """Of the counts that arrived, those that the table knows."""
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
            self._arrived.copy_(self.lessons.counted, non_blocking=True)
            if self._event is not None:
                self._event.record()
            self._thread = threading.Thread(target=self._refit, name="specctl-outcomes", daemon=True)
            self._thread.start()

    def _refit(self) -> None:
        try:
            if self._event is not None:
                self._event.synchronize()
            arrived = self._arrived.numpy()
            self._outcomes.counted[0, : arrived.size] += (arrived - self._taken).ravel()
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
