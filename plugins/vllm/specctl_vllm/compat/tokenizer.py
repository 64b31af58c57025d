"""Where the tokenizer's files lie that this server uses."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from specctl.draft.corpus_file import fingerprint_of

__all__ = ["tokenizer_fingerprint", "tokenizer_folder"]

logger = logging.getLogger("vllm.specctl")


def tokenizer_folder(model_config: Any) -> Path | None:
    """None where the files are neither local nor in the Hugging Face cache."""
    name = model_config.tokenizer
    if Path(name).is_dir():
        return Path(name)
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, "tokenizer.json", revision=model_config.tokenizer_revision)
    return Path(found).parent if isinstance(found, str) else None


def tokenizer_fingerprint(model_config: Any, corpus_file: Path) -> str | None:
    """What a corpus file of this server's tokenizer bears; None, and logged, where no files are found."""
    folder = tokenizer_folder(model_config)
    if folder is None:
        logger.error("specctl_suffix: no tokenizer files found, so that %s is not used", corpus_file)
        return None
    return fingerprint_of(folder)
