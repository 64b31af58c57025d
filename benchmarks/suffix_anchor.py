"""The two arms of ``make bench-suffix`` behind one interface: ours, and arctic-inference's suffix cache.

The anchor is called as vLLM's proposer calls it: new tokens as a list, the pattern as the last
max_tree_depth tokens of an int32 array.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from benchmarks.suffix_stream import MAX_CONTEXT_TOKENS, MAX_RESPONSE_TOKENS
from specctl.draft.chains import block_words
from specctl.draft.frozen_corpus import build_block
from specctl.draft.suffix_index import SuffixIndex, SuffixIndexOptions, rungs_for

Ints = npt.NDArray[np.int32]
MAX_TREE_DEPTH = 24
MAX_REQUEST_TOKENS = MAX_CONTEXT_TOKENS + MAX_RESPONSE_TOKENS
DEFAULT_MIN_TOKEN_PROB = 0.1
_EMPTY = np.empty(0, np.int32)


class Arm(Protocol):
    name: str

    digest: int
    """Of all tokens that filled it, in their order."""
    forgets: bool
    """Whether a discarded request leaves no trace."""

    def start(self, slot: int, prompt: Ints) -> None: ...
    def given(self, tokens: Ints) -> Any:
        """Tokens as update takes them; the engine has them in that form."""
        ...

    def update(self, slot: int, tokens: Any) -> None: ...
    def speculate(self, slot: int, known: Ints, budget: int) -> tuple[Any, Any]:
        """Draft and its probabilities; known are all tokens of the request so far."""
        ...

    def discard(self, slot: int) -> None:
        """The request ends and its tokens are in the corpus no more."""
        ...

    def forget_outcomes(self) -> None:
        """What became of drafts; the corpus stays."""
        ...

    def settle(self) -> None:
        """Wait for work that runs beside the engine's step."""
        ...

    def set_min_token_prob(self, value: float) -> None: ...


class Own:
    name = "specctl"
    forgets = True

    def __init__(
        self, options: SuffixIndexOptions, max_requests: int = 2, most_tokens: int = MAX_REQUEST_TOKENS
    ):
        self.index = SuffixIndex(options, max_requests, most_tokens)
        self.digest = 0
        self._filler = max_requests - 1
        self._least_prob = options.min_token_prob

    def fill(self, responses: Iterable[Ints]) -> None:
        """Each response is a finished request without a prompt. The last slot must be free."""
        for response in responses:
            self.digest = zlib.crc32(response.tobytes(), self.digest)
            self.index.start(self._filler, _EMPTY)
            self.index.extend(self._filler, response)
            self.index.finish(self._filler)
            self.index.flush()

    def start(self, slot: int, prompt: Ints) -> None:
        self.index.start(slot, prompt)

    def given(self, tokens: Ints) -> Ints:
        return tokens

    def update(self, slot: int, tokens: Ints) -> None:
        self.index.extend(slot, tokens)

    def speculate(self, slot: int, known: Ints, budget: int) -> tuple[Ints, npt.NDArray[np.float32]]:
        return self.index.propose(slot, budget, self._least_prob)

    def finish(self, slot: int) -> None:
        self.index.finish(slot)

    def discard(self, slot: int) -> None:
        self.index.discard(slot)

    def forget_outcomes(self) -> None:
        self.index.outcomes.take()
        self.index.outcomes.tokens.forget()
        self.index.attach(build_block([], self.index.rungs))

    def settle(self) -> None:
        self.index.settle()

    def set_min_token_prob(self, value: float) -> None:
        self._least_prob = value


class Anchor:
    name = "anchor"
    forgets = False
    """An evicted response leaves the ties between tokens in its own order: later replays know a bit of it."""

    def __init__(self, max_cached_requests: int = -1):
        from arctic_inference.suffix_decoding import SuffixDecodingCache

        self.cache = SuffixDecodingCache(MAX_TREE_DEPTH, max_cached_requests)
        self.min_token_prob = DEFAULT_MIN_TOKEN_PROB
        self.digest = 0
        self._names: dict[int, int] = {}
        self._next_name = 0

    def fill(self, responses: Iterable[Ints]) -> None:
        for response in responses:
            self.digest = zlib.crc32(response.tobytes(), self.digest)
            self.start(-1, _EMPTY)
            self.update(-1, response)
            self.finish(-1)

    def start(self, slot: int, prompt: Ints) -> None:
        self._names[slot] = self._next_name
        self._next_name += 1
        self.cache.start_request(self._names[slot], prompt)

    def given(self, tokens: Ints) -> list[int]:
        listed: list[int] = tokens.tolist()
        return listed

    def update(self, slot: int, tokens: Any) -> None:
        self.cache.add_active_response(self._names[slot], tokens)

    def speculate(self, slot: int, known: Ints, budget: int) -> tuple[list[int], list[float]]:
        draft = self.cache.speculate(
            self._names[slot],
            known[-MAX_TREE_DEPTH:],
            max_spec_tokens=budget,
            max_spec_factor=1.0,
            min_token_prob=self.min_token_prob,
        )
        return draft.token_ids, draft.probs

    def finish(self, slot: int) -> None:
        self.cache.stop_request(self._names.pop(slot))

    def discard(self, slot: int) -> None:
        name = self._names[slot]
        self.finish(slot)
        self.cache.evict_cached_response(name)

    def forget_outcomes(self) -> None:
        pass

    def settle(self) -> None:
        pass

    def set_min_token_prob(self, value: float) -> None:
        self.min_token_prob = value


def sized_options(corpus_tokens: int, responses: int, margin: float = 1.01) -> SuffixIndexOptions:
    """Options whose corpus holds all of the responses, and more by ``margin``; each costs one separator."""
    wanted = int((corpus_tokens + responses) * margin) + 1024
    ring_bytes = 4 * block_words(wanted, rungs_for(SuffixIndexOptions())) + wanted // 64
    # Outputs that wait have a small part of the bytes for themselves.
    return SuffixIndexOptions(index_bytes=int(ring_bytes * 128 / 127) + 2**16)


def filled_own(responses: list[Ints], max_requests: int = 2, most_tokens: int = MAX_REQUEST_TOKENS) -> Own:
    tokens = sum(part.size for part in responses)
    own = Own(sized_options(tokens, len(responses)), max_requests, most_tokens)
    own.fill(responses)
    stats = own.index.stats()
    if stats["corpus_evicted_tokens"] or stats["corpus_tokens"] < tokens:
        raise RuntimeError(f"expected a corpus of {tokens} tokens, got {stats['corpus_tokens']:.0f}")
    return own


def filled_anchor(responses: list[Ints]) -> Anchor:
    anchor = Anchor()
    anchor.fill(responses)
    return anchor
