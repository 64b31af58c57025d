"""An engine without an API server, as Ray Serve and Dynamo embed it, steered through its control address."""

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from support.sglang_control import NEEDS_SGLANG

from testing.servers import KEEP_BYTECODE, free_port, sglang_command

pytestmark = pytest.mark.engine

TESTS = Path(__file__).parents[1]
PATIENCE_S = 240.0
PROMPT = "1 2 3 4 1 2 3 4 1 2 3"


@contextmanager
def embedded(command, log, **environment):
    path = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": path, **environment}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "start_new_session": True}
    with log.open("wb") as errors:
        process = subprocess.Popen(command, stderr=errors, cwd=TESTS, env=environment, **pipes)
    # What the program started would keep its output open, and a reader of it waiting.
    killer = threading.Timer(PATIENCE_S, os.killpg, (process.pid, signal.SIGKILL))
    killer.start()
    try:
        yield process
    finally:
        killer.cancel()
        process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(30)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def answer(process):
    """What the program answered; vLLM's own lines are left out."""
    for line in process.stdout:
        if line.startswith("@"):
            return json.loads(line[1:])
    raise AssertionError("the program ended")


def completed(process, prompt):
    process.stdin.write(json.dumps(prompt) + "\n")
    process.stdin.flush()
    return answer(process)


def vllm(model, log, options):
    config = {"method": "specctl_suffix", "num_speculative_tokens": 8, "specctl": options}
    command = [sys.executable, "-m", "support.embedded_vllm", str(model), json.dumps(config)]
    return embedded(command, log, VLLM_CPU_KVCACHE_SPACE="1")


def sglang(model, log, options):
    drafts = ["--speculative-num-draft-tokens", "9"]
    command = sglang_command(model, free_port(), "SPECCTL_SUFFIX", drafts, "support.embedded_sglang")
    return embedded(command, log, **KEEP_BYTECODE, SPECCTL_SGLANG_OPTIONS=json.dumps(options))


@pytest.mark.parametrize("engine", [vllm, pytest.param(sglang, marks=NEEDS_SGLANG)])
def test_an_embedded_engine_is_steered(engine, target_model, tmp_path):
    socket = tmp_path / "control.sock"
    options = {"control_address": f"unix:{socket}"}
    with engine(target_model, tmp_path / "engine.log", options) as process:
        assert answer(process) == "ready"
        drafted = completed(process, PROMPT)
        transport = httpx.HTTPTransport(uds=str(socket))
        with httpx.Client(transport=transport, base_url="http://localhost", timeout=60) as client:
            capabilities = client.get("/specctl/v1/capabilities").json()
            assert capabilities["controllable"], capabilities["why_not_controllable"]
            table = client.get("/specctl/v1/table").json()
            rows = [{"decode_batch_from": 1, "num_speculative_tokens": 0}]
            change = {"base_version": table["version"], "owner": "test", "reason": "off", "rows": rows}
            assert client.put("/specctl/v1/table", json=change).status_code == 200
            assert completed(process, PROMPT) == drafted
            cells = client.get("/specctl/v1/telemetry").json()["cells"]
        ran = {cell["num_speculative_tokens"] for cell in cells if cell["steps"]}
        assert ran == {0, 8}
