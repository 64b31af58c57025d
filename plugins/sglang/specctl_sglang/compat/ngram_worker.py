"""A table for SGLang's own NGRAM: its drafts, of which as many places are verified as the table says."""

from __future__ import annotations

import time
from itertools import compress
from typing import Any

import numpy as np
import torch
from sglang.srt.speculative.ngram_worker import NGRAMWorker

from specctl_sglang.compat.runtime_states import as_if
from specctl_sglang.compat.steered_worker import SteeredWorker
from specctl_sglang.control.request_fields import is_shared
from specctl_sglang.control.steering import OpenStep
from specctl_sglang.proposers.layout import Drafts, Emitted, cut, limit_tree
from specctl_sglang.terms import Shape, chain, drafts_of, width_of

__all__ = ["SteeredNgramWorker"]

_RESTING_S = 0.05
"""Its corpus reads the last 18 tokens of each request, so that it misses little at this pace."""


class SteeredNgramWorker(SteeredWorker):
    """The corpus fills every place with a tree's node, each after its parent: the first ones are a tree as
    well, of which fewer branches or levels are kept where the table says so."""

    _learnt_s = 0.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        full = drafts_of(self._full_width)
        self.at_start: Shape = (
            chain(full) if self._branches == 1 else (full, self._branches, self._full_width)
        )

    def _find(self, batch: Any, step: OpenStep, emitted: Emitted) -> Drafts | None:
        self.draft_token_num = full = self._full_width
        # It takes them where they are; on the device it would wait once more.
        kept = np.zeros((len(batch.reqs), full), np.int32)
        kept[:, : emitted.tokens.shape[1]] = emitted.tokens
        batch.spec_info.accept_tokens = torch.from_numpy(kept).flatten()
        batch.spec_info.accept_lens = torch.from_numpy(emitted.counts)
        tokens, mask = self._prepare_draft_tokens(batch)
        requests = len(batch.reqs)
        width = step.verify_width_tokens or full
        drafts = cut(
            tokens.reshape(requests, full), mask.reshape(requests, full, full).astype(np.bool_), width
        )
        depth, branches = step.num_speculative_tokens, step.tree_topk
        if branches >= self._branches and depth >= drafts_of(width):
            return drafts
        assert drafts.parents is not None
        tree = limit_tree(drafts.tokens, drafts.parents, drafts.sizes, branches, depth)
        return Drafts(*tree, width_of(self.smallest_prepared(int(tree[2].max()))))

    def _update_ngram_corpus(self, batch: Any) -> None:
        # It reads accepted tokens by rows, which are of the full width whatever was verified.
        width, self.draft_token_num = self.draft_token_num, self._full_width
        self._learn(batch)
        self.draft_token_num = width

    def _learn(self, batch: Any) -> None:
        shared = list(map(is_shared, batch.reqs))
        if all(shared):
            NGRAMWorker._update_ngram_corpus(self, batch)
            return
        put = self.ngram_corpus.batch_put
        with as_if(self.ngram_corpus, batch_put=lambda texts: put(list(compress(texts, shared)))):
            NGRAMWorker._update_ngram_corpus(self, batch)

    def _rest(self, batch: Any, step: OpenStep) -> None:
        now_s = time.monotonic()
        if now_s - self._learnt_s >= _RESTING_S:
            self._learnt_s = now_s
            self.prev_token_ids: list[Any] = []
            self.prev_accept_lens = [0] * len(batch.reqs)
            self._learn(batch)
