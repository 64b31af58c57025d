"""Keeps the shared corpus in a file: loads it at start, adds what was learnt, saves now and then.

Several engine processes may keep one file: each adds its own outputs to the newest version under a lock and
then drafts from the result, so that they learn from each other. Only the shared namespace is kept; outputs
of adapters and salted requests stay in the memory of their process.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from specctl.draft.corpus_file import load, save, set_aside
from specctl.draft.frozen_corpus import FrozenCorpus, build_text, merge
from specctl.draft.options import SHARED
from specctl.draft.outcomes import Counts, Outcomes, added
from specctl.errors import CorpusFileError

__all__ = ["CorpusKeeper", "Kept"]

logger = logging.getLogger(__name__)
_SET_ASIDE = {"foreign", "version", "damaged"}
_SET_ASIDE_BY_SAVES = _SET_ASIDE - {"version"}
"""Servers of two versions that name one file would set aside each other's, time after time."""
LOCK_PATIENCE_S = 10.0
_LOCK_RETRY_S = 0.05


class Kept(Protocol):
    """What drafts from the file and learns new outputs: SuffixIndex, or a corpus on a device."""

    @property
    def rungs(self) -> npt.NDArray[np.int64]: ...

    def attach(self, corpus: FrozenCorpus) -> None:
        """Draft from this too, in the place of what was attached before."""

    def outputs_since(self, position: int) -> tuple[npt.NDArray[np.uint32], int]:
        """(outputs from a position on, SEPARATOR after each; the position after them). Position 0: all."""

    @property
    def outcomes(self) -> Outcomes:
        """Of its drafts."""

    def flush(self) -> None:
        """Everything that came in is among the outputs."""


class CorpusKeeper:
    """``poll`` is called between steps and only copies; files are read and written on a thread of its own."""

    def __init__(
        self, index: Kept, path: Path, fingerprint: str, max_bytes: int, save_every_s: float
    ) -> None:
        self._index, self._path, self._fingerprint = index, path, fingerprint
        self._max_bytes, self._save_every_s = max_bytes, save_every_s
        self._position = 0
        self._next_s = time.monotonic() + save_every_s
        self._thread: threading.Thread | None = None
        self._fresh: FrozenCorpus | None = None
        self._unsaved: Counts = {}
        self.is_open = True
        self.failures = 0

    def open(self) -> None:
        """Draft from the file, if it is there and fits. A torn or foreign file is set aside."""
        corpus = self._read(_SET_ASIDE)
        if corpus is not None:
            self._index.attach(corpus)
            logger.info("%s: %d tokens of %d outputs", self._path, corpus.tokens, corpus.documents)

    def poll(self) -> None:
        """Start a save when it is due, and take up what the last one wrote."""
        fresh, self._fresh = self._fresh, None
        if fresh is not None:
            self._index.attach(fresh)
        if self.is_open and time.monotonic() >= self._next_s and not self._is_saving:
            self._next_s = time.monotonic() + self._save_every_s
            text, end = self._index.outputs_since(self._position)
            if text.size:
                self._unsaved = added((self._unsaved, self._index.outcomes.take()))
                self._thread = threading.Thread(target=self._save, args=(text, end), name="specctl-corpus")
                self._thread.start()

    def close(self) -> None:
        """Save what is new, and wait for it."""
        if self._thread is not None:
            self._thread.join()
        if self.is_open:
            self._index.flush()
            text, end = self._index.outputs_since(self._position)
            if text.size:
                self._unsaved = added((self._unsaved, self._index.outcomes.take()))
                self._save(text, end)
        self.is_open = False

    @property
    def _is_saving(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _read(self, set_aside_for: Collection[str]) -> FrozenCorpus | None:
        try:
            if not self._path.exists():
                return None
            return load(self._path, SHARED, self._fingerprint, rungs=self._index.rungs)
        except (CorpusFileError, OSError) as error:
            self.failures += 1
            if isinstance(error, CorpusFileError) and error.reason in set_aside_for:
                with suppress(CorpusFileError):
                    logger.warning("%s; set aside as %s, starting empty", error, set_aside(self._path).name)
                    return None
            # Somebody's healthy file, or a folder that is not ours: neither used nor overwritten.
            self.is_open = False
            logger.error("%s; nothing is kept", error)
            return None

    def _save(self, text: npt.NDArray[np.uint32], end: int) -> None:
        """``end``: the position after ``text``. What could not be saved comes again with the next save."""
        try:
            with _locked(self._path):
                before = self._read(_SET_ASIDE_BY_SAVES)
                if not self.is_open:
                    return
                learnt = replace(build_text(text, self._index.rungs), outcomes=self._unsaved)
                parts = [learnt] if before is None else [before, learnt]
                save(self._path, merge(parts, self._max_bytes), SHARED, self._fingerprint)
                self._position, self._unsaved = end, {}
                self._fresh = self._read(())
        except Exception as error:
            self.failures += 1
            logger.warning("the corpus was not saved: %s", error or type(error).__name__)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One writer at a time, over all processes of one user. Raises OSError when another holds it too long."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Whoever else may write to the folder must not choose the file by a link, nor keep its opening waiting.
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    lock = os.open(path.with_name(f".{path.name}.lock"), flags, 0o600)
    try:
        os.fchmod(lock, 0o600)
        ends_s = time.monotonic() + LOCK_PATIENCE_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > ends_s:
                    words = f"another process held the lock for {LOCK_PATIENCE_S:g} s"
                    raise OSError(errno.EAGAIN, words) from None
                time.sleep(_LOCK_RETRY_S)
        yield
    finally:
        os.close(lock)
