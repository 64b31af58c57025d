"""Method specctl_suffix: drafts from the request's own tokens and from finished outputs.

SuffixDecoding (Oliaro et al., arXiv 2411.04975) on specctl's own index. Runs on the V1 model runner.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from specctl.contract.telemetry import ShadowAcceptance
from specctl.draft.suffix_index import SuffixIndex, SuffixIndexOptions
from specctl.engine.shadow import ShadowFollower
from specctl_vllm.options import SuffixOptions, options_from_env

__all__ = ["SuffixProposer"]

logger = logging.getLogger("vllm.specctl")
_REPORT_EVERY_S = 0.5


class SuffixProposer:
    """vLLM constructs it by its path, as a ``custom_class``; the runner patch calls ``propose_step``."""

    def __init__(self, vllm_config: Any) -> None:
        options = options_from_env()
        suffix = options.suffix if options is not None and options.suffix is not None else SuffixOptions()
        self._max_model_len: int = vllm_config.model_config.max_model_len
        self._full: int = vllm_config.speculative_config.num_speculative_tokens
        # A request that is preempted keeps its slot until it is finished, so there are more than run at once.
        self._free_slots = list(range(2 * vllm_config.scheduler_config.max_num_seqs))
        self._index = SuffixIndex(
            SuffixIndexOptions(**suffix.model_dump()), len(self._free_slots), self._max_model_len
        )
        self._slots: dict[str, int] = {}
        self._shadow = ShadowFollower(self._full)
        self._reported_s = 0.0

    def load_model(self, *_args: Any, **_kwargs: Any) -> None:
        """There is no model; the index compiles here, before the first request."""
        logger.info("specctl_suffix: the index is ready after %.1f s", self._index.warm_up())

    def propose(self, *_args: Any, **_kwargs: Any) -> list[list[int]]:
        """vLLM's own call. Not reached: the runner patch calls propose_step."""
        raise RuntimeError("specctl_suffix needs its runner patch; was the plugin kept out of this process?")

    def propose_step(
        self, input_batch: Any, sampled_token_ids: Sequence[Sequence[int]], num_speculative_tokens: int
    ) -> list[list[int]]:
        """Drafts for every request of the step, [] where there is none.

        The index is fed and followed in the shadow also while num_speculative_tokens is 0.
        """
        rows: list[int] = []
        slots: list[int] = []
        budgets: list[int] = []
        for row, sampled in enumerate(sampled_token_ids):
            if not sampled:
                continue
            request_id = input_batch.req_ids[row]
            num_tokens = int(input_batch.num_tokens_no_spec[row])
            slot = self._feed(request_id, input_batch, row, num_tokens)
            room = self._max_model_len - num_tokens - 1
            if slot is None or room <= 0:
                continue
            rows.append(row)
            slots.append(slot)
            budgets.append(min(self._full, room))
        drafts: list[list[int]] = [[] for _ in sampled_token_ids]
        if not rows:
            return drafts
        batch = self._index.propose_batch(np.asarray(slots, np.int32), np.asarray(budgets, np.int32))
        lengths, tokens = batch.lengths.tolist(), batch.tokens.tolist()
        for i, row in enumerate(rows):
            full = tokens[i][: lengths[i]]
            self._shadow.follow(input_batch.req_ids[row], full)
            drafts[row] = full[:num_speculative_tokens]
        return drafts

    def finish(self, request_ids: Iterable[str]) -> None:
        """Requests that ended: their outputs join the global index."""
        for request_id in request_ids:
            slot = self._slots.pop(request_id, None)
            if slot is not None:
                self._index.finish(slot)
                self._free_slots.append(slot)
            self._shadow.forget(request_id)

    def shadow_counts(self) -> ShadowAcceptance:
        return self._shadow.counts()

    def stats(self) -> dict[str, float] | None:
        """The index's counters, None when they were given less than half a second ago."""
        now_s = time.monotonic()
        if now_s - self._reported_s < _REPORT_EVERY_S:
            return None
        self._reported_s = now_s
        return self._index.stats()

    def _feed(self, request_id: str, input_batch: Any, row: int, num_tokens: int) -> int | None:
        """Bring the request's tokens in the index up to date; None where no slot is free."""
        tokens = input_batch.token_ids_cpu[row]
        slot = self._slots.get(request_id)
        if slot is None:
            if not self._free_slots:
                return None
            slot = self._slots[request_id] = self._free_slots.pop()
            self._index.start(slot, tokens[: int(input_batch.num_prompt_tokens[row])])
        known = self._index.length(slot)
        if known < num_tokens:
            emitted = tokens[known:num_tokens]
            self._shadow.emit(request_id, emitted.tolist())
            self._index.extend(slot, emitted)
        return slot
