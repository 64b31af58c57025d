"""A name that resolves to several addresses, each of them a server."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Mapping

from specctl.errors import TargetError, TargetsError
from specctl.local_file import in_thread
from specctl.targets.base import Target, TargetSource, make_target

__all__ = ["DnsSource", "resolve"]

RESOLVE_TIMEOUT_S = 5.0
ADDRESSES_MAX = 4096

Resolver = Callable[[str, int], Awaitable[list[str]]]


async def resolve(host: str, port: int) -> list[str]:
    """Every address of ``host``, by the system's resolver. Raises OSError."""

    def ask() -> list[str]:
        return [str(address[0]) for *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]

    return await in_thread(ask, f"resolve {host}")


class DnsSource(TargetSource):
    """``http://ADDRESS:port`` for every address of a name, with the same labels each."""

    def __init__(
        self,
        host: str,
        port: int,
        labels: Mapping[str, str],
        *,
        interval_s: float,
        resolver: Resolver = resolve,
        timeout_s: float = RESOLVE_TIMEOUT_S,
    ) -> None:
        self.name = f"dns {host}:{port} {sorted(labels.items())} {interval_s:g}"
        self.interval_s = interval_s
        self._host, self._port = host, port
        self._labels = dict(labels)
        self._resolver = resolver
        self._timeout_s = timeout_s

    async def read(self) -> tuple[Target, ...]:
        """A name without an address is a failure: resolvers answer so, too, while they are broken."""
        where = f"dns {self._host}:{self._port}"
        try:
            async with asyncio.timeout(self._timeout_s):
                addresses = await self._resolver(self._host, self._port)
        except TimeoutError as error:
            raise TargetsError(f"{where}: no answer within {self._timeout_s:g} s") from error
        except (OSError, UnicodeError) as error:
            words = getattr(error, "strerror", None) or str(error)
            raise TargetsError(f"{where}: cannot be resolved ({words})") from error
        if not addresses:
            raise TargetsError(f"{where}: has no address")
        try:
            urls = sorted({self._url(address) for address in addresses})[:ADDRESSES_MAX]
            return tuple(make_target(url, self._labels) for url in urls)
        except (ValueError, TargetError) as error:
            raise TargetsError(f"{where}: {error}") from error

    def _url(self, address: str) -> str:
        is_v6 = ipaddress.ip_address(address.partition("%")[0]).version == 6
        return f"http://[{address}]:{self._port}" if is_v6 else f"http://{address}:{self._port}"
