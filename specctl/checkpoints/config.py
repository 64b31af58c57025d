"""config.json of a model folder. What it leaves to the defaults of its class is taken from transformers'
AutoConfig, where that is installed; its import takes seconds, so a file that says everything does without."""

from __future__ import annotations

import importlib
import logging
import warnings
from pathlib import Path
from typing import Any

from specctl.errors import SpecctlError
from specctl.json_bounds import read_json
from specctl.local_file import read_file

__all__ = ["CheckpointError", "raw_config", "read_config"]

CONFIG_MAX_BYTES = 16 * 1024 * 1024
_SIZES = {
    "hidden_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "vocab_size",
}


class CheckpointError(SpecctlError):
    """A folder that holds no model which can be read. Names the file, what was expected and found."""


def raw_config(folder: Path) -> dict[str, Any]:
    """As it stands in the file. Raises CheckpointError."""
    file = folder / "config.json"
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: expected a model folder, found none")
    if not file.is_file():
        raise CheckpointError(f"{folder}: expected a file config.json, found none")
    try:
        config = read_json(read_file(file, CheckpointError, CONFIG_MAX_BYTES))
    except ValueError as error:
        raise CheckpointError(f"{file}: expected JSON ({error})") from None
    if not isinstance(config, dict):
        raise CheckpointError(f"{file}: expected a JSON object")
    return config


def read_config(folder: Path) -> dict[str, Any]:
    """With the defaults of the model's class, where transformers knows it. Raises CheckpointError."""
    raw = raw_config(folder)
    return raw if _says_all_sizes(raw) else {**_defaults(folder), **raw}


def _says_all_sizes(raw: dict[str, Any]) -> bool:
    nested = [value for value in raw.values() if isinstance(value, dict)]
    return any(part.keys() >= _SIZES for part in (raw, *nested))


def _defaults(folder: Path) -> dict[str, Any]:
    """Empty without transformers, and for a config that it does not know. No remote code, no network."""
    try:
        transformers = importlib.import_module("transformers")
    except ImportError:
        return {}
    level = logging.getLogger("transformers").level
    logging.getLogger("transformers").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            config = transformers.AutoConfig.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False
            )
            return dict(config.to_dict())
    except Exception:
        # The class judges the file by rules of its own; what it refuses is still read by hand.
        return {}
    finally:
        logging.getLogger("transformers").setLevel(level)
