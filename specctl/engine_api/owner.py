"""Who changes a table: a name that tells two processes apart."""

from __future__ import annotations

import os
import secrets
import socket

__all__ = ["owner_name"]


def owner_name(what: str) -> str:
    """Printable ASCII of at most 128 characters; another one at every call.

    Containers that share a host's network share its name, and each of them has a process 1.
    """
    host = socket.gethostname().encode("ascii", "replace").decode()[:64]
    plain = what.encode("ascii", "replace").decode()
    return f"{plain[:48]}@{host}:{os.getpid()}-{secrets.token_hex(3)}"
