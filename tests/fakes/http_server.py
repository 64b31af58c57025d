"""A server on a free port of this machine, for a ``with`` block."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

__all__ = ["FakeServer"]


class FakeServer:
    """``with FakeServer() as server: server.url``. A subclass says what is answered."""

    tls: ssl.SSLContext | None = None

    def respond(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        """Status and body."""
        raise NotImplementedError

    def stream(self, path: str) -> Iterator[bytes] | None:
        """Parts of an answer that goes on; None: ``respond`` answers."""
        return None

    def __enter__(self) -> Self:
        respond, stream = self.respond, self.stream

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                self._serve()

            def do_PUT(self) -> None:
                self._serve()

            def do_POST(self) -> None:
                self._serve()

            def _serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if (parts := stream(self.path)) is not None:
                    self._stream(parts)
                    return
                status, answer = respond(self.command, self.path, self.headers, body)
                try:
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(answer)))
                    self.end_headers()
                    self.wfile.write(answer)
                except OSError:
                    self.close_connection = True

            def _stream(self, parts: Iterator[bytes]) -> None:
                self.close_connection = True
                try:
                    self.send_response(200)
                    self.end_headers()
                    for part in parts:
                        self.wfile.write(part)
                        self.wfile.flush()
                except OSError:
                    return

            def log_message(self, format: str, *args: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        if self.tls is not None:
            self.server.socket = self.tls.wrap_socket(self.server.socket, server_side=True)
        scheme = "http" if self.tls is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
