"""The corpus file of a server: whose tokens it holds, and the keeper that fills it."""

from __future__ import annotations

import atexit
import logging
from pathlib import Path

from specctl.draft.corpus_file import fingerprint_of
from specctl.draft.keeper import CorpusKeeper, Kept
from specctl.engine.options import SuffixOptions

__all__ = ["corpus_fingerprint", "keep_corpus"]


def corpus_fingerprint(
    options: SuffixOptions, tokenizer: str, revision: str | None, log: logging.Logger
) -> str | None:
    """What the corpus file of this tokenizer bears.

    tokenizer: a folder, or a name whose files are in the Hugging Face cache. None without corpus_file, where
    nothing is shared, or, logged, where no files are found.
    """
    if options.corpus_file is None or not options.use_global:
        return None
    folder = Path(tokenizer) if Path(tokenizer).is_dir() else _in_cache(tokenizer, revision)
    if folder is None:
        log.error("specctl: no tokenizer files found, so that %s is not used", options.corpus_file)
        return None
    return fingerprint_of(folder)


def keep_corpus(
    index: Kept, options: SuffixOptions, fingerprint: str | None, max_bytes: int
) -> CorpusKeeper | None:
    """The keeper, opened; it is closed when the process ends. max_bytes: of the file's block.

    None without a fingerprint (``corpus_fingerprint``).
    """
    if options.corpus_file is None or fingerprint is None:
        return None
    keeper = CorpusKeeper(index, options.corpus_file, fingerprint, max_bytes, options.corpus_save_every_s)
    keeper.open()
    atexit.register(keeper.close)
    return keeper


def _in_cache(name: str, revision: str | None) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, "tokenizer.json", revision=revision)
    return Path(found).parent if isinstance(found, str) else None
