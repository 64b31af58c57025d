"""Options inside ``--speculative-config``: the proposers' own and the ``specctl`` control block."""

from __future__ import annotations

import difflib
import os
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator

from specctl.engine import options as shared_options
from specctl.engine.options import SuffixOptions
from specctl_vllm.methods import AUTOREGRESSIVE

__all__ = [
    "HEAD_METHODS",
    "OPTIONS_ENV",
    "SPECCTL_METHODS",
    "ControlOptions",
    "HeadOptions",
    "HybridOptions",
    "Options",
    "StartTable",
    "SuffixOptions",
    "head_options_from_env",
    "options_from_env",
    "parse_speculative_config",
    "suffix_options_from_env",
]

OPTIONS_ENV = "SPECCTL_VLLM_OPTIONS"
"""Carries the parsed options from the process that reads the command line to the engine's processes."""

M = TypeVar("M", bound=BaseModel)
_FROZEN = ConfigDict(extra="forbid", frozen=True)


class HeadOptions(BaseModel):
    """Own options of the methods with a draft head."""

    model_config = _FROZEN

    resume_tokens: int = Field(
        default=32,
        ge=1,
        le=1024,
        description="on a GPU: positions of each request that the head catches up on after a rest at 0 "
        "drafts, a power of two; device memory for max_num_seqs times as many target states",
    )

    @field_validator("resume_tokens")
    @classmethod
    def _power_of_two(cls, value: int) -> int:
        if value & (value - 1):
            raise ValueError("should be a power of two")
        return value


class HybridOptions(BaseModel):
    """Own options of specctl_hybrid."""

    model_config = _FROZEN

    head: Literal["draft_model", "eagle", "eagle3", "mtp", "peagle"] = Field(
        default="peagle", description="what drafts beside the suffix index"
    )


class ControlOptions(shared_options.ControlOptions):
    """The block ``specctl`` of any method: asks for the routes under /specctl/v1/."""

    graph_tokens_max: int | None = Field(
        default=None,
        ge=512,
        le=8192,
        description="on a GPU: largest batch with a full CUDA graph, in tokens: requests x (drafts + 1); "
        "larger ones run piecewise or without a graph, as in stock vLLM, and steps with a prompt piecewise "
        "up to it, 1024 at most; without it as many as half of the memory that gpu_memory_utilization leaves "
        "free holds, at most 2304",
    )
    verify: Literal["engine", "specctl"] | None = Field(
        default=None,
        description="on a GPU: whose kernels verify drafts; without it ours those of our own methods, vLLM's "
        "under rejection_sample_method block",
    )


_Bound = Annotated[int, Field(ge=1)]
_Ranges = tuple[tuple[_Bound, _Bound, Annotated[int, Field(ge=0)]], ...]


def _sorted_ranges(ranges: _Ranges) -> _Ranges:
    """By vLLM's own rules (v1/spec_decode/dynamic/utils): holes between ranges are allowed."""
    ordered = tuple(sorted(ranges))
    if ordered and ordered[0][0] != 1:
        raise ValueError("the first range must start at 1")
    for first, last, _ in ordered:
        if first > last:
            raise ValueError(f"a range must not end before it starts: {first} to {last}")
    for (_, last, _), (first, _, _) in pairwise(ordered):
        if first <= last:
            raise ValueError(f"ranges must not overlap: {first} is in two")
    return ordered


StartTable = Annotated[_Ranges, AfterValidator(_sorted_ranges)]
"""[from, to, num_speculative_tokens] for each range of batch sizes, sorted."""


class _EngineTable(BaseModel):
    """vLLM's own option, by its name there."""

    num_speculative_tokens_per_batch_size: StartTable | None = None


class Options(BaseModel):
    model_config = _FROZEN

    method: str
    suffix: SuffixOptions | None = None
    head: HeadOptions | None = None
    control: ControlOptions = ControlOptions()
    start_table: StartTable | None = Field(
        default=None, description="the user's own num_speculative_tokens_per_batch_size"
    )
    """Carried beside vLLM's config, where some versions drop it: 0.33.0 does for custom_class on V1."""

    def verifies_itself(self) -> bool:
        chosen = self.control.verify or ("specctl" if self.method in SPECCTL_METHODS else "engine")
        return chosen == "specctl"

    def verifies_blocks(self) -> bool:
        """Where vLLM verifies blocks, ours do so only if they are asked for."""
        return self.control.verify == "specctl"


_NOT_LOSSLESS = {"fly", "synthetic"}
_ENGINE_KEYS = {
    "method",
    "num_speculative_tokens",
    "num_speculative_tokens_per_batch_size",
    "enforce_eager",
    "max_model_len",
    "rejection_sample_method",
}
_HEAD_KEYS = {
    "model",
    "attention_backend",
    "code_revision",
    "draft_load_config",
    "draft_sample_method",
    "draft_tensor_parallel_size",
    "kv_cache_dtype",
    "quantization",
    "revision",
}
_OWN_HEAD_KEYS = _ENGINE_KEYS | _HEAD_KEYS | set(HeadOptions.model_fields)
SPECCTL_METHODS: dict[str, set[str]] = {
    "specctl_hybrid": (_OWN_HEAD_KEYS | {"head"}) - {"draft_sample_method"} | set(SuffixOptions.model_fields),
    "specctl_peagle": _OWN_HEAD_KEYS,
    "specctl_suffix": _ENGINE_KEYS | {"enable_adaptive_verification"} | set(SuffixOptions.model_fields),
}
"""The methods that specctl brings, and the options of each."""
HEAD_METHODS = {"specctl_hybrid", "specctl_peagle"}
_WITH_SUFFIX = {"specctl_hybrid", "specctl_suffix"}
_DRAFTS_DEFAULT = {"specctl_hybrid": 5, "specctl_peagle": 5, "specctl_suffix": 8}


def parse_speculative_config(
    asked: dict[str, Any], on_device: bool = False
) -> tuple[dict[str, Any], Options] | None:
    """What vLLM is to be given, and our options; None where the user asked nothing of specctl.

    on_device: vLLM runs Model Runner V2, where drafts are found on the GPU.

    Asking is: a method of ours, a block ``specctl``, or naming the plugin in VLLM_PLUGINS.
    Raises ValueError that names key, value and what is allowed.
    """
    config = {key.replace("-", "_"): value for key, value in asked.items()}
    method = config.get("method")
    is_ours = isinstance(method, str) and method.startswith("specctl_")
    is_named = "specctl" in os.environ.get("VLLM_PLUGINS", "").split(",")
    if not (is_ours or "specctl" in config or is_named):
        return None
    control = _validated(ControlOptions, config.pop("specctl", None) or {}, "specctl.")
    if config.get("rejection_sample_method") in _NOT_LOSSLESS:
        if control.verify == "specctl":
            raise ValueError(
                f"speculative-config: rejection_sample_method {config['rejection_sample_method']!r} changes "
                "the output, and the kernels of verify: specctl do not; expected standard or block"
            )
        control = control.model_copy(update={"verify": "engine"})
    if not is_ours:
        table = _start_table(config)
        if on_device and method in AUTOREGRESSIVE:
            _ask_for_graphs(config)
        name = str(method or config.get("model") or "draft_model")
        return config, Options(method=name, control=control, start_table=table)
    assert isinstance(method, str)
    return _of_ours(method, config, control, on_device)


def _of_ours(
    method: str, config: dict[str, Any], control: ControlOptions, on_device: bool
) -> tuple[dict[str, Any], Options]:
    _check_keys(method, config)
    if config.get("enable_adaptive_verification") and not on_device:
        raise ValueError(
            "speculative-config: enable_adaptive_verification expects a GPU and Model Runner V2; here every "
            "draft is verified"
        )
    config.setdefault("num_speculative_tokens", _DRAFTS_DEFAULT[method])
    _check_num_speculative_tokens(config["num_speculative_tokens"])
    table = _start_table(config)
    beside = _take(HybridOptions, config).head
    suffix = _take(SuffixOptions, config) if method in _WITH_SUFFIX else None
    head = _take(HeadOptions, config) if method in HEAD_METHODS else None
    if method == "specctl_suffix" and not on_device:
        config |= {"method": "custom_class", "model": "specctl_vllm.proposers.suffix.SuffixProposer"}
    elif method == "specctl_suffix":
        # vLLM's own n-gram method on the device: its speculator is replaced (compat.model_runner_v2).
        config["method"] = "ngram_gpu"
    elif beside == "peagle":
        config |= {"method": "eagle3", "parallel_drafting": True}
    else:
        config["method"] = beside
    if on_device:
        _ask_for_graphs(config)
    return config, Options(method=method, suffix=suffix, head=head, control=control, start_table=table)


def _check_keys(method: str, config: dict[str, Any]) -> None:
    if method not in SPECCTL_METHODS:
        known = ", ".join(sorted(SPECCTL_METHODS))
        raise ValueError(f"speculative-config: method {method!r} is not known; specctl brings {known}")
    for key in config.keys() - SPECCTL_METHODS[method]:
        allowed = sorted(SPECCTL_METHODS[method] | {"specctl"})
        nearest = difflib.get_close_matches(key, allowed, n=1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else f"; allowed: {', '.join(allowed)}"
        raise ValueError(f"speculative-config: {method} has no option {key!r}{hint}")
    needs_model = method in HEAD_METHODS and config.get("head") != "mtp"
    if needs_model and not isinstance(config.get("model"), str):
        raise ValueError(
            f"speculative-config: {method} expects model, the folder or name of its draft head, "
            f"got {config.get('model')!r}"
        )


def _start_table(config: dict[str, Any]) -> StartTable | None:
    """vLLM keeps the option; an empty one is none to it."""
    given = config.get("num_speculative_tokens_per_batch_size")
    table = _validated(_EngineTable, {"num_speculative_tokens_per_batch_size": given}, "")
    return table.num_speculative_tokens_per_batch_size or None


def _take(model: type[M], config: dict[str, Any]) -> M:
    own = {key: config.pop(key) for key in list(config) if key in model.model_fields}
    return _validated(model, own, "")


def head_options_from_env() -> HeadOptions:
    """Those of the draft head in this engine process; the defaults where it was started without."""
    options = options_from_env()
    return options.head if options is not None and options.head is not None else HeadOptions()


def suffix_options_from_env() -> SuffixOptions:
    """Those of specctl_suffix in this engine process; the defaults where it was started without."""
    options = options_from_env()
    return options.suffix if options is not None and options.suffix is not None else SuffixOptions()


def _ask_for_graphs(config: dict[str, Any]) -> None:
    """vLLM captures graphs for fewer drafts only where a batch table stands in the config; which numbers, it
    gets from compat.model_runner_v2."""
    full = config.get("num_speculative_tokens")
    if isinstance(full, int) and full > 0:
        config["num_speculative_tokens_per_batch_size"] = config.get(
            "num_speculative_tokens_per_batch_size"
        ) or [[1, 1, full]]


def options_from_env() -> Options | None:
    """The options that this engine process was started with, None where specctl is not asked for."""
    text = os.environ.get(OPTIONS_ENV)
    return Options.model_validate_json(text) if text else None


def _check_num_speculative_tokens(value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 64:
        raise ValueError(
            f"speculative-config: num_speculative_tokens: expected an integer from 1 to 64, got {value!r}"
        )


def _validated(model: type[M], values: object, prefix: str) -> M:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = prefix + ".".join(map(str, first["loc"]))
        raise ValueError(f"speculative-config: {key}: {first['msg']}, got {first['input']!r}") from None
