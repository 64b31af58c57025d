"""What a daemon with hundreds of targets costs: CPU seconds of its process per second, at 1 Hz each.

    python benchmarks/many_targets.py [--targets 300] [--seconds 30] [--core 0] [--output FILE]
        [--profile FILE]

The servers are the tests' fake engines, all in one other process: the real protocol over HTTP, 6 buckets of
traffic in the telemetry, a /metrics page of the size that vLLM 0.32 serves. CPU is the daemon's own, start-up
left out; a busy machine makes polls late, so the polls that were reached are counted too. How long a decision
takes is measured apart, in this process.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from fakes.engine import FakeEngine, Traffic  # noqa: E402

from specctl.contract.table import TablePut  # noqa: E402
from specctl.contract.telemetry import Telemetry  # noqa: E402
from specctl.core.controller import Controller  # noqa: E402
from specctl.engine_api.deltas import cell_deltas  # noqa: E402
from specctl.policy.loader import find_policy, load_policy  # noqa: E402
from specctl.types import Observation  # noqa: E402
from testing.provenance import provenance, summary  # noqa: E402

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PADDING = b"".join(b'vllm:e2e_request_latency_seconds_bucket{le="%d"} 1.0\n' % i for i in range(600))
WINDOW_S = 4.0
TELEMETRY = "/specctl/v1/telemetry"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--targets", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--warm-up", type=float, default=25.0, metavar="SECONDS")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="cProfile of the daemon, for pstats")
    parser.add_argument("--core", type=int, metavar="N", help="the daemon runs on this core only")
    parser.add_argument("--output", type=Path, metavar="FILE", help="append the run to a file of runs")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(_serve(options.targets))
        return
    with Arm(options) as arm:
        time.sleep(options.warm_up)
        result = measure(arm, options.seconds)
    decisions = statistics.quantiles(decision_ms(), n=20)
    result["decision_cpu_ms"] = {"median": round(decisions[9], 3), "p95": round(decisions[18], 3)}
    run = {"targets": options.targets, "core": options.core, **result, "provenance": provenance()}
    print(json.dumps(run, indent=2))
    if options.output is not None:
        known = json.loads(options.output.read_text()) if options.output.exists() else {"runs": []}
        options.output.write_text(json.dumps({**known, "runs": [*known["runs"], run]}, indent=2) + "\n")


def measure(arm: Arm, seconds: float) -> dict[str, object]:
    """Short windows, as neighbours on the machine come and go."""
    arm.window()
    windows = []
    for _ in range(max(int(seconds / WINDOW_S), 1)):
        time.sleep(WINDOW_S)
        windows.append(arm.window())
    about = {"memory_mb": arm.memory_mb(), "window_s": WINDOW_S, "load_average": os.getloadavg()[0]}
    return {**_summed(windows), **about}


def decision_ms(polls: int = 400) -> list[float]:
    """CPU milliseconds of estimates and plan; the traffic moves to another bucket at every poll."""
    engine, controller = FakeEngine(start_tokens=4), Controller()
    policy, capabilities = load_policy(find_policy("balanced")), engine.capabilities()
    before, found = Telemetry.model_validate(engine.telemetry()), []
    for i in range(polls):
        engine.traffic = Traffic(decode_batch=(1, 2, 3, 4, 6, 8)[i % 6])
        engine.advance(1.0)
        after = Telemetry.model_validate(engine.telemetry())
        observation = Observation(
            target="t",
            time_s=float(i),
            interval_s=1.0,
            capabilities=capabilities,
            applied=engine.applied(),
            cells=cell_deltas(before, after),
        )
        before, began_s = after, time.thread_time()
        controller.learn(observation)
        plan = controller.plan(observation, policy)
        found.append(1e3 * (time.thread_time() - began_s))
        assert plan.rows is not None
        engine.operator_puts(TablePut(base_version=0, rows=plan.rows, owner="me"))
        controller.accepted(plan)
    return found[polls // 4 :]


def _summed(windows: list[dict[str, float]]) -> dict[str, object]:
    """A window without a poll is left out."""
    windows = [window for window in windows if window["polls"]]
    return {
        "cpu_s_per_s": summary([window["cpu_s"] / window["took_s"] for window in windows]),
        "polls_per_s": summary([window["polls"] / window["took_s"] for window in windows]),
        "cpu_ms_per_poll": summary([1e3 * window["cpu_s"] / window["polls"] for window in windows]),
        "puts_per_poll": summary([window["puts"] / window["polls"] for window in windows]),
        "interval_s_p95": summary([window["interval_s_p95"] for window in windows]),
    }


class Arm:
    """A daemon in a process, and its servers in another."""

    def __init__(self, options: argparse.Namespace, port: int = 0) -> None:
        """``port``: where the daemon serves metrics and page; 0: nowhere."""
        self._port = port
        self._options = options
        self._before: tuple[float, float] = (0.0, 0.0)

    def __enter__(self) -> Arm:
        self._stack = contextlib.ExitStack()
        command = [sys.executable, __file__, "--serve", "--targets", str(self._options.targets)]
        pipe = subprocess.PIPE
        servers = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self._servers = self._stack.enter_context(servers)
        # They end with their input.
        assert servers.stdin is not None
        self._stack.callback(servers.stdin.close)
        assert servers.stdout is not None
        urls = json.loads(servers.stdout.readline())
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        log = self._stack.enter_context((folder / "log").open("w"))
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        self._daemon = subprocess.Popen(
            self._command(folder, urls), cwd=ROOT, stderr=log, env={**os.environ, "PYTHONPATH": path}
        )
        self._stack.callback(self._end)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _end(self) -> None:
        self._daemon.terminate()
        self._daemon.wait()

    def _command(self, folder: Path, urls: list[str]) -> list[str]:
        targets, profile = folder / "targets.yaml", self._options.profile
        policy = folder / "once-a-second.yaml"
        balanced = load_policy(find_policy("balanced"))
        policy.write_text(balanced.model_copy(update={"poll_interval_s": 1.0}).model_dump_json())
        lines = [
            f"policies: [{{match: {{}}, policy: {policy}}}]",
            "targets:",
            *(f"  - url: {url}" for url in urls),
        ]
        targets.write_text("\n".join(lines) + "\n")
        profiled = [] if profile is None else ["-m", "cProfile", "-o", str(profile)]
        pinned = [] if self._options.core is None else ["taskset", "-c", str(self._options.core)]
        command = [
            *pinned,
            sys.executable,
            *profiled,
            "-m",
            "specctl.cli.main",
            "autotune",
            "--targets",
            str(targets),
        ]
        return [*command, "--metrics-port", str(self._port), "--audit-log", str(folder / "audit.jsonl")]

    def window(self) -> dict[str, float]:
        """What came since the last call."""
        at_s, cpu_s = self._before
        counts = self._ask("count")
        self._before = counts["at_s"], cpu_s_of(self._daemon.pid)
        return {**counts, "took_s": counts["at_s"] - at_s, "cpu_s": self._before[1] - cpu_s}

    def memory_mb(self) -> float:
        return memory_mb_of(self._daemon.pid)

    def _ask(self, words: str) -> dict[str, float]:
        assert self._servers.stdin is not None
        assert self._servers.stdout is not None
        self._servers.stdin.write(f"{words}\n")
        self._servers.stdin.flush()
        answer: dict[str, float] = json.loads(self._servers.stdout.readline())
        return answer


class _Server:
    """One engine behind one port. Its time goes on, a second at most, when its telemetry is read."""

    def __init__(self, seed: int) -> None:
        self.engine = FakeEngine(start_tokens=4, seed=seed)
        for batch in (1, 2, 3, 4, 6, 8):
            self.engine.traffic = Traffic(decode_batch=batch)
            self.engine.advance(1.0)
        self.engine.traffic = Traffic(decode_batch=1 + seed % 4)
        self.engine.mangle["/metrics"] = lambda page: page + PADDING
        self.asked_s = time.monotonic()
        self.polls_s: list[float] = []
        self.polls = 0
        self.puts = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                method, path, _ = head.split(b" ", 2)
                length = next((int(v) for k, v in _headers(head) if k == b"content-length"), 0)
                body = await reader.readexactly(length)
                writer.write(self.answer(method.decode(), path.decode(), body))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def answer(self, method: str, path: str, body: bytes) -> bytes:
        if path == TELEMETRY:
            now_s = time.monotonic()
            self.engine.advance(min(now_s - self.asked_s, 1.0))
            self.asked_s = now_s
            self.polls_s.append(now_s)
            self.polls += 1
        self.puts += method == "PUT"
        status, answer = self.engine.answer(method, path, {}, body)
        answer = self.engine.mangle.get(path, lambda raw: raw)(answer)
        return b"HTTP/1.1 %d x\r\nContent-Length: %d\r\n\r\n%s" % (status, len(answer), answer)


def _headers(head: bytes) -> list[tuple[bytes, bytes]]:
    lines = head.split(b"\r\n")[1:-2]
    return [(k.lower(), v) for k, _, v in (line.partition(b": ") for line in lines)]


async def _serve(count: int) -> None:
    """Prints the URLs; then, for every line on stdin, what came since the last one."""
    servers = [_Server(i) for i in range(count)]
    ports = []
    for server in servers:
        listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        ports.append(listening.sockets[0].getsockname()[1])
    print(json.dumps([f"http://127.0.0.1:{port}" for port in ports]), flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(_counts(servers)), flush=True)


def _counts(servers: list[_Server]) -> dict[str, float]:
    intervals = [b - a for s in servers for a, b in zip(s.polls_s, s.polls_s[1:], strict=False)]
    cuts = statistics.quantiles(intervals, n=100) if len(intervals) > 1 else [0.0] * 99
    counts = {
        "at_s": time.monotonic(),
        "polls": sum(server.polls for server in servers),
        "puts": sum(server.puts for server in servers),
        "interval_s_p95": cuts[94],
    }
    for server in servers:
        server.polls_s, server.polls, server.puts = server.polls_s[-1:], 0, 0
        server.engine.puts.clear()
    return counts


def cpu_s_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def memory_mb_of(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kilobytes = next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
    return round(kilobytes / 1024, 1)


if __name__ == "__main__":
    main()
