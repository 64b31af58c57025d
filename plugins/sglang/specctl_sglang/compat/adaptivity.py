"""SGLang's own adaptivity: the number of steps of EAGLE, and how many tokens DSPARK verifies."""

from __future__ import annotations

from typing import Any

from sglang.srt.speculative.ragged_verify import RaggedVerifyMode, read_ragged_verify_mode

from specctl.contract.adaptivity import AdaptivityState, EngineAdaptivity

__all__ = ["adaptivity_of", "adaptivity_state"]

_STEPS = "speculative_adaptive"


def adaptivity_of(spec: Any, algorithm: str, *, is_steered: bool) -> EngineAdaptivity | None:
    """The table takes the place of ``--speculative-adaptive`` where the worker is steered.

    spec: SGLang's resolved arguments of speculation.
    """
    if spec.speculative_adaptive:
        return EngineAdaptivity(name=_STEPS, decides="drafted", is_bounded=False, is_replaced=is_steered)
    if algorithm == "DSPARK":
        return EngineAdaptivity(name="DSPARK", decides="verified", is_bounded=False)
    return None


def adaptivity_state(worker: Any, known: EngineAdaptivity | None) -> AdaptivityState | None:
    """``worker``: what drafts, SGLang's or ours."""
    if known is None:
        return None
    if known.name == _STEPS:
        is_on = worker.adaptive_controller is not None
        return AdaptivityState(is_on=is_on, num_speculative_tokens=worker.speculative_num_steps)
    return AdaptivityState(is_on=read_ragged_verify_mode() is not RaggedVerifyMode.STATIC)
