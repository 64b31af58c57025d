"""Suffix index: drafts from a request's own tokens and from finished outputs.

After SuffixDecoding (Oliaro et al., arXiv 2411.04975). The rule of a draft stands in ``proposal``, the
storage in ``chains``, the threads in ``workers``. No engine, no torch. Calls come from one thread at a time;
long prompts and finished outputs are indexed in slices between two calls of ``propose_batch``.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Sized

import numpy as np
import numpy.typing as npt

from specctl.draft import tables
from specctl.draft.arena import AT_ONCE_TOKENS, RequestArena, extend_one, extend_rows
from specctl.draft.chains import KNOWN, ROW_WORDS, rungs_for
from specctl.draft.checks import (
    check_count,
    check_length,
    checked_floats,
    checked_ints,
    explain_extend,
    explain_propose,
)
from specctl.draft.corpus import LiveCorpora
from specctl.draft.frozen_corpus import FrozenCorpus
from specctl.draft.gather import ENOUGH, VISITS
from specctl.draft.kernels import load_kernels
from specctl.draft.lessons import LESSON_WORDS, new_lesson
from specctl.draft.memory import State
from specctl.draft.options import SHARED, DraftBatch, SuffixIndexOptions
from specctl.draft.outcomes import Outcomes
from specctl.draft.outputs import Outputs
from specctl.draft.proposal import COUNTERS, propose_one, propose_rows
from specctl.draft.status import DONE, REFUSED, RESIZE
from specctl.draft.tree import DraftTree, grow_rows
from specctl.draft.workers import ROWS_MIN, Workers

__all__ = ["SHARED", "DraftBatch", "SuffixIndex", "SuffixIndexOptions", "rungs_for"]

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]
Probs = npt.NDArray[np.float32]
_SLICE_TOKENS = 1024
"""Indexed between two steps, and two more for each request of the step."""
_USUAL = np.empty(0, np.float64)
"""Stands for the least probability of the options."""
_USUAL_WIDTH = 8


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
        load_kernels()
        self._state = State(tables.PLACES)
        self._address = self._state.address
        self._usual_prob = float(options.min_token_prob)
        self._requests = RequestArena(self._state, max_requests, max_request_tokens, rungs)
        self._spaces = np.full(max_requests, -1, np.int32)
        self._reads_frozen = np.zeros(max_requests, np.bool_)
        self._corpora = (
            LiveCorpora(options.index_bytes, rungs, options.max_namespaces) if options.use_global else None
        )
        self._pending: Sized = self._requests.pending
        self._waiting: Sized = () if self._corpora is None else self._corpora.waiting
        self._frozen_bytes = 0
        self._frozen_namespace: str | None = None
        self._namespaces: list[str | None] = [None] * max_requests
        self._prompt_tokens: list[int | None] = [None] * max_requests
        self._workers = Workers(options.threads)
        self._counters = np.zeros((self._workers.count, len(COUNTERS)), np.int64)
        self._lessons = np.zeros((max_requests, LESSON_WORDS), np.int64)
        self._outcomes = Outcomes(self._workers.count)
        self._put_tables()
        self._outputs = Outputs(self._state, self._workers.count, max_requests, _USUAL_WIDTH)
        self._update_s = 0.0

    def _put_tables(self) -> None:
        """What compiled calls read; the requests' part puts its own."""
        options, put, corpora = self.options, self._state.put, self._corpora
        rule = (
            options.min_match_tokens, options.max_match_tokens, options.max_spec_factor,
            options.max_spec_offset, VISITS, ENOUGH, options.min_token_prob,
        )  # fmt: skip
        put(tables.SETTINGS, np.array(rule, np.float64))
        put(tables.CHANCES, self._outcomes.tables)
        put(tables.ODDS, self._outcomes.tokens.odds)
        put(tables.LESSONS, self._lessons)
        put(tables.OUTCOMES, self._outcomes.counted)
        put(tables.COUNTERS, self._counters)
        put(tables.SPACES, self._spaces)
        put(tables.READS_FROZEN, self._reads_frozen)
        no_text, no_row = np.zeros(1, np.uint32), np.zeros((1, ROW_WORDS), np.int64)
        put(tables.FROZEN, no_text)
        put(tables.FROZEN_ROW, no_row[0])
        put(tables.CORPORA, no_text if corpora is None else corpora.mem)
        put(tables.CORPUS_ROWS, no_row if corpora is None else corpora.rows)
        put(tables.HITS, np.zeros((1, 1), np.uint8) if corpora is None else corpora.hits)

    def start(self, slot: int, prompt: Ints, namespace: str = SHARED, traffic_class: str = "") -> None:
        """A request starts in a free slot. The prompt may be empty; a long one is indexed in slices.

        Finished outputs of its namespace, and of no other, may be proposed to it, and its own joins them.
        Probabilities follow the outcomes of its traffic class.
        """
        self._workers.wait()
        self._check_slot(slot)
        if self._prompt_tokens[slot] is not None:
            raise ValueError(f"slot {slot}: expected a free slot, got one in use")
        prompt = checked_ints("prompt", prompt)
        check_length(prompt.size, self._max_request_tokens)
        if int(prompt.min(initial=0)) < 0:
            raise ValueError(f"prompt: expected ids from 0 to 2147483647, got {int(prompt.min())}")
        # Room for an answer of usual length, because growing indexes the text anew.
        self._requests.open(slot, min(prompt.size + 256 + prompt.size // 4, self._max_request_tokens))
        self._prompt_tokens[slot] = prompt.size
        self._lessons[slot] = new_lesson(self._outcomes.class_of(traffic_class))
        if self._corpora is not None:
            self._spaces[slot] = self._corpora.enter(namespace)
        self._namespaces[slot] = namespace
        self._reads_frozen[slot] = namespace == self._frozen_namespace
        self.extend(slot, prompt)

    def extend(self, slot: int, tokens: Ints) -> None:
        """Newly emitted tokens of one request."""
        if self._workers.is_busy:
            self._workers.wait()
        most = self._max_request_tokens
        try:
            status = extend_one(self._address, slot, tokens, most)
        except TypeError:
            slot, tokens = operator.index(slot), checked_ints("tokens", tokens)
            status = extend_one(self._address, slot, tokens, most)
        if status != DONE:
            self._finish_extend(slot, tokens, status)

    def _finish_extend(self, slot: int, tokens: Ints, status: int) -> None:
        most = self._max_request_tokens
        if status == REFUSED:
            self._check_started(slot)
            explain_extend(np.array([slot]), tokens, np.array([0, tokens.size]), self.length, most)
        if status >= 0:
            self._requests.grow(slot, tokens.size)
            extend_one(self._address, slot, tokens, most)
        self._requests.note_pending(slot)

    def extend_batch(self, slots: Ints, tokens: Ints, offsets: Ints) -> None:
        """tokens[offsets[i]:offsets[i + 1]] are the newly emitted tokens of slots[i]."""
        slots, tokens = checked_ints("slots", slots), checked_ints("tokens", tokens)
        offsets = checked_ints("offsets", offsets)
        if offsets.size != slots.size + 1 or offsets[0] != 0 or offsets[-1] != tokens.size:
            got = offsets.tolist()
            raise ValueError(f"offsets: expected {slots.size + 1} from 0 to {tokens.size}, got {got}")
        self._workers.wait()
        started_s = time.perf_counter()
        may_split, address = self._requests.make_room(slots, tokens, offsets), self._address
        if may_split is None:
            explain_extend(slots, tokens, offsets, self.length, self._max_request_tokens)
        if may_split:
            self._workers.split(
                slots.size, lambda _, i, j: extend_rows(address, slots, tokens, offsets, i, j)
            )
        else:
            extend_rows(address, slots, tokens, offsets, 0, slots.size)
        if tokens.size > AT_ONCE_TOKENS:
            for slot in slots.tolist():
                self._requests.note_pending(slot)
        self._update_s += time.perf_counter() - started_s

    def finish(self, slot: int) -> None:
        """The request ended: its output, not its prompt, joins the corpus; the slot is free."""
        self._check_started(slot)
        self._workers.wait()
        space = int(self._spaces[slot])
        if self._corpora is not None and space >= 0:
            self._corpora.add(space, self._requests.text(slot, self._prompt_tokens[slot] or 0).view(np.int32))
        self._release(slot)

    def discard(self, slot: int) -> None:
        """The request was aborted: nothing joins the corpus; the slot is free."""
        self._check_started(slot)
        self._workers.wait()
        self._release(slot)

    def length(self, slot: int) -> int:
        """Tokens known of a request, prompt and output."""
        self._check_started(slot)
        return int(self._requests.rows[slot, KNOWN])

    def lengths(self, slots: Ints) -> npt.NDArray[np.int64]:
        """int64[n]: tokens known of each request; 0 for a free slot."""
        known: npt.NDArray[np.int64] = self._requests.rows[slots, KNOWN]
        return known

    def propose(self, slot: int, budget: int, min_prob: float | None = None) -> tuple[Ints, Probs]:
        """A draft of at most ``budget`` tokens for one request: int32[n], float32[n] as in DraftBatch.

        What propose_batch gives for it, sooner. Both arrays are overwritten by the next proposal.
        """
        if self._workers.is_busy:
            self._workers.wait()
        least = self._usual_prob if min_prob is None else min_prob
        try:
            length = propose_one(self._address, slot, budget, least)
        except TypeError:
            slot, budget, least = operator.index(slot), operator.index(budget), float(least)
            length = propose_one(self._address, slot, budget, least)
        if length < 0:
            length = self._propose_again(slot, budget, least)
        if self._outcomes.is_due(1) or self._pending or self._waiting:
            self._work_ahead(1)
        draft: tuple[Ints, Probs] = self._outputs.drafts[length]
        return draft

    def _propose_again(self, slot: int, budget: int, min_prob: float) -> int:
        """With room for it; a refused call raises."""
        one = np.array([slot], np.int32), np.array([budget], np.int32), np.array([min_prob], np.float64)
        return int(self.propose_batch(*one).lengths[0])

    def propose_batch(self, slots: Ints, budgets: Ints, min_probs: Floats | None = None) -> DraftBatch:
        """A draft of at most budgets[i] tokens for each of slots, in one call over all threads.

        min_probs[i], float64, is what one more drafted token costs request i, as a share of a step: its draft
        ends where the expected gain of one more, the probability that all of it comes true, falls below.
        Without it options.min_token_prob counts. The batch is overwritten by the next call.
        """
        if self._workers.is_busy:
            self._workers.wait()
        least = _USUAL if min_probs is None else min_probs
        try:
            status = self._propose(slots, budgets, least)
        except (AttributeError, TypeError):
            slots, budgets = checked_ints("slots", slots), checked_ints("budgets", budgets)
            least = _USUAL if min_probs is None else checked_floats("min_probs", min_probs, slots.size)
            status = self._propose(slots, budgets, least)
        if status == RESIZE:
            self._outputs.make_room(max(slots.size, self._max_requests), int(budgets.max()))
            status = self._propose(slots, budgets, least)
        if status == REFUSED:
            explain_propose(slots, budgets, least, self.length)
        if self._outcomes.is_due(1) or self._pending or self._waiting:
            self._work_ahead(slots.size)
        return self._outputs.batch(slots.size, status)

    def _propose(self, slots: Ints, budgets: Ints, least: Floats) -> int:
        rows, address = slots.size, self._address
        if rows < 2 * ROWS_MIN:
            status: int = propose_rows(address, slots, budgets, least, 0, rows, 0)
            return status
        answers: list[int] = self._workers.split(
            rows, lambda thread, i, j: propose_rows(address, slots, budgets, least, i, j, thread)
        )
        return answers[0]

    def propose_trees(self, slots: Ints, budgets: Ints, min_probs: Floats | None = None) -> DraftTree:
        """A tree of at most budgets[i] nodes for each of slots; arguments as in propose_batch."""
        chains = self.propose_batch(slots, budgets, min_probs)
        self._workers.wait()
        rows, width = chains.tokens.shape
        tree = DraftTree(
            np.zeros((rows, width), np.int32), np.full((rows, width), -1, np.int32),
            np.zeros((rows, width), np.float32), np.zeros(rows, np.int32),
        )  # fmt: skip
        least = _USUAL if min_probs is None else checked_floats("min_probs", min_probs, rows)
        grow_rows(
            self._address, checked_ints("slots", slots), checked_ints("budgets", budgets), least,
            (chains.tokens, chains.probs, chains.heads), tree.tokens, tree.parents, tree.probs, tree.sizes,
        )  # fmt: skip
        return tree

    def attach(self, corpus: FrozenCorpus, namespace: str = SHARED) -> None:
        """Draft from this corpus too, for requests of its namespace; it takes the place of the one before.

        Its bytes are no part of index_bytes: a mapped file is shared by the processes that map it.
        """
        self._workers.wait()
        if corpus.rungs.tolist() != self.rungs.tolist():
            raise ValueError(f"corpus: expected rungs {self.rungs.tolist()}, got {corpus.rungs.tolist()}")
        self._reads_frozen[:] = [name == namespace for name in self._namespaces]
        self._state.put(tables.FROZEN, corpus.mem)
        self._state.put(tables.FROZEN_ROW, corpus.row)
        self._frozen_namespace, self._frozen_bytes = namespace, corpus.bytes_used
        self._outcomes.replace(corpus.outcomes)

    @property
    def outcomes(self) -> Outcomes:
        """Of its drafts."""
        self._workers.wait()
        return self._outcomes

    def outputs_since(self, position: int, namespace: str = SHARED) -> tuple[npt.NDArray[np.uint32], int]:
        """(indexed outputs from a position of the corpus on, SEPARATOR after each; the position after them).

        Position 0 is the first; evicted ones are left out. A last output that is incomplete comes again.
        """
        self._workers.wait()
        if self._corpora is None:
            return np.empty(0, np.uint32), position
        return self._corpora.text_since(position, namespace)

    def settle(self) -> None:
        """Wait for the slices that run beside the engine's step."""
        self._workers.wait()

    def flush(self) -> None:
        """Index everything that waits, at once. Steps do it bit by bit."""
        self._workers.wait()
        self._requests.index_pending(2**31)
        if self._corpora is not None:
            while self._corpora.waiting_tokens:
                self._corpora.index_waiting(self._corpora.waiting_tokens)

    def close(self) -> None:
        """End the threads."""
        self._workers.close()

    def _work_ahead(self, requests: int) -> None:
        most = _SLICE_TOKENS + 2 * requests

        def slices() -> None:
            done = self._requests.index_pending(most)
            if self._corpora is not None:
                self._corpora.index_waiting(max(most - done, most // 4))
            self._outcomes.learn_if_due()

        self._workers.beside(slices)

    @property
    def corpus_bytes(self) -> int:
        """Never above options.index_bytes."""
        return 0 if self._corpora is None else self._corpora.bytes_used

    @property
    def bytes_used(self) -> int:
        """Corpus and active requests together."""
        return self.corpus_bytes + self._requests.bytes_used

    def stats(self) -> dict[str, float]:
        """Counters since the start, and the sizes now."""
        self._workers.wait()
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
        rehearsal = SuffixIndex(SuffixIndexOptions(index_bytes=2**17), 2, 2048)
        text = np.arange(600, dtype=np.int32) % 50
        rehearsal.start(0, text[:100])
        rehearsal.extend(0, text)
        rehearsal.finish(0)
        rehearsal.flush()
        rehearsal.start(0, text[:10])
        rehearsal.propose_batch(np.zeros(1, np.int32), np.full(1, 4, np.int32))
        return time.perf_counter() - started_s

    def _release(self, slot: int) -> None:
        self._requests.close(slot)
        if self._corpora is not None:
            self._corpora.leave(int(self._spaces[slot]))
        self._spaces[slot] = -1
        self._namespaces[slot] = None
        self._reads_frozen[slot] = False
        self._prompt_tokens[slot] = None

    def _check_slot(self, slot: int) -> None:
        if not 0 <= slot < self._max_requests:
            raise ValueError(f"slot: expected 0 to {self._max_requests - 1}, got {slot}")

    def _check_started(self, slot: int) -> None:
        self._check_slot(slot)
        if self._prompt_tokens[slot] is None:
            raise ValueError(f"slot {slot}: expected a started request, got a free slot")
