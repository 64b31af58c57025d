from __future__ import annotations

import asyncio
import socket

import pytest

from specctl.errors import TargetsError
from specctl.targets.dns import DnsSource, Resolver, resolve


def source(resolver: Resolver, timeout_s: float = 5.0) -> DnsSource:
    return DnsSource("name", 8000, {"tier": "x"}, interval_s=5.0, resolver=resolver, timeout_s=timeout_s)


def answers(*addresses: str) -> Resolver:
    async def resolver(host: str, port: int) -> list[str]:
        return list(addresses)

    return resolver


def test_every_address_is_a_target_once() -> None:
    targets = asyncio.run(source(answers("10.0.0.2", "10.0.0.1", "fd00::1", "10.0.0.2")).read())
    assert [target.url for target in targets] == [
        "http://10.0.0.1:8000",
        "http://10.0.0.2:8000",
        "http://[fd00::1]:8000",
    ]
    assert targets[0].labels == (("tier", "x"),)


def test_a_failing_resolver_is_no_empty_list() -> None:
    async def broken(host: str, port: int) -> list[str]:
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    async def hangs(host: str, port: int) -> list[str]:
        await asyncio.sleep(60)
        return []

    for resolver, words in (
        (broken, "Temporary failure"),
        (hangs, "no answer within 0.05 s"),
        (answers(), "no address"),
        (answers("not an address"), "does not appear"),
    ):
        with pytest.raises(TargetsError, match=words):
            asyncio.run(source(resolver, timeout_s=0.05).read())


def test_the_systems_resolver() -> None:
    assert asyncio.run(resolve("127.0.0.1", 80)) == ["127.0.0.1"]
    with pytest.raises(OSError, match=r".+"):
        asyncio.run(resolve("no-such-name.invalid", 80))
