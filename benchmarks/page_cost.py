"""What watching a daemon with many targets costs: its page in a browser, and ``specctl top``.

    python benchmarks/page_cost.py [--targets 100] [--windows 12] [--output FILE]

The servers are those of many_targets.py. A reader asks the API as the page does, in every second window; the
page's cost is the CPU that the daemon takes there over that of the neighbouring windows. ``specctl top`` runs
without a terminal in a process of its own. The first paint is that of a running Chromium, without its cache.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.browser import CHROMIUM, browser_tab  # noqa: E402

from benchmarks.many_targets import Arm, cpu_s_of, memory_mb_of  # noqa: E402
from testing.provenance import provenance, summary  # noqa: E402

INTERVAL_S = 2.0
WINDOW_S = 6.0
PAINTS = 5
PAINT = "performance.getEntriesByName('first-contentful-paint').map(entry => entry.startTime)[0]"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--targets", type=int, default=100)
    parser.add_argument("--windows", type=int, default=12, help="of each kind")
    parser.add_argument("--warm-up", type=float, default=25.0, metavar="SECONDS")
    parser.add_argument("--output", type=Path, metavar="FILE")
    parser.add_argument("--top", metavar="URL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.top is not None:
        asyncio.run(_watch(options.top))
        return
    options.core = options.profile = None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with Arm(options, port) as arm:
        time.sleep(options.warm_up)
        result = {
            "targets": options.targets,
            "page": _page(arm, url, options.windows),
            "first_contentful_paint_ms": asyncio.run(_paints(url)),
            "top": _top(url, options.windows),
            "daemon_memory_mb": arm.memory_mb(),
        }
    result["provenance"] = provenance()
    text = json.dumps(result, indent=2)
    print(text)
    if options.output is not None:
        options.output.write_text(text + "\n")


def _page(arm: Arm, url: str, windows: int) -> dict[str, Any]:
    """CPU seconds of the daemon in a second; each window with a reader beside the one without before it."""
    alone, read, added = [], [], []
    arm.window()
    for _ in range(windows):
        for seconds, reader in ((alone, None), (read, _Reader(url))):
            with reader or contextlib.nullcontext():
                time.sleep(WINDOW_S)
            counts = arm.window()
            seconds.append(counts["cpu_s"] / counts["took_s"])
        added.append(read[-1] - alone[-1])
    return {
        "daemon_cpu_s_per_s": summary(alone),
        "with_a_reader_cpu_s_per_s": summary(read),
        "added_cpu_s_per_s": summary(added),
        "window_s": WINDOW_S,
    }


class _Reader:
    """Asks for the list and for one server, every two seconds, from a thread."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> _Reader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _read(self) -> None:
        while not self._stop.is_set():
            targets = json.loads(self._get("/api/v1/targets"))["targets"]
            self._get("/api/v1/target?url=" + urllib.parse.quote(targets[0]["target"], safe=""))
            self._stop.wait(INTERVAL_S)

    def _get(self, path: str) -> bytes:
        with urllib.request.urlopen(self._url + path) as answer:
            body: bytes = answer.read()
        return body


async def _paints(url: str) -> dict[str, Any] | None:
    """None: no browser is installed."""
    if CHROMIUM is None:
        return None
    found = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        async with browser_tab(Path(folder)) as tab:
            await tab.call("Network.enable")
            await tab.call("Network.setCacheDisabled", cacheDisabled=True)
            for _ in range(1 + PAINTS):
                await tab.open("about:blank")
                await tab.open(url)
                await tab.wait_for("document.querySelectorAll('#servers-body tr').length > 1")
                await tab.wait_for(PAINT)
                found.append(float(await tab.evaluate(PAINT)))
    # The browser itself starts with the first one.
    return summary(found[1:])


def _top(url: str, windows: int) -> dict[str, Any]:
    with subprocess.Popen([sys.executable, __file__, "--top", url]) as process:
        time.sleep(10.0)
        shares = []
        for _ in range(windows):
            before_s, began_s = cpu_s_of(process.pid), time.monotonic()
            time.sleep(WINDOW_S)
            shares.append((cpu_s_of(process.pid) - before_s) / (time.monotonic() - began_s))
        memory_mb = memory_mb_of(process.pid)
        process.terminate()
    return {"cpu_s_per_s": summary(shares), "memory_mb": memory_mb}


async def _watch(url: str) -> None:
    from specctl.top.app import TopApp
    from specctl.top.sources import DaemonSource

    async with TopApp(DaemonSource(url, None)).run_test(size=(160, 50)):
        await asyncio.sleep(3600.0)


if __name__ == "__main__":
    main()
