"""Verification of a tree of drafts."""

from specctl_kernels.verify_tree.launch import (
    NO_TOKEN,
    NOT_FINITE,
    RULES,
    verify_greedy_tree,
    verify_tree,
)
from specctl_kernels.verify_tree.links import parents_of_links

__all__ = ["NOT_FINITE", "NO_TOKEN", "RULES", "parents_of_links", "verify_greedy_tree", "verify_tree"]
