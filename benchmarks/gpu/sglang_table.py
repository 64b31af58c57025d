"""Parts ``table`` and ``drafts`` of benchmarks.gpu.sglang_compare: what the live table does to a server."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.gpu.arms import in_turn
from benchmarks.gpu.sglang_arms import Arm
from benchmarks.gpu.sglang_parts import brief, row_of, speculates
from benchmarks.gpu.ties import judged, partings
from benchmarks.gpu.ties import told as told_of_ties
from testing.provenance import summary

__all__ = ["drafts", "table"]

_CHANGES = (8, 0, 4, 2, 0, 8, 4, 0, 2, 8)
_STEPS_BEHIND_MAX = 1
"""Launched when the table came and counted after it, as the scheduler overlaps."""
_WAIT_S = 30.0
_PROMPTS_OF_TABLE = 64


def table(
    arms: list[Arm], prompts: list[list[int]], batches: Sequence[int], _repeats: int, tokens: int
) -> dict[str, Any]:
    """While requests run over and over, the table changes; telemetry tells which steps came after.

    Raises RuntimeError where a server ends or does not take up a table, or none has one.
    """
    given = prompts[-batches[0] :]
    truth = next((arm for arm in arms if not speculates(arm)), None)
    expected = None if truth is None else truth.run(given, tokens)
    found: dict[str, Any] = {}
    for arm in (arm for arm in arms if arm.setting.rows):
        found[arm.name], outputs = changed(arm, given, tokens)
        if truth is not None and expected is not None:
            asked = [given[i % len(given)] for i in range(len(outputs))]
            wanted = [expected["outputs"][i % len(given)] for i in range(len(outputs))]
            same = sum(a == b for a, b in zip(outputs, wanted, strict=True))
            found[arm.name] |= {"outputs": len(outputs), "outputs as off": same}
            found[arm.name]["parted"] = judged(truth, partings(asked, outputs, wanted))
        told = {key: value for key, value in found[arm.name].items() if key not in ("changes", "parted")}
        told["parted"] = told_of_ties(found[arm.name].get("parted", {}))
        print(f"table, {arm.name}: {told}", flush=True)
    if not found:
        raise RuntimeError("no arm with a live table stands")
    return {"arms": found}


def drafts(
    arms: list[Arm], prompts: list[list[int]], batches: Sequence[int], repeats: int, tokens: int
) -> dict[str, Any]:
    """Each prepared number of drafts under a table of it alone, in turn: what to write into a table.

    Each run has prompts of its own, from the last one on, so that these are not those of ``copying``.
    Raises ValueError for too few prompts.
    """
    fresh = prompts[: len(prompts) - _PROMPTS_OF_TABLE]
    found: dict[str, Any] = {}
    for arm in (arm for arm in arms if arm.setting.rows):
        legal = arm.get("capabilities")["num_speculative_tokens_legal"]
        for batch in batches:
            taken: dict[int, list[Any]] = {number: [] for number in legal}
            for repeat in range(repeats + 1):
                for number in in_turn(list(legal), repeat):
                    if len(fresh) < batch:
                        raise ValueError(f"{batch} prompts more were needed")
                    arm.set_rows([(1, number)])
                    taken[number].append(arm.run(fresh[-batch:], tokens))
                    del fresh[-batch:]
                    if arm.deadline.is_over() or taken[number][-1] is None:
                        return {"arms": found, "left out": f"{arm.name} from {batch} at once on"}
            for number, answers in taken.items():
                row = row_of(answers, None)
                found.setdefault(arm.name, {}).setdefault(str(batch), {})[str(number)] = row
                print(f"{batch} at once, {arm.name}, {number} drafts: {brief(row)}", flush=True)
        arm.set_rows(arm.setting.rows)
    return {"arms": found}


def changed(arm: Arm, prompts: list[list[int]], tokens: int) -> tuple[dict[str, Any], list[list[int]]]:
    """Figures and the answers that were written meanwhile, those of the prompts again and again."""
    ended = threading.Event()
    answers: list[list[int]] = []

    def load() -> None:
        while not ended.is_set():
            answer = arm.run(prompts, tokens)
            if answer is None:
                return
            answers.extend(answer["outputs"])

    legal = arm.get("capabilities")["num_speculative_tokens_legal"]
    graph_bytes = _graph_bytes(arm)
    sender = threading.Thread(target=load, daemon=True)
    arm.set_rows([(1, legal[-1])])
    sender.start()
    try:
        rows = [one_change(arm, number) for number in _CHANGES[1:] if number in legal]
    finally:
        ended.set()
        sender.join(_WAIT_S)
        arm.set_rows(arm.setting.rows)
    behind = max(row["steps behind"] for row in rows)
    figures = {
        "changes": rows,
        "most steps behind": behind,
        "within one step": behind <= _STEPS_BEHIND_MAX,
        "put, ms": summary([row["put, ms"] for row in rows]),
        "graph bytes at start": graph_bytes,
        "graph bytes by changes": _graph_bytes(arm) - graph_bytes,
    }
    return figures, answers


def one_change(arm: Arm, number: int) -> dict[str, Any]:
    """``steps behind``: counted under other numbers after the table was in force."""
    _wait(arm, lambda told: told["decoding"] > 0, "for a request to decode")
    began_s = time.perf_counter()
    arm.set_rows([(1, number)])
    put_s = time.perf_counter() - began_s
    first = _steps(arm.get("telemetry"))
    at_first = first.get(number, 0)
    last = _steps(
        _wait(arm, lambda told: _steps(told).get(number, 0) > at_first, f"for a step under {number} drafts")
    )
    counted_s = time.perf_counter() - began_s
    behind = sum(steps - first.get(other, 0) for other, steps in last.items() if other != number)
    return {
        "drafts": number,
        "steps behind": behind,
        "put, ms": round(put_s * 1e3, 2),
        "until a step was counted, ms": round(counted_s * 1e3, 2),
    }


def _wait(arm: Arm, is_so: Any, why: str) -> Any:
    ends_s = time.monotonic() + _WAIT_S
    while time.monotonic() < ends_s:
        told = arm.get("telemetry")
        if is_so(told):
            return told
        time.sleep(0.002)
    raise RuntimeError(f"{arm.name}: waited {_WAIT_S:g} s {why}")


def _steps(telemetry: Any) -> dict[int, int]:
    """Steps by the number of drafts that the table allowed; those of prompts alone are under none."""
    found: dict[int, int] = {}
    for cell in telemetry["cells"]:
        if not cell["decode_batch_to"]:
            continue
        number = cell["num_speculative_tokens"]
        found[number] = found.get(number, 0) + cell["steps"]
    return found


def _graph_bytes(arm: Arm) -> float:
    return float(arm.get("telemetry")["proposer"].get("graph_bytes", 0.0))
