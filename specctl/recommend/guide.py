"""The decision guide in ``guide.yaml``, checked: methods, rules and their sources."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from specctl.checkpoints.draft import Kind
from specctl.errors import SpecctlError
from specctl.yaml_model import as_model
from specctl.yaml_text import read_yaml

__all__ = ["ENGINES", "Family", "Guide", "Method", "Rule", "Training", "When", "guide"]

Engine = Literal["vllm", "sglang"]
ENGINES: tuple[Engine, ...] = ("vllm", "sglang")
_MODEL = ConfigDict(extra="forbid", frozen=True)


class Source(BaseModel):
    model_config = _MODEL
    title: str
    url: str


class Family(BaseModel):
    """Methods that draft alike. ``drafts_from`` empty: no drafts. ``points``: by workload, 0 to 5, for
    ``none`` up to 9."""

    model_config = _MODEL
    drafts_from: str
    points: dict[str, Annotated[float, Field(ge=0, le=9)]]
    why: dict[str, str] = {}
    sources: tuple[str, ...] = Field(min_length=1)


class When(BaseModel):
    """All that are given must hold."""

    model_config = _MODEL
    output_tokens_below: int | None = None
    concurrency_at_least: int | None = None
    concurrency_below: int | None = None
    temperature_at_least: float | None = None
    context_at_least: int | None = None
    acceptance_below: float | None = None
    acceptance_at_least: float | None = None
    is_head: bool | None = None
    on_cpu: bool | None = None


class Rule(BaseModel):
    """``points``: added by family; ``all``: to every one but ``none``."""

    model_config = _MODEL
    when: When
    points: dict[str, float]
    why: str
    sources: tuple[str, ...] = Field(min_length=1)


class Method(BaseModel):
    """One pair of method and engine. ``config``: vLLM's speculative config; ``arguments``: SGLang's.

    ``draft``: the kind of folder that it needs; ``shape`` chain: steps and top-k are to be named.
    """

    model_config = _MODEL
    id: str
    family: str
    engine: Engine
    draft: Kind | None = None
    config: dict[str, object] = {}
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    shape: Literal["chain"] | None = None
    devices: tuple[Literal["cpu", "gpu"], ...] = ("cpu", "gpu")
    drafts_max: int | None = None
    points: float = 0.0
    needs_package: str | None = None
    cannot: tuple[str, ...] = Field(min_length=1)

    @property
    def is_none(self) -> bool:
        return self.family == "none"


class Training(BaseModel):
    """How a head is trained; ``steps`` with {model} in the place of the target."""

    model_config = _MODEL
    why: str
    sources: tuple[str, ...] = Field(min_length=1)
    steps: tuple[str, ...]


class Guide(BaseModel):
    model_config = _MODEL
    sources: dict[str, Source]
    workloads: dict[str, str]
    families: dict[str, Family]
    rules: tuple[Rule, ...]
    drafts: tuple[tuple[int, int, int], ...]
    methods: tuple[Method, ...]
    training: Training

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        cited: list[Family | Rule | Training] = [*self.families.values(), *self.rules, self.training]
        unknown = {name for one in cited for name in one.sources} - self.sources.keys()
        unknown |= {method.family for method in self.methods} - self.families.keys()
        unknown |= {name for rule in self.rules for name in rule.points} - self.families.keys() - {"all"}
        unknown |= {name for one in self.families.values() for name in one.points} - self.workloads.keys()
        if unknown:
            raise ValueError(f"names that are not there: {', '.join(sorted(unknown))}")
        return self

    def drafts_for(self, family: str, concurrency: int) -> int:
        """Tokens to draft; 0 for none."""
        if family == "none":
            return 0
        at = next((row for row in self.drafts if concurrency <= row[0]), self.drafts[-1])
        return at[1] if family in ("suffix", "ngram") else at[2]


@cache
def guide() -> Guide:
    """Raises SpecctlError for a broken installation."""
    path = Path(str(files("specctl"))) / "recommend" / "guide.yaml"
    found = as_model(read_yaml(path, SpecctlError, "the decision guide"), Guide)
    return found
