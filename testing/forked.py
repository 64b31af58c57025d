"""Servers as forks of a process that has imported their engine: ``fork_server``'s other side."""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

__all__ = ["ForkedProcess", "forked", "forked_module"]

_IMPORT_TIMEOUT_S = 300.0
_VLLM, _SGLANG = "vllm.entrypoints.cli.main", "specctl_sglang.cpu_serve"
_MODULES = {
    _VLLM: (_VLLM, "vllm.entrypoints.openai.api_server", "vllm.v1.engine.async_llm"),
    _SGLANG: (
        _SGLANG,
        "sglang.srt.entrypoints.http_server",
        "sglang.srt.managers.scheduler",
        "sglang.srt.managers.detokenizer_manager",
    ),
}
"""What each process imports before it loads plugins: what a plugin replaces must not have been taken from its
module before."""


class ForkedProcess:
    """What a test asks of a server's ``subprocess.Popen``. It leads a session of its own."""

    def __init__(self, args: Sequence[str], connection: socket.socket) -> None:
        self.args = list(args)
        self.returncode: int | None = None
        self._connection = connection
        self._answer = connection.makefile("r")
        self.pid = int(self._answer.readline())

    def poll(self) -> int | None:
        try:
            return self.wait(0.0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired; timeout: seconds."""
        if self.returncode is None:
            ready, _, _ = select.select([self._connection], [], [], timeout)
            if not ready:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            # Nothing, where the process that it was forked from is gone, which was its parent.
            self.returncode = int(self._answer.readline() or -signal.SIGKILL)
            self._answer.close()
            self._connection.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def forked(command: Sequence[str], environment: Mapping[str, str], output: BinaryIO) -> ForkedProcess | None:
    """A server by its command line with this whole environment, by a process that has imported its engine.

    None: there is no such process for this command, or a start file of Python's own on the PYTHONPATH wants
    to be read before anything is imported.
    """
    folders = environment.get("PYTHONPATH", "").split(os.pathsep)
    if any(Path(folder, "sitecustomize.py").is_file() for folder in folders if folder):
        return None
    if Path(command[0]).name == "vllm":
        python, module, arguments = str(Path(command[0]).with_name("python")), _VLLM, command[1:]
    elif _SGLANG in command:
        python, module, arguments = command[0], _SGLANG, command[3:]
    else:
        return None
    return _copied(_fork_server(python, module), module, arguments, environment, output)


def forked_module(
    python: str, module: str, arguments: Sequence[str], environment: Mapping[str, str], output: BinaryIO
) -> ForkedProcess:
    """The ``main`` of a module, by a process of SGLang's Python that has imported SGLang."""
    return _copied(_fork_server(python, _SGLANG), module, arguments, environment, output)


def _copied(
    server: _ForkServer,
    module: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    output: BinaryIO,
) -> ForkedProcess:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(server.socket))
    request = {"module": module, "arguments": list(arguments), "environment": dict(environment)}
    socket.send_fds(connection, [json.dumps(request).encode()], [output.fileno()])
    return ForkedProcess([module, *arguments], connection)


@functools.cache
def _fork_server(python: str, module: str) -> _ForkServer:
    """There for all servers of this process."""
    folder = Path(tempfile.mkdtemp(prefix="forked-"))
    path, log = folder / "socket", folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [python, "-m", "testing.fork_server", str(path), *_MODULES[module]],
            stdout=output, stderr=subprocess.STDOUT, cwd=Path(__file__).parents[1],
        )  # fmt: skip
    atexit.register(process.terminate)
    ends_s = time.monotonic() + _IMPORT_TIMEOUT_S
    while not path.exists():
        if process.poll() is not None or time.monotonic() > ends_s:
            process.kill()
            raise RuntimeError(f"{module} cannot be imported:\n{log.read_text()[-4000:]}")
        time.sleep(0.1)
    return _ForkServer(process, path)


class _ForkServer(NamedTuple):
    process: subprocess.Popen[bytes]
    socket: Path
