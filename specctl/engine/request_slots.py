"""Places of requests in a suffix index and its shadow, by the engine's ids of requests."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from specctl.contract.telemetry import ShadowAcceptance
from specctl.draft.shadow import ShadowFollower
from specctl.draft.suffix_index import SuffixIndex

__all__ = ["NO_SLOT", "RequestSlots"]

NO_SLOT = -1


class RequestSlots:
    """Twice as many as requests run at once: one that is preempted, or whose last step has not come back,
    keeps its slot."""

    def __init__(self, index: SuffixIndex, shadow: ShadowFollower, count: int) -> None:
        self._index, self._shadow = index, shadow
        self._free = list(range(count))
        self._slots: dict[str, int] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._slots))

    def get(self, request_id: str) -> int:
        """NO_SLOT: it has not started."""
        return self._slots.get(request_id, NO_SLOT)

    @property
    def are_taken(self) -> bool:
        return not self._free

    def start(self, request_id: str, prompt: npt.NDArray[np.int32], namespace: str) -> int:
        """The slot of a new request; NO_SLOT: none is free."""
        if not self._free:
            return NO_SLOT
        slot = self._slots[request_id] = self._free.pop()
        self._index.start(slot, prompt, namespace)
        return slot

    def finish(self, request_id: str, *, is_shared: bool = True) -> bool:
        """The request ended: its output joins the finished ones if it is shared. Whether it had a slot."""
        slot = self._slots.pop(request_id, None)
        if slot is None:
            return False
        if is_shared:
            self._index.finish(slot)
        else:
            self._index.discard(slot)
        self._shadow.forget(slot)
        self._free.append(slot)
        return True

    def shadow_counts(self) -> ShadowAcceptance:
        return self._shadow.counts()
