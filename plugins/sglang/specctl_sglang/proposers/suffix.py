"""SPECCTL_SUFFIX: drafts from a request's whole history and from finished outputs, found on the host.

SuffixDecoding (Oliaro et al., arXiv 2411.04975) on specctl's own index. Knows SGLang's requests by rid,
origin_input_ids, output_ids, what tells tenants apart, and their own specctl field.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from specctl.contract.telemetry import ShadowAcceptance
from specctl.draft.keeper import CorpusKeeper
from specctl.draft.options import DraftBatch
from specctl.draft.shadow import ShadowFollower
from specctl.draft.suffix_index import SuffixIndex, SuffixIndexOptions
from specctl.engine.kept_corpus import keep_corpus
from specctl.engine.namespaces import namespace_of
from specctl.engine.options import SuffixOptions
from specctl.engine.request_slots import NO_SLOT, RequestSlots
from specctl_sglang.control.request_fields import is_shared, request_kind
from specctl_sglang.proposers.layout import Emitted, limit_tree
from specctl_sglang.proposers.weighing import Weighing
from specctl_sglang.terms import Shape, drafts_of

__all__ = ["SuffixDrafts"]

logger = logging.getLogger("sglang.specctl")
Ints = npt.NDArray[np.int32]
_RESTING_S = 0.05
"""While nothing is drafted, histories are read and shadow drafts made at this pace."""


class SuffixDrafts:
    """Used from the scheduler's thread."""

    def __init__(self, options: SuffixOptions, max_running: int, max_request_tokens: int, full: int) -> None:
        slots = 2 * max_running
        index_options = options.index_options()
        if "threads" not in options.model_fields_set:
            # The step waits for all of them: where cores are scarce a second one comes milliseconds late.
            index_options = replace(index_options, threads=1)
        self._index = SuffixIndex(index_options, slots, max_request_tokens)
        self._shadow = ShadowFollower(slots, full)
        self._slots = RequestSlots(self._index, self._shadow, slots)
        self._unshared: set[str] = set()
        self._known = np.zeros(slots, np.int64)
        """Tokens that the index has of each slot's text."""
        self._max_request_tokens, self._full = max_request_tokens, full
        self._looked_s = 0.0
        self._prepared: Ints = np.empty(0, np.int32)
        self._keeper: CorpusKeeper | None = None
        warm_up_s = self._index.warm_up() + _rehearse()
        logger.info("specctl: the suffix index is ready after %.1f s", warm_up_s)

    def keep(self, options: SuffixOptions, fingerprint: str | None) -> None:
        """Outputs outlive the server in the corpus file. fingerprint: of the tokenizer; None: they do not."""
        self._keeper = keep_corpus(self._index, options, fingerprint, options.index_bytes)

    def prepare(self, requests: Sequence[Any]) -> None:
        """What ``draft`` needs of a batch and can be done before the last step's tokens are there."""
        if self._keeper is not None:
            self._keeper.poll()
        self._prepared = self._slots_of(requests)

    def draft(
        self,
        requests: Sequence[Any],
        emitted: Emitted | None,
        shape: Shape,
        weighing: Weighing | None = None,
    ) -> tuple[Ints, Ints | None, Ints]:
        """(tokens int32[n, k], parents int32[n, k] or None for chains, sizes int32[n]) within ``shape``.

        After ``prepare`` for the same requests. emitted: by the last step, which output_ids may not hold yet.
        weighing: of chains; None: drafts are as long as they are found. The arrays are overwritten by the
        next call.
        """
        depth, branches, width = shape
        slots = self._prepared
        budgets = None if emitted is None else self._follow_on(slots, emitted)
        known = slots
        if budgets is None:
            self._update(slots, requests, emitted)
            has = slots >= 0
            known = slots if has.all() else slots[has]
            budgets = self._budgets(known)
        chains, lengths = self._proposed(known, budgets, slots.size, weighing if branches == 1 else None)
        parents = None
        tokens, sizes = chains.tokens, np.minimum(lengths, np.int32(depth))
        if branches > 1:
            tree = self._index.propose_trees(known, np.minimum(budgets, np.int32(drafts_of(width))))
            tokens, parents, sizes = limit_tree(tree.tokens, tree.parents, tree.sizes, branches, depth)
        if known is slots:
            return tokens, parents, sizes
        spread = [np.zeros((slots.size, *part.shape[1:]), np.int32) for part in (tokens, tokens, sizes)]
        spread[0][has], spread[2][has] = tokens, sizes
        if parents is None:
            return spread[0], None, spread[2]
        spread[1][has] = parents
        return spread[0], spread[1], spread[2]

    def _proposed(
        self, slots: Ints, budgets: Ints, requests: int, weighing: Weighing | None
    ) -> tuple[DraftBatch, Ints]:
        """Chains, and int32[n], how much of each pays, which is what acceptance counts."""
        chains = self._index.propose_batch(slots, budgets)
        lengths = chains.lengths
        if weighing is not None:
            lengths = np.minimum(lengths, np.int32(weighing.most(lengths, chains.probs, requests)))
        self._shadow.follow(slots, chains.tokens, lengths)
        return chains, lengths

    def rest(self, requests: Sequence[Any], weighing: Weighing | None = None) -> None:
        """A step without drafts: follow what the target emits, at a pace that costs it nothing."""
        now_s = time.monotonic()
        if now_s - self._looked_s < _RESTING_S:
            return
        self._looked_s = now_s
        self.prepare(requests)
        slots = self._prepared
        self._update(slots, requests, None)
        slots = slots[slots >= 0]
        if slots.size:
            self._proposed(slots, self._budgets(slots), len(requests), weighing)

    def finish(self, request_id: str) -> None:
        """The request ended: its output joins the global index, unless it is not shared."""
        self._slots.finish(request_id, is_shared=request_id not in self._unshared)
        self._unshared.discard(request_id)

    def shadow_counts(self) -> ShadowAcceptance:
        return self._slots.shadow_counts()

    def stats(self) -> dict[str, float]:
        return self._index.stats()

    def _budgets(self, slots: Ints) -> Ints:
        room = self._max_request_tokens - self._known[slots] - 1
        budgets: Ints = np.maximum(np.minimum(room, self._full), 0).astype(np.int32)
        return budgets

    def _slots_of(self, requests: Sequence[Any]) -> Ints:
        """int32[n]: the slot of every request, -1 where none is free."""
        slots = [self._slots.get(request.rid) for request in requests]
        if NO_SLOT in slots:
            slots = [self._slot_of(request, requests) for request in requests]
        return np.array(slots, np.int32)

    def _follow_on(self, slots: Ints, emitted: Emitted) -> Ints | None:
        """Where each text lacks just what the last step emitted, as it mostly does: feeds that, and answers
        the budgets int32[n]; else None, and nothing was done."""
        fed, offsets = np.empty(emitted.tokens.size, np.int32), np.empty(slots.size + 1, np.int32)
        budgets = np.empty(slots.size, np.int32)
        if not _joined(
            slots, self._known, emitted.lengths, emitted.tokens, emitted.counts,
            self._max_request_tokens, self._full, fed, offsets, budgets,
        ):  # fmt: skip
            return None
        self._feed(slots, fed[: offsets[-1]], offsets)
        return budgets

    def _update(self, slots: Ints, requests: Sequence[Any], emitted: Emitted | None) -> None:
        """The texts of all requests up to the last token that is known of."""
        known = self._known[np.maximum(slots, 0)]
        offsets = np.zeros(len(requests) + 1, np.int32)
        parts: list[int] = []
        for i, (request, held) in enumerate(zip(requests, known.tolist(), strict=True)):
            parts.extend(_missing(request, held, emitted, i))
            offsets[i + 1] = len(parts)
        self._feed(slots, np.array(parts, np.int32), offsets)
        has = slots >= 0
        self._known[slots[has]] = self._index.lengths(slots[has])

    def _feed(self, slots: Ints, tokens: Ints, offsets: Ints) -> None:
        if (slots < 0).any():
            has = slots >= 0
            keep = np.repeat(has, np.diff(offsets))
            offsets = np.concatenate([[0], np.cumsum(np.diff(offsets)[has])]).astype(np.int32)
            slots, tokens = slots[has], tokens[keep]
        if tokens.size == 0:
            return
        self._shadow.emit(slots, tokens, offsets)
        if slots.size == 1:
            self._index.extend(int(slots[0]), tokens)
        else:
            self._index.extend_batch(slots, tokens, offsets)

    def _slot_of(self, request: Any, batch: Sequence[Any]) -> int:
        slot = self._slots.get(request.rid)
        if slot != NO_SLOT or len(request.origin_input_ids) > self._max_request_tokens:
            return slot
        if self._slots.are_taken:
            self._take_from_the_gone({other.rid for other in batch})
        prompt = np.array(request.origin_input_ids, np.int32)
        namespace = namespace_of(request.lora_id, request.extra_key)
        slot = self._slots.start(request.rid, prompt, namespace, request_kind(request))
        if slot != NO_SLOT:
            self._known[slot] = prompt.size
            if not is_shared(request):
                self._unshared.add(request.rid)
        return slot

    def _take_from_the_gone(self, present: set[str]) -> None:
        """Requests that left without notice, an abort among others."""
        for request_id in [known for known in self._slots if known not in present]:
            self.finish(request_id)


def _rehearse() -> float:
    """Compiles what the index's own warm-up leaves out; seconds it took. Later processes find it cached."""
    started_s = time.perf_counter()
    index = SuffixIndex(SuffixIndexOptions(index_bytes=2**17), 2, 512)
    shadow = ShadowFollower(2, 4)
    slots, tokens = np.arange(2, dtype=np.int32), np.arange(64, dtype=np.int32) % 7
    offsets = np.array([0, 32, 64], np.int32)
    for slot in (0, 1):
        index.start(slot, tokens)
    index.extend_batch(slots, tokens, offsets)
    shadow.emit(slots, tokens, offsets)
    chains = index.propose_batch(slots, np.full(2, 4, np.int32))
    shadow.follow(slots, chains.tokens, chains.lengths)
    index.propose_trees(slots, np.full(2, 4, np.int32))
    counts, none = np.ones(2, np.int64), np.zeros(2, np.int64)
    _joined(slots, none, none, tokens.reshape(2, 32), counts, 64, 4, tokens, offsets, slots)
    index.close()
    return time.perf_counter() - started_s


@njit(cache=True, nogil=True)
def _joined(slots, known, lengths, tokens, counts, most, full, fed, offsets, budgets):
    """Whether each text lacks just what the last step emitted. Then that is written: tokens int32[sum of
    counts] and offsets int32[n + 1]; and what may be drafted after it, int32[n]."""
    for i in range(slots.size):
        # The last emitted token has no place in the KV cache yet, so it is one more.
        if slots[i] < 0 or known[slots[i]] + counts[i] != lengths[i] + 1:
            return False
    offsets[0] = 0
    for i in range(slots.size):
        start = offsets[i]
        for j in range(counts[i]):
            fed[start + j] = tokens[i, j]
        offsets[i + 1] = start + counts[i]
        known[slots[i]] += counts[i]
        budgets[i] = max(min(most - known[slots[i]] - 1, full), 0)
    return True


def _missing(request: Any, known: int, emitted: Emitted | None, place: int) -> list[int]:
    """Tokens of a request's text from the position ``known`` on: from its output, and behind that from the
    last step, whose result comes to the output later, or has come already."""
    prompt, output = len(request.origin_input_ids), request.output_ids
    found = list(output[max(known - prompt, 0) :])
    if emitted is None:
        return found
    written = prompt + len(output)
    count = int(emitted.counts[place])
    behind = int(emitted.lengths[place]) + 1 - written
    if 0 < behind <= count:
        last = emitted.tokens[place, count - behind : count].tolist()
        found += last[max(known - written, 0) :]
    return found
