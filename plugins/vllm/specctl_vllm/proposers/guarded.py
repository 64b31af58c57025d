"""What of ours a step calls on Model Runner V2, under the guard (specctl.engine.guard)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from specctl.engine.guard import GUARD

__all__ = ["guarded_speculator", "note_step"]


def note_step(speculator: Any, scheduler_output: Any) -> None:
    """Before each step, for a speculator that wants to know."""
    note = getattr(speculator, "note_step", None)
    if note is None:
        return
    before = GUARD.failures.total()
    GUARD.call("note_step", None, note, scheduler_output)
    if GUARD.failures.total() > before and hasattr(speculator, "isolate"):
        speculator.isolate(new.req_id for new in scheduler_output.scheduled_new_reqs)


def guarded_speculator(speculator: Any, at_rest: Callable[..., Any] | None = None) -> Any:
    """The same speculator. A step whose ``propose`` raised, and every step at rest, gets drafts of token 0:
    they are verified as any others are. What fails while the server starts still ends it.

    at_rest: what drafts at rest instead, where other ranks wait for its passes.
    """
    propose = speculator.propose

    def guarded(input_batch: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        if kwargs.get("dummy_run") or kwargs.get("is_profile"):
            drafts: torch.Tensor = propose(input_batch, *args, **kwargs)
            return drafts
        if GUARD.is_resting and at_rest is not None:
            alone: torch.Tensor = at_rest(input_batch, *args, **kwargs)
            return alone
        if not GUARD.is_resting:
            found = GUARD.call("propose", None, propose, input_batch, *args, **kwargs)
            if found is not None:
                return found
        return _no_drafts(speculator, input_batch)

    speculator.propose = guarded
    return speculator


@torch.inference_mode()
def _no_drafts(speculator: Any, input_batch: Any) -> torch.Tensor:
    """int64[num_reqs, num_speculative_steps] of token 0, drawn from a law that has nothing else."""
    device = input_batch.idx_mapping.device
    logits = getattr(speculator, "draft_logits", None)
    if logits is not None:
        # Sampled verification reads the law that a draft was drawn from; float[slots, steps, vocabulary].
        slots = input_batch.idx_mapping[: input_batch.num_reqs].long()
        logits[slots] = float("-inf")
        logits[slots, :, 0] = 0.0
    if getattr(speculator, "enable_adaptive_verification", False):
        speculator.draft_token_confidence_probs.zero_()
    shape = input_batch.num_reqs, speculator.num_speculative_steps
    return torch.zeros(shape, dtype=torch.int64, device=device)
