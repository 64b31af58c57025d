"""Where a step's time goes on SGLang, arm by arm, by torch's profiler in the server's own process.

A part of benchmarks.gpu.sglang_compare. Some steps are traced while requests run; a step is one pass of the
target that emits tokens, so that prompts, drafts and what lies between count for it. Tracing costs the host
time: idle time of the device is an upper bound. On a CPU, where nothing runs on a device, torch's outermost
operations take its place, to try it.
"""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.gpu.sglang_arms import Arm
from benchmarks.gpu.sglang_parts import sets_of

__all__ = ["profile", "told_of"]

_STEPS = 24
_BEGIN_AFTER_S = 1.5
_WRITTEN_AFTER_S = 60.0
_ON_A_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_CALLS = ("cuda_runtime", "cuda_driver")
_STEP_NAMES = ("step[VERIFY", "step[DECODE")
_GAP_US = 20.0
_LONGEST = 16
_NAME_LENGTH = 80
_TIMES = 4
"""Requests, in numbers of those at the same time."""
_Event = Mapping[str, Any]


def profile(
    arms: list[Arm], prompts: list[list[int]], batches: Sequence[int], _repeats: int, tokens: int
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for batch, [asked] in sets_of(prompts, batches, 1, may_repeat=True, times=_TIMES).items():
        for arm in arms:
            arm.run(asked[:batch], tokens)
            told = told_of(_traced(arm, asked, tokens, batch))
            found.setdefault(arm.name, {})[str(batch)] = told
            few = {key: value for key, value in told.items() if not isinstance(value, dict)}
            print(f"{batch} at once, {arm.name}: {json.dumps(few)}", flush=True)
    return {"arms": found}


def _traced(arm: Arm, prompts: list[list[int]], tokens: int, at_once: int) -> list[_Event]:
    """Raises RuntimeError where the server writes no trace."""
    is_written = threading.Event()

    def load() -> None:
        while not is_written.is_set() and arm.run(prompts, tokens, at_once) is not None:
            pass

    running = threading.Thread(target=load)
    with TemporaryDirectory() as folder:
        running.start()
        try:
            time.sleep(_BEGIN_AFTER_S)
            asked = {"output_dir": folder, "num_steps": _STEPS, "activities": ["CPU", "GPU"]}
            arm.client.post("/start_profile", json=asked, timeout=60).raise_for_status()
            path = _written(Path(folder))
        finally:
            is_written.set()
            running.join()
        with gzip.open(path, "rt", encoding="utf-8") as file:
            events: list[_Event] = json.load(file)["traceEvents"]
    return events


def _written(folder: Path) -> Path:
    ends_s = time.monotonic() + _WRITTEN_AFTER_S
    size = -1
    while time.monotonic() < ends_s:
        for path in folder.rglob("*.trace.json.gz"):
            if path.stat().st_size == size > 0:
                return path
            size = path.stat().st_size
        time.sleep(1.0)
    raise RuntimeError(f"no trace within {_WRITTEN_AFTER_S:.0f} s")


def told_of(events: Iterable[_Event]) -> dict[str, Any]:
    """us a step: in all, busy and idle on the device, in gaps; the longest kernels, the host's longest calls
    of CUDA (launches, and what it waits for), and its phases. Raises RuntimeError for a trace without a
    step."""
    spans = [event for event in events if event.get("ph") == "X"]
    phases = [event for event in spans if event.get("cat") == "user_annotation"]
    steps = sum(event["name"].startswith(_STEP_NAMES) for event in phases)
    if not steps:
        raise RuntimeError("the trace has no step")
    work = sorted(
        (event for event in spans if event.get("cat") in _ON_A_DEVICE), key=lambda event: float(event["ts"])
    )
    work = work or _outermost(event for event in spans if event.get("cat") == "cpu_op")
    gaps = _gaps_us(work)
    begin = work[0]["ts"]
    span_us = max(event["ts"] + event["dur"] for event in work) - begin
    host: Counter[str] = Counter()
    for event in phases:
        host[event["name"]] += event["dur"]
    return {
        "steps": steps,
        "us a step": round(span_us / steps, 1),
        "idle us": round(sum(gaps) / steps, 1),
        "of it in gaps over 20 us": round(sum(gap for gap in gaps if gap > _GAP_US) / steps, 1),
        "launches": round(len(work) / steps, 1),
        "kernels, us a step and times": _longest(work, steps),
        "calls of CUDA, us a step and times": _longest(
            (event for event in spans if event.get("cat") in _CALLS), steps
        ),
        "phases of the host, us a step": {name: round(us / steps, 1) for name, us in host.most_common()},
    }


def _longest(events: Iterable[_Event], steps: int) -> dict[str, list[float]]:
    """By name: us a step, and how many a step."""
    by_name: dict[str, list[float]] = defaultdict(list)
    for event in events:
        by_name[event["name"][:_NAME_LENGTH]].append(event["dur"])
    names = sorted(by_name, key=lambda name: -sum(by_name[name]))[:_LONGEST]
    return {
        name: [round(sum(by_name[name]) / steps, 1), round(len(by_name[name]) / steps, 2)] for name in names
    }


def _outermost(operations: Iterable[_Event]) -> list[_Event]:
    found: list[_Event] = []
    ends = float("-inf")
    for event in sorted(operations, key=lambda event: float(event["ts"])):
        if event["ts"] >= ends:
            found.append(event)
            ends = event["ts"] + event["dur"]
    return found


def _gaps_us(work: Sequence[_Event]) -> list[float]:
    """In which nothing runs; work: in the order of their begin."""
    gaps = []
    ends = work[0]["ts"]
    for event in work:
        if event["ts"] > ends:
            gaps.append(event["ts"] - ends)
        ends = max(ends, event["ts"] + event["dur"])
    return gaps
