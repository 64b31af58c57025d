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
    drafts_beside_prompts: bool = False
    """One pass reads the prompts of a step and makes drafts: its seconds cannot be split."""
    has_corpus: bool = False
    """Drafts come from outputs of other requests, too."""
    head_rests: bool = False
    """At 0 drafts a head keeps what it has to read; before it drafts again it catches up."""


def method_support(
    asked_method: str,
    engine_method: str,
    num_speculative_tokens_max: int,
    ranks_in_step: int,
    is_on_device: bool = False,
    is_async: bool = False,
    has_one_pass: bool = False,
) -> MethodSupport:
    """``engine_method`` is vLLM's own name, as its SpeculativeConfig resolved it.

    ranks_in_step: data-parallel ranks that run every step together; 1 where each runs its own.
    is_on_device: whether Model Runner V2 runs the model. is_async: whether a step is scheduled before the one
    before it has ended. has_one_pass: the head makes all drafts at once, or
    no pass of it only reads what was verified.
    """
    every = tuple(range(num_speculative_tokens_max + 1))
    fixed = (num_speculative_tokens_max,)
    if ranks_in_step > 1 and is_async and not is_on_device:
        why = (
            f"data parallel size {ranks_in_step} with a mixture-of-experts model: its ranks run every step "
            "together, and agree on a number of drafts only on Model Runner V2, or without asynchronous "
            "scheduling (--no-async-scheduling)"
        )
        return MethodSupport(fixed, why)
    if asked_method.startswith("specctl_"):
        return _of_ours(every, asked_method, engine_method == "custom_class", is_on_device)
    steered = _ANY_LENGTH | _CUT_ON_THE_DEVICE if is_on_device else _ANY_LENGTH
    if engine_method in steered or engine_method.endswith("_mtp"):
        in_one_pass = {"dflash", "draft_model"} if is_on_device else {"suffix"}
        return MethodSupport(
            every,
            drafts_beside_prompts=has_one_pass or engine_method in in_one_pass,
            has_corpus=engine_method == "suffix",
            head_rests=is_on_device and ranks_in_step == 1 and engine_method in ("eagle", "eagle3"),
        )
    why = (
        f"method {engine_method} drafts a fixed number of tokens in this vLLM; "
        f"steered are specctl_suffix, {', '.join(sorted(steered))}"
    )
    return MethodSupport(fixed, why)


def _of_ours(every: tuple[int, ...], method: str, is_on_host: bool, is_on_device: bool) -> MethodSupport:
    """is_on_host: drafts are found there. On the device they are not read back, so that nothing follows them;
    all requests verify as many."""
    has_head = method != "specctl_suffix"
    return MethodSupport(
        every,
        has_shadow_acceptance=is_on_host,
        can_weigh_tokens=is_on_host,
        drafts_beside_prompts=has_head,
        has_corpus=method != "specctl_peagle",
        head_rests=has_head and is_on_device,
    )
