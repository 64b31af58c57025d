"""Inputs of a parallel draft pass: known tokens, mask slots and where each of them goes."""

from specctl_kernels.peagle_inputs.launch import DraftRows, peagle_inputs

__all__ = ["DraftRows", "peagle_inputs"]
