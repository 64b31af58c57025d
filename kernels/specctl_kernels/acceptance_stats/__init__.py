"""What verification kept, counted by class and position on the device."""

from specctl_kernels.acceptance_stats.launch import AcceptanceCounts, AcceptanceStats

__all__ = ["AcceptanceCounts", "AcceptanceStats"]
