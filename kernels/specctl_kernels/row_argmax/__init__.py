"""The first largest entry of each row, in one read."""

from specctl_kernels.row_argmax.launch import Partials, row_argmax, row_partials

__all__ = ["Partials", "row_argmax", "row_partials"]
