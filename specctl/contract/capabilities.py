"""What an engine says it can do (GET /specctl/v1/capabilities)."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Self

from pydantic import Field, model_validator

from specctl.contract.adaptivity import EngineAdaptivity
from specctl.contract.bounds import BootId, Message, Short, Size, Text, Warnings
from specctl.contract.setting import Setting

__all__ = ["SETTINGS_MAX", "Capabilities"]

SETTINGS_MAX = 1024
BUCKETS_MAX = 64


class Capabilities(Message):
    """The bounds within which tables are accepted.

    A daemon ignores keys that it does not know; a changed meaning changes ``contract_version``.
    """

    contract_version: int
    engine: Short = Field(description="vllm or sglang")
    engine_version: Short
    plugin_version: Short
    boot_id: BootId = Field(description="changes when the engine restarts")
    model: Text
    method: Short = Field(description="the method as the user named it, for example specctl_suffix or ngram")
    controllable: bool = Field(description="false: tables are refused, and why_not_controllable says why")
    why_not_controllable: Text | None = None
    num_speculative_tokens_legal: tuple[Annotated[int, Field(ge=0, le=1024)], ...] = Field(
        min_length=1,
        max_length=1025,
        fail_fast=True,
        description="sorted depths of the settings; 0 is off",
    )
    settings: tuple[Setting, ...] = Field(
        default=(),
        max_length=SETTINGS_MAX,
        fail_fast=True,
        description="every setting that a row or a sample may name, min_token_prob apart; empty: chains of "
        "num_speculative_tokens_legal",
    )
    why_chains_only: Text | None = Field(
        default=None, description="why every setting has tree_topk 1; None: there are trees"
    )
    sample_every_min_steps: int | None = Field(
        default=None, ge=2, description="rows may sample another setting this often; None: they may not"
    )
    decode_batch_max: int = Field(ge=1, le=1_000_000)
    context_max_tokens: Size
    decode_batch_buckets: tuple[Annotated[int, Field(ge=1, le=1_000_000)], ...] = Field(
        min_length=1, max_length=BUCKETS_MAX, fail_fast=True, description="upper ends, inclusive; rising"
    )
    rows_max: Size
    lease_max_s: float = Field(gt=0, allow_inf_nan=False)
    has_shadow_acceptance: bool = Field(
        description="the telemetry's shadow counters tell the acceptance of drafts that were not verified"
    )
    min_token_prob: float | None = Field(
        default=None,
        description="as configured, where drafts' chances are known and rows may name others; None: not",
    )
    class_limits_max: int = Field(
        default=0, description="rules for traffic classes that a table may hold; 0: none are understood"
    )
    adaptivity: EngineAdaptivity | None = Field(
        default=None, description="what the engine adapts by itself; None: nothing"
    )
    warnings: Warnings = ()
    patches: tuple[Text, ...] = Field(
        default=(),
        max_length=256,
        fail_fast=True,
        description="what the plugin has changed in the engine: module:attribute, one for each patch",
    )
    algorithms: tuple[Short, ...] = Field(
        default=(),
        max_length=256,
        fail_fast=True,
        description="names that the plugin has registered with an engine that knows algorithms",
    )
    method_options: dict[Short, Short] = Field(
        default_factory=dict,
        max_length=64,
        description="the engine's own options of the method, by its names; fixed when the server starts",
    )
    drafts_from_outputs: bool = Field(
        default=False, description="whether drafts also come from finished outputs of other requests"
    )
    gpu: Short | None = Field(default=None, description="product name of the device; None: not reported")
    dtype: Short | None = Field(default=None, description="of the model's activations, for example bfloat16")
    parallelism: Short | None = Field(default=None, description="for example tp1, tp2-pp2")
    max_num_batched_tokens: int | None = Field(default=None, description="most tokens of one step")
    kv_cache_tokens: int | None = Field(default=None, description="KV cache, in tokens")
    kv_block_tokens: int | None = None
    experts: int | None = Field(
        default=None, description="of a layer of a mixture-of-experts target; None: dense, or not reported"
    )
    experts_per_token: int | None = None

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        for name in ("decode_batch_buckets", "num_speculative_tokens_legal"):
            if any(after <= before for before, after in pairwise(getattr(self, name))):
                raise ValueError(f"{name}: expected rising values")
        return self
