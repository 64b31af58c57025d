"""What was measured, as an engine profile."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from pydantic import ValidationError

from specctl.clock import iso_utc
from specctl.contract.capabilities import Capabilities
from specctl.errors import SpecctlError
from specctl.simulate.engine_profile import EngineProfile, Fingerprint, SchedulerLimits
from specctl.simulate.profiling.measure import Measured

if TYPE_CHECKING:
    from specctl.simulate.profiling.cost_fit import FittedCosts

__all__ = ["engine_profile", "experts_of", "fingerprint_of", "limits_of"]

_DIGITS = 4


def fingerprint_of(capabilities: Capabilities, named: Mapping[str, str]) -> Fingerprint:
    """``named``: in place of what the server says. Raises SpecctlError for what neither says."""
    parts: dict[str, str | None] = {
        "gpu": capabilities.gpu,
        "model": capabilities.model,
        "engine": f"{capabilities.engine} {capabilities.engine_version}",
        "dtype": capabilities.dtype,
        "parallelism": capabilities.parallelism,
        **named,
    }
    missing = [key for key, value in parts.items() if not value]
    if missing:
        raise SpecctlError(
            f"the server does not report its {', '.join(missing)}: "
            f"name it with --fingerprint {missing[0]}=..."
        )
    return Fingerprint.model_validate(parts)


def experts_of(capabilities: Capabilities) -> tuple[int, int] | None:
    """Experts of a layer, and how many each token goes to. None: a dense target, or not known."""
    total, each = capabilities.experts, capabilities.experts_per_token
    return (total, each) if total and each and each < total else None


def limits_of(capabilities: Capabilities, named: Mapping[str, str]) -> SchedulerLimits:
    """``named``: in place of what the server says. Raises SpecctlError for what neither says."""
    parts = {
        "max_num_seqs": capabilities.decode_batch_max,
        "max_num_batched_tokens": capabilities.max_num_batched_tokens,
        "kv_tokens": capabilities.kv_cache_tokens,
        "kv_block_tokens": capabilities.kv_block_tokens,
        "max_model_len": capabilities.context_max_tokens,
        # SGLang turns its mixed chunks off where it speculates.
        "prompts_apart": capabilities.engine == "sglang",
        **named,
    }
    missing = [key for key, value in parts.items() if value is None]
    if missing:
        raise SpecctlError(
            f"the server does not report its {', '.join(missing)}: name it with --scheduler {missing[0]}=..."
        )
    try:
        return SchedulerLimits.model_validate(parts)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise SpecctlError(f"--scheduler {first['loc'][0]}: {first['msg']}, got {first['input']}") from error


def engine_profile(
    measured: Measured,
    costs: FittedCosts,
    capabilities: Capabilities,
    fingerprint: Fingerprint,
    limits: SchedulerLimits,
    *,
    utc: datetime,
) -> EngineProfile:
    """Raises SpecctlError where the parts make no profile."""
    parts = {
        "fingerprint": fingerprint.model_dump(),
        "method": capabilities.method,
        "num_speculative_tokens_max": max(capabilities.num_speculative_tokens_legal),
        "scheduler": limits.model_dump(),
        **_costs(costs),
        "measured": {"utc": iso_utc(utc), **_measurement(measured, costs)},
    }
    try:
        return EngineProfile.model_validate(parts)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "profile"
        raise SpecctlError(f"no profile can be made of it: {where}: {first['msg']}") from error


def _costs(costs: FittedCosts) -> dict[str, object]:
    terms = {name: _short(seconds) for name, seconds in costs.terms.items()}
    draft = {
        name.removeprefix("draft."): terms.pop(name) for name in costs.terms if name.startswith("draft.")
    }
    return {
        "forward": [{"tokens": tokens, "seconds": _short(seconds)} for tokens, seconds in costs.forward],
        **terms,
        "jitter_ratio": _short(costs.jitter_ratio),
        "draft": draft,
    }


def _measurement(measured: Measured, costs: FittedCosts) -> dict[str, object]:
    decoding = [row for row in measured.rows if not row.has_prefill]
    return {
        "seconds": round(measured.seconds, 1),
        "steps": costs.steps,
        "stalled_steps": costs.stalled_steps,
        "disturbed_steps_ratio": _short(measured.disturbed_steps / max(measured.steps, 1)),
        "disturbed_s_ratio": _short(min(measured.disturbed_s / max(measured.seconds, 1e-9), 1.0)),
        "own_requests": measured.own_requests,
        "num_speculative_tokens": sorted({row.num_speculative_tokens for row in decoding}),
        "decode_batch_most": max(math.ceil(row.request_steps / row.steps) for row in decoding),
        "miss_ratio": _short(costs.miss_ratio),
        "held_out_miss_ratio": _short(costs.held_out_miss_ratio),
        "unidentified": list(costs.unidentified),
    }


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
