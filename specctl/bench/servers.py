"""The servers of a benchmark: running ones, or ones that are started from a launch command."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from specctl.contract.capabilities import Capabilities
from specctl.engine_api.client import EngineClient
from specctl.errors import BenchArgumentError, BenchFailed, NotSteered, OtherContract, SpecctlError
from specctl.http_client import HttpClient, normalise_target
from specctl.plain_text import plain_text

__all__ = ["Launch", "Server", "launched", "open_server", "parse_launch"]

START_S, START_POLL_S, STOP_S = 1800.0, 1.0, 30.0
TIMEOUT_S = 10.0
LOG_CHARACTERS = 3000
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_PORTS = {"vllm": 8000, "sglang": 30000}


@dataclass(frozen=True)
class Server:
    """One target. ``capabilities`` None: without specctl's plugin, or with one that does not steer."""

    name: str
    url: str
    model: str
    client: EngineClient
    capabilities: Capabilities | None
    why_not_steered: str = ""
    launch: str | None = None

    def about(self) -> dict[str, Any]:
        capabilities = self.capabilities
        known = (
            {}
            if capabilities is None
            else capabilities.model_dump(
                include={
                    "engine",
                    "engine_version",
                    "plugin_version",
                    "method",
                    "model",
                    "gpu",
                    "dtype",
                    "parallelism",
                }
            )
        )
        return {"name": self.name, "served_model": self.model, "launch": self.launch, **known}


@dataclass(frozen=True)
class Launch:
    """A command line: environment assignments, then the program."""

    environment: dict[str, str]
    parts: tuple[str, ...]
    url: str


def parse_launch(text: str) -> Launch:
    """``CUDA_VISIBLE_DEVICES=0 vllm serve MODEL --port 8000``. Raises BenchArgumentError."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise BenchArgumentError(f"launch command {text!r}: {error}") from error
    first = next((i for i, word in enumerate(words) if not _ASSIGNMENT.fullmatch(word)), len(words))
    parts = words[first:]
    if not parts:
        raise BenchArgumentError(f"launch command {text!r}: no program in it")
    port = next((word.partition("=")[2] for word in parts if word.startswith("--port=")), None)
    if port is None and "--port" in parts[:-1]:
        port = parts[parts.index("--port") + 1]
    if port is None:
        port = next((str(number) for engine, number in _PORTS.items() if engine in text), "8000")
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise BenchArgumentError(f"launch command {text!r}: --port {port}: expected 1 to 65535")
    pairs = (word.partition("=") for word in words[:first])
    return Launch({name: value for name, _, value in pairs}, tuple(parts), f"http://127.0.0.1:{port}")


async def open_server(
    name: str, target: str, *, token: str | None, api_key: str | None = None, launch: str | None = None
) -> Server:
    """``token``: of specctl's routes; ``api_key``: of the OpenAI-compatible ones.

    Raises TargetError where it does not answer, BenchFailed where it serves no model.
    """
    url = normalise_target(target)
    client = EngineClient(HttpClient(url, token=token, timeout_s=TIMEOUT_S))
    why = "runs without the specctl plugin"
    capabilities = None
    try:
        capabilities = await client.capabilities()
    except (NotSteered, OtherContract) as error:
        why = str(error)
    except SpecctlError:
        await client.close()
        raise
    try:
        model = await _model(url, api_key)
    except BaseException:
        await client.close()
        raise
    if capabilities is not None:
        why = capabilities.why_not_controllable or ""
    return Server(name or urlsplit(url).netloc, url, model, client, capabilities, why, launch)


async def _model(url: str, api_key: str | None) -> str:
    async with HttpClient(url, token=api_key, timeout_s=TIMEOUT_S) as http:
        answer = await http.get("/v1/models")
    data = answer.fields().get("data")
    if answer.status == 200 and isinstance(data, list) and data and isinstance(data[0], dict):
        return str(data[0].get("id"))
    raise BenchFailed(f"{url}: /v1/models: HTTP {answer.status}, expected an OpenAI-compatible server")


@asynccontextmanager
async def launched(launches: Sequence[Launch], folder: Path) -> AsyncIterator[None]:
    """Starts servers one after another and stops them all. Raises BenchFailed with the end of a log."""
    processes: list[asyncio.subprocess.Process] = []
    try:
        for number, launch in enumerate(launches, start=1):
            log = folder / f"server-{number}.log"
            with log.open("wb") as output:
                process = await asyncio.create_subprocess_exec(
                    *launch.parts,
                    stdout=output,
                    stderr=output,
                    env={**os.environ, **launch.environment},
                    start_new_session=True,
                )
            processes.append(process)
            await _wait_until_healthy(launch, process, log)
        yield
    except FileNotFoundError as error:
        raise BenchFailed(f"launch command: {error}") from error
    finally:
        for process in processes:
            await _stop(process)


async def _wait_until_healthy(launch: Launch, process: asyncio.subprocess.Process, log: Path) -> None:
    ends_s = time.monotonic() + START_S
    async with HttpClient(launch.url, timeout_s=TIMEOUT_S) as http:
        while time.monotonic() < ends_s:
            if process.returncode is not None:
                break
            with contextlib.suppress(SpecctlError):
                if (await http.get("/health")).status == 200:
                    return
            await asyncio.sleep(START_POLL_S)
    end = plain_text(log.read_text(encoding="utf-8", errors="replace")[-LOG_CHARACTERS:], LOG_CHARACTERS)
    raise BenchFailed(f"{shlex.join(launch.parts)[:200]}: the server did not start:\n{end}")


async def _stop(process: asyncio.subprocess.Process) -> None:
    """The engine's workers are in the server's process group."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), STOP_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
