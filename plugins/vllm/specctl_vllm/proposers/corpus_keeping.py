"""The keeper of the corpus file, where the options name one."""

from __future__ import annotations

import logging
from typing import Any

from specctl.draft.keeper import CorpusKeeper, Kept
from specctl.engine.kept_corpus import corpus_fingerprint, keep_corpus
from specctl_vllm.options import SuffixOptions

__all__ = ["kept_by_rank_0"]

logger = logging.getLogger("vllm.specctl")


def kept_by_rank_0(
    vllm_config: Any, options: SuffixOptions, index: Kept, max_bytes: int
) -> CorpusKeeper | None:
    """Opened; of rank 0, whose drafts count. None elsewhere, without corpus_file, or where nothing is shared.

    max_bytes: of the file's block.
    """
    if vllm_config.parallel_config.rank != 0:
        return None
    model = vllm_config.model_config
    fingerprint = corpus_fingerprint(options, model.tokenizer, model.tokenizer_revision, logger)
    return keep_corpus(index, options, fingerprint, max_bytes)
