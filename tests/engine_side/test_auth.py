import asyncio
import logging
import os

import httpx
import pytest
from fastapi import FastAPI
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from specctl.engine.auth import AccessDenied, AccessPolicy, Scope, load_tokens
from specctl.engine.routes import attach, open_to
from specctl.http_client import read_token

READ = "r" * 16
CONTROL = "c" * 16
POLICY = AccessPolicy({READ: Scope.READ, CONTROL: Scope.CONTROL})


def check(policy, needed, authorization=None, client_host="127.0.0.1", **headers):
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    if authorization is not None:
        named["authorization"] = authorization
    policy.check(needed, named, client_host)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", None])
def test_without_tokens_this_host_may_do_everything(host):
    check(AccessPolicy(None), Scope.CONTROL, client_host=host)


@pytest.mark.parametrize("host", ["10.0.0.1", "::ffff:10.0.0.1", "localhost", "testclient"])
def test_without_tokens_others_are_kept_out(host):
    with pytest.raises(AccessDenied, match="only loopback") as denied:
        check(AccessPolicy(None), Scope.READ, client_host=host)
    assert denied.value.status == 403


PAGES = [
    {"origin": "http://evil.example"},
    {"sec_fetch_site": "cross-site"},
    {"sec_fetch_site": "same-origin"},
    {"host": "evil.example:8000"},
    {"host": "localhost.evil.example"},
    {"host": "127.0.0.1.nip.io"},
    {"host": "127.0.0.1@evil.example"},
    {"host": ""},
    {"host": "\udcff"},
]


@pytest.mark.parametrize("headers", PAGES)
def test_a_web_page_is_not_trusted_whatever_it_calls_the_server(headers):
    with pytest.raises(AccessDenied, match=r"without a token file|web page") as denied:
        check(AccessPolicy(None), Scope.READ, **headers)
    assert denied.value.status == 403
    check(POLICY, Scope.READ, f"Bearer {READ}", **headers)


HOSTS = ["localhost", "LOCALHOST:8000", "a.localhost", "127.0.0.1:8000", "[::1]:8000", "[::1]", "10.0.0.5:80"]


@pytest.mark.parametrize("host", HOSTS)
def test_localhost_and_addresses_are_the_server_itself(host):
    check(AccessPolicy(None), Scope.CONTROL, host=host, sec_fetch_site="none")


FORWARDED = [
    "x_forwarded_for", "forwarded", "x_real_ip", "x_forwarded_host", "via", "x_forwarded_anything",
    "cf_connecting_ip", "true_client_ip",
]  # fmt: skip


@pytest.mark.parametrize("client_host", ["127.0.0.1", None])
@pytest.mark.parametrize("header", FORWARDED)
def test_a_request_that_was_passed_on_is_not_this_hosts(header, client_host):
    """uvicorn with FORWARDED_ALLOW_IPS=* takes the caller's address from such a header."""
    with pytest.raises(AccessDenied, match="proxy"):
        check(AccessPolicy(None), Scope.READ, client_host=client_host, **{header: "127.0.0.1"})
    check(POLICY, Scope.READ, f"Bearer {READ}", client_host="127.0.0.1", **{header: "127.0.0.1"})


@pytest.mark.parametrize("authorization", [None, "Basic abc", "Bearer", "Bearer wrong-token-of-16-chars"])
def test_missing_and_wrong_tokens_are_401(authorization):
    with pytest.raises(AccessDenied) as denied:
        check(POLICY, Scope.READ, authorization)
    assert denied.value.status == 401


def test_scopes():
    check(POLICY, Scope.READ, f"Bearer {READ}", client_host="10.0.0.1")
    check(POLICY, Scope.CONTROL, f"bearer {CONTROL}", client_host="10.0.0.1")
    check(POLICY, Scope.READ, f"Bearer {CONTROL}")
    with pytest.raises(AccessDenied, match="read scope") as denied:
        check(POLICY, Scope.CONTROL, f"Bearer {READ}")
    assert denied.value.status == 403


def test_token_file(tmp_path):
    path = tmp_path / "tokens"
    path.write_text(f"# who\n\nread:{READ}\ncontrol:{CONTROL}\n")
    assert load_tokens(path) == {READ: Scope.READ, CONTROL: Scope.CONTROL}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at least one line"),
        ("admin:" + "x" * 20, ":1: expected read:TOKEN or control:TOKEN"),
        ("read:short", ":1: expected a token of at least 16"),
        ("read:" + "x" * 70_000, "over 65536 bytes"),
    ],
)
def test_bad_token_files_name_the_line_and_never_the_token(tmp_path, text, message):
    path = tmp_path / "tokens"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        load_tokens(path)
    assert "xxx" not in str(error.value)
    assert "short" not in str(error.value)


def test_a_token_file_that_is_no_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "tokens")
    with pytest.raises(ValueError, match="regular file"):
        load_tokens(tmp_path / "tokens")


class Ranks:
    log = logging.getLogger("test.routes")

    def numbers(self):
        return [0]

    def front_end_waiting_pieces(self):
        return None


def served(tmp_path, mode=0o600):
    """A test client of the routes behind uvicorn's own proxy headers, as FORWARDED_ALLOW_IPS=* makes them."""
    path = tmp_path / "tokens"
    path.write_text(f"read:{READ}\n")
    path.chmod(mode)
    app = FastAPI()
    attach(app, path if mode else None)
    open_to(app.state, Ranks())
    return app


@pytest.mark.parametrize(("mode", "warnings"), [(0o600, 0), (0o640, 0), (0o644, 1), (0o602, 1)])
def test_a_token_file_that_everybody_can_read_is_a_warning(tmp_path, caplog, mode, warnings):
    served(tmp_path, mode)
    assert caplog.text.count("every user of this machine") == warnings
    path = tmp_path / "bare"
    path.write_text(READ)
    path.chmod(mode)
    assert read_token(path) == READ
    assert caplog.text.count("every user of this machine") == 2 * warnings


def asked(app, headers):
    """The answer's status, with uvicorn's middleware as FORWARDED_ALLOW_IPS=* sets it up."""
    wrapped = ProxyHeadersMiddleware(app, trusted_hosts="*")

    async def ask():
        transport = httpx.ASGITransport(app=wrapped, client=("203.0.113.9", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return (await client.get("/specctl/v1/table", headers=headers)).status_code

    return asyncio.run(ask())


def test_nobody_calls_himself_loopback(tmp_path):
    app = served(tmp_path, mode=0)
    assert asked(app, {}) == 403
    assert asked(app, {"X-Forwarded-For": "127.0.0.1"}) == 403


def test_a_body_that_ends_early_is_no_error_of_the_server(tmp_path):
    app = served(tmp_path, mode=0)
    headers = [(b"host", b"localhost"), (b"content-length", b"100")]
    scope = {
        "type": "http", "method": "PUT", "path": "/specctl/v1/table", "raw_path": b"", "root_path": "",
        "query_string": b"", "headers": headers, "client": ("127.0.0.1", 1), "http_version": "1.1",
        "scheme": "http", "server": ("127.0.0.1", 80),
    }  # fmt: skip
    parts = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]
    sent = []

    async def receive():
        return parts.pop(0)

    async def send(message):
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    assert sent[0]["status"] == 400


def test_a_token_file_that_is_no_text_is_named(tmp_path):
    path = tmp_path / "tokens"
    path.write_bytes(b"read:" + b"\xff" * 20)
    with pytest.raises(ValueError, match=r"tokens: not UTF-8 .* at byte 5"):
        load_tokens(path)
