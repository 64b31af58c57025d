"""Bounds on JSON from outside, checked before it is read: how much it holds, how large its numbers are."""

from __future__ import annotations

import json
import re
from typing import Any, TypeVar

import pydantic_core
from pydantic import BaseModel, ValidationError

from specctl.plain_text import plain_text

__all__ = ["CONTAINERS_MAX", "check_json", "read_json", "read_message"]

CONTAINERS_MAX = 65_536
VALUES_PER_CONTAINER = 6
NUMBER_MAX = 1e21
"""Larger ones are no counts or seconds, and overflow in later arithmetic."""
_HITS_MAX = 1000
_Message = TypeVar("_Message", bound=BaseModel)
_SHAPE = bytes.maketrans(b"0123456789+E", b"00000000000e")
_DIGITS = b"0" * 22
_EXPONENT = re.compile(rb"[0-9+][eE]\+?[0-9]+(?:[\s,\]}]|$)")


def check_json(body: bytes, containers_max: int = CONTAINERS_MAX) -> None:
    """Raises ValueError. Takes microseconds for what an engine sends."""
    if body.count(b"{") + body.count(b"[") > containers_max:
        raise ValueError(f"over {containers_max} objects and lists")
    if body.count(b",") > VALUES_PER_CONTAINER * containers_max:
        raise ValueError(f"over {VALUES_PER_CONTAINER * containers_max} values")
    if _may_be_huge(body):
        _refuse_huge(pydantic_core.from_json(body, allow_inf_nan=False))


def read_json(text: str | bytes) -> Any:
    """Raises ValueError, also for lists and objects that nest too deep for a stack."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("lists or objects nest too deep") from None


def read_message(model: type[_Message], body: bytes, containers_max: int = CONTAINERS_MAX) -> _Message:
    """Raises ValueError with the first thing that is wrong, in one printable line."""
    try:
        check_json(body, containers_max)
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "body"
        words = f"{where}: {first['msg']} ({error.error_count()} in all)"
    except ValueError as error:
        words = str(error)
    raise ValueError(plain_text(words))


def _may_be_huge(body: bytes) -> bool:
    """Every number beyond the bound is found, and some smaller ones."""
    shape = body.translate(_SHAPE)
    if _DIGITS in shape or b"NaN" in body or b"Infinity" in body:
        return True
    at = shape.find(b"0e0")
    for _ in range(_HITS_MAX):
        if at < 0:
            return False
        if _EXPONENT.match(body, at):
            return True
        at = shape.find(b"0e0", at + 1)
    return at >= 0


def _refuse_huge(value: Any) -> None:
    """The parser bounds the depth."""
    if isinstance(value, int | float):
        if not -NUMBER_MAX <= value <= NUMBER_MAX:
            raise ValueError("a number beyond 1e21")
    elif isinstance(value, dict):
        for part in value.values():
            _refuse_huge(part)
    elif isinstance(value, list):
        for part in value:
            _refuse_huge(part)
