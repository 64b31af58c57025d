"""Method specctl_hybrid on the V1 model runner: suffix drafts beside those of any draft head.

The suffix index drafts first. Where its drafts are expected to bring as much, the head rests, or runs only
the pass that keeps its KV cache (``compat.resting_head``), or not even that (``proposers.head_sleep``).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from specctl.engine.draft_choice import Choice, DraftChoice, is_step
from specctl.engine.guard import GUARD
from specctl_vllm.proposers.head_sleep import HeadSleep
from specctl_vllm.proposers.suffix import SuffixProposer

__all__ = ["Found", "HybridProposer"]


class Found(NamedTuple):
    """Of one step's requests."""

    drafting: npt.NDArray[np.intp]
    """Rows of the batch that sampled a token."""
    drafts: list[list[int]]
    """The suffix drafts of those rows."""
    choice: Choice
    rejected: npt.NDArray[np.intp]
    """Drafts of each row of the batch that the step has rejected."""
    is_asleep: bool
    """The head reads nothing of the step."""


class HybridProposer(SuffixProposer):
    """Beside the runner's own drafter, whose drafts it gets."""

    def __init__(self, vllm_config: Any) -> None:
        super().__init__(vllm_config)
        parallel = vllm_config.parallel_config
        # Ranks that read their own clocks would disagree, and a head's pass may be a collective one.
        self._is_alone = parallel.tensor_parallel_size == parallel.data_parallel_size == 1
        self._choice = DraftChoice(self._full, may_rest=self._is_alone)
        self._sleep = HeadSleep()
        names = "drafts_of_suffix", "drafts_of_head", "steps_of_head", "steps_head_asleep"
        self._counts = dict.fromkeys(names, 0)
        self._began_s = 0.0

    def find(
        self,
        input_batch: Any,
        sampled: Sequence[Sequence[int]],
        verified: Mapping[str, Sequence[int]],
        wanted: int,
        can_rest: bool,
    ) -> Found:
        """Suffix drafts of the step's requests, and where they are taken.

        sampled: what each row of the batch has just emitted, not yet in the batch; verified: the drafts that
        the step verified, by request; can_rest: whether the head can leave steps out.
        """
        if self._keeper is not None:
            GUARD.call("keeper.poll", None, self._keeper.poll)
        ids, emitted = input_batch.req_ids[: len(sampled)], list(map(len, sampled))
        drafted = [len(verified.get(one, ())) for one in ids]
        self._choice.verified(ids, drafted, emitted)
        row_slots = self.note_batch(input_batch, len(sampled))
        drafting = np.flatnonzero(emitted)
        known = drafting[row_slots[drafting] >= 0]
        self._feed(input_batch, known, row_slots)
        self._append(row_slots[known], [sampled[row] for row in known.tolist()])
        room = self._max_model_len - input_batch.num_tokens_no_spec[: len(sampled)] - np.array(emitted) - 1
        rows = known[room[known] > 0]
        drafts: list[list[int]] = [[] for _ in sampled]
        expected = np.zeros(len(sampled))
        if wanted and rows.size:
            budgets = np.minimum(room[rows], wanted).astype(np.int32)
            batch = self._index.propose_batch(row_slots[rows], budgets)
            is_drafted = np.arange(batch.probs.shape[1]) < batch.lengths[:, None]
            expected[rows] = (batch.probs * is_drafted).sum(axis=1)
            tokens = batch.tokens.tolist()
            for row, length, draft in zip(rows.tolist(), batch.lengths.tolist(), tokens, strict=True):
                drafts[row] = draft[:length]
        is_read = self._sleep.begin(ids)[drafting] if can_rest and self._is_alone else None
        choice = self._choice.choose(expected[drafting], wanted, is_read)
        if wanted and drafting.size:
            self._sleep.drafted(choice.worth)
        self._choice.took([ids[row] for row in drafting.tolist()], choice)
        accepted = np.maximum(np.array(emitted, np.intp) - 1, 0)
        rejected = np.maximum(np.array(drafted, np.intp) - accepted, 0)
        of_suffix = [drafts[row] for row in drafting.tolist()]
        return Found(drafting, of_suffix, choice, rejected, self._sleep.is_asleep)

    def merged(self, found: Found, of_head: Sequence[Sequence[int]]) -> list[list[int]]:
        """Each request's draft, of the source that was chosen; of_head: a row for each of the batch."""
        drafts: list[list[int]] = [[] for _ in of_head]
        takes_suffix, takes_head = found.choice.takes_suffix.tolist(), found.choice.takes_head.tolist()
        taken = zip(found.drafting.tolist(), found.drafts, takes_suffix, takes_head, strict=True)
        for row, suffix, is_suffix, is_head in taken:
            if is_suffix or is_head:
                drafts[row] = suffix if is_suffix else list(of_head[row])
            if drafts[row]:
                self._counts["drafts_of_suffix" if is_suffix else "drafts_of_head"] += 1
        self._counts["steps_of_head"] += found.choice.head_runs
        self._counts["steps_head_asleep"] += found.is_asleep
        return drafts

    def timed(self, found: Found, head_s: float) -> None:
        """head_s: of the passes that the head does not make at rest; at rest, of those that read."""
        now_s = time.perf_counter()
        step_s, head_runs = now_s - self._began_s, found.choice.head_runs
        self._choice.timed(step_s, head_s if head_runs else None)
        if is_step(step_s):
            self._sleep.timed(step_s, 0.0 if head_runs else head_s)
        self._began_s = now_s

    def note_requests(
        self, namespaces: Mapping[str, str], unshared: Iterable[str], new_requests: Iterable[Any]
    ) -> None:
        super().note_requests(namespaces, unshared, new_requests)
        for new in new_requests:
            self._sleep.start(new.num_computed_tokens)

    def finish(self, request_ids: Iterable[str]) -> None:
        super().finish(request_ids)
        self._sleep.finish(request_ids)

    def stats(self) -> dict[str, float] | None:
        of_index = super().stats()
        return None if of_index is None else of_index | self._counts

    def _append(self, slots: npt.NDArray[np.int32], sampled: Sequence[Sequence[int]]) -> None:
        offsets = np.zeros(len(sampled) + 1, np.int32)
        np.cumsum(list(map(len, sampled)), out=offsets[1:])
        tokens = np.fromiter((token for row in sampled for token in row), np.int32, int(offsets[-1]))
        self._index.extend_batch(slots, tokens, offsets)
