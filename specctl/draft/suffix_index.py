"""Suffix index: drafts from a request's own tokens and from finished outputs.

After SuffixDecoding (Oliaro et al., arXiv 2411.04975). The rule of a draft stands in ``proposal``, the
storage in ``chains``. No engine, no torch; not thread-safe, but compiled calls release the GIL.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from specctl.draft.arena import RequestArena
from specctl.draft.chains import HEAD, MAX_RUNG, ROW_WORDS
from specctl.draft.checks import check_count, checked_ints
from specctl.draft.corpus import Corpus
from specctl.draft.options import DraftBatch, SuffixIndexOptions
from specctl.draft.proposal import COUNTERS, discounts_for, propose_rows

__all__ = ["DraftBatch", "SuffixIndex", "SuffixIndexOptions"]

logger = logging.getLogger(__name__)
Ints = npt.NDArray[np.int32]
_INDEXED_PER_STEP = 64
_RUNGS = (2, 4, 8, MAX_RUNG)


class SuffixIndex:
    """Slots 0 to max_requests - 1 hold active requests; a slot is free, started, then free again.

    Every method raises ValueError with expected and got on a wrong argument and then has changed nothing.
    """

    def __init__(self, options: SuffixIndexOptions, max_requests: int, max_request_tokens: int) -> None:
        check_count("max_requests", max_requests, 1, 2**20)
        check_count("max_request_tokens", max_request_tokens, 1, 2**28)
        self.options = options
        self._max_requests = max_requests
        self._max_request_tokens = max_request_tokens
        shortest = min(options.min_match_tokens, MAX_RUNG)
        ladder = {shortest, *(rung for rung in _RUNGS if shortest < rung <= options.max_match_tokens)}
        self._rungs = np.array(sorted(ladder), np.int64)
        self._requests = RequestArena(max_requests, max_request_tokens, self._rungs)
        self._corpus = Corpus(options.index_bytes, self._rungs) if options.use_global else None
        self._no_corpus = np.zeros(1, np.uint32), np.zeros(ROW_WORDS, np.int64)
        self._prompt_tokens: list[int | None] = [None] * max_requests
        self._limits = _packed_limits(options)
        self._discounts = discounts_for(options.max_match_tokens)
        self._counters = np.zeros(len(COUNTERS), np.int64)
        self._one_slot = np.zeros(1, np.int32)
        self._one_span = np.zeros(2, np.int32)

    def start(self, slot: int, prompt: Ints) -> None:
        """A request starts in a free slot. The prompt may be empty."""
        self._check_slot(slot)
        if self._prompt_tokens[slot] is not None:
            raise ValueError(f"slot {slot}: expected a free slot, got one in use")
        prompt = checked_ints("prompt", prompt)
        self._check_length(prompt.size)
        if int(prompt.min(initial=0)) < 0:
            raise ValueError(f"prompt: expected ids from 0 to 2147483647, got {int(prompt.min())}")
        # Room for an answer of usual length, because growing indexes the text anew.
        self._requests.open(slot, min(prompt.size + 256 + prompt.size // 4, self._max_request_tokens))
        self._prompt_tokens[slot] = prompt.size
        self._push(slot, prompt)

    def extend(self, slot: int, tokens: Ints) -> None:
        """Newly emitted tokens of one request."""
        self._check_slot(slot)
        self._push(slot, checked_ints("tokens", tokens))

    def extend_batch(self, slots: Ints, tokens: Ints, offsets: Ints) -> None:
        """tokens[offsets[i]:offsets[i + 1]] are the newly emitted tokens of slots[i]."""
        slots, tokens = checked_ints("slots", slots), checked_ints("tokens", tokens)
        offsets = checked_ints("offsets", offsets)
        if offsets.size != slots.size + 1 or offsets[0] != 0 or offsets[-1] != tokens.size:
            got = offsets.tolist()
            raise ValueError(f"offsets: expected {slots.size + 1} from 0 to {tokens.size}, got {got}")
        if not self._requests.extend(slots, tokens, offsets):
            self._explain_extend(slots, tokens, offsets)

    def finish(self, slot: int) -> None:
        """The request ended: its output, not its prompt, joins the corpus; the slot is free."""
        self._check_started(slot)
        if self._corpus is not None:
            self._corpus.add(self._requests.text(slot)[self._prompt_tokens[slot] :].view(np.int32))
        self._release(slot)

    def discard(self, slot: int) -> None:
        """The request was aborted: nothing joins the corpus; the slot is free."""
        self._check_started(slot)
        self._release(slot)

    def length(self, slot: int) -> int:
        """Tokens known of a request, prompt and output."""
        self._check_started(slot)
        return int(self._requests.rows[slot, HEAD])

    def propose_batch(self, slots: Ints, budgets: Ints) -> DraftBatch:
        """A draft of at most budgets[i] tokens for each of slots, in one compiled call."""
        slots, budgets = checked_ints("slots", slots), checked_ints("budgets", budgets)
        if budgets.size != slots.size:
            raise ValueError(f"budgets: expected {slots.size} values, got {budgets.size}")
        batch = DraftBatch.empty(slots.size, max(0, int(budgets.max(initial=0))))
        corpus = self._corpus
        if corpus is not None and corpus.waiting_tokens:
            corpus.index_waiting(_INDEXED_PER_STEP + 2 * slots.size)
        mem, row = (corpus.mem, corpus.row) if corpus is not None else self._no_corpus
        is_legal = propose_rows(
            self._requests.words, self._requests.rows, mem, row, self._rungs, self._limits, self._discounts,
            slots, budgets, batch.tokens, batch.lengths, batch.probs, batch.match_tokens, batch.source,
            self._counters,
        )  # fmt: skip
        if not is_legal:
            self._explain_propose(slots, budgets)
        return batch

    def flush(self) -> None:
        """Index every finished output that waits, at once. Steps do it bit by bit."""
        if self._corpus is not None:
            self._corpus.index_waiting(self._corpus.waiting_tokens)

    @property
    def corpus_bytes(self) -> int:
        """Never above options.index_bytes."""
        return self._corpus.bytes_used if self._corpus is not None else 0

    @property
    def bytes_used(self) -> int:
        """Corpus and active requests together."""
        return self.corpus_bytes + self._requests.bytes_used

    def stats(self) -> dict[str, float]:
        """Counters since the start, and the sizes now."""
        counts = {name: float(value) for name, value in zip(COUNTERS, self._counters, strict=True)}
        hits = counts["hits_request"] + counts["hits_global"]
        corpus = self._corpus
        return {
            **counts,
            "mean_match_tokens": counts["match_tokens"] / hits if hits else 0.0,
            "corpus_tokens": float(corpus.indexed_tokens) if corpus is not None else 0.0,
            "corpus_waiting_tokens": float(corpus.waiting_tokens) if corpus is not None else 0.0,
            "corpus_evicted_tokens": float(corpus.evicted_tokens) if corpus is not None else 0.0,
            "corpus_bytes": float(self.corpus_bytes),
            "request_bytes": float(self._requests.bytes_used),
        }

    def warm_up(self) -> float:
        """Compile everything before the first request; seconds it took. Later processes find it cached."""
        started_s = time.perf_counter()
        cache = Path(str(propose_rows.stats.cache_path))
        if not any(cache.glob("proposal.propose_rows*.nbi")):
            logger.info("suffix index: compiling its kernels, once; they are kept in %s", cache)
        rehearsal = SuffixIndex(SuffixIndexOptions(index_bytes=2**17), 2, 2048)
        text = np.arange(600, dtype=np.int32) % 50
        rehearsal.start(0, text[:100])
        rehearsal.extend(0, text)
        rehearsal.finish(0)
        rehearsal.flush()
        rehearsal.start(0, text[:10])
        rehearsal.propose_batch(np.zeros(1, np.int32), np.full(1, 4, np.int32))
        return time.perf_counter() - started_s

    def _push(self, slot: int, tokens: Ints) -> None:
        self._one_slot[0] = slot
        self._one_span[1] = tokens.size
        if not self._requests.extend(self._one_slot, tokens, self._one_span):
            self._explain_extend(self._one_slot, tokens, self._one_span)

    def _explain_extend(self, slots: Ints, tokens: Ints, offsets: Ints) -> NoReturn:
        """The compiled check said no: find out why."""
        if int(tokens.min(initial=0)) < 0:
            raise ValueError(f"tokens: expected ids from 0 to 2147483647, got {int(tokens.min())}")
        added = np.diff(offsets)
        if int(added.min()) < 0:
            raise ValueError(f"offsets: expected ascending values, got {offsets.tolist()}")
        for slot in slots.tolist():
            self._check_length(self.length(slot) + int(added[slots == slot].sum()))
        raise AssertionError("a legal call was refused")

    def _explain_propose(self, slots: Ints, budgets: Ints) -> NoReturn:
        for slot in slots.tolist():
            self._check_started(slot)
        raise ValueError(f"budgets: expected values from 0, got {int(budgets.min())}")

    def _release(self, slot: int) -> None:
        self._requests.close(slot)
        self._prompt_tokens[slot] = None

    def _check_slot(self, slot: int) -> None:
        if not 0 <= slot < self._max_requests:
            raise ValueError(f"slot: expected 0 to {self._max_requests - 1}, got {slot}")

    def _check_started(self, slot: int) -> None:
        self._check_slot(slot)
        if self._prompt_tokens[slot] is None:
            raise ValueError(f"slot {slot}: expected a started request, got a free slot")

    def _check_length(self, tokens: int) -> None:
        if tokens > self._max_request_tokens:
            raise ValueError(f"expected at most {self._max_request_tokens} tokens in a request, got {tokens}")


def _packed_limits(options: SuffixIndexOptions) -> npt.NDArray[np.float64]:
    """In the order that propose_rows reads them."""
    return np.array(
        [
            options.min_match_tokens,
            options.max_match_tokens,
            options.max_spec_factor,
            options.max_spec_offset,
            options.min_token_prob,
        ],
        np.float64,
    )
