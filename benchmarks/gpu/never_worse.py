"""A server under ``specctl autotune`` against one that never speculates, on text that does not pay.

    python -m benchmarks.gpu.never_worse --urls OURS OTHER --copying FILE --chat FILE --output FILE

Both servers stand on one GPU and are under load in turn, A B B A; who rests takes nothing. Chat texts are
sampled at a temperature of 0.8, none twice; a hold counts the server's own output tokens once its requests
are under way. The daemon stays through all holds, its search and its probes included. Texts as in
benchmarks.gpu.phases; with ``--kinds copying`` those that are copied.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

import httpx

from benchmarks.autotune import autotune
from benchmarks.gpu.phases import Phase, phase_held, texts_of
from benchmarks.provenance import pairwise_ratios, provenance, summary

_NAMES = ("autotune", "never enabled")


async def measured(arguments: argparse.Namespace) -> dict[str, Any]:
    texts = {name: texts_of(arguments) for name in _NAMES}
    found: dict[str, Any] = {}
    for kind in arguments.kinds:
        for number in arguments.requests:
            found[f"{kind} {number}"] = await ratio(Phase(kind, number), texts, arguments)
    return found


async def ratio(phase: Phase, texts: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    rates: dict[str, list[float]] = {name: [] for name in _NAMES}
    urls = dict(zip(_NAMES, arguments.urls, strict=True))
    for repeat in range(arguments.repeats):
        for name in _NAMES if repeat % 2 == 0 else reversed(_NAMES):
            async with httpx.AsyncClient(base_url=urls[name], timeout=600) as client:
                rate, _ = await phase_held(client, phase, texts[name], arguments)
            rates[name].append(rate)
            print(phase, repeat, name, round(rate), flush=True)
    return {
        "tokens/s": {name: summary(values) for name, values in rates.items()},
        "autotune against never enabled": summary(pairwise_ratios(*(rates[name] for name in _NAMES))),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--urls", nargs=2, required=True, help="with specctl_suffix, and without drafts")
    parser.add_argument("--copying", type=Path, required=True, help="JSON list of prompts")
    parser.add_argument("--chat", type=Path, required=True, help="JSON list of texts")
    parser.add_argument("--kinds", nargs="*", choices=("chat", "copying"), default=["chat"])
    parser.add_argument("--requests", type=int, nargs="*", default=[256])
    parser.add_argument("--phase-s", type=float, default=26.0, help="of a hold, filling included")
    parser.add_argument("--fill-s", type=float, default=6.0)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--policy", default="balanced")
    parser.add_argument("--autotune", type=json.loads, default=[], help="JSON list: more of its options")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/never-worse"), help="for logs")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with autotune(arguments.urls[0], arguments.folder, policy=arguments.policy, more=arguments.autotune):
        found = asyncio.run(measured(arguments))
    report = {"provenance": provenance(), "figures": found}
    arguments.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
