"""Any order of start, extend, finish, discard, save and restore keeps the bounds and the texts."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from draft import brute_force
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specctl.draft import corpus_file
from specctl.draft.chains import SEPARATOR
from specctl.draft.frozen_corpus import build_block, documents_in
from specctl.draft.lessons import LONG_MATCHES
from specctl.draft.proposal import BEHIND_AN_EDIT
from specctl.draft.suffix_index import SuffixIndex, SuffixIndexOptions

SLOTS = 3
BUDGET = 6
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["start", "extend", "extend", "extend", "finish", "discard", "save", "restore"]),
        st.integers(0, SLOTS - 1),
        st.lists(st.integers(0, 3), max_size=40),
        st.integers(1, 12),
    ),
    max_size=40,
)


class Model:
    """What the index should hold."""

    def __init__(self, folder: Path) -> None:
        self.options = SuffixIndexOptions(index_bytes=2**16, min_token_prob=0.05)
        self.index = SuffixIndex(self.options, SLOTS, 4096)
        self.texts: dict[int, tuple[int, list[int]]] = {}
        self.corpus: list[int | None] = []
        self.folder = folder
        self.saved: list[int | None] = []
        """Text of the file."""
        self.frozen: list[int | None] = []
        """Text of the frozen corpus that the index drafts from."""

    def save(self) -> None:
        """What the live corpus holds, into the file; the index goes on as before."""
        self.index.flush()
        text, _ = self.index.outputs_since(0)
        self.saved = [None if token == SEPARATOR else token for token in text.tolist()]
        assert self.saved == self.corpus[len(self.corpus) - len(self.saved) :]
        corpus_file.save(self.folder / "corpus", build_block(documents_in(text), self.index.rungs), "", "")

    def restore(self) -> None:
        """As after a restart: a new index, no requests, and the file."""
        self.index.close()
        self.index = SuffixIndex(self.options, SLOTS, 4096)
        self.texts, self.corpus = {}, []
        if self.saved:
            self.index.attach(corpus_file.load(self.folder / "corpus"))
            self.frozen = self.saved

    def act(self, action: str, slot: int, tokens: list[int], repeats: int) -> None:
        many = np.array(tokens * repeats, np.int32)
        if action in ("save", "restore"):
            getattr(self, action)()
        elif action == "start" and slot not in self.texts:
            self.index.start(slot, np.array(tokens, np.int32))
            self.texts[slot] = (len(tokens), list(tokens))
        elif slot not in self.texts:
            return
        elif action == "extend" and len(self.texts[slot][1]) + many.size <= 4096:
            self.index.extend(slot, many)
            self.texts[slot][1].extend(tokens * repeats)
        elif action in ("finish", "discard"):
            prompt, text = self.texts.pop(slot)
            getattr(self.index, action)(slot)
            if action == "finish" and text[prompt:]:
                self.corpus += [*text[prompt:], None]

    def check(self) -> None:
        assert self.index.corpus_bytes <= self.options.index_bytes
        slots = np.array(sorted(self.texts), np.int32)
        batch = self.index.propose_batch(slots, np.full(slots.size, BUDGET, np.int32))
        for row, slot in enumerate(slots.tolist()):
            own = self.texts[slot][1]
            assert self.index.length(slot) == len(own)
            draft = batch.tokens[row, : batch.lengths[row]].tolist()
            if draft:
                source, match = int(batch.source[row]), int(batch.match_tokens[row])
                seen = own[-1 if source > BEHIND_AN_EDIT else -match :] + draft
                text = (own, self.corpus, self.frozen)[(source - 1) % BEHIND_AN_EDIT]
                assert any(text[at : at + len(seen)] == seen for at in range(len(text)))
                assert 0 < len(draft) <= BUDGET
                falling = batch.probs[row, : len(draft)]
                assert (np.diff(falling) <= 0).all()
                assert falling[-1] >= self.options.min_token_prob - 1e-6


@given(ACTIONS)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_order_of_calls(actions: list[tuple[str, int, list[int], int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = Model(Path(folder))
        for action in actions:
            model.act(*action)
            model.check()
    model.index.flush()
    model.index.attach(build_block([], model.index.rungs))
    live = int(model.index.stats()["corpus_tokens"])
    assert live == len(model.corpus) or live >= 500, "nothing is evicted before the ring is full"
    window = model.corpus[len(model.corpus) - live :]
    for slot, (_, own) in model.texts.items():
        chances, odds = model.index.outcomes.chances_of(), model.index.outcomes.tokens.odds.copy()
        words = model.index._lessons[slot, LONG_MATCHES:].tolist()
        last = [brute_force.LongMatch(*words[at : at + 3]) for at in (0, 3)]
        last[1].place -= len(model.corpus) - len(window)
        batch = model.index.propose_batch(np.array([slot], np.int32), np.array([BUDGET], np.int32))
        tokens, _, match, source = brute_force.propose(
            own, window, BUDGET, model.options, chances=chances, last=last, odds=odds
        )
        assert batch.tokens[0, : batch.lengths[0]].tolist() == tokens
        assert (int(batch.match_tokens[0]), int(batch.source[0])) == (match, source)
