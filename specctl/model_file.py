"""YAML and JSON files that hold one pydantic model."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from specctl.errors import SimulationInputError

__all__ = ["load_model"]

FILE_MAX_BYTES = 4 * 1024 * 1024
_Model = TypeVar("_Model", bound=BaseModel)


def load_model(path: Path, model: type[_Model]) -> _Model:
    """Raises SimulationInputError that lists everything wrong with the file. JSON is YAML too."""
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_MAX_BYTES + 1)
    except OSError as error:
        raise SimulationInputError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(raw) > FILE_MAX_BYTES:
        raise SimulationInputError(f"{path}: expected at most {FILE_MAX_BYTES} bytes, got more")
    try:
        data = yaml.safe_load(raw.decode("utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SimulationInputError(f"{path}: expected YAML or JSON in UTF-8, got {error}") from error
    try:
        return model.model_validate(data)
    except ValidationError as error:
        words = [
            f"{path}: {'.'.join(map(str, told['loc'])) or 'file'}: {told['msg']}, "
            f"got {str(told['input'])[:80]}"
            for told in error.errors(include_url=False)
        ]
        raise SimulationInputError("\n".join(words)) from error
