"""Every ``specctl`` command of README and documents, and a way to run it."""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

__all__ = ["PAGES", "Documented", "documented", "documented_on_a_server", "run"]

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
GENERATED = {"commands.md"}
# Of a command's usage or of a drawing, not of a call: "[--daemon URL]", "a|b", "...", "-->".
USAGE = re.compile(r"[\[\]]|\w\|\w|\.\.\.|-->")
SERVER = re.compile(r"(http://)?(127\.0\.0\.1|localhost):(8000|8001|30000)|^TARGET$")
DAEMON = re.compile(r"^http://HOST:9109$")
OF_A_SERVER = ("top", "server.log")
"""Words of commands that read what a server's daemon or recording has."""
ELSEWHERE = re.compile(r"^unix://")
"""The socket of a program that embeds the engine; tests/engine/test_embedded_engines.py has one."""
LIMIT_S = 240.0
SPECCTL = str(Path(sys.executable).parent / "specctl")
SHORTER = {
    "bench": ["--rounds", "2", "--seconds", "1", "--outputs", "2"],
    "profile": ["--for", "20", "--requests", "40"],
    "record": ["--every", "1", "--for", "12"],
}
"""Options that come last win."""
ADVICE = "Measure for longer"
"""What profile says where other work on the machine disturbs a short measurement."""
LONGER = ["--for", "100", "--requests", "200"]
SEARCH = ["--minutes", "1.1", "--concurrency", "2"]
UNTIL_STOPPED = {"autotune": "Ctrl-C", "top": "q"}


@dataclass(frozen=True)
class Documented:
    page: str
    words: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.page}: {' '.join(self.words)[:60]}"

    @property
    def needs_server(self) -> bool:
        return any(SERVER.search(word) or word in OF_A_SERVER for word in self.words)

    @property
    def is_elsewhere(self) -> bool:
        return any(ELSEWHERE.search(word) for word in self.words)


def documented() -> list[Documented]:
    """Each command once, with the first page that has it."""
    found: dict[tuple[str, ...], Documented] = {}
    for page in PAGES:
        if page.name not in GENERATED:
            for line in _lines(page):
                asked = shlex.split(line, comments=True)[1:]
                words = tuple(takewhile(lambda word: word != ">", asked))
                found.setdefault(words, Documented(page.name, words))
    return list(found.values())


def documented_on_a_server() -> list[Documented]:
    """Those that need one, each once whatever its server's address and the folder that it saves into."""
    found: dict[str, Documented] = {}
    for command in documented():
        if command.needs_server and not command.is_elsewhere:
            found.setdefault(re.sub(r" --save \S+", "", SERVER.sub("URL", " ".join(command.words))), command)
    return list(found.values())


def _lines(page: Path) -> list[str]:
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = (line.strip().removeprefix("$ ") for line in text.splitlines() if line.startswith("    "))
    return [line for line in lines if line.startswith("specctl ") and not USAGE.search(line)]


def run(command: Documented, folder: Path, url: str = "", daemon: str = "") -> tuple[int, str]:
    """Exit code and output, in ``folder``; ``url`` takes the place of the servers that the pages name.

    ``daemon``: the URL of one beside that server. What is measured for minutes is measured for seconds, and
    for longer where that is advised; what runs until it is stopped is stopped as a user stops it, once it has
    shown the server.
    """
    words = [DAEMON.sub(daemon, SERVER.sub(url, word)) for word in command.words] if url else [*command.words]
    words += SHORTER.get(words[0], []) if "--from" not in words else []
    words += SEARCH if "--search" in words else []
    words += ["--daemon", daemon] if words == ["top"] else []
    words += ["--metrics-port", "0"] if words[0] == "autotune" else []
    if words[0] in UNTIL_STOPPED:
        return _until_stopped(words, folder, url)
    code, output = _ran(words, folder)
    return _ran([*words, *LONGER], folder) if ADVICE in output else (code, output)


def _ran(words: Sequence[str], folder: Path) -> tuple[int, str]:
    done = subprocess.run(
        [SPECCTL, *words],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
    )
    return done.returncode, done.stdout


def _until_stopped(words: Sequence[str], folder: Path, url: str) -> tuple[int, str]:
    """On a terminal of its own."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [SPECCTL, *words],
        cwd=folder,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "160", "LINES": "40"},
        start_new_session=True,
    )
    os.close(theirs)
    shown, ends_s, is_asked = "", time.monotonic() + LIMIT_S, False
    try:
        while time.monotonic() < ends_s and (data := _read(ours, process)) is not None:
            shown += data
            if not is_asked and url.removeprefix("http://") in shown:
                is_asked = True
                if UNTIL_STOPPED[words[0]] == "q":
                    os.write(ours, b"q")
                else:
                    process.send_signal(signal.SIGINT)
        return process.wait(max(1.0, ends_s - time.monotonic())), shown
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def _read(terminal: int, process: subprocess.Popen[bytes]) -> str | None:
    """What is on the terminal; None where the process has ended."""
    if not select.select([terminal], [], [], 0.2)[0]:
        return None if process.poll() is not None else ""
    try:
        return os.read(terminal, 65536).decode("utf-8", "replace") or None
    except OSError:
        return None
