"""Verification of trees of drafts that are given by their links, as SGLang's engine gives them."""

from specctl_kernels.verify_tree.launch import (
    compiled_rows,
    verify_greedy_linked_trees,
    verify_linked_trees,
)

__all__ = ["compiled_rows", "verify_greedy_linked_trees", "verify_linked_trees"]
