"""A relay between a daemon and its server that can be told to misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["FAULTS", "Relay", "relay"]

FAULTS = ("half-open", "late", "cut", "garbage", "refused")
LATE_S = 3.0
CUT_BYTES = 90
_PIECE_BYTES = 65_536


class Relay:
    """``fault``: None, or one of FAULTS, for what is passed on from now on."""

    def __init__(self, port: int) -> None:
        self.fault: str | None = None
        self.url = ""
        self._server_port = port
        self._tasks: set[asyncio.Task[None]] = set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = [writer]
        try:
            if self.fault != "refused":
                up, down = await asyncio.open_connection("127.0.0.1", self._server_port)
                writers.append(down)
                await asyncio.gather(self._asked(reader, down), self._answered(up, writer))
        except OSError:
            pass
        finally:
            for one in writers:
                one.close()

    async def _asked(self, reader: asyncio.StreamReader, down: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while part := await reader.read(_PIECE_BYTES):
                if self.fault != "half-open":
                    down.write(part)
                    await down.drain()
        down.close()

    async def _answered(self, up: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Each part of an answer by the fault of the moment."""
        with contextlib.suppress(OSError):
            while part := await up.read(_PIECE_BYTES):
                if self.fault == "late":
                    await asyncio.sleep(LATE_S)
                elif self.fault == "garbage":
                    part = bytes(byte ^ 0x5A for byte in part)
                elif self.fault == "cut":
                    writer.write(part[:CUT_BYTES])
                    break
                elif self.fault == "half-open":
                    continue
                writer.write(part)
                await writer.drain()
        writer.close()


@contextmanager
def relay(port: int) -> Iterator[Relay]:
    """To this port of this machine, on a port of its own, in a thread of its own."""
    loop, made = asyncio.new_event_loop(), Relay(port)
    server = loop.run_until_complete(asyncio.start_server(made.accept, "127.0.0.1", 0))
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    thread = threading.Thread(target=loop.run_forever, name="relay")
    thread.start()
    try:
        yield made
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
        loop.run_until_complete(_end(asyncio.all_tasks(loop)))
        loop.close()


async def _end(tasks: set[asyncio.Task[None]]) -> None:
    """With the connections that they close."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)
