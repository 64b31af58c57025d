"""Who changes a table: a name that tells two processes apart."""

from __future__ import annotations

import os
import socket

__all__ = ["owner_name"]


def owner_name(what: str) -> str:
    """Printable ASCII of at most 128 characters."""
    host = socket.gethostname().encode("ascii", "replace").decode()[:64]
    plain = what.encode("ascii", "replace").decode()
    return f"{plain}@{host}:{os.getpid()}"[:128]
