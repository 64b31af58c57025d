"""multiprocessing's ``spawn``, where the new process is a copy of this one as it is now, with its imports.

A spawned process knows nothing of what its parent did, and imports again what its parent did. Here a process
that waits aside is forked in the place of a new Python. It then reads what it is to run, as that would.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import json
import os
import re
import socket
import sys
import threading
from collections.abc import Sequence
from multiprocessing import util
from multiprocessing.spawn import spawn_main
from typing import Any

__all__ = ["copy_spawns"]

_MOST_BYTES = 1 << 18
"""Of a request: a command line and an environment."""
_MOST_FDS = 32
_FREE_FD = 512
"""Descriptors from here on are nobody's."""
_PR_SET_CHILD_SUBREAPER = 36


def copy_spawns() -> None:
    """From here on, in this process and in those that it spawns; call it while there is one thread."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if not os.fork():
        ours.close()
        _run(_wanted(theirs))
        sys.exit()
    theirs.close()
    # A copy is a grandchild of the process aside: it becomes this one's child, which waits for it.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    util.spawnv_passfds = functools.partial(_spawned, ours, threading.Lock(), util.spawnv_passfds)


def _spawned(
    aside: socket.socket, lock: Any, original: Any, path: str, args: Sequence[str], passfds: Sequence[int]
) -> int:
    """In the place of multiprocessing's own; returns the process id."""
    if "--multiprocessing-fork" not in args:
        pid: int = original(path, args, passfds)
        return pid
    numbers = sorted(map(int, passfds))
    # ``from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=7, pipe_handle=9)``
    named = {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", args[args.index("-c") + 1])}
    request = {"named": named, "numbers": numbers, "environment": dict(os.environ)}
    with lock:
        socket.send_fds(aside, [json.dumps(request).encode()], numbers)
        return int(aside.recv(32))


def _wanted(requests: socket.socket) -> dict[str, Any]:
    """In the process aside, which ends with the one that asks; returns in its copies only."""
    while True:
        message, fds, _, _ = socket.recv_fds(requests, _MOST_BYTES, _MOST_FDS)
        if not message:
            os._exit(0)
        pid_read, pid_write = os.pipe()
        between = os.fork()
        if not between:
            copy = os.fork()
            if copy:
                os.write(pid_write, str(copy).encode())
                os._exit(0)
            for fd in (requests.detach(), pid_read, pid_write):
                os.close(fd)
            wanted: dict[str, Any] = json.loads(message)
            _place(fds, wanted["numbers"])
            return wanted
        os.waitpid(between, 0)
        requests.send(os.read(pid_read, 32))
        for fd in (pid_read, pid_write, *fds):
            os.close(fd)


def _place(fds: Sequence[int], numbers: Sequence[int]) -> None:
    """Each descriptor under the number that its sender knows it by."""
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD, _FREE_FD) for fd in fds]
    for fd in fds:
        os.close(fd)
    for fd, number in zip(moved, numbers, strict=True):
        os.dup2(fd, number, inheritable=False)
        os.close(fd)


def _run(wanted: dict[str, Any]) -> None:
    os.environ.clear()
    os.environ.update(wanted["environment"])
    sys.argv = ["-c", "--multiprocessing-fork"]
    copy_spawns()
    spawn_main(**wanted["named"])
