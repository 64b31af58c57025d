"""Which table values a method can take on this vLLM, and why not where it cannot."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AUTOREGRESSIVE", "MethodSupport", "method_support"]

AUTOREGRESSIVE = {"draft_model", "eagle", "eagle3", "mtp"}
_ANY_LENGTH = {"ngram", "suffix", *AUTOREGRESSIVE}
_CUT_ON_THE_DEVICE = {"ngram_gpu", "dflash"}
"""They draft the full number whatever is asked for; Model Runner V2 hands on as many as the table says."""


@dataclass(frozen=True)
class MethodSupport:
    legal: tuple[int, ...]
    """Values of num_speculative_tokens, sorted; 0 is off."""
    why_not_controllable: str | None = None
    has_shadow_acceptance: bool = False
    can_weigh_tokens: bool = False
    """Drafts have calibrated chances, and each request verifies as many as it has."""


def method_support(
    asked_method: str,
    engine_method: str,
    num_speculative_tokens_max: int,
    ranks_in_step: int,
    is_on_device: bool = False,
) -> MethodSupport:
    """``engine_method`` is vLLM's own name, as its SpeculativeConfig resolved it.

    ranks_in_step: data-parallel ranks that run every step together; 1 where each runs its own.
    is_on_device: whether Model Runner V2 runs the model.
    """
    every = tuple(range(num_speculative_tokens_max + 1))
    fixed = (num_speculative_tokens_max,)
    if ranks_in_step > 1:
        why = (
            f"data parallel size {ranks_in_step} with a mixture-of-experts model: its ranks run every step "
            "together and would have to look up the same number, which this version does not do"
        )
        return MethodSupport(fixed, why)
    if asked_method.startswith("specctl_"):
        # On the device drafts are not read back, so that nothing follows them; all requests verify as many.
        is_on_host = engine_method == "custom_class"
        return MethodSupport(every, has_shadow_acceptance=is_on_host, can_weigh_tokens=is_on_host)
    steered = _ANY_LENGTH | _CUT_ON_THE_DEVICE if is_on_device else _ANY_LENGTH
    if engine_method in steered or engine_method.endswith("_mtp"):
        return MethodSupport(every)
    why = (
        f"method {engine_method} drafts a fixed number of tokens in this vLLM; "
        f"steered are specctl_suffix, {', '.join(sorted(steered))}"
    )
    return MethodSupport(fixed, why)
