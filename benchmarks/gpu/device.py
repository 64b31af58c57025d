"""Which GPU a figure comes from."""

from __future__ import annotations

from typing import Any

from testing.provenance import provenance

__all__ = ["device_provenance"]


def device_provenance() -> dict[str, Any]:
    """Asks for the GPU when it is called, not when it is imported: a process that starts an engine must not
    have done so before."""
    import torch
    import triton

    if not torch.cuda.is_available():
        return provenance()
    return provenance() | {"device": torch.cuda.get_device_name(), "triton": triton.__version__}
