"""Suffix index: drafts from a request's own tokens and from finished outputs.

After SuffixDecoding (Oliaro et al., arXiv 2411.04975). The rule of a draft stands in ``proposal``, the
storage in ``chains``, the threads in ``workers``. No engine, no torch. Calls come from one thread at a time;
long prompts and finished outputs are indexed in slices between two calls of ``propose_batch``.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from specctl.draft.arena import RequestArena, extend_rows
from specctl.draft.calibration import chances
from specctl.draft.chains import KNOWN, MAX_RUNG, ROW_WORDS
from specctl.draft.checks import check_count, checked_floats, checked_ints
from specctl.draft.corpus import LiveCorpora
from specctl.draft.frozen_corpus import FrozenCorpus
from specctl.draft.options import SHARED, DraftBatch, SuffixIndexOptions
from specctl.draft.proposal import CANDIDATES, COUNTERS, ENOUGH, VISITS, propose_rows
from specctl.draft.tree import DraftTree, grow_rows
from specctl.draft.workers import Workers

__all__ = ["SHARED", "DraftBatch", "SuffixIndex", "SuffixIndexOptions"]

logger = logging.getLogger(__name__)
Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]
_SLICE_TOKENS = 512
"""Indexed between two steps, and two more for each request of the step."""
RUNGS = (1, 2, 3, 5)


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
        self.rungs = rungs = rungs_for(options)
        self._requests = RequestArena(max_requests, max_request_tokens, rungs)
        self._corpora = (
            LiveCorpora(options.index_bytes, rungs, options.max_namespaces) if options.use_global else None
        )
        self._no_live = np.zeros(1, np.uint32), np.zeros((1, ROW_WORDS), np.int64), np.zeros((1, 1), np.uint8)
        nothing = np.zeros(1, np.uint32)
        nothing.flags.writeable = False
        self._frozen = nothing, np.zeros(ROW_WORDS, np.int64), np.zeros(max_requests, np.bool_)
        self._frozen_bytes = 0
        self._frozen_namespace: str | None = None
        self._namespaces: list[str | None] = [None] * max_requests
        self._prompt_tokens: list[int | None] = [None] * max_requests
        self._spaces = np.full(max_requests, -1, np.int32)
        self._settings = np.array(
            [
                options.min_match_tokens, options.max_match_tokens, options.max_spec_factor,
                options.max_spec_offset, VISITS, ENOUGH,
            ],
            np.float64,
        )  # fmt: skip
        self._chances = chances(CANDIDATES)
        self._workers = Workers(options.threads)
        self._counters = np.zeros((self._workers.count, len(COUNTERS)), np.int64)
        self._bound: tuple[Any, ...] | None = None
        self._usual_probs = np.empty(0, np.float64)
        self._update_s = 0.0
        self._one_slot = np.zeros(1, np.int32)
        self._one_span = np.zeros(2, np.int32)

    def start(self, slot: int, prompt: Ints, namespace: str = SHARED) -> None:
        """A request starts in a free slot. The prompt may be empty; a long one is indexed in slices.

        Finished outputs of its namespace, and of no other, may be proposed to it, and its own joins them.
        """
        self._settle()
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
        if self._corpora is not None:
            self._spaces[slot] = self._corpora.enter(namespace)
        self._namespaces[slot] = namespace
        self._frozen[2][slot] = namespace == self._frozen_namespace
        self._push(slot, prompt)
        self._requests.note_pending(slot)

    def extend(self, slot: int, tokens: Ints) -> None:
        """Newly emitted tokens of one request."""
        self._check_slot(slot)
        self._settle()
        self._push(slot, checked_ints("tokens", tokens))

    def extend_batch(self, slots: Ints, tokens: Ints, offsets: Ints) -> None:
        """tokens[offsets[i]:offsets[i + 1]] are the newly emitted tokens of slots[i]."""
        slots, tokens = checked_ints("slots", slots), checked_ints("tokens", tokens)
        offsets = checked_ints("offsets", offsets)
        if offsets.size != slots.size + 1 or offsets[0] != 0 or offsets[-1] != tokens.size:
            got = offsets.tolist()
            raise ValueError(f"offsets: expected {slots.size + 1} from 0 to {tokens.size}, got {got}")
        self._settle()
        started_s = time.perf_counter()
        may_split = self._requests.make_room(slots, tokens, offsets)
        if may_split is None:
            self._explain_extend(slots, tokens, offsets)
        arrays = self._requests.kernel_arrays
        if may_split:
            self._workers.split(
                slots.size, lambda _, i, j: extend_rows(*arrays, slots, tokens, offsets, i, j)
            )
        else:
            extend_rows(*arrays, slots, tokens, offsets, 0, slots.size)
        self._update_s += time.perf_counter() - started_s

    def finish(self, slot: int) -> None:
        """The request ended: its output, not its prompt, joins the corpus; the slot is free."""
        self._check_started(slot)
        self._settle()
        space = int(self._spaces[slot])
        if self._corpora is not None and space >= 0:
            self._corpora.add(space, self._requests.text(slot, self._prompt_tokens[slot] or 0).view(np.int32))
        self._release(slot)

    def discard(self, slot: int) -> None:
        """The request was aborted: nothing joins the corpus; the slot is free."""
        self._check_started(slot)
        self._settle()
        self._release(slot)

    def length(self, slot: int) -> int:
        """Tokens known of a request, prompt and output."""
        self._check_started(slot)
        return int(self._requests.rows[slot, KNOWN])

    def lengths(self, slots: Ints) -> npt.NDArray[np.int64]:
        """int64[n]: tokens known of each request; 0 for a free slot."""
        known: npt.NDArray[np.int64] = self._requests.rows[slots, KNOWN]
        return known

    def propose_batch(self, slots: Ints, budgets: Ints, min_probs: Floats | None = None) -> DraftBatch:
        """A draft of at most budgets[i] tokens for each of slots, in one call over all threads.

        min_probs[i], float64, is what one more drafted token costs request i, as a share of a step: its draft
        ends where the expected gain of one more, the probability that all of it comes true, falls below.
        Without it options.min_token_prob counts.
        """
        slots, budgets = checked_ints("slots", slots), checked_ints("budgets", budgets)
        if budgets.size != slots.size:
            raise ValueError(f"budgets: expected {slots.size} values, got {budgets.size}")
        rows = slots.size
        least = self._checked_probs(min_probs, rows)
        self._settle()
        width = max(int(budgets[0]) if rows == 1 else int(budgets.max(initial=0)), 0)
        batch = DraftBatch(
            np.empty((rows, width), np.int32),
            np.empty((rows, width), np.float32),
            np.empty((3, rows), np.int32),
        )
        calls = (*self._arrays(), slots, budgets, least)
        drafts = batch.tokens, batch.probs, batch.heads

        def propose(thread: int, first: int, last: int) -> Any:
            return propose_rows(*calls, first, last, *drafts, self._counters[thread])

        if not all(self._workers.split(rows, propose)):
            self._explain_propose(slots, budgets, least)
        self._work_ahead(rows)
        return batch

    def propose_trees(self, slots: Ints, budgets: Ints, min_probs: Floats | None = None) -> DraftTree:
        """A tree of at most budgets[i] nodes for each of slots; arguments as in propose_batch."""
        chains = self.propose_batch(slots, budgets, min_probs)
        self._settle()
        tree = DraftTree(
            np.zeros_like(chains.tokens), np.full_like(chains.tokens, -1), np.zeros_like(chains.probs),
            np.zeros(slots.size, np.int32),
        )  # fmt: skip
        least = self._checked_probs(min_probs, slots.size)
        grow_rows(
            *self._arrays(), checked_ints("slots", slots), checked_ints("budgets", budgets), least,
            chains.heads, tree.tokens, tree.parents, tree.probs, tree.sizes,
        )  # fmt: skip
        return tree

    def attach(self, corpus: FrozenCorpus, namespace: str = SHARED) -> None:
        """Draft from this corpus too, for requests of its namespace; it takes the place of the one before.

        Its bytes are no part of index_bytes: a mapped file is shared by the processes that map it.
        """
        self._settle()
        if corpus.rungs.tolist() != self.rungs.tolist():
            raise ValueError(f"corpus: expected rungs {self.rungs.tolist()}, got {corpus.rungs.tolist()}")
        reads = np.array([name == namespace and name is not None for name in self._namespaces], np.bool_)
        self._frozen = corpus.mem, corpus.row, reads
        self._frozen_namespace, self._frozen_bytes = namespace, corpus.bytes_used
        self._bound = None

    def outputs_since(self, position: int, namespace: str = SHARED) -> tuple[npt.NDArray[np.uint32], int]:
        """(indexed outputs from a position of the corpus on, SEPARATOR after each; the position after them).

        Position 0 is the first; what has been evicted is left out. The last output may still be incomplete:
        it then comes again.
        """
        self._settle()
        if self._corpora is None:
            return np.empty(0, np.uint32), position
        return self._corpora.text_since(position, namespace)

    def flush(self) -> None:
        """Index everything that waits, at once. Steps do it bit by bit."""
        self._settle()
        self._requests.index_pending(2**31)
        if self._corpora is not None:
            while self._corpora.waiting_tokens:
                self._corpora.index_waiting(self._corpora.waiting_tokens)

    def close(self) -> None:
        """End the threads."""
        self._workers.close()

    def _arrays(self) -> tuple[Any, ...]:
        """The first arguments of propose_rows; gathered anew when the requests' words have moved."""
        if self._bound is None or self._bound[0] is not self._requests.words:
            corpora = self._corpora
            live = self._no_live if corpora is None else (corpora.mem, corpora.rows, corpora.hits)
            self._bound = (
                self._requests.words, self._requests.rows, *live, self._spaces, *self._frozen,
                self._requests.rungs, self._settings, self._chances,
            )  # fmt: skip
        return self._bound

    def _settle(self) -> None:
        """Wait for the slices that run beside the engine's step."""
        self._workers.wait()

    def _work_ahead(self, requests: int) -> None:
        corpora, arena = self._corpora, self._requests
        if not arena.has_pending and (corpora is None or not corpora.waiting_tokens):
            return
        most = _SLICE_TOKENS + 2 * requests

        def slices() -> None:
            done = arena.index_pending(most)
            if corpora is not None:
                corpora.index_waiting(max(most - done, most // 4))

        self._workers.beside(slices)

    @property
    def corpus_bytes(self) -> int:
        """Never above options.index_bytes."""
        return self._corpora.bytes_used if self._corpora is not None else 0

    @property
    def bytes_used(self) -> int:
        """Corpus and active requests together."""
        return self.corpus_bytes + self._requests.bytes_used

    def stats(self) -> dict[str, float]:
        """Counters since the start, and the sizes now."""
        self._settle()
        sums = self._counters.sum(axis=0)
        counts = {name: float(value) for name, value in zip(COUNTERS, sums, strict=True)}
        hits = sum(value for name, value in counts.items() if name.startswith("hits_"))
        corpora = self._corpora
        return {
            **counts,
            "mean_match_tokens": counts["match_tokens"] / hits if hits else 0.0,
            "corpus_tokens": float(corpora.indexed_tokens) if corpora is not None else 0.0,
            "corpus_waiting_tokens": float(corpora.waiting_tokens) if corpora is not None else 0.0,
            "corpus_evicted_tokens": float(corpora.evicted_tokens) if corpora is not None else 0.0,
            "corpus_rescued_tokens": float(corpora.rescued_tokens) if corpora is not None else 0.0,
            "corpus_bytes": float(self.corpus_bytes),
            "frozen_bytes": float(self._frozen_bytes),
            "request_bytes": float(self._requests.bytes_used),
            "update_s": self._update_s,
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
        if self._requests.make_room(self._one_slot, tokens, self._one_span) is None:
            self._explain_extend(self._one_slot, tokens, self._one_span)
        extend_rows(*self._requests.kernel_arrays, self._one_slot, tokens, self._one_span, 0, 1)

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

    def _explain_propose(self, slots: Ints, budgets: Ints, min_probs: Floats) -> NoReturn:
        for slot in slots.tolist():
            self._check_started(slot)
        if int(budgets.min()) < 0:
            raise ValueError(f"budgets: expected values from 0, got {int(budgets.min())}")
        raise ValueError(f"min_probs: expected values from 0 to 1, got {min_probs.tolist()}")

    def _checked_probs(self, min_probs: Floats | None, rows: int) -> Floats:
        if min_probs is None:
            if self._usual_probs.size < rows:
                self._usual_probs = np.full(2 * rows, self.options.min_token_prob, np.float64)
            return self._usual_probs[:rows]
        return checked_floats("min_probs", min_probs, rows)

    def _release(self, slot: int) -> None:
        self._requests.close(slot)
        if self._corpora is not None:
            self._corpora.leave(int(self._spaces[slot]))
        self._spaces[slot] = -1
        self._namespaces[slot] = None
        self._frozen[2][slot] = False
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


def rungs_for(options: SuffixIndexOptions) -> npt.NDArray[np.int64]:
    """n-gram lengths under which tokens are found, ascending."""
    shortest = min(options.min_match_tokens, MAX_RUNG)
    ladder = {shortest, *(rung for rung in RUNGS if shortest < rung <= options.max_match_tokens)}
    return np.array(sorted(ladder), np.int64)
