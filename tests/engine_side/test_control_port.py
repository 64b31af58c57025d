"""The routes on an address of their own: TCP, Unix socket, access, an address in use."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import stat
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from specctl.engine.control_port import ControlPort
from specctl.engine.options import check_address
from specctl.http_client import HttpClient, Response

ANSWER = {"contract_version": 2, "version": 3}


class Engine:
    """specctl.engine.rank_calls.Ranks with one rank that answers the same to everything."""

    log = logging.getLogger("engine")

    def numbers(self) -> list[int]:
        return [0]

    def front_end_waiting_pieces(self) -> int | None:
        return None

    async def call(self, rank: int, operation: str, payload: str) -> str:
        return json.dumps({"status": 200, "body": {**ANSWER, "operation": operation}})


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def asked(
    address: str,
    ask: Callable[[ControlPort], Coroutine[None, None, Response]],
    token_file: Path | None = None,
) -> Response:
    async def course() -> Response:
        port = ControlPort(address, token_file)
        await port.start(Engine())
        try:
            return await ask(port)
        finally:
            await port.stop()

    return asyncio.run(course())


async def get(target: str, token: str | None = None) -> Response:
    async with HttpClient(target, token=token) as client:
        return await client.get("/specctl/v1/table")


def test_answers_over_tcp_and_forgets_the_port_afterwards() -> None:
    address = free_address()
    for _ in range(2):
        answer = asked(address, lambda port: get(f"http://{port.address}"))
        assert (answer.status, answer.fields()["operation"]) == (200, "table")


def test_a_unix_socket_is_its_users_own(tmp_path: Path) -> None:
    async def ask(port: ControlPort) -> Response:
        path = Path(port.address.removeprefix("unix:"))
        assert path.name == f"control-{os.getpid()}.sock"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        return await get(f"unix://{path}")

    assert asked(f"unix:{tmp_path}/control-{{pid}}.sock", ask).status == 200
    assert list(tmp_path.iterdir()) == []


def test_tokens_are_asked_for(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("read:0123456789abcdef\n")
    address = free_address()
    assert asked(address, lambda port: get(f"http://{port.address}"), tokens).status == 401
    assert (
        asked(address, lambda port: get(f"http://{port.address}", "0123456789abcdef"), tokens).status == 200
    )


def test_an_address_in_use_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(OSError, match="in use"):
            asked(address, lambda port: get(f"http://{port.address}"))


def test_a_socket_that_a_dead_process_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert asked(f"unix:{path}", lambda port: get(f"unix://{path}")).status == 200


def test_a_file_that_is_no_socket_stays(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    path.write_text("mine")
    with pytest.raises(OSError, match="in use"):
        asked(f"unix:{path}", lambda port: get(f"unix://{path}"))
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    "address",
    ["", "8765", "host:0", "host:65536", "unix:relative", f"unix:/{'x' * 200}", "http://h:1", "a:b:1"],
)
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        check_address(address)
