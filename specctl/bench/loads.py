"""A load: which prompts, how many at a time or how often, how long. No input or output but a trace file."""

from __future__ import annotations

import random
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from specctl.bench.prompts import Prompt
from specctl.bench.trace_file import read_arrivals
from specctl.errors import BenchArgumentError
from specctl.plain_text import plain_text

__all__ = ["Load", "arrivals", "parse_load", "product", "with_lengths"]

_KEYS = {
    "concurrency": "concurrency",
    "rate": "rate_per_s",
    "trace": "trace",
    "speed": "trace_speed",
    "output": "max_tokens",
    "name": "name",
}


class Load(BaseModel):
    """Closed loop with ``concurrency``; open loop with ``rate_per_s`` (Poisson) or ``trace`` (a file)."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    prompts: str
    concurrency: int | None = Field(default=None, ge=1, le=100_000)
    rate_per_s: float | None = Field(default=None, gt=0, le=1e6)
    trace: str | None = None
    trace_speed: float = Field(default=1.0, gt=0, le=1e6)
    max_tokens: int = Field(default=128, ge=1, le=1_000_000)
    min_tokens: int | None = Field(default=None, ge=1, le=1_000_000)
    """Each request asks for as many output tokens as are drawn from here to ``max_tokens``; None: for the
    latter."""
    name: str = ""

    @model_validator(mode="after")
    def _check_one_kind(self) -> Load:
        if sum(one is not None for one in (self.concurrency, self.rate_per_s, self.trace)) != 1:
            raise ValueError("expected one of concurrency, rate and trace")
        if self.min_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"expected at most {self.max_tokens} output tokens first, got {self.min_tokens}")
        return self

    @property
    def is_closed(self) -> bool:
        return self.concurrency is not None

    @property
    def title(self) -> str:
        if self.name:
            return self.name
        what = Path(self.prompts).stem if "+" not in self.prompts else self.prompts
        if self.concurrency is not None:
            return f"{what}, {self.concurrency} at once"
        if self.rate_per_s is not None:
            return f"{what}, {self.rate_per_s:g} requests/s"
        return f"{what}, trace {Path(self.trace or '').stem}"


def parse_load(text: str, defaults: Mapping[str, Any] | None = None) -> Load:
    """``PROMPTS concurrency=8 output=64``, also with ``output=32-96``, ``rate=``, ``trace=``, ``speed=`` and
    ``name=``.

    Raises BenchArgumentError.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise BenchArgumentError(f"load {text!r}: {error}") from error
    if not words or "=" in words[0]:
        raise BenchArgumentError(f"load {text!r}: expected prompts first, as in 'chat concurrency=8'")
    values: dict[str, Any] = dict(defaults or {}) | {"prompts": words[0]}
    for word in words[1:]:
        key, is_given, value = word.partition("=")
        if key not in _KEYS or not is_given:
            raise BenchArgumentError(
                f"load {text!r}: {word!r}: expected one of {', '.join(_KEYS)} and a value"
            )
        if key == "output" and "-" in value:
            values["min_tokens"], _, value = value.partition("-")
        values[_KEYS[key]] = value
    return _load(values, text)


def product(
    prompts: Sequence[str],
    concurrency: Sequence[int],
    rates: Sequence[float],
    traces: Sequence[str],
    defaults: Mapping[str, Any],
) -> tuple[Load, ...]:
    """Every kind of prompts under every arrival. Raises BenchArgumentError."""
    kinds: list[dict[str, Any]] = [{"concurrency": one} for one in concurrency]
    kinds += [{"rate_per_s": one} for one in rates] + [{"trace": one} for one in traces]
    return tuple(
        _load({**defaults, "prompts": name, **kind}, f"{name} {kind}") for name in prompts for kind in kinds
    )


def _load(values: Mapping[str, Any], text: str) -> Load:
    try:
        return Load.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise BenchArgumentError(
            f"load {plain_text(text)!r}: {where or 'arrivals'}: {plain_text(first['msg'])}"
        ) from error


def with_lengths(prompts: Iterator[Prompt], load: Load, seed: int) -> Iterator[Prompt]:
    """Prompts with the output tokens that a load draws for them; the same seed draws the same."""
    if load.min_tokens is None:
        yield from prompts
        return
    generator, least = random.Random(seed), min(load.min_tokens, load.max_tokens)
    for prompt in prompts:
        drawn = generator.randint(least, load.max_tokens)
        yield prompt if prompt.output_tokens else prompt.model_copy(update={"output_tokens": drawn})


def arrivals(load: Load, seed: int) -> Iterator[tuple[float, int | None, int | None]]:
    """(seconds from the start, prompt tokens, output tokens) of each request of an open loop; lengths are
    None where the load does not say. The same seed gives the same arrivals.

    Raises BenchInputError for a trace that cannot be read.
    """
    if load.rate_per_s is not None:
        generator, at_s = random.Random(seed), 0.0
        while True:
            at_s += generator.expovariate(load.rate_per_s)
            yield at_s, None, None
    if load.trace is not None:
        for at_s, prompt_tokens, output_tokens in read_arrivals(Path(load.trace)):
            yield at_s / load.trace_speed, prompt_tokens, output_tokens
