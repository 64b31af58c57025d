"""specctl: speculative decoding that pays off at every load."""

__version__ = "0.1.0"
__all__ = ["__version__"]
