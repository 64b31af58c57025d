"""What a step costs on one machine: seconds from verified tokens, requests, context and prompts."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from specctl.errors import SimulationInputError
from specctl.simulate.step_seconds import StepCosts
from specctl.yaml_model import load_model

__all__ = [
    "EngineProfile",
    "Fingerprint",
    "Measurement",
    "SchedulerLimits",
    "load_profile",
]

STRICT = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
_Seconds = Annotated[float, Field(ge=0, le=10.0)]


class Fingerprint(BaseModel):
    """Which machine and server a profile was measured on. It holds for no other."""

    model_config = STRICT

    gpu: str = Field(min_length=1, description="product name and count, for example NVIDIA H200")
    model: str = Field(min_length=1)
    engine: str = Field(min_length=1, description="name and version")
    dtype: str = Field(min_length=1)
    parallelism: str = Field(default="tp1", description="for example tp1, tp2-pp2")


class ForwardPoint(BaseModel):
    """Seconds of one forward pass over ``tokens`` tokens, without requests' own and context costs."""

    model_config = STRICT

    tokens: int = Field(ge=1)
    seconds: float = Field(gt=0, le=60)


class DraftCost(BaseModel):
    """Seconds that drafting adds to a step."""

    model_config = STRICT

    base_s: _Seconds = Field(default=0.0, description="each step with drafts")
    request_s: _Seconds = Field(default=0.0, description="... and for each decoding request")
    pass_s: _Seconds = Field(default=0.0, description="... and for each drafted position (passes of a model)")
    pass_request_s: _Seconds = Field(default=0.0, description="each such pass, for each decoding request")
    pass_context_token_s: _Seconds = Field(
        default=0.0, description="each such pass, for each token of context of decoding requests"
    )
    at_zero_s: _Seconds = Field(default=0.0, description="each step at 0 drafts: what off costs")


class SchedulerLimits(BaseModel):
    """As configured on the server."""

    model_config = STRICT

    max_num_seqs: int = Field(ge=1, le=8192)
    max_num_batched_tokens: int = Field(ge=1, description="tokens of one step, prompts in chunks")
    kv_tokens: int = Field(ge=1, description="KV cache, in tokens")
    kv_block_tokens: int = Field(default=16, ge=1)
    prompts_apart: bool = Field(
        default=False, description="prompts run in steps of their own before any decoding, as in SGLang"
    )
    max_model_len: int = Field(ge=2)


class Measurement(BaseModel):
    """How ``specctl profile`` came by a profile. Ratios are shares, 0.05 is 5 %."""

    model_config = STRICT

    utc: str
    seconds: float = Field(ge=0)
    steps: int = Field(ge=0, description="decode-only, that the fit rests on")
    stalled_steps: int = Field(ge=0, description="left out: a stall of the machine")
    disturbed_steps_ratio: float = Field(
        ge=0, le=1, description="of all steps: others' requests under another table than the found one"
    )
    disturbed_s_ratio: float = Field(ge=0, le=1, description="as disturbed_steps_ratio, of the time")
    own_requests: int = Field(ge=0)
    num_speculative_tokens: tuple[int, ...] = Field(description="measured numbers")
    decode_batch_most: int = Field(ge=0)
    miss_ratio: float = Field(ge=0, description="root mean square of fitted against measured seconds")
    held_out_miss_ratio: float = Field(ge=0, description="of the half that a fit did not see")
    unidentified: tuple[str, ...] = Field(
        description="costs left at 0: the load did not vary enough to separate them"
    )


class EngineProfile(BaseModel):
    """Step seconds = forward(tokens) + per request + per context token + prompts' attention + drafting.

    ``forward`` is a line between its points, continued beyond the last; tokens are verified positions and
    prompt tokens together. A decode-only step is padded to the next of ``graph_requests`` while its tokens
    stay within ``graph_tokens_max``; a larger one, and one with prompts, runs without a graph and takes at
    least ``ungraphed_min_s``.
    """

    model_config = STRICT

    fingerprint: Fingerprint
    method: str = Field(min_length=1, description="of drafting, for example specctl_suffix")
    num_speculative_tokens_max: int = Field(ge=1, le=64)
    scheduler: SchedulerLimits
    forward: tuple[ForwardPoint, ...] = Field(min_length=2, max_length=256)
    request_s: _Seconds = Field(default=0.0, description="for each decoding request")
    context_token_s: _Seconds = Field(
        default=0.0, description="for each token of context of decoding requests"
    )
    prefill_token_s: _Seconds = Field(default=0.0, description="for each prompt token, beside forward")
    prefill_step_s: _Seconds = Field(
        default=0.0, description="for each step with prompts: such steps run without the graphs of the others"
    )
    prefill_pair_s: _Seconds = Field(
        default=0.0, description="for each pair of a prompt token and one before it (attention of prompts)"
    )
    graph_requests: tuple[Annotated[int, Field(ge=1)], ...] = Field(default=(), description="rising")
    graph_tokens_max: int = Field(default=0, ge=0)
    ungraphed_min_s: _Seconds = 0.0
    jitter_ratio: float = Field(
        default=0.0, ge=0, le=0.3, description="standard deviation of a step's seconds, as a share; seeded"
    )
    draft: DraftCost = DraftCost()
    measured: Measurement | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        for low, high in pairwise(self.forward):
            if high.tokens <= low.tokens or high.seconds < low.seconds:
                raise ValueError(
                    f"forward: expected rising tokens and seconds that never fall, got {low.tokens}:"
                    f"{low.seconds} then {high.tokens}:{high.seconds}"
                )
        if any(high <= low for low, high in pairwise(self.graph_requests)):
            raise ValueError(f"graph_requests: expected rising values, got {list(self.graph_requests)}")
        limits = self.scheduler
        widest = limits.max_num_seqs * (1 + self.num_speculative_tokens_max)
        if limits.max_num_batched_tokens < widest:
            raise ValueError(
                f"scheduler.max_num_batched_tokens: expected at least max_num_seqs x (1 + "
                f"num_speculative_tokens_max) = {widest}, got {limits.max_num_batched_tokens}"
            )
        return self

    def step_costs(self) -> StepCosts:
        """For ``step_seconds``."""
        return StepCosts(
            tokens=tuple(float(point.tokens) for point in self.forward),
            seconds=tuple(point.seconds for point in self.forward),
            graph_requests=self.graph_requests,
            graph_tokens_max=self.graph_tokens_max,
            ungraphed_min_s=self.ungraphed_min_s,
            request_s=self.request_s,
            context_token_s=self.context_token_s,
            prefill_token_s=self.prefill_token_s,
            prefill_step_s=self.prefill_step_s,
            prefill_pair_s=self.prefill_pair_s,
            draft_base_s=self.draft.base_s,
            draft_request_s=self.draft.request_s,
            draft_pass_s=self.draft.pass_s,
            draft_pass_request_s=self.draft.pass_request_s,
            draft_pass_context_token_s=self.draft.pass_context_token_s,
            draft_at_zero_s=self.draft.at_zero_s,
        )

    def refuse_unless(self, wanted: Mapping[str, str]) -> None:
        """Raises SimulationInputError that names both where wanted parts of the fingerprint are others."""
        own = self.fingerprint.model_dump()
        for key in wanted:
            if key not in own:
                raise SimulationInputError(f"fingerprint: expected one of {', '.join(own)}, got {key}")
        differing = [f"{key}: expected {v}, got {own[key]}" for key, v in wanted.items() if own[key] != v]
        if differing:
            raise SimulationInputError(f"the profile is of another machine: {'; '.join(differing)}")


def load_profile(path: Path) -> EngineProfile:
    """Raises SimulationInputError."""
    return load_model(path, EngineProfile)
