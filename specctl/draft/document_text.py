"""Documents one after the other in one array, SEPARATOR after each: what a corpus is built from.

Compiled code goes over such a text without the GIL. A list of as many arrays takes microseconds of Python for
each, and whoever decodes beside it waits for those.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from numba import njit

from specctl.draft.chains import SEPARATOR
from specctl.draft.checks import checked_ints

__all__ = ["GrowingText", "Text", "newest_start", "packed"]

Ints = npt.NDArray[np.int32]
Text = npt.NDArray[np.uint32]

_SEPARATOR = np.uint32(SEPARATOR)
_LEAST_WORDS = 2**16


def packed(documents: Iterable[Ints]) -> Text:
    """uint32[n] of documents int32[n] each; empty ones are left out.

    ValueError: a negative id, or another dtype than int32.
    """
    end = np.array([SEPARATOR], np.uint32)
    parts = [np.empty(0, np.uint32)]
    for document in map(_checked, documents):
        if document.size:
            parts += [document.view(np.uint32), end]
    return np.concatenate(parts)


def _checked(values: Ints) -> Ints:
    document = checked_ints("document", values)
    if int(document.min(initial=0)) < 0:
        raise ValueError("document: expected ids from 0 to 2147483647, got a negative one")
    return document


@njit(cache=True, nogil=True)
def newest_start(text, words_most):  # text uint32[n] -> int
    """Where the longest tail of whole documents with at most ``words_most`` words begins."""
    start = text.size
    for at in range(text.size - 1, -2, -1):
        if (at < 0 or text[at] == _SEPARATOR) and at + 1 < text.size:
            if text.size - (at + 1) > words_most:
                break
            start = at + 1
    return start


class GrowingText:
    """A packed text that grows at its end and is dropped from its beginning; positions count words for ever.

    What ``since`` gave stays as it was, whatever is appended or dropped later.
    """

    def __init__(self) -> None:
        self._words = np.empty(_LEAST_WORDS, np.uint32)
        self._at = self._size = 0
        self.start = 0
        """Position of the first word that is held."""

    @property
    def end(self) -> int:
        return self.start + self._size

    def append(self, document: Ints) -> None:
        """int32[n], ids from 0 on. ValueError: a negative one."""
        text = packed([document])
        if self._at + self._size + text.size > self._words.size:
            self._move(text.size)
        first = self._at + self._size
        self._words[first : first + text.size] = text
        self._size += text.size

    def _move(self, more: int) -> None:
        """To an array of its own: readers keep the old one."""
        words = np.empty(max(2 * (self._size + more), _LEAST_WORDS), np.uint32)
        words[: self._size] = self._words[self._at : self._at + self._size]
        self._words, self._at = words, 0

    def since(self, position: int) -> Text:
        """A view of what is held from a position on."""
        first = self._at + max(position - self.start, 0)
        return self._words[first : max(self._at + self._size, first)]

    def drop_before(self, position: int) -> None:
        """``position``: where a document begins, or the end."""
        words = min(max(position - self.start, 0), self._size)
        self._at += words
        self._size -= words
        self.start += words
