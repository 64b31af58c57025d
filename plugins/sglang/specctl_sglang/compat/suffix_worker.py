"""The worker of SPECCTL_SUFFIX."""

from __future__ import annotations

import logging
from typing import Any

from specctl.contract.telemetry import ShadowAcceptance
from specctl.engine.kept_corpus import corpus_fingerprint
from specctl_sglang.compat.steered_worker import SteeredWorker
from specctl_sglang.control.steering import OpenStep
from specctl_sglang.proposers.layout import Drafts, Emitted
from specctl_sglang.proposers.suffix import SuffixDrafts
from specctl_sglang.proposers.weighing import Weighing
from specctl_sglang.terms import drafts_of, width_of

__all__ = ["SuffixWorker", "wrap_NgramCorpus", "wrap_move_accept_tokens_to_target_kvcache"]

logger = logging.getLogger("sglang.specctl")


def wrap_NgramCorpus(_original: type) -> type:
    return _NoCorpus


def wrap_move_accept_tokens_to_target_kvcache(original: Any) -> Any:
    def move(batch: Any, *args: Any, **kwargs: Any) -> None:
        if not getattr(batch.spec_info, "specctl_is_chain", False):
            original(batch, *args, **kwargs)

    return move


class SuffixWorker(SteeredWorker):
    def alloc_memory_pool(self, **kwargs: Any) -> None:
        super().alloc_memory_pool(**kwargs)
        if not self._is_first_rank:
            return
        suffix, config = self.options.suffix, self.model_runner.model_config
        full = drafts_of(self._full_width)
        self._proposer = SuffixDrafts(suffix, self.max_batch_size, config.context_len, full)
        tokenizer = self.server_args.tokenizer_path or self.server_args.model_path
        self._proposer.keep(suffix, corpus_fingerprint(suffix, tokenizer, self.server_args.revision, logger))

    def _prepare(self, batch: Any) -> None:
        self._proposer.prepare(batch.reqs)

    def _find(self, batch: Any, step: OpenStep, emitted: Emitted) -> Drafts | None:
        assert step.verify_width_tokens is not None
        shape = step.num_speculative_tokens, step.tree_topk, step.verify_width_tokens
        tokens, parents, sizes = self._proposer.draft(batch.reqs, emitted, shape, self._weighing(step))
        longest = int(sizes.max(initial=0))
        if longest == 0:
            return None
        return Drafts(tokens, parents, sizes, width_of(self.smallest_prepared(longest)))

    def _rest(self, batch: Any, step: OpenStep) -> None:
        self._proposer.rest(batch.reqs, self._weighing(step))

    def _weighing(self, step: OpenStep) -> Weighing | None:
        return None if step.min_token_prob is None else Weighing(step.min_token_prob, self.prepared)

    def note_request_finished(self, *, rid: str, natural_stop: bool) -> None:
        if self._is_first_rank:
            self._proposer.finish(rid)

    def shadow_counts(self) -> ShadowAcceptance | None:
        return self._proposer.shadow_counts() if self._is_first_rank else None

    def stats(self) -> dict[str, float]:
        return super().stats() | (self._proposer.stats() if self._is_first_rank else {})


class _NoCorpus:
    """In the place of stock NGRAM's corpus, whose C++ part would be compiled at start for nothing."""

    def __init__(self, **_options: Any) -> None:
        """It takes what the corpus takes."""

    def reset(self) -> None:
        """Nothing to forget: SGLang flushes its KV cache, and our texts are no part of that."""

    def erase_match_state(self, _request_ids: list[str]) -> None:
        """None is kept."""

    def list_external_corpora(self) -> dict[str, int]:
        return {}

    def load_external_corpus_named(self, corpus_id: str, _chunks: Any) -> int:
        raise ValueError(f"SPECCTL_SUFFIX takes no external corpus ({corpus_id}); it has corpus_file")
