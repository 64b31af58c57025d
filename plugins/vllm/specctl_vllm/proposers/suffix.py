"""Method specctl_suffix: drafts from the request's own tokens and from finished outputs.

SuffixDecoding (Oliaro et al., arXiv 2411.04975) on specctl's own index. Runs on the V1 model runner.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from specctl.contract.telemetry import ShadowAcceptance
from specctl.draft.keeper import CorpusKeeper
from specctl.draft.shadow import ShadowFollower
from specctl.draft.suffix_index import SHARED, SuffixIndex
from specctl.engine.guard import GUARD
from specctl.engine.request_slots import NO_SLOT, RequestSlots
from specctl_vllm.options import suffix_options_from_env
from specctl_vllm.proposers.corpus_keeping import kept_by_rank_0

__all__ = ["SuffixProposer"]

logger = logging.getLogger("vllm.specctl")
_REPORT_EVERY_S = 0.5


class SuffixProposer:
    """vLLM constructs it by its path, as a ``custom_class``; the runner patch calls ``propose_step``."""

    def __init__(self, vllm_config: Any) -> None:
        suffix = suffix_options_from_env()
        self._max_model_len: int = vllm_config.model_config.max_model_len
        self._full: int = vllm_config.speculative_config.num_speculative_tokens
        slots = 2 * vllm_config.scheduler_config.max_num_seqs
        self._index = SuffixIndex(suffix.index_options(), slots, self._max_model_len)
        self._shadow = ShadowFollower(slots, self._full)
        self._slots = RequestSlots(self._index, self._shadow, slots)
        self._namespaces: dict[str, str] = {}
        self._unshared: set[str] = set()
        self._rows_of: list[str] = []
        self._row_slots = np.empty(0, np.int32)
        self._reported_s = 0.0
        self._keep = partial(kept_by_rank_0, vllm_config, suffix, self._index, suffix.index_bytes)
        self._keeper: CorpusKeeper | None = None

    def load_model(self, *_args: Any, **_kwargs: Any) -> None:
        """There is no model; the index compiles here, before the first request."""
        logger.info("specctl_suffix: the index is ready after %.1f s", self._index.warm_up())
        self._keeper = self._keep()

    def propose(self, *_args: Any, **_kwargs: Any) -> list[list[int]]:
        """vLLM's own call. Not reached: the runner patch calls propose_step."""
        raise RuntimeError("specctl_suffix needs its runner patch; was the plugin kept out of this process?")

    def propose_step(
        self,
        input_batch: Any,
        sampled_token_ids: Sequence[Sequence[int]],
        num_speculative_tokens: int,
        min_token_prob: float | None = None,
    ) -> list[list[int]]:
        """Drafts for every request of the step, [] where there is none.

        The index is fed and followed in the shadow also while num_speculative_tokens is 0. min_token_prob: a
        draft ends where the probability that all of it is accepted falls below; None: as configured.
        """
        if self._keeper is not None:
            GUARD.call("keeper.poll", None, self._keeper.poll)
        drafts: list[list[int]] = [[] for _ in sampled_token_ids]
        row_slots = self.note_batch(input_batch, len(drafts))
        has_sampled = np.fromiter(map(bool, sampled_token_ids), np.bool_, len(drafts))
        num_tokens = input_batch.num_tokens_no_spec[: len(drafts)]
        room = self._max_model_len - num_tokens - 1
        known = has_sampled & (row_slots >= 0)
        self._feed(input_batch, np.flatnonzero(known), row_slots)
        rows = np.flatnonzero(known & (room > 0))
        if rows.size == 0:
            return drafts
        slots = row_slots[rows]
        least = None if min_token_prob is None else np.full(slots.size, min_token_prob)
        batch = self._index.propose_batch(slots, np.minimum(room[rows], self._full).astype(np.int32), least)
        self._shadow.follow(slots, batch.tokens, batch.lengths)
        lengths = np.minimum(batch.lengths, num_speculative_tokens)
        for row, length, tokens in zip(rows.tolist(), lengths.tolist(), batch.tokens.tolist(), strict=True):
            drafts[row] = tokens[:length]
        return drafts

    def note_requests(self, namespaces: Mapping[str, str], unshared: Iterable[str]) -> None:
        """Namespaces of new requests by their id, others are in the shared one; and new requests whose output
        is not learnt from."""
        self._unshared.update(unshared)
        self._namespaces.update(namespaces)

    def isolate(self, request_ids: Iterable[str]) -> None:
        """Requests whose namespaces are not known: each is alone in one."""
        self._namespaces.update({request_id: f"request={request_id}" for request_id in request_ids})

    def finish(self, request_ids: Iterable[str]) -> None:
        """Requests that ended: their outputs join the global index, unless they are not shared."""
        for request_id in request_ids:
            self._namespaces.pop(request_id, None)
            if self._slots.finish(request_id, is_shared=request_id not in self._unshared):
                self._rows_of = []
            self._unshared.discard(request_id)

    def shadow_counts(self) -> ShadowAcceptance:
        return self._slots.shadow_counts()

    def stats(self) -> dict[str, float] | None:
        """The index's counters, None when they were given less than half a second ago."""
        now_s = time.monotonic()
        if now_s - self._reported_s < _REPORT_EVERY_S:
            return None
        self._reported_s = now_s
        return self._index.stats()

    def note_batch(self, input_batch: Any, rows: int) -> npt.NDArray[np.int32]:
        """int32[rows]: the slot of every row, -1 where none is free. New requests start."""
        request_ids = input_batch.req_ids[:rows]
        if request_ids != self._rows_of:
            slots = [self._slot_of(request_id, input_batch, i) for i, request_id in enumerate(request_ids)]
            self._row_slots = np.array(slots, np.int32)
            self._rows_of = list(request_ids) if NO_SLOT not in slots else []
        return self._row_slots

    def _slot_of(self, request_id: str, input_batch: Any, row: int) -> int:
        slot = self._slots.get(request_id)
        if slot != NO_SLOT or self._slots.are_taken:
            return slot
        prompt = input_batch.token_ids_cpu[row, : int(input_batch.num_prompt_tokens[row])]
        return self._slots.start(request_id, prompt, self._namespaces.get(request_id, SHARED))

    def _feed(self, input_batch: Any, rows: npt.NDArray[np.intp], row_slots: npt.NDArray[np.int32]) -> None:
        """Bring the tokens of these rows' requests in the index up to date."""
        slots = row_slots[rows]
        known = self._index.lengths(slots)
        new = np.maximum(input_batch.num_tokens_no_spec[rows] - known, 0)
        offsets = np.zeros(rows.size + 1, np.int32)
        np.cumsum(new, out=offsets[1:])
        at = np.arange(offsets[-1]) + np.repeat(known - offsets[:-1], new)
        tokens = input_batch.token_ids_cpu[np.repeat(rows, new), at].astype(np.int32, copy=False)
        self._shadow.emit(slots, tokens, offsets)
        self._index.extend_batch(slots, tokens, offsets)
