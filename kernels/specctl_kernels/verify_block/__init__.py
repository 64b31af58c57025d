"""Verification of a chain of drafts as a block."""

from specctl_kernels.verify_block.launch import NO_TOKEN, verify_block

__all__ = ["NO_TOKEN", "verify_block"]
