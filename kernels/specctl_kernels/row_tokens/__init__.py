"""One token of each row, the largest or a sample of what its cuts keep, in one read."""

from specctl_kernels.row_tokens.launch import row_tokens, verify_chain

__all__ = ["row_tokens", "verify_chain"]
