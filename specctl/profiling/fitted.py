"""What was measured, as an engine profile."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime

from pydantic import ValidationError

from specctl.clock import iso_utc
from specctl.contract.capabilities import Capabilities
from specctl.engine_profile import EngineProfile, Fingerprint, SchedulerLimits, told_fingerprint
from specctl.errors import SpecctlError
from specctl.estimate.cost_fit import FittedCosts
from specctl.profiling.measure import Measured

__all__ = ["engine_profile", "fingerprint_of", "limits_of"]

_DIGITS = 4


def fingerprint_of(capabilities: Capabilities, named: Mapping[str, str]) -> Fingerprint:
    """``named``: in place of what the server tells. Raises SpecctlError for what neither tells."""
    told = {**told_fingerprint(capabilities), **named}
    missing = [key for key, value in told.items() if not value]
    if missing:
        raise SpecctlError(
            f"the server does not tell its {', '.join(missing)}: name it with --fingerprint {missing[0]}=..."
        )
    return Fingerprint.model_validate(told)


def limits_of(capabilities: Capabilities, named: Mapping[str, str]) -> SchedulerLimits:
    """``named``: in place of what the server tells. Raises SpecctlError for what neither tells."""
    told = {
        "max_num_seqs": capabilities.decode_batch_max,
        "max_num_batched_tokens": capabilities.max_num_batched_tokens,
        "kv_tokens": capabilities.kv_cache_tokens,
        "kv_block_tokens": capabilities.kv_block_tokens,
        "max_model_len": capabilities.context_max_tokens,
        **named,
    }
    missing = [key for key, value in told.items() if value is None]
    if missing:
        raise SpecctlError(
            f"the server does not tell its {', '.join(missing)}: name it with --scheduler {missing[0]}=..."
        )
    try:
        return SchedulerLimits.model_validate(told)
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
    told = {
        "fingerprint": fingerprint.model_dump(),
        "method": capabilities.method,
        "num_speculative_tokens_max": max(capabilities.num_speculative_tokens_legal),
        "scheduler": limits.model_dump(),
        **_costs(costs),
        "measured": {"utc": iso_utc(utc), **_measurement(measured, costs)},
    }
    try:
        return EngineProfile.model_validate(told)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "profile"
        raise SpecctlError(f"no profile can be made of it: {where}: {first['msg']}") from error


def _costs(costs: FittedCosts) -> dict[str, object]:
    return {
        "forward": [{"tokens": tokens, "seconds": _short(seconds)} for tokens, seconds in costs.forward],
        "request_s": _short(costs.request_s),
        "context_token_s": _short(costs.context_token_s),
        "prefill_token_s": _short(costs.prefill_token_s),
        "prefill_step_s": _short(costs.prefill_step_s),
        "jitter_ratio": _short(costs.jitter_ratio),
        "draft": {
            "base_s": _short(costs.draft_base_s),
            "request_s": _short(costs.draft_request_s),
            "pass_s": _short(costs.draft_pass_s),
            "at_zero_s": _short(costs.draft_at_zero_s),
        },
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
        "not_told": list(costs.not_told),
    }


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
