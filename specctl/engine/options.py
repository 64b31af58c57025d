"""Options that every plugin takes, by whatever way its engine hands them over."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from specctl.draft.options import SuffixIndexOptions

__all__ = ["ControlOptions", "SuffixOptions", "check_address"]

_INDEX = SuffixIndexOptions()
_FROZEN = ConfigDict(extra="forbid", frozen=True)
_TCP = re.compile(r"(\[[0-9a-fA-F:]+\]|[^:\[\]/]+):([0-9]{1,5})")
_SOCKET_PATH_MAX_BYTES = 107


def check_address(text: str) -> str:
    """``HOST:PORT``, or ``unix:PATH`` with an absolute path, in which ``{pid}`` is the process.

    Raises ValueError.
    """
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        if not path.startswith("/") or len(path.encode()) > _SOCKET_PATH_MAX_BYTES:
            raise ValueError(f"expected an absolute path of at most {_SOCKET_PATH_MAX_BYTES} bytes")
        return text
    match = _TCP.fullmatch(text)
    if match is None or not 1 <= int(match[2]) <= 65535:
        raise ValueError("expected HOST:PORT or unix:PATH")
    return text


class ControlOptions(BaseModel):
    """Of the routes under /specctl/v1/."""

    model_config = _FROZEN

    token_file: Path | None = Field(
        default=None, description="lines read:TOKEN or control:TOKEN; without it only loopback is let in"
    )
    control_address: Annotated[str, AfterValidator(check_address)] | None = Field(
        default=None,
        description="HOST:PORT or unix:PATH ({pid}: the process): the routes there, for programs that embed "
        "the engine without its API server",
    )
    lease_max_s: float = Field(default=3600.0, gt=0, le=7 * 86400.0, description="longest lease, in seconds")
    untested_engine: Literal["allow"] | None = Field(
        default=None, description="allow: also with a release of the engine that was not tested"
    )
    verify_shadow_ratio: float = Field(
        default=0.0,
        ge=0.0,
        le=1.0,
        description="share of finished greedy requests that are decoded again without drafts while the "
        "server is idle, and compared",
    )


class SuffixOptions(BaseModel):
    """Own options of method specctl_suffix; the index explains them (specctl.draft.options)."""

    model_config = _FROZEN

    max_match_tokens: int = Field(
        default=_INDEX.max_match_tokens, ge=1, le=256, description="longest context compared"
    )
    min_match_tokens: int = Field(
        default=_INDEX.min_match_tokens, ge=1, le=64, description="shortest match that drafts"
    )
    max_spec_factor: float = Field(
        default=_INDEX.max_spec_factor, ge=0, le=64, description="drafted tokens for each token of the match"
    )
    max_spec_offset: float = Field(
        default=_INDEX.max_spec_offset, ge=-64, le=64, description="drafted tokens beside those"
    )
    min_token_prob: float = Field(
        default=_INDEX.min_token_prob,
        ge=0,
        le=1,
        description="a draft ends where the probability that all of it is accepted falls below",
    )
    index_bytes: int = Field(
        default=_INDEX.index_bytes, ge=2**16, le=2**40, description="bound of the global index, in bytes"
    )
    use_global: bool = Field(
        default=_INDEX.use_global, description="also draft from other requests' finished outputs"
    )
    max_namespaces: int = Field(
        default=_INDEX.max_namespaces,
        ge=1,
        le=4096,
        description="adapters and cache salts with outputs of their own; equal parts of index_bytes",
    )
    threads: int = Field(
        default=_INDEX.threads, ge=1, le=64, description="threads that work on a large batch"
    )
    device_bytes: int = Field(
        default=512 * 2**20,
        ge=2**16,
        le=2**37,
        description="on a GPU: device memory for finished outputs, two halves of which one is read",
    )
    corpus_file: Path | None = Field(
        default=None,
        description="keeps the shared outputs over restarts; engine processes on a host may share it",
    )
    corpus_save_every_s: float = Field(
        default=300.0, ge=10, le=86_400, description="seconds between two savings of corpus_file"
    )

    def index_options(self) -> SuffixIndexOptions:
        own = {"corpus_file", "corpus_save_every_s", "device_bytes"}
        return SuffixIndexOptions(**self.model_dump(exclude=own))
