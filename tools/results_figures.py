"""Figures out of ``benchmarks/results/``, as text: a ratio with its range and repeats."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"


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


def unnamed_ratios(name: str, *paths: Sequence[str | int], digits: int = 2) -> str:
    """Figures in the order that the claim names them."""
    return "; ".join(ratio(name, *path, digits=digits) for path in paths)


def of_concurrent(name: str, numbers: Iterable[int]) -> str:
    runs = {n: ("runs", 0, "figures", f"{n} concurrent", "specctl against engine") for n in numbers}
    return "; ".join(f"{n} at once: {ratio(name, *path)}" for n, path in runs.items())


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


def equal_outputs(name: str, ours: str, stock: str) -> str:
    gates = figure_at(name, "figures", "gate")
    of = {
        server: f"{gates[server]['outputs as off']} of {gates[server]['outputs']}" for server in (ours, stock)
    }
    return f"{of[ours]} equal; stock {stock} {of[stock]}"


def front_end(name: str) -> str:
    """Where the HTTP server is slower than the engine: against the best constant and off."""
    found = figure_at(name, "summary")
    return (
        f"{found['to_best_constant_mean']:.3f} of the best constant in the mean, "
        f"{found['to_best_constant_least']:.3f} in the worst; {found['to_off_least']:.3f} of off or more"
    )


def the_least_and_the_most(name: str, measure: str) -> str:
    """Of the phases the least and the most, each with its range."""
    found = figure_at(name, "phases")
    medians = {phase: one[measure]["median"] for phase, one in found.items()}
    ends = min(medians, key=medians.__getitem__), max(medians, key=medians.__getitem__)
    return " to ".join(
        f"{phase.replace('-', ' ')}: {ratio(name, 'phases', phase, measure)}" for phase in ends
    )


def best_by_phase(name: str) -> float:
    """What the best static setting of each phase would have over the best single one, which bounds whatever
    changes with the phase alone."""
    of_phases = [one["tokens_per_s"] for one in figure_at(name, "phases").values()]
    statics = [arm for arm in of_phases[0] if not arm.startswith(("autotune", "never"))]
    speeds = [[found[arm]["median"] for arm in statics] for found in of_phases]
    return sum(map(max, speeds)) / max(map(sum, zip(*speeds, strict=True)))


def trees(name: str, measure: str) -> str:
    """autotune, its search included, by requests at once."""
    loads = [load for load in result(name) if load.endswith("-at-once")]
    return "; ".join(f"{load.replace('-', ' ')}: {ratio(name, load, 'whole', measure)}" for load in loads)


def first_choices(name: str) -> str:
    """Share of a tree's accepted tokens that were the draft's first, by requests that decode."""
    key = "accepted tokens of 4 drafts, top-k 3, width 8, held for 4 s a load, by requests that decode"
    return "; ".join(
        f"{requests}: {sum(by[0] for by in found['of them by rank']) / sum(found['accepted at depth']):.2f}"
        for requests, found in figure_at(name, key).items()
    )


def listed(name: str, *path: str) -> str:
    """Every result there, with its name."""
    return "; ".join(f"{what}: {result}" for what, result in figure_at(name, *path).items())


def by_load(name: str, arm: str) -> str:
    """Of an arm, one ratio for each load."""
    loads = result(name)["loads"]
    return "; ".join(
        f"{load.replace('-', ', ')} at once: {ratio(name, 'loads', load, arm, 'ratio')}" for load in loads
    )


def least_p(name: str) -> str:
    """Of chi-square tests of samples with drafts against samples without: by what was sampled."""
    texts = []
    for title, arms in figure_at(name).items():
        if title.startswith("sampled law, "):
            values = [
                p for arm, found in arms.items() if "drafts" in arm for of in found.values() for p in of
            ]
            texts.append(f"{title.removeprefix('sampled law, ')}: {min(values):.2f} of {len(values)} tests")
    return "; ".join(texts)


def of_steps(name: str) -> str:
    """Milliseconds of a step with all requests decoding, in a torch profile."""
    found = []
    for server, one in figure_at(name, "servers").items():
        profile = one.get("profile, GPU activities alone") or one["profile, CPU activities too"]
        busy, idle = (profile[f"GPU {part} ms per step"] for part in ("busy", "idle"))
        found.append(f"{server}: {busy:.2f} + {idle:.2f} ms")
    return "; ".join(found)


def cpu_phases(name: str, measure: str) -> str:
    return "; ".join(
        f"{phase.replace(':', ', ')}: {ratio(name, 'phases', phase, measure)}"
        for phase in figure_at(name, "phases")
    )


def hybrid(name: str, requests: str) -> str:
    """Over the better of the hybrid's two parts, by kind of text."""
    return "; ".join(
        f"{kind} {ratio(name, f'{kind}-{requests}', 'to the better part')}"
        for kind in ("copying", "chat", "copying+chat")
    )


def resumed(name: str) -> str:
    methods = figure_at(name, "methods")
    return "; ".join(f"{method} {found['ratio']:.2f}" for method, found in methods.items())


def peagle_sglang(name: str, arm: str, run: int = 7) -> str:
    """Against the fastest EAGLE3 setting, for each number of requests."""
    found = figure_at(name, "runs", run, "against the quickest eagle3")
    parts = []
    for batch, one in found.items():
        against = f"tokens/s against {one['quickest']}"
        path = "runs", run, "against the quickest eagle3", batch, against, arm, batch
        parts.append(f"{batch} at once: {ratio(name, *path)}")
    return "; ".join(parts)


def suffix_kinds(name: str, measure: str) -> str:
    """By kind of prompt, learnt and with the built-in table; kinds with few drafted tokens are left out."""
    kinds = figure_at(name, "by kind")
    return "; ".join(
        f"{kind}: {row['learnt'][measure]:.3f} ({row['built-in table'][measure]:.3f})"
        for kind, row in kinds.items()
        if row["learnt"]["drafted tokens"] >= 1000
    )


def verify(name: str, cut: str, vocabularies: Iterable[int]) -> list[str]:
    """512 rows in bf16, over one read of the logits as measured."""
    keys = (f"bf16, vocabulary {vocabulary}, 512 rows, zipf 1.5, {cut}" for vocabulary in vocabularies)
    return [ratio(name, "figures", key, "after over one read as measured") for key in keys]


def verify_greedy(name: str, vocabularies: Iterable[int]) -> list[str]:
    keys = (f"bf16, vocabulary {vocabulary}, 512 rows" for vocabulary in vocabularies)
    return [ratio(name, "figures", key, "ours over one read") for key in keys]


def verify_512(name: str, vocabulary: int) -> dict[str, str]:
    """512 rows in bf16, over one read of the logits as measured, by mode."""
    head = f"bf16, vocabulary {vocabulary}, 512 rows, "
    return {
        key.removeprefix(head): f"{found['ours over one read as measured']['median']:.2f}"
        for key, found in figure_at(name, "figures").items()
        if key.startswith(head)
    }


def verify_times(name: str, cut: str, numbers: Iterable[int], zipf: float = 1.5) -> list[str]:
    """In us, by rows of 151,936 in bf16, before and after."""
    parts = []
    for rows in numbers:
        key = f"bf16, vocabulary 151936, {rows} rows, zipf {zipf}, {cut}"
        us = [figure_at(name, "figures", key, f"us {when}")["median"] for when in ("before", "after")]
        parts.append(f"{us[0]:.0f} and {us[1]:.0f}")
    return parts
