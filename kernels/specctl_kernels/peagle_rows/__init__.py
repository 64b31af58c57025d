"""Rows of a parallel draft pass of one shape for every request and step."""

from specctl_kernels.peagle_rows.launch import PassBuffers, PassRows, peagle_rows

__all__ = ["PassBuffers", "PassRows", "peagle_rows"]
