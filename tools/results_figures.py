"""Figures out of ``benchmarks/results/``, as text: a ratio with its range and repeats."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
ONE_HOT = "gpu-verify-one-hot.json"


@cache
def result(name: str) -> Any:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def figure_at(name: str, *path: str | int) -> Any:
    value = result(name)
    for key in path:
        value = value[key]
    return value


def ratio(name: str, *path: str | int, times: float = 1.0, digits: int = 2) -> str:
    """Median and range of a figure with repeats."""
    found = figure_at(name, *path)
    if isinstance(found, (int, float)):
        return f"{found * times:.{digits}f}"
    if isinstance(found, list):
        found = {"median": found[0], "min": found[1], "max": found[2]}
    least, most = found.get("min", found.get("least")), found.get("max", found.get("most"))
    spread = f"{least * times:.{digits}f} to {most * times:.{digits}f}"
    repeats = f", {found['repeats']} repeats" if "repeats" in found else ""
    return f"{found['median'] * times:.{digits}f} ({spread}{repeats})"


def ratios(name: str, *path: str | int, by: str = "at once", keys: Iterable[str] | None = None) -> str:
    """One figure for each number of requests."""
    found = figure_at(name, *path)
    return "; ".join(f"{key} {by}: {ratio(name, *path, key)}" for key in (keys or found))


def of_loads(name: str, server: str, base: str) -> str:
    """A server against another one, by load."""
    return of_loads_at(name, server, f"against {base}")


def of_loads_at(name: str, server: str, figure: str) -> str:
    """Another figure of a server, by the loads that have it."""
    loads = figure_at(name, "loads")
    return "; ".join(
        f"{load}: {ratio(name, 'loads', load, server, figure)}"
        for load, servers in loads.items()
        if figure in servers[server]
    )


def of_rates(name: str) -> str:
    """autotune against the best other arm, by requests per second."""
    rates = figure_at(name, "rates")
    return "; ".join(f"{rate}/s: {ratio(name, 'rates', rate, 'best / autotune')}" for rate in rates)


def differing(name: str) -> str:
    runs = figure_at(name, "results")
    different = sum(len(run["differing"]) for run in runs)
    prompts = sum(run["prompts"] for run in runs)
    return f"{different} of {prompts} outputs differ"


def gate(name: str, *path: str | int) -> str:
    found = figure_at(name, *path)
    return f"{found['outputs as off']} of {found['outputs']}"


def simulated(group: str, measure: str, of: str = "mean", arm: str = "autotune") -> float:
    value: float = figure_at("simulated-regret.json", "summary", group, arm, measure, of)
    return value


def regret(group: str) -> str:
    ours, static = simulated(group, "regret_ratio"), simulated(group, "regret_ratio", arm="best static")
    worst = simulated(group, "regret_ratio", "worst")
    least = simulated(group, "to_best_static", "worst")
    lost = simulated(group, "lost_ratio")
    return (
        f"{ours:.1%} mean, {worst:.1%} worst below the clairvoyant; best constant {static:.1%} mean; "
        f"worst cell {least:.3f} of the best constant; share of decoding lost {lost:.1%}"
    ).replace("%", " %")


def phases(measure: str) -> str:
    """Of the phases the least and the most, each with its range."""
    found = figure_at("gpu-phases.json", "phases")
    medians = {phase: one[measure]["median"] for phase, one in found.items()}
    ends = min(medians, key=medians.__getitem__), max(medians, key=medians.__getitem__)
    path = "gpu-phases.json", "phases"
    return " to ".join(f"{ratio(*path, phase, measure)} at {phase.replace('-', ' ')}" for phase in ends)


def trees(measure: str) -> str:
    """autotune, its search included, by requests at once."""
    name = "gpu-trees-h100.json"
    return "; ".join(
        f"{load.replace('-', ' ')}: {ratio(name, load, 'whole', measure)}"
        for load in ("1-at-once", "4-at-once", "8-at-once")
    )


def first_choices() -> str:
    """Share of a tree's accepted tokens that were the draft's first, by requests that decode."""
    key = "accepted tokens of 4 drafts, top-k 3, width 8, held for 4 s a load, by requests that decode"
    return "; ".join(
        f"{requests}: {sum(by[0] for by in found['of them by rank']) / sum(found['accepted at depth']):.2f}"
        for requests, found in figure_at("gpu-trees-h100.json", key).items()
    )


def verify_512(vocabulary: int) -> str:
    """Over one read of the logits, by mode."""
    name = "gpu-verify-512-h200.json"
    head = f"bf16, vocabulary {vocabulary}, 512 rows, "
    return "; ".join(
        f"{key.removeprefix(head)} {found['ours over one read as measured']['median']:.2f}"
        for key, found in figure_at(name, "figures").items()
        if key.startswith(head)
    )


def hybrid_heads() -> str:
    found = figure_at(
        "gpu-hybrid-heads-h200.json", "served: start, live table, greedy tokens of 0 drafts, our kernels"
    )
    return "; ".join(f"{head}: {result}" for head, result in found.items())


def of_steps(name: str) -> str:
    """Milliseconds of a step with all requests decoding, in a torch profile."""
    found = []
    for server, one in figure_at(name, "servers").items():
        profile = one.get("profile, GPU activities alone") or one["profile, CPU activities too"]
        busy, idle = (profile[f"GPU {part} ms per step"] for part in ("busy", "idle"))
        found.append(f"{server}: {busy:.2f} + {idle:.2f} ms")
    return "; ".join(found)


def smoke_sglang(name: str) -> str:
    servers = figure_at(name, "servers")
    return "; ".join(
        f"{name}: {sum(one['same'] for key, one in found.items() if key[0].isdigit())} of 9 answers"
        for name, found in servers.items()
    )


def tensor_parallel_answers() -> str:
    """Greedy answers that are those of 0 drafts, held and under tables that change."""
    found = figure_at("gpu-tensor-parallel.json", "checks", "specctl_suffix")
    held = [(one["drafts"], one["all at once"]) for one in found["tables"]]
    texts = [f"{drafts} drafts: {one['identical']} of {one['compared']}" for drafts, one in held]
    changing = found["a new table every 0.4 s"]["outputs"]
    return "; ".join([*texts, f"changing: {changing['identical']} of {changing['compared']}"])


def smoke(engine: str) -> str:
    methods = figure_at("gpu-smoke.json", engine, "methods")
    results = [one["result"] if isinstance(one, dict) else one for one in methods.values()]
    passed = sum(result.startswith("passed") for result in results)
    return f"{passed} of {len(results)} servers" + (", the rest not run" if passed < len(results) else "")


def cpu_phases(measure: str) -> str:
    phases = figure_at("cpu-phases.json", "phases")
    return "; ".join(
        f"{name.replace(':', ', ')}: {ratio('cpu-phases.json', 'phases', name, measure)}" for name in phases
    )


def hybrid(requests: str) -> str:
    """Over the better of the hybrid's two parts, by kind of text."""
    return "; ".join(
        f"{kind} {ratio('cpu-hybrid.json', f'{kind}-{requests}', 'to the better part')}"
        for kind in ("copying", "chat", "copying+chat")
    )


def resumed() -> str:
    methods = figure_at("cpu-resume.json", "methods")
    return "; ".join(f"{name} {found['ratio']:.2f}" for name, found in methods.items())


def peagle_sglang(arm: str, run: int = 7) -> str:
    """Against the fastest EAGLE3 setting, for each number of requests."""
    name = "gpu-sglang-peagle.json"
    found = figure_at(name, "runs", run, "against the quickest eagle3")
    parts = []
    for batch, one in found.items():
        against = f"tokens/s against {one['quickest']}"
        path = "runs", run, "against the quickest eagle3", batch, against, arm, batch
        parts.append(f"{batch} at once: {ratio(name, *path)}")
    return "; ".join(parts)


def verify(cut: str, rows: int = 512) -> str:
    """Over one read of the logits, by vocabulary, in bf16."""
    parts = []
    for vocabulary in (128256, 151936, 262144, 32000):
        key = f"bf16, vocabulary {vocabulary}, {rows} rows, zipf 1.5, {cut}"
        measured = "figures", key, "after over one read as measured"
        parts.append(f"{vocabulary:,}: {ratio(ONE_HOT, *measured)}")
    return "; ".join(parts)


def verify_times(cut: str, zipf: float = 1.5, numbers: Iterable[int] = (8, 512, 1024, 2048)) -> str:
    """In us, by rows of 151,936 in bf16, as it was and as it is."""
    parts = []
    for rows in numbers:
        key = f"bf16, vocabulary 151936, {rows} rows, zipf {zipf}, {cut}"
        us = [figure_at(ONE_HOT, "figures", key, f"us {name}")["median"] for name in ("before", "after")]
        parts.append(f"{rows:,} rows: {us[0]:.0f} and {us[1]:.0f}")
    return "; ".join(parts)


def verify_greedy() -> str:
    parts = []
    for vocabulary in (128256, 151936, 262144, 32000):
        key = f"bf16, vocabulary {vocabulary}, 512 rows"
        found = ratio("gpu-verify-greedy.json", "figures", key, "ours over one read")
        parts.append(f"{vocabulary:,}: {found}")
    return "; ".join(parts)


def suffix_kinds(measure: str) -> str:
    """By kind of prompt, learnt and with the built-in table; kinds with few drafted tokens are left out."""
    kinds = result("cpu-suffix-calibration.json")["by kind"]
    return "; ".join(
        f"{kind}: {row['learnt'][measure]:.3f} ({row['built-in table'][measure]:.3f})"
        for kind, row in kinds.items()
        if row["learnt"]["drafted tokens"] >= 1000
    )
