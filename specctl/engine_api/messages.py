"""Bytes from a server -> a message of the contract."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel

from specctl.errors import ContractError
from specctl.json_bounds import read_message
from specctl.plain_text import plain_text

__all__ = ["parsed"]

_Message = TypeVar("_Message", bound=BaseModel)


def parsed(model: type[_Message], body: bytes, what: str) -> _Message:
    """``what`` names the message in errors. Raises ContractError."""
    try:
        return read_message(model, body)
    except ValueError as error:
        raise ContractError(plain_text(f"{what}: {error}")) from error
