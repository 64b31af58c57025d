"""Start a real vLLM or SGLang server on this machine and stop it with everything it started."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from testing.forked import ForkedProcess, forked

START_TIMEOUT_S = 600.0
SGLANG_PYTHON = Path(
    os.environ.get("SPECCTL_SGLANG_PYTHON", Path(__file__).parents[1] / ".venv-sglang" / "bin" / "python")
)
"""Of the environment that ``make setup-sglang`` makes."""
FORKS_ENV = "SPECCTL_FORKED_SERVERS"
"""Set: servers are forks of a process that has imported their engine, where that can be."""
KEEP_BYTECODE = {"PYTHONDONTWRITEBYTECODE": ""}
"""The set-up compiles nothing, and each of SGLang's processes imports thousands of modules."""
_STOP_TIMEOUT_S = 30.0
_SGLANG_STOP_S = 2.0
"""SGLang sees its signal at every fifth second and then kills what it started."""


@dataclass(frozen=True)
class Server:
    url: str
    model: str
    log: Path
    process: subprocess.Popen[bytes] | ForkedProcess


def free_port() -> int:
    """Under Linux's range for outgoing connections, from which the engines take ports while they start."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def command(
    model: Path, port: int, speculative_config: Mapping[str, Any] | None, arguments: Sequence[str]
) -> list[str]:
    """float32 and eager: what a CPU computes in, and the quickest start. Later arguments win."""
    parts = [str(Path(sys.executable).parent / "vllm"), "serve", str(model), "--host", "127.0.0.1"]
    parts += ["--port", str(port), "--served-model-name", "model", "--dtype", "float32", "--enforce-eager"]
    parts += ["--max-num-seqs", "8", "--max-model-len", "2048", *arguments]
    if speculative_config is not None:
        parts += ["--speculative-config", json.dumps(speculative_config)]
    return parts


def sglang_command(
    model: Path, port: int, algorithm: str | None, arguments: Sequence[str], module: str
) -> list[str]:
    """Its KV cache is bounded by its tokens; the share of the free memory leaves room for what other programs
    take while it starts. ``algorithm`` None: it never speculates. Later arguments win."""
    parts = [str(SGLANG_PYTHON), "-m", module, "--model-path", str(model)]
    parts += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "model"]
    parts += ["--dtype", "float32", "--max-running-requests", "8", "--context-length", "2048"]
    parts += ["--max-total-tokens", "16384", "--mem-fraction-static", "0.9"]
    return [*parts, *([] if algorithm is None else ["--speculative-algorithm", algorithm]), *arguments]


@contextmanager
def vllm_server(
    model: Path,
    log: Path,
    speculative_config: Mapping[str, Any] | None = None,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """A server that answers /health. Raises RuntimeError with the end of its log where it does not start."""
    port = free_port()
    own = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    parts = command(model, port, speculative_config, arguments)
    with started(parts, port, log, {**own, **(environment or {})}) as server:
        yield server


@contextmanager
def sglang_server(
    model: Path,
    log: Path,
    algorithm: str,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    module: str = "specctl_sglang.cpu_serve",
) -> Iterator[Server]:
    """The same with SGLang, speculating by ``algorithm``. ``module``: sglang.launch_server on a GPU."""
    port = free_port()
    parts = sglang_command(model, port, algorithm, arguments, module)
    own = {**KEEP_BYTECODE, **(environment or {})}
    with started(parts, port, log, own, stop_s=_SGLANG_STOP_S) as server:
        yield server


def suffix_server(engine: str, model: Path, log: Path, most: int) -> AbstractContextManager[Server]:
    """specctl's suffix method on vllm or sglang, up to ``most`` drafts. Requests do not learn from others."""
    if engine == "vllm":
        config = {"method": "specctl_suffix", "num_speculative_tokens": most, "use_global": False}
        return vllm_server(model, log, config)
    return sglang_server(
        model,
        log,
        "SPECCTL_SUFFIX",
        ["--speculative-num-draft-tokens", str(most + 1)],
        {"SPECCTL_SGLANG_OPTIONS": json.dumps({"suffix": {"use_global": False}})},
    )


@contextmanager
def started(
    parts: Sequence[str],
    port: int,
    log: Path,
    environment: Mapping[str, str],
    timeout_s: float = START_TIMEOUT_S,
    stop_s: float = _STOP_TIMEOUT_S,
) -> Iterator[Server]:
    """A server by its command line, killed ``stop_s`` after the signal to stop. Raises RuntimeError with the
    end of its log where it does not start."""
    full = {**os.environ, "HF_HUB_OFFLINE": "1", **environment}
    with log.open("wb") as output:
        copy = forked(parts, full, output) if full.get(FORKS_ENV) else None
        process = copy or subprocess.Popen(
            parts, stdout=output, stderr=subprocess.STDOUT, env=full, start_new_session=True
        )
    server = Server(f"http://127.0.0.1:{port}", "model", log, process)
    try:
        _wait_until_healthy(server, timeout_s)
        yield server
    finally:
        _stop(process, stop_s)


def _wait_until_healthy(server: Server, timeout_s: float) -> None:
    ends_s = time.monotonic() + timeout_s
    # One client: each new one reads all certificates, 46 ms of the CPU that the server needs to start.
    with httpx.Client(timeout=2) as client:
        while time.monotonic() < ends_s:
            if server.process.poll() is not None:
                raise RuntimeError(f"the server ended at start:\n{end_of(server.log)}")
            with suppress(httpx.TransportError):
                if client.get(f"{server.url}/health").status_code == 200:
                    return
            time.sleep(0.5)
    raise RuntimeError(f"the server did not start within {timeout_s:.0f} s:\n{end_of(server.log)}")


def end_of(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-4000:]


def _stop(process: subprocess.Popen[bytes] | ForkedProcess, timeout_s: float) -> None:
    """The engine core and its workers are in the server's process group."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout_s)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
