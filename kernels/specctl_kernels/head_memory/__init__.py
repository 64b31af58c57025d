"""What a draft head needs to come back after a time of rest."""

from specctl_kernels.head_memory.launch import HeadMemory, remember, see

__all__ = ["HeadMemory", "remember", "see"]
