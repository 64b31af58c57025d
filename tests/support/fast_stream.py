"""A server that streams tokens at a given rate, as cheaply as it can: it shares the machine with what is
measured. ``python fast_stream.py PORT TOKENS_PER_S STREAMS`` (a process of its own)."""

from __future__ import annotations

import asyncio
import json
import sys
import time

HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
MODELS = b'{"data": [{"id": "fast"}]}'
LAST = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
TOKENS = 256


def event(number: int) -> bytes:
    """As long as vLLM's."""
    body = {
        "id": "cmpl-8a1d2c3b4e5f60718293a4b5c6d7e8f9",
        "object": "text_completion",
        "created": 1764036000,
        "model": "fast",
        "choices": [
            {"index": 0, "text": " word", "logprobs": None, "finish_reason": None, "stop_reason": None}
        ],
        "usage": {"prompt_tokens": 32, "total_tokens": 32 + number, "completion_tokens": number},
    }
    raw = b"data: " + json.dumps(body).encode() + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(raw), raw)


EVENTS = [event(number) for number in range(1, TOKENS + 1)]


class Streams:
    def __init__(self) -> None:
        self.live: dict[int, tuple[asyncio.StreamWriter, asyncio.Event]] = {}
        self.sent: dict[int, int] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"GET"):
                    is_known = b"/v1/models" in head
                    answer = (b"200 OK", MODELS) if is_known else (b"404 Not Found", b"{}")
                    writer.write(b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n" % (answer[0], len(answer[1])))
                    writer.write(answer[1])
                    continue
                length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                await reader.readexactly(length)
                writer.write(HEAD)
                ended = asyncio.Event()
                self.live[id(writer)], self.sent[id(writer)] = (writer, ended), 0
                await ended.wait()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.live.pop(id(writer), None)

    async def tick(self, tokens_per_s: float, streams: int) -> None:
        """All streams get a token at once, as from a batch."""
        next_s = time.monotonic()
        while True:
            next_s += streams / tokens_per_s
            for key, (writer, ended) in list(self.live.items()):
                if writer.is_closing():
                    del self.live[key]
                    continue
                writer.write(EVENTS[self.sent[key]])
                self.sent[key] += 1
                if self.sent[key] == TOKENS:
                    writer.write(LAST)
                    del self.live[key]
                    ended.set()
            await asyncio.sleep(max(next_s - time.monotonic(), 0))


async def main(port: int, tokens_per_s: float, streams: int) -> None:
    found = Streams()
    await asyncio.start_server(found.serve, "127.0.0.1", port)
    await found.tick(tokens_per_s, streams)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])))
