"""Greedy verification of a chain of drafts."""

from specctl_kernels.verify_greedy.launch import NO_TOKEN, verify_greedy

__all__ = ["NO_TOKEN", "verify_greedy"]
