"""What a draft head needs to come back after a time of rest."""

from specctl_kernels.head_memory.launch import HeadMemory, bits_of, remember, see

__all__ = ["HeadMemory", "bits_of", "remember", "see"]
