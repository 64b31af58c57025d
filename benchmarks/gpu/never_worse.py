"""A server under ``specctl autotune`` against one that never speculates, on text that pays and text that
does not.

    python -m benchmarks.gpu.never_worse --urls OURS OTHER --copying FILE --chat FILE --output FILE

Both servers stand on one GPU and are under load in turn, A B B A; who rests takes nothing. Chat texts are
sampled at a temperature of 0.8, none twice; a hold counts the server's own output tokens once its requests
are under way. Each load has a daemon of its own, which starts from 0 drafts after both servers have had the
load once, and stays through all holds: its search (but for the filling) and its samples count. Texts as in
benchmarks.gpu.phases.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

from benchmarks.autotune import autotune
from benchmarks.gpu.phases import Phase, lease_ended, phase_held, shares, steps, texts_of
from benchmarks.provenance import pairwise_ratios, provenance, summary

_NAMES = ("autotune", "never enabled")


async def measured(arguments: argparse.Namespace) -> dict[str, Any]:
    texts = {name: texts_of(arguments) for name in _NAMES}
    found: dict[str, Any] = {}
    for text in arguments.loads:
        kind, _, number = text.partition(":")
        phase = Phase(kind, int(number))
        found[str(phase)] = await ratio(phase, texts, arguments)
        write(found, arguments)
    return found


async def ratio(phase: Phase, texts: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    urls = dict(zip(_NAMES, arguments.urls, strict=True))
    clients = {name: httpx.AsyncClient(base_url=url, timeout=600) for name, url in urls.items()}
    for name, client in clients.items():
        await phase_held(client, phase, texts[name], arguments.warm_s, arguments.warm_s)
    await lease_ended(clients["autotune"])
    rates: dict[str, list[float]] = {name: [] for name in _NAMES}
    drafts = []
    folder = arguments.folder / str(phase).replace(" ", "-")
    folder.mkdir(parents=True, exist_ok=True)
    with autotune(urls["autotune"], folder, policy=arguments.policy, more=arguments.autotune):
        for repeat in range(arguments.repeats):
            for name in _NAMES if repeat % 2 == 0 else reversed(_NAMES):
                is_own = name == "autotune"
                before = await steps(clients[name]) if is_own else Counter()
                rate, _ = await phase_held(
                    clients[name], phase, texts[name], arguments.phase_s, arguments.fill_s
                )
                if is_own:
                    drafts.append(shares(before, await steps(clients[name])))
                rates[name].append(round(rate, 1))
                print(phase, repeat, name, round(rate), drafts[-1] if is_own else "", flush=True)
    for client in clients.values():
        await client.aclose()
    return {
        "tokens/s": {name: {**summary(values), "holds": values} for name, values in rates.items()},
        "autotune against never enabled": summary(pairwise_ratios(*(rates[name] for name in _NAMES))),
        "share of steps by drafts, each hold": drafts,
    }


def write(found: dict[str, Any], arguments: argparse.Namespace) -> None:
    report = {"provenance": provenance(), "figures": found}
    arguments.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--urls", nargs=2, required=True, help="with specctl_suffix, and without drafts")
    parser.add_argument("--copying", type=Path, required=True, help="JSON list of prompts")
    parser.add_argument("--chat", type=Path, required=True, help="JSON list of texts")
    parser.add_argument("--loads", nargs="*", default=["chat:256", "copying:16"], help="kind:requests")
    parser.add_argument("--phase-s", type=float, default=26.0, help="of a hold, filling included")
    parser.add_argument("--fill-s", type=float, default=6.0)
    parser.add_argument("--warm-s", type=float, default=5.0, help="of load on each server, not counted")
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--policy", default="balanced")
    parser.add_argument("--autotune", type=json.loads, default=[], help="JSON list: more of its options")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/never-worse"), help="for logs")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    print(json.dumps(asyncio.run(measured(arguments)), indent=1))


if __name__ == "__main__":
    main()
