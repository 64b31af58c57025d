"""Bytes from a server -> a message of the contract."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ValidationError

from specctl.errors import ContractError
from specctl.json_bounds import check_json
from specctl.plain_text import plain_text

__all__ = ["parsed"]

_Message = TypeVar("_Message", bound=BaseModel)


def parsed(model: type[_Message], body: bytes, what: str) -> _Message:
    """``what`` names the message in errors. Raises ContractError."""
    try:
        check_json(body)
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "body"
        words = f"{where}: {first['msg']} ({error.error_count()} in all)"
    except ValueError as error:
        words = str(error)
    raise ContractError(plain_text(f"{what}: {words}"))
