"""What a daemon with hundreds of targets costs: CPU seconds of its process per second, at 1 Hz each.

    python benchmarks/many_targets.py [--targets 500] [--seconds 30] [--profile FILE]

The servers are the tests' fake engines, all in one other process: the real protocol over HTTP, 6 buckets of
traffic in the telemetry, a /metrics page of the size that vLLM 0.32 serves. CPU is the daemon's own, start-up
left out; a busy machine makes looks late, so the looks that were reached are counted too.
"""

from __future__ import annotations

import argparse
import asyncio
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

from benchmarks.provenance import provenance, summary  # noqa: E402

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PADDING = b"".join(b'vllm:e2e_request_latency_seconds_bucket{le="%d"} 1.0\n' % i for i in range(600))
WINDOW_S = 4.0
TELEMETRY = "/specctl/v1/telemetry"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--targets", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--warm-up", type=float, default=25.0, metavar="SECONDS")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="cProfile of the daemon, for pstats")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(_serve(options.targets))
        return
    with tempfile.TemporaryDirectory() as folder:
        result = measure(options, Path(folder))
    print(json.dumps({**result, "provenance": provenance()}, indent=2))


def measure(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """The daemon and the servers are processes of their own."""
    command = [sys.executable, __file__, "--serve", "--targets", str(options.targets)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as servers:
        assert servers.stdin is not None
        assert servers.stdout is not None
        urls = json.loads(servers.stdout.readline())
        targets = folder / "targets.yaml"
        lines = [
            "policies: [{match: {}, policy: balanced}]",
            "targets:",
            *(f"  - url: {url}" for url in urls),
        ]
        targets.write_text("\n".join(lines) + "\n")
        daemon_command = [sys.executable, "-m", "specctl.cli.main", "autotune", "--targets", str(targets)]
        if options.profile is not None:
            daemon_command[1:2] = ["-m", "cProfile", "-o", str(options.profile), "-m"]
        daemon_command += ["--metrics-port", "0", "--audit-log", str(folder / "audit.jsonl")]
        with (
            (folder / "log").open("w") as log,
            subprocess.Popen(daemon_command, cwd=ROOT, stderr=log) as daemon,
        ):
            time.sleep(options.warm_up)
            windows = _windows(servers, daemon.pid, options.seconds)
            memory_mb = _memory_mb(daemon.pid)
            daemon.terminate()
            daemon.wait()
        servers.stdin.close()
    return {
        "targets": options.targets,
        "cpu_s_per_s": summary([window["cpu_s"] / window["took_s"] for window in windows]),
        "looks_per_s": summary([window["looks"] / window["took_s"] for window in windows]),
        "cpu_ms_per_look": summary([1e3 * window["cpu_s"] / window["looks"] for window in windows]),
        "puts_per_look": summary([window["puts"] / window["looks"] for window in windows]),
        "interval_s_p95": summary([window["interval_s_p95"] for window in windows]),
        "memory_mb": memory_mb,
        "window_s": WINDOW_S,
        "load_average": os.getloadavg()[0],
    }


def _windows(servers: subprocess.Popen[str], pid: int, seconds: float) -> list[dict[str, float]]:
    """Short windows, as neighbours on the machine come and go. One without a look is left out."""
    windows = []
    before, before_s = _ask(servers, "count"), _cpu_s(pid)
    for _ in range(max(int(seconds / WINDOW_S), 1)):
        time.sleep(WINDOW_S)
        after, after_s = _ask(servers, "count"), _cpu_s(pid)
        after["took_s"], after["cpu_s"] = after["at_s"] - before["at_s"], after_s - before_s
        before, before_s = after, after_s
        if after["looks"]:
            windows.append(after)
    return windows


def _ask(servers: subprocess.Popen[str], words: str) -> dict[str, float]:
    assert servers.stdin is not None
    assert servers.stdout is not None
    servers.stdin.write(f"{words}\n")
    servers.stdin.flush()
    answer: dict[str, float] = json.loads(servers.stdout.readline())
    return answer


class _QuickEngine(FakeEngine):
    """Looks its table up once for each version: 500 of these must fit into one core."""

    _known: tuple[tuple[int, str], dict[int, int]] = ((-1, ""), {})

    def tokens_at(self, decode_batch: int) -> int:
        key = self.version, self.state.value
        if self._known[0] != key:
            self._known = key, {}
        values = self._known[1]
        if decode_batch not in values:
            values[decode_batch] = super().tokens_at(decode_batch)
        return values[decode_batch]


class _Server:
    """One engine behind one port. Its time goes on, a second at most, when its telemetry is read."""

    def __init__(self, seed: int) -> None:
        self.engine = _QuickEngine(start_tokens=4, seed=seed)
        for batch in (1, 2, 3, 4, 6, 8):
            self.engine.traffic = Traffic(decode_batch=batch)
            self.engine.advance(1.0)
        self.engine.traffic = Traffic(decode_batch=1 + seed % 4)
        self.engine.mangle["/metrics"] = lambda page: page + PADDING
        self.asked_s = time.monotonic()
        self.looks_s: list[float] = []
        self.looks = 0
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
            self.looks_s.append(now_s)
            self.looks += 1
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
    intervals = [b - a for s in servers for a, b in zip(s.looks_s, s.looks_s[1:], strict=False)]
    cuts = statistics.quantiles(intervals, n=100) if len(intervals) > 1 else [0.0] * 99
    told = {
        "at_s": time.monotonic(),
        "looks": sum(server.looks for server in servers),
        "puts": sum(server.puts for server in servers),
        "interval_s_p95": cuts[94],
    }
    for server in servers:
        server.looks_s, server.looks, server.puts = server.looks_s[-1:], 0, 0
        server.engine.puts.clear()
    return told


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def _memory_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kilobytes = next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
    return round(kilobytes / 1024, 1)


if __name__ == "__main__":
    main()
