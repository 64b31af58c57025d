"""vLLM's own adaptivity: how many drafts of a step are verified, by their confidence (Model Runner V2)."""

from __future__ import annotations

from typing import Any

from specctl.contract.adaptivity import AdaptivityState, EngineAdaptivity

__all__ = ["adaptivity_of", "adaptivity_state"]


def adaptivity_of(speculative_config: Any, *, is_steered: bool) -> EngineAdaptivity | None:
    """Rows bound it where the method is steered: no more is verified than a row drafts."""
    if not speculative_config.enable_adaptive_verification:
        return None
    return EngineAdaptivity(name="enable_adaptive_verification", decides="verified", is_bounded=is_steered)


def adaptivity_state(vllm_config: Any, known: EngineAdaptivity | None) -> AdaptivityState | None:
    """Drafts that were let through are counted in the cells."""
    if known is None:
        return None
    return AdaptivityState(is_on=bool(vllm_config.speculative_config.enable_adaptive_verification))
