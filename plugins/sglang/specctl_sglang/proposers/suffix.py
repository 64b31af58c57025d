"""SPECCTL_SUFFIX: drafts from a request's whole history and from finished outputs, found on the host.

SuffixDecoding (Oliaro et al., arXiv 2411.04975) on specctl's own index. Knows SGLang's requests by four
attributes: rid, origin_input_ids, output_ids, and what tells tenants apart.
"""

from __future__ import annotations

import atexit
import logging
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from specctl.contract.telemetry import ShadowAcceptance
from specctl.draft.keeper import CorpusKeeper
from specctl.draft.shadow import ShadowFollower
from specctl.draft.suffix_index import SuffixIndex
from specctl.engine.options import SuffixOptions
from specctl_sglang.proposers.layout import VerifyLayout, chain_layout, limit_branches, tree_layout
from specctl_sglang.terms import namespace_of

__all__ = ["SuffixDrafts"]

logger = logging.getLogger("sglang.specctl")
Ints = npt.NDArray[np.int32]
_RESTING_S = 0.05
"""While nothing is drafted, histories are read and shadow drafts made at this pace."""


class SuffixDrafts:
    """Used from the scheduler's thread."""

    def __init__(self, options: SuffixOptions, max_running: int, max_request_tokens: int, full: int) -> None:
        # A finished request keeps its slot until its last step has come back.
        slots = 2 * max_running
        self._index = SuffixIndex(options.index_options(), slots, max_request_tokens)
        self._shadow = ShadowFollower(slots, full)
        self._free = list(range(slots))
        self._slots: dict[str, int] = {}
        self._max_request_tokens, self._full = max_request_tokens, full
        self._looked_s = 0.0
        self._keeper: CorpusKeeper | None = None
        logger.info("specctl: the suffix index is ready after %.1f s", self._index.warm_up())

    def keep(self, keeper_options: tuple[SuffixOptions, str] | None) -> None:
        """(options with a corpus_file, the tokenizer's fingerprint): outputs outlive the server."""
        if keeper_options is None:
            return
        options, fingerprint = keeper_options
        assert options.corpus_file is not None
        self._keeper = CorpusKeeper(
            self._index, options.corpus_file, fingerprint, options.index_bytes, options.corpus_save_every_s
        )
        self._keeper.open()
        atexit.register(self._keeper.close)

    def draft(
        self, requests: Sequence[Any], not_yet: Sequence[Sequence[int]] | None, wanted: int, branches: int
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32] | None, Ints]:
        """(tokens int32[n, k], parents int32[n, k] or None for chains, sizes int32[n]), at most ``wanted``.

        not_yet: accepted tokens of each request that its output_ids do not hold yet.
        """
        slots = self._update(requests, not_yet)
        has = slots >= 0
        known = slots if has.all() else slots[has]
        budgets = self._budgets(known)
        chains = self._index.propose_batch(known, budgets)
        self._shadow.follow(known, chains.tokens, chains.lengths)
        parents = None
        tokens, sizes = chains.tokens, np.minimum(chains.lengths, wanted)
        if branches > 1:
            tree = self._index.propose_trees(known, np.minimum(budgets, wanted).astype(np.int32))
            tokens, parents, sizes = limit_branches(tree.tokens, tree.parents, tree.sizes, branches)
        if known is slots:
            return tokens, parents, sizes
        spread = [np.zeros((slots.size, *part.shape[1:]), np.int32) for part in (tokens, tokens, sizes)]
        spread[0][has], spread[2][has] = tokens, sizes
        if parents is None:
            return spread[0], None, spread[2]
        spread[1][has] = parents
        return spread[0], spread[1], spread[2]

    def layout(
        self, drafts: tuple[npt.NDArray[np.int32], npt.NDArray[np.int32] | None, Ints], width: int
    ) -> VerifyLayout:
        tokens, parents, sizes = drafts
        if parents is None:
            return chain_layout(tokens, sizes, width)
        return tree_layout(tokens, parents, sizes, width)

    def rest(self, requests: Sequence[Any]) -> None:
        """A step without drafts: follow what the target emits, at a pace that costs it nothing."""
        now_s = time.monotonic()
        if now_s - self._looked_s < _RESTING_S:
            return
        self._looked_s = now_s
        slots = self._update(requests, None)
        slots = slots[slots >= 0]
        if slots.size:
            chains = self._index.propose_batch(slots, self._budgets(slots))
            self._shadow.follow(slots, chains.tokens, chains.lengths)

    def finish(self, request_id: str) -> None:
        """The request ended: its output joins the global index."""
        slot = self._slots.pop(request_id, None)
        if slot is not None:
            self._index.finish(slot)
            self._shadow.forget(slot)
            self._free.append(slot)

    def shadow_counts(self) -> ShadowAcceptance:
        return self._shadow.counts()

    def stats(self) -> dict[str, float]:
        return self._index.stats()

    def _budgets(self, slots: Ints) -> Ints:
        room = self._max_request_tokens - self._index.lengths(slots) - 1
        budgets: Ints = np.clip(room, 0, self._full).astype(np.int32)
        return budgets

    def _update(self, requests: Sequence[Any], not_yet: Sequence[Sequence[int]] | None) -> Ints:
        """int32[n]: the slot of every request, -1 where none is free; their histories are up to date."""
        if self._keeper is not None:
            self._keeper.poll()
        slots = np.fromiter(
            (self._slot_of(request, requests) for request in requests), np.int32, len(requests)
        )
        known = self._index.lengths(np.maximum(slots, 0)).tolist()
        offsets = np.zeros(len(requests) + 1, np.int32)
        parts = []
        for i, request in enumerate(requests):
            new = request.output_ids[max(known[i] - len(request.origin_input_ids), 0) :]
            parts.extend(new)
            if not_yet is not None:
                parts.extend(not_yet[i])
            offsets[i + 1] = len(parts)
        fed = np.array(parts, np.int32)
        self._feed(slots, fed, offsets)
        return slots

    def _feed(self, slots: Ints, tokens: Ints, offsets: Ints) -> None:
        if (slots < 0).any():
            has = slots >= 0
            keep = np.repeat(has, np.diff(offsets))
            offsets = np.concatenate([[0], np.cumsum(np.diff(offsets)[has])]).astype(np.int32)
            slots, tokens = slots[has], tokens[keep]
        if tokens.size:
            self._shadow.emit(slots, tokens, offsets)
            self._index.extend_batch(slots, tokens, offsets)

    def _slot_of(self, request: Any, batch: Sequence[Any]) -> int:
        slot = self._slots.get(request.rid)
        if slot is not None:
            return slot
        if not self._free:
            self._take_from_the_gone({other.rid for other in batch})
        if not self._free or len(request.origin_input_ids) > self._max_request_tokens:
            return -1
        slot = self._slots[request.rid] = self._free.pop()
        prompt = np.array(request.origin_input_ids, np.int32)
        self._index.start(slot, prompt, namespace_of(request.lora_id, request.extra_key))
        return slot

    def _take_from_the_gone(self, present: set[str]) -> None:
        """Requests that left in a way that told nothing, an abort among others."""
        for request_id in [known for known in self._slots if known not in present]:
            self.finish(request_id)
