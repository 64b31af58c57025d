"""What the daemon costs: CPU of a process at 1 Hz against fake engines, and the time of one decision.

    python benchmarks/daemon_cpu.py [--seconds 20] [--targets 4]

The fake engines serve the real protocol with 6 buckets of traffic in their telemetry and a /metrics page of
the size that vLLM 0.32 serves (about 600 lines). CPU is the daemon's own, start-up left out.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from fakes.engine import COPYING, FakeEngine, Traffic  # noqa: E402

from specctl.contract.telemetry import Telemetry  # noqa: E402
from specctl.core.controller import Controller  # noqa: E402
from specctl.engine_api.deltas import cell_deltas, shadow_delta  # noqa: E402
from specctl.policy.loader import find_policy, load_policy  # noqa: E402
from specctl.types import Observation  # noqa: E402

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
WARM_UP_S = 6.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--targets", type=int, default=4)
    options = parser.parse_args()
    share = daemon_share(options.targets, options.seconds)
    decisions_s = decision_seconds()
    result = {
        "targets": options.targets,
        "cpu_share_of_a_core": round(share, 4),
        "cpu_share_of_a_core_per_target": round(share / options.targets, 4),
        "decision_cpu_ms_median": round(1e3 * statistics.median(decisions_s), 3),
        "decision_cpu_ms_p95": round(1e3 * sorted(decisions_s)[int(0.95 * len(decisions_s))], 3),
        "seconds": options.seconds,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "command": " ".join(sys.argv),
    }
    print(json.dumps(result, indent=2))


def daemon_share(targets: int, seconds: float) -> float:
    """Share of one core that the daemon takes, all targets together."""
    engines = [FakeEngine(start_tokens=4, seed=i).__enter__() for i in range(targets)]
    for engine in engines:
        for batch in (1, 2, 3, 4, 6, 8):
            engine.traffic = Traffic(decode_batch=batch)
            engine.advance(2.0)
        engine.traffic = COPYING
        padding = b"".join(b'vllm:e2e_request_latency_seconds_bucket{le="%d"} 1.0\n' % i for i in range(600))
        engine.mangle["/metrics"] = lambda page, padding=padding: page + padding
    stop = threading.Event()
    traffic = threading.Thread(target=_give_traffic, args=(engines, stop))
    traffic.start()
    command = [
        sys.executable,
        "-m",
        "specctl.cli.main",
        "autotune",
        "--policy",
        "balanced",
        "--metrics-port",
        "0",
    ]
    for engine in engines:
        command += ["--target", engine.url]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL) as daemon:
        time.sleep(WARM_UP_S)
        before_s, started_s = _cpu_s(daemon.pid), time.monotonic()
        time.sleep(seconds)
        share = (_cpu_s(daemon.pid) - before_s) / (time.monotonic() - started_s)
        daemon.terminate()
        daemon.wait()
    stop.set()
    traffic.join()
    for engine in engines:
        engine.__exit__(None, None, None)
    return share


def decision_seconds(count: int = 300) -> list[float]:
    """CPU seconds of the pure core, estimators included; wall time would measure the neighbours."""
    engine, policy = FakeEngine(start_tokens=4), load_policy(find_policy("balanced"))
    controller = Controller()
    before = Telemetry.model_validate(engine.telemetry())
    took_s = []
    for i in range(count):
        engine.traffic = Traffic(decode_batch=1 + i % 8)
        engine.advance(1.0)
        after = Telemetry.model_validate(engine.telemetry())
        seen = Observation(
            target="t",
            time_s=engine.time_s,
            interval_s=1.0,
            capabilities=engine.capabilities(),
            applied=engine.applied(),
            cells=cell_deltas(before, after),
            shadow=shadow_delta(before.shadow, after.shadow),
        )
        started_s = time.thread_time()
        controller.learn(seen)
        controller.plan(seen, policy)
        took_s.append(time.thread_time() - started_s)
        before = after
    return took_s[10:]


def _give_traffic(engines: list[FakeEngine], stop: threading.Event) -> None:
    while not stop.wait(0.25):
        for engine in engines:
            engine.advance(0.25)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


if __name__ == "__main__":
    main()
