"""Where the tokenizer's files lie that this server uses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["tokenizer_folder"]


def tokenizer_folder(model_config: Any) -> Path | None:
    """None where the files are neither local nor in the Hugging Face cache."""
    name = model_config.tokenizer
    if Path(name).is_dir():
        return Path(name)
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, "tokenizer.json", revision=model_config.tokenizer_revision)
    return Path(found).parent if isinstance(found, str) else None
