"""Our verify kernels in the place of vLLM's on Model Runner V2.

Patched is RejectionSampler._verify. Reason: it has no hook for a verifier of one's own, and four kernels read
and write what a greedy batch does not need. Whatever ours do not cover stays with vLLM, batch by batch:
temperature, logits processors (penalties, bias, bad words), grammars are applied to the logits before.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from specctl_kernels.verify_greedy import verify_greedy

__all__ = ["install", "is_greedy"]


def install() -> None:
    """Wrap the sampler of steps with drafts, in a process that runs the model."""
    from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

    RejectionSampler._verify = _ours_where_greedy(RejectionSampler._verify)


def is_greedy(sampler: Any, requests: np.ndarray) -> bool:
    """Whether all ``requests`` (int[n], slots) take the largest of the logits as they are."""
    if sampler.needs_logits_processing[requests].any():
        return False
    return bool((sampler.sampling_states.temperature.np[requests] == 0.0).all())


def _ours_where_greedy(original: Any) -> Any:
    @functools.wraps(original)
    def _verify(
        self: Any,
        logits: Any,
        draft_logits: Any,
        draft_sampled: Any,
        pos: Any,
        cu_num_logits: Any,
        idx_mapping: Any,
        idx_mapping_np: np.ndarray,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        is_plain = self.synthetic_conditional_rates is None and self.watermark_key is None
        if not is_plain or not is_greedy(self.sampler, idx_mapping_np):
            return original(
                self, logits, draft_logits, draft_sampled, pos, cu_num_logits, idx_mapping, idx_mapping_np,
                *args, **kwargs,
            )  # fmt: skip
        verified = kwargs["verify_draft_sampled"] if "verify_draft_sampled" in kwargs else args[-1]
        width = self.num_speculative_steps + 1
        return logits, *verify_greedy(logits, verified, cu_num_logits, width=width)

    return _verify
