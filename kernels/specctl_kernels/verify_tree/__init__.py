"""Verification of a tree of drafts."""

from specctl_kernels.verify_tree.launch import (
    NO_TOKEN,
    NOT_FINITE,
    RULES,
    verify_greedy_tree,
    verify_tree,
)
from specctl_kernels.verify_tree.linked import (
    compiled_rows,
    verify_greedy_linked_trees,
    verify_linked_trees,
)

__all__ = [
    "NOT_FINITE", "NO_TOKEN", "RULES", "compiled_rows", "verify_greedy_linked_trees", "verify_greedy_tree",
    "verify_linked_trees", "verify_tree",
]  # fmt: skip
