"""Where the tokenizer's files lie that this server uses."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from specctl.draft.corpus_file import fingerprint_of
from specctl.engine.options import SuffixOptions

__all__ = ["corpus_fingerprint"]

logger = logging.getLogger("sglang.specctl")


def corpus_fingerprint(server_args: Any, options: SuffixOptions) -> str | None:
    """What the corpus file of this server's tokenizer bears; None without corpus_file, where nothing is
    shared, or, logged, where no files are found."""
    if options.corpus_file is None or not options.use_global:
        return None
    name = server_args.tokenizer_path or server_args.model_path
    folder = Path(name) if Path(name).is_dir() else _in_cache(name, server_args.revision)
    if folder is None:
        logger.error("specctl: no tokenizer files found, so that %s is not used", options.corpus_file)
        return None
    return fingerprint_of(folder)


def _in_cache(name: str, revision: str | None) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, "tokenizer.json", revision=revision)
    return Path(found).parent if isinstance(found, str) else None
