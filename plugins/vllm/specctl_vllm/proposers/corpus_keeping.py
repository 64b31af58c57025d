"""The keeper of the corpus file, where the options name one."""

from __future__ import annotations

from typing import Any

from specctl.draft.keeper import CorpusKeeper, Kept
from specctl_vllm.compat.tokenizer import tokenizer_fingerprint
from specctl_vllm.options import SuffixOptions

__all__ = ["keeper_of"]


def keeper_of(vllm_config: Any, options: SuffixOptions, index: Kept, max_bytes: int) -> CorpusKeeper | None:
    """Of rank 0, whose drafts count; None without corpus_file, or where nothing is shared.

    max_bytes: of the file's block.
    """
    path = options.corpus_file
    if path is None or not options.use_global or vllm_config.parallel_config.rank != 0:
        return None
    fingerprint = tokenizer_fingerprint(vllm_config.model_config, path)
    if fingerprint is None:
        return None
    return CorpusKeeper(index, path, fingerprint, max_bytes, options.corpus_save_every_s)
