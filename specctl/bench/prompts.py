"""Prompts of a load: presets that come with specctl, or a JSONL file of the user's."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from specctl.errors import BenchInputError
from specctl.plain_text import plain_text

__all__ = ["PRESETS", "Message", "Prompt", "load_prompts", "numbered", "rotated"]

PRESETS = ("chat", "code", "sql", "agent", "copying")
FILE_MAX_BYTES = 1 << 30
PROMPTS_MAX = 1_000_000


class Message(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)

    role: str
    content: str


class Prompt(BaseModel):
    """``prompt`` or ``messages``. ``output_tokens``: as recorded, where the file says so."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: str = ""
    prompt: str | None = None
    messages: tuple[Message, ...] | None = None
    output_tokens: Annotated[int, Field(ge=1, le=10_000_000)] | None = None

    @model_validator(mode="after")
    def _check_one(self) -> Prompt:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("expected one of prompt and messages")
        return self


def load_prompts(name: str) -> tuple[Prompt, ...]:
    """A preset's name, or a file of JSON lines with ``prompt`` or ``messages``. Several joined by ``+`` take
    turns. Raises BenchInputError."""
    parts = [_load(part) for part in name.split("+")]
    if len(parts) == 1:
        return parts[0]
    longest = max(map(len, parts))
    return tuple(part[i % len(part)] for i in range(longest) for part in parts)


def _load(name: str) -> tuple[Prompt, ...]:
    if name in PRESETS:
        return _read((files("specctl.bench") / "presets" / f"{name}.jsonl").read_text(encoding="utf-8"), name)
    path = Path(name)
    try:
        if path.stat().st_size > FILE_MAX_BYTES:
            raise BenchInputError(f"{plain_text(name)}: larger than {FILE_MAX_BYTES >> 20} MiB")
        return _read(path.read_text(encoding="utf-8"), name)
    except FileNotFoundError as error:
        known = ", ".join(PRESETS)
        raise BenchInputError(
            f"prompts {plain_text(name)!r}: no such file, and no preset ({known})"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise BenchInputError(f"prompts {plain_text(name)!r}: {error}") from error


def _read(text: str, source: str) -> tuple[Prompt, ...]:
    prompts = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            prompt = Prompt.model_validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            raise BenchInputError(f"{plain_text(source)}:{number}: {plain_text(first['msg'])}") from error
        prompts.append(prompt if prompt.id else prompt.model_copy(update={"id": f"{number}"}))
        if len(prompts) > PROMPTS_MAX:
            raise BenchInputError(f"{plain_text(source)}: over {PROMPTS_MAX} prompts")
    if not prompts:
        raise BenchInputError(f"{plain_text(source)}: no prompts")
    return tuple(prompts)


def rotated(prompts: Sequence[Prompt], part: int, parts: int) -> Iterator[Prompt]:
    """Endless, beginning at another place in each of ``parts`` rounds."""
    start = part * len(prompts) // parts % len(prompts)
    return itertools.cycle([*prompts[start:], *prompts[:start]])


def numbered(prompt: Prompt, number: str) -> Prompt:
    """The same prompt with a number of its own in front, so that the prefix cache holds nothing of it. In
    messages the number stands before the first message of the user: a shared system prompt stays shared."""
    if prompt.prompt is not None:
        return prompt.model_copy(update={"prompt": f"[{number}] {prompt.prompt}"})
    assert prompt.messages is not None
    messages, is_done = [], False
    for message in prompt.messages:
        if message.role == "user" and not is_done:
            message = message.model_copy(update={"content": f"[{number}] {message.content}"})
            is_done = True
        messages.append(message)
    return prompt.model_copy(update={"messages": tuple(messages)})
