from __future__ import annotations

import asyncio
import gzip
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from specctl.errors import TargetError
from specctl.http_client import HttpClient, Response, normalise_target, shown_target

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Server:
    """Answers each connection's requests from its list, then closes it. ``pause_s``: between bytes."""

    def __init__(self, *connections: Sequence[bytes], pause_s: float | None = None) -> None:
        self.connections = list(connections)
        self.pause_s = pause_s
        self.requests: list[bytes] = []
        self.opened = 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers = self.connections[self.opened]
        self.opened += 1
        for answer in answers:
            head = await reader.readuntil(b"\r\n\r\n")
            length = head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]
            self.requests.append(head + await reader.readexactly(int(length or 0)))
            for part in [answer] if self.pause_s is None else [bytes([byte]) for byte in answer]:
                writer.write(part)
                if self.pause_s is not None:
                    await writer.drain()
                    await asyncio.sleep(self.pause_s)
        writer.close()

    def run(
        self, course: Callable[[HttpClient], Awaitable[object]], path: str = "", token: str | None = None
    ) -> None:
        async def whole() -> None:
            server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            url = f"http://127.0.0.1:{port}{path}"
            async with server, HttpClient(url, token=token, timeout_s=5.0, body_max_bytes=100) as client:
                await course(client)

        asyncio.run(whole())


def answer_to(*answers: bytes, pause_s: float | None = None) -> Response:
    got: list[Response] = []

    async def course(client: HttpClient) -> None:
        got.append(await client.get("/a?b=%20"))

    Server(answers, pause_s=pause_s).run(course)
    return got[0]


def test_a_request_and_its_headers() -> None:
    server = Server([OK, OK])

    async def course(client: HttpClient) -> None:
        await client.get("/a")
        await client.put("/b", b'{"c": 1}')

    server.run(course, path="/prefix/", token="secret")
    (get, no_body), (put, body) = (request.split(b"\r\n\r\n") for request in server.requests)
    assert get.startswith(b"GET /prefix/a HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nAuthorization: Bearer secret" in get
    assert put.startswith(b"PUT /prefix/b HTTP/1.1\r\n")
    assert b"\r\nContent-Type: application/json" in put
    assert (no_body, body) == (b"", b'{"c": 1}')
    assert server.opened == 1


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        (OK, 200, b"hi"),
        (b"HTTP/1.1 503 Service Unavailable\r\ncontent-length:0\r\n\r\n", 503, b""),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, 200, b"hi"),
        (b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nhi", 200, b"hi"),
        (b"HTTP/1.0 200 OK\r\n\r\nto the end", 200, b"to the end"),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", 200, b""),
        (CHUNKED + b"2\r\nhi\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n", 200, b"hi0123456789"),
        (CHUNKED + b"0\r\nTrailer: x\r\n\r\n", 200, b""),
    ],
)
def test_answers(answer: bytes, status: int, body: bytes) -> None:
    assert answer_to(answer) == Response(status, body)


def test_an_answer_byte_by_byte() -> None:
    for answer in (OK, CHUNKED + b"2\r\nhi\r\n0\r\n\r\n"):
        assert answer_to(answer, pause_s=0.0) == Response(200, b"hi")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "cannot be reached"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "cannot be reached"),
        (b"220 mail.example.org ESMTP\r\n\r\n", "cannot be reached"),
        (b"HTTP/2 200\r\n\r\n", "cannot be reached"),
        (b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nhi", "HTTP 101"),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "HTTP 101"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 50_000, "cannot be reached"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", "cannot be reached"),
        (b"HTTP/1.1 2x0 OK\r\n\r\n", "cannot be reached"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -3\r\n\r\n", "cannot be reached"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhi", "cannot be reached"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\n", "over 100 bytes"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 101, "over 100 bytes"),
        (CHUNKED + b"65\r\n" + b"x" * 101, "over 100 bytes"),
        (CHUNKED + b"60\r\n" + b"x" * 0x60 + b"\r\n60\r\n", "cannot be reached"),
        (CHUNKED + b"-1\r\n\r\n", "cannot be reached"),
        (CHUNKED + b"2\r\nhiXX", "cannot be reached"),
        (CHUNKED + b"f" * 17 + b"\r\n", "cannot be reached"),
        (CHUNKED + b"2\r\nh", "cannot be reached"),
        (b"HTTP/1.1 200 OK\r\n" + b"x" * 600_000, "cannot be reached"),
    ],
)
def test_what_is_no_answer(answer: bytes, words: str) -> None:
    with pytest.raises(TargetError, match=words):
        answer_to(answer)


def test_a_connection_that_was_closed_meanwhile_is_opened_anew() -> None:
    server = Server([OK], [OK, OK])

    async def course(client: HttpClient) -> None:
        await client.get("/1")
        await asyncio.sleep(0.05)
        await client.get("/2")
        await client.put("/3", b"{}")

    server.run(course)
    assert server.opened == 2


def test_no_more_connections_than_allowed() -> None:
    server = Server([OK] * 5, [OK] * 5, [OK] * 5, [OK] * 5, [OK] * 5)

    async def course(client: HttpClient) -> None:
        answers = await asyncio.gather(*(client.post(f"/{i}", b"{}") for i in range(12)))
        assert [answer.body for answer in answers] == [b"hi"] * 12

    server.run(course)
    assert server.opened == 4
    assert all(request.startswith(b"POST /") for request in server.requests)


def test_a_request_that_met_a_closing_connection_is_asked_again() -> None:
    server = Server([OK, b""], [OK])

    async def course(client: HttpClient) -> None:
        await client.get("/1")
        assert (await client.get("/2")).status == 200

    server.run(course)
    assert [request.split()[1] for request in server.requests] == [b"/1", b"/2", b"/2"]


def test_a_path_cannot_bring_headers_along() -> None:
    async def course(client: HttpClient) -> None:
        for path in ("/a b", "/a\r\nX: y", "/ä"):
            with pytest.raises(TargetError, match="not a path"):
                await client.get(path)

    Server([]).run(course)


def test_requests_side_by_side() -> None:
    server = Server([OK, OK], [OK, OK])

    async def course(client: HttpClient) -> None:
        first, second = await asyncio.gather(client.get("/1"), client.get("/2"))
        assert (first.body, second.body) == (b"hi", b"hi")
        await client.get("/3")

    server.run(course)
    assert server.opened == 2


def test_what_nobody_asked_for_ends_the_connection() -> None:
    server = Server([OK + OK], [OK])

    async def course(client: HttpClient) -> None:
        assert (await client.get("/1")).body == b"hi"
        assert (await client.get("/2")).body == b"hi"

    server.run(course)
    assert server.opened == 2


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("http://127.0.0.1:9", "connection refused. Is the server up, and is the port right?"),
        ("http://nowhere.example:80", "host name not found"),
        ("https://127.0.0.1:PORT", "TLS: "),
    ],
)
def test_why_no_connection_was_made_is_said_in_short(
    monkeypatch: pytest.MonkeyPatch, target: str, words: str
) -> None:
    known = socket.getaddrinfo

    def asked(host: str, *more: object, **options: object) -> object:
        if host == "nowhere.example":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return known(host, *more, **options)  # type: ignore[arg-type, misc]

    def answers_plain_text(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK)
        writer.close()

    async def course() -> None:
        server = await asyncio.start_server(answers_plain_text, "127.0.0.1", 0)
        url = target.replace("PORT", str(server.sockets[0].getsockname()[1]))
        async with server, HttpClient(url, timeout_s=5.0) as client:
            with pytest.raises(TargetError, match=re.escape(f"{url}: {words}")):
                await client.get("/path")

    monkeypatch.setattr(socket, "getaddrinfo", asked)
    asyncio.run(course())


def test_a_post_is_not_asked_twice() -> None:
    async def course(client: HttpClient) -> None:
        await client.get("/1")
        with pytest.raises(TargetError, match="cannot be reached"):
            await client.post("/2", b"{}")

    server = Server([OK, b""], [OK])
    server.run(course)
    assert server.opened == 1


def test_a_connection_with_a_late_answer_is_not_used_again() -> None:
    async def whole() -> int:
        opened = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal opened
            opened += 1
            late_s = 0.3 if opened == 1 else 0.0
            await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(late_s)
            writer.write(OK)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, HttpClient(url, timeout_s=0.1) as client:
            with pytest.raises(TargetError, match=r"no answer within 0\.1 s"):
                await client.get("/1")
            assert (await client.get("/2")).body == b"hi"
            await asyncio.sleep(0.3)
        return opened

    assert asyncio.run(whole()) == 2


def test_a_name_and_a_password_in_the_address() -> None:
    requests: list[bytes] = []

    async def whole() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            requests.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(OK)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, HttpClient(f"http://u:p@127.0.0.1:{port}") as client:
            await client.get("/1")

    asyncio.run(whole())
    assert b"\r\nAuthorization: Basic dTpw\r\n" in requests[0]
    assert b"u:p" not in requests[0]


def test_an_answer_is_taken_as_it_is() -> None:
    """A small compressed answer may be a large one, and a redirect may go anywhere."""
    zipped = gzip.compress(b"x" * 10_000)
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(zipped)
    assert answer_to(head + zipped) == Response(200, zipped)
    moved = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    assert answer_to(moved).status == 302


def test_no_cookies_and_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    server = Server([b"HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nContent-Length: 0\r\n\r\n", OK])

    async def course(client: HttpClient) -> None:
        await client.get("/1")
        await client.get("/2")

    server.run(course)
    assert b"ookie" not in server.requests[1]


def test_an_endless_answer_ends_with_the_time() -> None:
    async def whole() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(CHUNKED)
            try:
                while True:
                    writer.write(b"1\r\nx\r\n")
                    await writer.drain()
                    await asyncio.sleep(0.01)
            finally:
                writer.transport.abort()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, HttpClient(url, timeout_s=0.3) as client:
            with pytest.raises(TargetError, match=r"no answer within 0\.3 s"):
                await client.get("/1")

    asyncio.run(whole())


def test_a_unix_socket(tmp_path: Path) -> None:
    requests: list[bytes] = []

    async def whole() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            requests.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(OK)
            writer.close()

        server = await asyncio.start_unix_server(serve, tmp_path / "engine.sock")
        async with server, HttpClient(f"unix://{tmp_path}/engine.sock", token="t") as client:
            assert (await client.get("/a")).body == b"hi"

    asyncio.run(whole())
    assert requests[0].startswith(b"GET /a HTTP/1.1\r\nHost: localhost\r\n")


@pytest.mark.parametrize(
    "body", [b"", b"[1]", b"{", b"[" * 100_000, b'{"a":' * 100_000, b"\xff", b"9" * 10_000]
)
def test_fields_of_what_is_no_object(body: bytes) -> None:
    assert Response(200, body).fields() == {}


@pytest.mark.parametrize(
    "target",
    ["http://h:1/\n", "h:1\r\nX: y", "http://" + "h" * 3000, "http://h\x1b:1", "unix://", "http://h:1:2"],
)
def test_a_target_that_is_no_url_is_named_in_one_line(target: str) -> None:
    with pytest.raises(TargetError) as caught:
        normalise_target(target)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("target", "shown"),
    [
        ("http://bob:secret@h:1/a@b", "http://h:1/a@b"),
        ("bob:secret@h:1", "h:1"),
        ("https://secret@[::1]:1", "https://[::1]:1"),
        ("http://a@secret@h:1", "http://h:1"),
        ("h:1", "h:1"),
        ("unix:///run/a@b", "unix:///run/a@b"),
        ("ftp://bob:secret@h", "ftp://h"),
    ],
)
def test_a_password_is_never_shown(target: str, shown: str) -> None:
    assert shown_target(target) == shown
    if target.startswith("ftp"):
        with pytest.raises(TargetError) as caught:
            normalise_target(target)
        assert "secret" not in str(caught.value)
    else:
        assert "secret" not in HttpClient(target).target
