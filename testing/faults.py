"""Sequences of faults on a real server and its daemon, under requests, and what may never happen.

    python -m testing.faults [--model FOLDER] --sequences 20

Exit code 1 and the reason for the first thing that must not happen: a request that is lost, an output that
differs from the one without drafts, a version that falls, a lease that does not end, a daemon that dies or
does not steer again within a minute, a torn audit log.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from testing.autotune import autotune
from testing.lossless import SHARED
from testing.relay import FAULTS as RELAY_FAULTS
from testing.relay import Relay, relay
from testing.servers import Server, command, free_port, started

__all__ = ["Course", "Failed", "course", "run"]

LEASE_S = 6.0
FALLBACK = 1
MOST = 4
MAX_TOKENS = 24
STEERS_AGAIN_S = 60.0
PROMPTS = (
    "item_0 = load('a')\nitem_1 = load('b')\nitem_0 = load('a')\nitem_1 =",
    "The capital of France is",
    "1, 2, 3, 4, 5, 6, 7,",
)
GARBAGE = (b"", b"\xff" * 300, b"kind: &a [*a]", b"frozen: !!bool maybe", b"[" * 5000, b"kind: fixed\n")
COMMON = {
    *(f"relay {kind}" for kind in RELAY_FAULTS),
    *(
        "kill the daemon",
        "stop the daemon",
        "stop the server",
        "two daemons",
        "full disk",
        "garbage",
        "races",
    ),
}


class Failed(AssertionError):
    """What must not happen did."""


class Course:
    """One server that may be killed and started again, one daemon that reaches it through a relay."""

    def __init__(
        self, folder: Path, rng: random.Random, server: Server, start: Callable[[Server], Server] | None
    ) -> None:
        """``start``: kills the server and starts it again; None: it is somebody else's and stays."""
        self.folder, self.rng, self.server, self._start = folder, rng, server, start
        self.http = httpx.Client(base_url=server.url, timeout=120)
        self.policy, self.audit = folder / "policy.yaml", folder / "audit.jsonl"
        self.numbers = 0
        self.faults: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.is_server_killed = False
        self._done = threading.Event()
        self._seen: dict[str, int] = {}
        self._daemon = ExitStack()
        self.set_table(0)
        self.reference = {prompt: self.complete(prompt) for prompt in PROMPTS}

    def set_table(self, tokens: int) -> None:
        row = {"decode_batch_from": 1, "num_speculative_tokens": tokens}
        change = {"base_version": self.table()["version"], "rows": [row], "owner": "faults"}
        self.http.put("/specctl/v1/table", json=change).raise_for_status()

    def table(self) -> dict[str, Any]:
        found: dict[str, Any] = self.http.get("/specctl/v1/table").raise_for_status().json()
        return found

    def complete(self, prompt: str) -> list[int]:
        body = {"model": "model", "prompt": prompt, "max_tokens": MAX_TOKENS, "temperature": 0}
        answer = self.http.post("/v1/completions", json={**body, "return_token_ids": True}).raise_for_status()
        ids: list[int] = answer.json()["choices"][0]["token_ids"]
        return ids

    @contextmanager
    def under_requests(self) -> Iterator[None]:
        clients = [threading.Thread(target=self._client, args=(prompt,)) for prompt in PROMPTS[:2]]
        clients.append(threading.Thread(target=self._watch))
        for client in clients:
            client.start()
        try:
            yield
        finally:
            self._done.set()
            for client in clients:
                client.join()

    def _client(self, prompt: str) -> None:
        while not self._done.is_set():
            try:
                output = self.complete(prompt)
            except httpx.HTTPError as error:
                if not self.is_server_killed:
                    self.wrong.append(f"a request was lost: {error!r}")
                time.sleep(0.2)
                continue
            self.answers[prompt] += 1
            if output != self.reference[prompt]:
                self.wrong.append(f"another output of {prompt!r}: {output}, not {self.reference[prompt]}")

    def _watch(self) -> None:
        """The version never falls while a process lives; every lease is short."""
        while not self._done.is_set():
            with suppress(httpx.HTTPError, KeyError):
                table = self.table()
                boot_id, version, left_s = table["boot_id"], table["version"], table["lease_remaining_s"]
                if version < self._seen.get(boot_id, 0):
                    self.wrong.append(f"version {version} after {self._seen[boot_id]}")
                if left_s is not None and left_s > LEASE_S:
                    self.wrong.append(f"a lease of {left_s} s")
                self._seen[boot_id] = max(version, self._seen.get(boot_id, 0))
            time.sleep(0.1)

    def write_policy(self, tokens: int) -> None:
        text = f"kind: fixed\nnum_speculative_tokens: {tokens}\npoll_interval_s: 0.2\nlease_s: {LEASE_S:g}\n"
        whole = self.policy.with_suffix(".new")
        whole.write_text(f"{text}fallback_num_speculative_tokens: {FALLBACK}\n", encoding="utf-8")
        whole.replace(self.policy)

    def start_daemon(self, relayed: Relay) -> None:
        """A daemon refuses to start with a policy that it cannot read."""
        self._daemon.close()
        self.write_policy(2)
        self.process = self._daemon.enter_context(autotune(relayed.url, self.folder, policy=str(self.policy)))

    def stop_daemon(self) -> None:
        self._daemon.close()

    def wait_for(self, what: str, condition: Callable[[], bool], seconds: float = STEERS_AGAIN_S) -> None:
        ends_s = time.monotonic() + seconds
        while True:
            with suppress(httpx.HTTPError):
                if condition():
                    return
            if time.monotonic() > ends_s:
                raise Failed(f"not within {seconds:g} s: {what}; {self._state()}")
            time.sleep(0.1)

    def _state(self) -> str:
        return f"table {self.table()}\n{self.log()[-3000:]}"

    def steers(self) -> None:
        """The daemon lives, and puts a new number in force."""
        self.numbers = self.numbers % MOST + 1
        self.write_policy(self.numbers)

        def is_in_force() -> bool:
            if self.process.poll() is not None:
                raise Failed(f"the daemon ended ({self.process.returncode}); {self._state()}")
            table = self.table()
            row = table["rows"][0]["num_speculative_tokens"]
            return (table["state"], row) == ("live", self.numbers) and table["owner"].startswith("autotune")

        self.wait_for(f"the daemon puts {self.numbers} in force", is_in_force)

    def falls_back(self) -> None:
        is_fallback = lambda: self.table()["state"] == "fallback"  # noqa: E731
        self.wait_for("the fallback after the lease", is_fallback, LEASE_S + 5.0)
        if self.table()["rows"][0]["num_speculative_tokens"] != FALLBACK:
            raise Failed(f"another fallback: {self.table()}")

    def fault(self, name: str, relayed: Relay) -> None:
        self.faults[name] += 1
        seconds = self.rng.uniform(0.5, 3.0)
        if name.startswith("relay "):
            relayed.fault = name.removeprefix("relay ")
            time.sleep(self.rng.choice((seconds, LEASE_S + 1.0)))
            relayed.fault = None
        elif name == "kill the daemon":
            self.process.kill()
            self.process.wait()
            self.falls_back()
            self.start_daemon(relayed)
            # A fault of its policy before it has read it ends it, as it should.
            self.steers()
        elif name == "stop the daemon":
            self.process.send_signal(signal.SIGSTOP)
            self.falls_back()
            self.process.send_signal(signal.SIGCONT)
        elif name == "stop the server":
            self._signal_server(signal.SIGSTOP)
            time.sleep(seconds)
            self._signal_server(signal.SIGCONT)
        elif name == "two daemons":
            other = self.folder / "other"
            other.mkdir(exist_ok=True)
            with autotune(self.server.url, other, policy="fixed"):
                time.sleep(2.0 + seconds)
        elif name == "full disk":
            kept = self.audit.with_suffix(".kept")
            self.audit.rename(kept)
            self.audit.symlink_to("/dev/full")
            refused = self.log().count("No space left")
            self.steers()
            # The record of a change follows the change.
            self.wait_for("a record finds the disk full", lambda: self.log().count("No space left") > refused)
            self.audit.unlink()
            kept.rename(self.audit)
            before = self.events().count("lost")
            self.steers()
            self.wait_for("the audit log says what it lost", lambda: self.events().count("lost") > before)
        elif name == "garbage":
            self._garbage()
        elif name == "races":
            for _ in range(100):
                self.write_policy(self.rng.randint(0, MOST))
        elif name == "kill the server" and self._start is not None:
            self.is_server_killed = True
            self.server = self._start(self.server)
            self.is_server_killed = False

    def _signal_server(self, number: signal.Signals) -> None:
        """The API server and the engine's processes."""
        os.killpg(self.server.process.pid, number)

    def _garbage(self) -> None:
        for kind in range(len(GARBAGE) + 3):
            self.policy.unlink()
            if kind == 0:
                os.mkfifo(self.policy)
            elif kind == 1:
                self.policy.symlink_to(self.policy)
            elif kind == 2:
                self.policy.mkdir()
            else:
                self.policy.write_bytes(GARBAGE[kind - 3])
            time.sleep(0.3)
            if kind == 2:
                self.policy.rmdir()
                self.policy.touch()

    def check(self) -> None:
        """Raises Failed."""
        if self.wrong:
            raise Failed("; ".join(self.wrong[:5]))
        self.events()
        if "Traceback" in (log := self.log()):
            raise Failed(log[-3000:])

    def events(self) -> list[str]:
        """Of the audit log; a line that is torn raises ValueError."""
        return [json.loads(line)["event"] for line in self.audit.read_text(encoding="utf-8").splitlines()]

    def log(self) -> str:
        return (self.folder / "autotune.log").read_text(encoding="utf-8", errors="replace")


@contextmanager
def course(
    folder: Path, seed: int, server: Server, start: Callable[[Server], Server] | None = None
) -> Iterator[tuple[Course, Relay]]:
    """A daemon that steers the server, under requests."""
    made = Course(folder, random.Random(seed), server, start)
    with closing(made.http), relay(httpx.URL(server.url).port or 0) as relayed:
        made.start_daemon(relayed)
        try:
            with made.under_requests():
                made.steers()
                yield made, relayed
        finally:
            made.stop_daemon()


def run(made: Course, relayed: Relay, sequences: Sequence[Sequence[str]]) -> None:
    """Raises Failed."""
    for number, names in enumerate(sequences, 1):
        started_s = time.monotonic()
        for name in names:
            made.fault(name, relayed)
        made.steers()
        made.check()
        print(f"sequence {number}: {', '.join(names)}: {time.monotonic() - started_s:.0f} s", flush=True)


def _sequences(count: int, seed: int) -> list[list[str]]:
    """Two or three faults each; every fault comes before any comes again. One in five kills the server."""
    rng = random.Random(seed)
    left: list[str] = []
    found = []
    for number in range(count):
        names = []
        for _ in range(rng.randint(2, 3)):
            left = left or rng.sample(sorted(COMMON), len(COMMON))
            names.append(left.pop())
        found.append([*names, "kill the server"] if number % 5 == 2 else names)
    return found


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--model", type=Path, default=SHARED / "models" / "reference-target")
    options.add_argument("--sequences", type=int, default=20)
    options.add_argument("--first", type=int, default=0, help="sequences before this one are left out")
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    # What was started is stopped, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    folder, port = Path(tempfile.mkdtemp(prefix="specctl-faults-")), free_port()
    config = {"method": "specctl_suffix", "num_speculative_tokens": MOST}
    parts = command(given.model, port, config, ["--max-model-len", "512"])
    environment = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    stack = ExitStack()

    def start() -> Server:
        stack.close()
        return stack.enter_context(started(parts, port, folder / "server.log", environment))

    def start_again(running: Server) -> Server:
        os.killpg(running.process.pid, signal.SIGKILL)
        return start()

    with stack:
        server = start()
        sequences = _sequences(given.sequences, given.seed)[given.first :]
        try:
            with course(folder, given.seed, server, start_again) as (made, relayed):
                run(made, relayed, sequences)
        except (Failed, subprocess.SubprocessError, httpx.HTTPError) as error:
            print(f"failed: {error}\n{folder}")
            return 1
    answers = sum(made.answers.values())
    print(f"{len(sequences)} sequences, {dict(made.faults)}, {answers} outputs, none differs, none lost")
    return 0


if __name__ == "__main__":
    sys.exit(main())
