"""What a compiled call of the suffix index answers. 0 and above are its result."""

from __future__ import annotations

__all__ = ["DONE", "LATER", "REFUSED", "RESIZE", "TWICE"]

DONE, REFUSED, RESIZE, TWICE, LATER = -1, -2, -3, -4, -5
