"""How a request of ours is recognised among SGLang's own requests for internal state."""

__all__ = ["MARK"]

MARK = "specctl:"
"""Its rid begins so; JSON follows."""
