"""``python -m testing.fork_server SOCKET MODULE...``: a process with an engine's modules, copied by servers.

An engine's three processes import the same thousands of modules, 12 to 17 s of a core each: most of what a
server of a test costs. Here they are imported once, by each engine's own Python. A server is a copy of this
process, and so are the processes that it spawns.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import selectors
import socket
import sys
from typing import NamedTuple

from testing.copied_spawns import copy_spawns

__all__ = ["serve"]

_MOST_BYTES = 1 << 20
"""Of a request: a command line and an environment."""


class _Asked(NamedTuple):
    """What a fork becomes."""

    module: str
    arguments: list[str]
    environment: dict[str, str]


def serve(path: str) -> _Asked | None:
    """Returns None once its parent has ended, and in each fork what it is to become.

    A request is JSON of those fields, with the descriptor that the output goes to. It is answered by the
    process id, and by the return code once that process has ended.
    """
    parent = os.getppid()
    waiting: dict[int, tuple[int, socket.socket]] = {}
    with socket.socket(socket.AF_UNIX) as listening, selectors.DefaultSelector() as selector:
        listening.bind(path)
        listening.listen()
        selector.register(listening, selectors.EVENT_READ)
        while os.getppid() == parent:
            for key, _ in selector.select(timeout=1.0):
                if key.fd in waiting:
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    _report(*waiting.pop(key.fd))
                    continue
                connection, _ = listening.accept()
                request, (output,), _, _ = socket.recv_fds(connection, _MOST_BYTES, 1)
                pid = os.fork()
                if not pid:
                    for number in (1, 2):
                        os.dup2(output, number)
                    for one in (connection, *(other for _, other in waiting.values())):
                        one.close()
                    return _Asked(**json.loads(request))
                os.close(output)
                connection.sendall(f"{pid}\n".encode())
                ended = os.pidfd_open(pid)
                waiting[ended] = pid, connection
                selector.register(ended, selectors.EVENT_READ)
    return None


def _report(pid: int, connection: socket.socket) -> None:
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with connection:
        connection.sendall(f"{code}\n".encode())


def _become(asked: _Asked) -> None:
    """A server in a session of its own."""
    os.setsid()
    os.environ.clear()
    os.environ.update(asked.environment)
    path = asked.environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [folder for folder in path if folder and folder not in sys.path]
    copy_spawns()
    sys.argv = [asked.module, *asked.arguments]
    sys.exit(importlib.import_module(asked.module).main())


def main() -> None:
    path, *modules = sys.argv[1:]
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    asked = serve(path)
    if asked is not None:
        _become(asked)


if __name__ == "__main__":
    main()
