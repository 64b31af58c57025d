"""From the best setting to a launch command and a policy file. No input or output."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

from specctl.bench.arms import Arm
from specctl.bench.intervals import Outcome
from specctl.bench.judged import compared
from specctl.bench.loads import Load
from specctl.bench.results import Run
from specctl.bench.servers import Server
from specctl.contract.setting import Setting

__all__ = ["chosen_by_batch", "launch_line", "policy_text"]

_OPTIONS = {
    "vllm": ("--speculative-config",),
    "sglang": (
        "--speculative-algorithm",
        "--speculative-num-steps",
        "--speculative-eagle-topk",
        "--speculative-num-draft-tokens",
    ),
}
_NEEDS_DRAFT = ("eagle", "eagle3", "draft_model", "peagle", "medusa", "standalone", "nextn")


def launch_line(server: Server, setting: Setting) -> str:
    """The command that the server was launched with, or the usual one, with this setting as its start."""
    capabilities = server.capabilities
    assert capabilities is not None
    if server.launch is not None:
        base = shlex.split(server.launch)
    elif capabilities.engine == "sglang":
        base = ["python", "-m", "sglang.launch_server", "--model-path", capabilities.model]
    else:
        base = ["vllm", "serve", capabilities.model]
    given = _value(base, "--speculative-config")
    base = _without(base, _OPTIONS.get(capabilities.engine, ()))
    if setting.num_speculative_tokens == 0:
        return shlex.join(base)
    if capabilities.engine == "sglang":
        return shlex.join([*base, *_sglang(capabilities.method, setting)])
    config = json.loads(given) if given else {"method": capabilities.method}
    if not given and capabilities.method.lower() in _NEEDS_DRAFT:
        config["model"] = "DRAFT"
    config["num_speculative_tokens"] = setting.num_speculative_tokens
    return shlex.join([*base, "--speculative-config", json.dumps(config)])


def _sglang(method: str, setting: Setting) -> list[str]:
    """SGLang counts positions of the verification: drafts + 1 for a chain."""
    parts = ["--speculative-algorithm", method]
    if method.lower() in _NEEDS_DRAFT:
        parts += ["--speculative-num-steps", str(setting.num_speculative_tokens)]
        parts += ["--speculative-eagle-topk", str(setting.tree_topk)]
    return [*parts, "--speculative-num-draft-tokens", str(setting.width_tokens)]


def _value(parts: Sequence[str], option: str) -> str | None:
    for i, part in enumerate(parts):
        if part == option and i + 1 < len(parts):
            return parts[i + 1]
        if part.startswith(f"{option}="):
            return part.partition("=")[2]
    return None


def _without(parts: Sequence[str], options: Sequence[str]) -> list[str]:
    kept, is_value = [], False
    for part in parts:
        if is_value:
            is_value = False
        elif part in options:
            is_value = True
        elif not part.startswith(tuple(f"{option}=" for option in options)):
            kept.append(part)
    return kept


def chosen_by_batch(
    arms: Sequence[Arm], loads: Sequence[Load], runs: Sequence[Run], default: Setting
) -> list[tuple[int | None, Setting]]:
    """(last decode batch, setting): by the concurrency of closed loops, the arm that is clearly faster than
    off there, else off. Without two of them: ``default`` for all."""
    by_load = {load.concurrency: load.title for load in loads if load.concurrency is not None}
    numbers = sorted(number for number in by_load if number is not None)
    if len(numbers) < 2 or len(by_load) < len(loads):
        return [(None, default)]
    chosen: list[tuple[int | None, Setting]] = []
    for number in numbers:
        found = [(compared(runs, arm.name, "off", by_load[number]), arm) for arm in arms if arm.name != "off"]
        faster = [one for one in found if one[0].outcome is Outcome.FASTER]
        best = max(faster, key=lambda one: one[0].ratio, default=None)
        setting = Setting(num_speculative_tokens=0) if best is None else best[1].setting
        assert setting is not None
        if chosen and chosen[-1][1] == setting:
            chosen.pop()
        chosen.append((number, setting))
    return [*chosen[:-1], (None, chosen[-1][1])]


def policy_text(rows: Sequence[tuple[int | None, Setting]]) -> str:
    """A policy file: fixed for one setting, thresholds for several."""
    lines = ["kind: fixed", "name: best"] if len(rows) == 1 else ["kind: thresholds", "name: best"]
    if len(rows) == 1:
        lines += [f"{key}: {value}" for key, value in _named(rows[0][1]).items()]
    else:
        lines.append("thresholds:")
        for last, setting in rows:
            values = {"decode_batch_to": "null" if last is None else last, **_named(setting)}
            lines.append("  - {" + ", ".join(f"{key}: {value}" for key, value in values.items()) + "}")
    most = max(setting.num_speculative_tokens for _, setting in rows)
    lines += ["knobs:", f"  num_speculative_tokens: {{min: 0, max: {max(most, 1)}}}", "on_stop: start"]
    return "\n".join([*lines, ""])


def _named(setting: Setting) -> dict[str, int]:
    known = {"num_speculative_tokens": setting.num_speculative_tokens}
    if setting.tree_topk > 1:
        known["tree_topk"] = setting.tree_topk
        if setting.verify_width_tokens is not None:
            known["verify_width_tokens"] = setting.verify_width_tokens
    return known
