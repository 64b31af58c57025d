"""Who may read and who may change: bearer tokens from a file, else loopback only."""

from __future__ import annotations

import hmac
import ipaddress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from specctl.errors import SpecctlError

__all__ = ["AccessDenied", "AccessPolicy", "Scope", "load_tokens"]

_TOKEN_MIN_CHARS = 16
_FILE_MAX_BYTES = 64 * 1024


class Scope(StrEnum):
    """What a bearer token allows. ``control`` includes ``read``."""

    READ = "read"
    CONTROL = "control"


class AccessDenied(SpecctlError):
    """The caller may not do this. ``status`` is 401 (who are you?) or 403 (you may not)."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)


def load_tokens(path: Path) -> dict[str, Scope]:
    """Read ``scope:token`` lines (scope is read or control; # starts a comment).

    Raises ValueError that names file and line, never the token.
    """
    if path.stat().st_size > _FILE_MAX_BYTES:
        raise ValueError(f"{path}: expected at most {_FILE_MAX_BYTES} bytes")
    tokens: dict[str, Scope] = {}
    for number, raw in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        scope, _, token = line.partition(":")
        if scope not in {s.value for s in Scope}:
            raise ValueError(f"{path}:{number}: expected read:TOKEN or control:TOKEN")
        if len(token) < _TOKEN_MIN_CHARS:
            raise ValueError(f"{path}:{number}: expected a token of at least {_TOKEN_MIN_CHARS} characters")
        tokens[token] = Scope(scope)
    if not tokens:
        raise ValueError(f"{path}: expected at least one line read:TOKEN or control:TOKEN")
    return tokens


@dataclass(frozen=True)
class AccessPolicy:
    """``tokens`` None: no token file, so only this host's own processes are let in."""

    tokens: dict[str, Scope] | None

    def check(
        self, needed: Scope, *, authorization: str | None, client_host: str | None, has_origin: bool
    ) -> None:
        """Raise AccessDenied unless the caller may act with the needed scope.

        client_host is None on a Unix socket. has_origin tells a browser's cross-site request, which
        comes from loopback too and is therefore never trusted without a token.
        """
        if self.tokens is None:
            if has_origin:
                raise AccessDenied(403, "requests from a browser need a token file on the server")
            if client_host is not None and not _is_loopback(client_host):
                raise AccessDenied(403, "without a token file only loopback and Unix sockets are accepted")
            return
        scheme, _, given = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not given:
            raise AccessDenied(401, "a bearer token is needed")
        scope = next(
            (s for token, s in self.tokens.items() if hmac.compare_digest(token.encode(), given.encode())),
            None,
        )
        if scope is None:
            raise AccessDenied(401, "the bearer token is not known")
        if needed is Scope.CONTROL and scope is not Scope.CONTROL:
            raise AccessDenied(403, "the bearer token has the read scope, control is needed")


def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
