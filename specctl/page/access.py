"""Who may read the page's figures, and who may change something by it."""

from __future__ import annotations

from pathlib import Path

from aiohttp import web
from yarl import URL

from specctl.engine.auth import AccessDenied, AccessPolicy, Scope, load_tokens
from specctl.errors import SpecctlError
from specctl.watch.views import CONTROL_HEADER

__all__ = ["PageAccess"]


class PageAccess:
    """As on the engine's own routes: bearer tokens from a file, else this host only. Changes need a token.

    There are no cookies, so that no other site can act in a reader's name.
    """

    def __init__(self, token_file: Path | None) -> None:
        """Raises SpecctlError for a bad file."""
        try:
            tokens = None if token_file is None else load_tokens(token_file)
        except ValueError as error:
            raise SpecctlError(str(error)) from error
        self._policy = AccessPolicy(tokens)
        self.can_control = tokens is not None and Scope.CONTROL in tokens.values()

    def check_read(self, request: web.Request) -> None:
        """Raises AccessDenied."""
        self._check(request, Scope.READ)

    def check_control(self, request: web.Request) -> None:
        """Raises AccessDenied."""
        if not self.can_control:
            raise AccessDenied(403, "changes need a token file with a control token (--page-token-file)")
        if request.headers.get(CONTROL_HEADER) != "1" or request.content_type != "application/json":
            raise AccessDenied(403, f"a change needs the header {CONTROL_HEADER}: 1 and a JSON body")
        self._check(request, Scope.CONTROL)

    def _check(self, request: web.Request, scope: Scope) -> None:
        headers = {name.lower(): value for name, value in request.headers.items()}
        if not _is_of_own_page(headers):
            raise AccessDenied(403, "requests from another site's page are refused")
        for name in ("origin", "sec-fetch-site"):
            headers.pop(name, None)
        self._policy.check(scope, headers, request.remote)


def _is_of_own_page(headers: dict[str, str]) -> bool:
    """A page of another site says so, or has another origin than this host."""
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return False
    origin = headers.get("origin")
    if origin is None:
        return True
    try:
        url, host = URL(origin), URL(f"{URL(origin).scheme}://{headers.get('host', '')}")
    except ValueError:
        return False
    return bool(url.host) and (url.host, url.port) == (host.host, host.port)
