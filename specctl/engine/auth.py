"""Who may read and who may change: bearer tokens from a file, else loopback only."""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from specctl.errors import SpecctlError
from specctl.local_file import read_file

__all__ = ["AccessDenied", "AccessPolicy", "Scope", "load_tokens"]

_TOKEN_MIN_CHARS = 16
_FILE_MAX_BYTES = 64 * 1024
_FORWARDING = {
    "forwarded", "via", "x-real-ip", "x-client-ip", "x-cluster-client-ip", "true-client-ip",
    "cf-connecting-ip", "x-envoy-external-address", "x-original-forwarded-for",
}  # fmt: skip
_NAME_OF_HOST = re.compile(r"\[([0-9a-fA-F:.]+)\](?::[0-9]+)?|([^:\[\]]+)(?::[0-9]+)?")


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
    try:
        text = read_file(path, SpecctlError, _FILE_MAX_BYTES).decode("utf-8")
    except SpecctlError as error:
        raise ValueError(str(error)) from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 ({error.reason} at byte {error.start})") from None
    tokens: dict[str, Scope] = {}
    for number, raw in enumerate(text.splitlines(), start=1):
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

    def check(self, needed: Scope, headers: Mapping[str, str], client_host: str | None) -> None:
        """Raise AccessDenied unless the caller may act with the needed scope.

        Args:
            headers: of the request; iterating gives names in lower case.
            client_host: the socket's peer; None on a Unix socket.
        """
        if self.tokens is None:
            _check_local(headers, client_host)
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
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


def _check_local(headers: Mapping[str, str], client_host: str | None) -> None:
    """Only a process of this host that speaks for itself.

    A web page that is open on this host comes from loopback, too: it brings an Origin, or says that another
    site asks, or names the host by a domain of its own (DNS rebinding). A server that believes
    X-Forwarded-For takes the peer's address from it, so that a request with it is refused.
    """
    if "origin" in headers or headers.get("sec-fetch-site", "none") != "none":
        raise AccessDenied(403, "requests from a web page need a token file on the server")
    if any(name in _FORWARDING or name.startswith("x-forwarded-") for name in headers):
        raise AccessDenied(403, "requests through a proxy need a token file on the server")
    if client_host is None:
        return
    if not _is_loopback(client_host):
        raise AccessDenied(403, "without a token file only loopback and Unix sockets are accepted")
    if "host" in headers and not _is_local_name(headers["host"]):
        raise AccessDenied(403, "without a token file the server is asked as localhost or by its address")


def _is_local_name(host: str) -> bool:
    """An address, or localhost; other names may be anybody's."""
    match = _NAME_OF_HOST.fullmatch(host)
    if match is None:
        return False
    name = (match[1] or match[2]).lower().removesuffix(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
