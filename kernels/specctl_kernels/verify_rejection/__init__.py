"""Verification of a chain of drafts by rejection sampling."""

from specctl_kernels.verify_rejection.launch import NO_TOKEN, verify_rejection

__all__ = ["NO_TOKEN", "verify_rejection"]
