"""A load of phases on a real server: ``specctl autotune`` against every static setting of the table.

    python -m benchmarks.gpu.phases --model FOLDER --copying FILE --chat FILE --output FILE

One server with specctl_suffix and one that never speculates, a closed loop of requests. A phase is a kind of
text and a number of requests at a time; the phases go up through the numbers and down again. Each static
setting is held for a short while of each phase, before the daemon's run and after it; the daemon starts
before its first phase and stays through all of them. The server that never speculates has each phase at the
same time where it has a GPU of its own (``--apart``), else after the daemon's run. The seconds in which a
phase's requests come in count nowhere; the daemon's figure with them is told beside. Tokens are the server's
own count. Texts are lists of token ids: copying prompts as benchmarks.gpu.prompts writes them, decoded
greedily, and chat texts of which each request gets a part of its own, sampled at a temperature of 0.8, so
that no answer comes twice.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.gpu.sender import load
from testing.autotune import autotune
from testing.lossless import put_table
from testing.provenance import provenance
from testing.servers import vllm_server

_TOKENS = "vllm:generation_tokens"
_CHAT_TOKENS = 256
_SETTLE_S = 1.0
"""Of a static setting's hold, not counted: requests of the one before are still in their drafts."""
_LEASE_MAX_S = 120
_Bodies = Iterator[dict[str, Any]]


@dataclass(frozen=True)
class Phase:
    kind: str
    concurrency: int

    def __str__(self) -> str:
        return f"{self.kind} {self.concurrency}"


def phases(numbers: Sequence[int]) -> list[Phase]:
    """Up through the numbers and down again; both kinds at each number."""
    up = [
        Phase(kind, number)
        for number, kind in zip(numbers, itertools.cycle(("copying", "chat")), strict=False)
    ]
    other = {"copying": "chat", "chat": "copying"}
    return up + [Phase(other[phase.kind], phase.concurrency) for phase in reversed(up)]


def bodies_of(copying: Sequence[list[int]], chat: Sequence[int], max_tokens: int) -> dict[str, _Bodies]:
    """Endless requests of each kind."""
    generator = random.Random(0)

    def of_chat() -> _Bodies:
        while True:
            at = generator.randrange(len(chat) - _CHAT_TOKENS)
            yield {"prompt": list(chat[at : at + _CHAT_TOKENS]), "temperature": 0.8}

    def of_copying() -> _Bodies:
        for prompt in itertools.cycle(copying):
            yield {"prompt": prompt, "temperature": 0.0}

    common = {"model": "model", "max_tokens": max_tokens, "ignore_eos": True}
    made = {"copying": of_copying(), "chat": of_chat()}
    return {kind: ({**common, **body} for body in one) for kind, one in made.items()}


async def count(client: httpx.AsyncClient) -> tuple[float, float]:
    """(time.monotonic, output tokens that the server has counted so far)."""
    text = (await client.get("/metrics")).text
    families = text_string_to_metric_families(text)
    tokens = sum(
        sample.value
        for family in families
        if family.name == _TOKENS
        for sample in family.samples
        if sample.name.endswith("_total")
    )
    return time.monotonic(), tokens


async def steps(client: httpx.AsyncClient) -> Counter[str]:
    """Decode steps so far by their number of drafts; those that sampled another setting also apart."""
    found: Counter[str] = Counter()
    for cell in (await client.get("/specctl/v1/telemetry")).raise_for_status().json()["cells"]:
        found[str(cell["num_speculative_tokens"])] += cell["steps"]
        found["sampled"] += cell["sampled_steps"]
    return found


def shares(before: Counter[str], after: Counter[str]) -> dict[str, float]:
    """Of the steps in between; "sampled" counts some of the others a second time."""
    made = after - before
    total = sum(made.values()) - made["sampled"]
    return {name: round(number / max(total, 1), 4) for name, number in sorted(made.items())}


async def held(client: httpx.AsyncClient, seconds: float, settle_s: float = 0.0) -> float:
    """Output tokens per second under the load that runs."""
    await asyncio.sleep(settle_s)
    began_s, before = await count(client)
    await asyncio.sleep(seconds)
    ended_s, after = await count(client)
    return (after - before) / (ended_s - began_s)


async def statics(
    client: httpx.AsyncClient, bodies: Mapping[str, _Bodies], arguments: argparse.Namespace
) -> dict[str, dict[str, float]]:
    """By phase and setting, tokens/s."""
    found: dict[str, dict[str, float]] = {}
    for phase in phases(arguments.requests):
        row = found[str(phase)] = {}
        async with load(str(client.base_url), bodies[phase.kind], phase.concurrency):
            await asyncio.sleep(arguments.fill_s)
            for number in arguments.settings:
                await put_table(client, number)
                row[str(number)] = round(await held(client, arguments.static_s, _SETTLE_S), 1)
        print(phase, {name: round(value) for name, value in row.items()}, flush=True)
    return found


async def phase_held(
    client: httpx.AsyncClient, phase: Phase, bodies: Mapping[str, _Bodies], seconds: float, fill_s: float
) -> tuple[float, float]:
    """(tokens/s without the seconds of filling, with them) of one phase of ``seconds``, filling included."""
    async with load(str(client.base_url), bodies[phase.kind], phase.concurrency):
        began_s, before = await count(client)
        await asyncio.sleep(fill_s)
        full_s, filled = await count(client)
        await asyncio.sleep(seconds - fill_s)
        ended_s, after = await count(client)
    return (after - filled) / (ended_s - full_s), (after - before) / (ended_s - began_s)


async def tuned(
    client: httpx.AsyncClient,
    other: httpx.AsyncClient,
    own: Mapping[str, _Bodies],
    arguments: argparse.Namespace,
) -> dict[str, dict[str, Any]]:
    """The daemon's run, its search included, and that of the server which never speculates: at the same time
    where each has a GPU, else after it. By phase, tokens/s."""
    found: dict[str, dict[str, Any]] = {
        "autotune": {},
        "never enabled": {},
        "autotune, filling": {},
        "autotune, share of steps by drafts": {},
    }

    async def run(server: httpx.AsyncClient, name: str, texts: Mapping[str, _Bodies], phase: Phase) -> None:
        is_own = name == "autotune"
        seconds = arguments.phase_s if is_own or arguments.apart else arguments.off_s
        before = await steps(server) if is_own else Counter()
        rate, whole = await phase_held(server, phase, texts, seconds, arguments.fill_s)
        found[name][str(phase)] = round(rate, 1)
        if is_own:
            found["autotune, filling"][str(phase)] = round(whole, 1)
            found["autotune, share of steps by drafts"][str(phase)] = shares(before, await steps(server))
        print(name, phase, round(rate), flush=True)

    others = texts_of(arguments)
    with autotune(str(client.base_url), arguments.folder, policy=arguments.policy, more=arguments.autotune):
        for phase in phases(arguments.requests):
            side = [run(other, "never enabled", others, phase)] if arguments.apart else []
            await asyncio.gather(run(client, "autotune", own, phase), *side)
    for phase in [] if arguments.apart else phases(arguments.requests):
        await run(other, "never enabled", others, phase)
    return found


async def lease_ended(client: httpx.AsyncClient) -> None:
    """The stopped daemon's table is refused to others until then."""
    for _ in range(_LEASE_MAX_S):
        try:
            return await put_table(client, 0)
        except httpx.HTTPStatusError as error:
            if error.response.status_code != httpx.codes.CONFLICT:
                raise
        await asyncio.sleep(1.0)
    raise RuntimeError(f"the daemon's lease has not ended after {_LEASE_MAX_S} s")


def texts_of(arguments: argparse.Namespace) -> dict[str, _Bodies]:
    """Endless; a server gets one such stream, as its corpus remembers the texts that it has seen."""
    copying = json.loads(arguments.copying.read_text(encoding="utf-8"))
    chat = [token for one in json.loads(arguments.chat.read_text(encoding="utf-8")) for token in one]
    return bodies_of(copying, chat, arguments.max_tokens)


async def measured(url: str, off_url: str, arguments: argparse.Namespace) -> dict[str, Any]:
    async with (
        httpx.AsyncClient(base_url=url, timeout=600) as client,
        httpx.AsyncClient(base_url=off_url, timeout=600) as other,
    ):
        own = texts_of(arguments)
        await lease_ended(client)
        before = await statics(client, own, arguments)
        parts: dict[str, Any] = {"static": before, "static, before": before}
        _keep(parts, arguments)
        parts |= await tuned(client, other, own, arguments)
        _keep(parts, arguments)
        await lease_ended(client)
        after = await statics(client, own, arguments)
    held_for = {
        phase: {name: round(mean((row[name], after[phase][name])), 1) for name in row}
        for phase, row in before.items()
    }
    return parts | {"static": held_for, "static, after": after}


def _keep(parts: Mapping[str, Any], arguments: argparse.Namespace) -> None:
    """What there is, should the rest be cut off."""
    report = {"provenance": provenance(), "incomplete": True, "tokens/s": parts}
    arguments.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def figures(found: Mapping[str, Any], settings: Sequence[int]) -> dict[str, Any]:
    """Every phase weighs the same time."""
    static, daemon = found["static"], found["autotune"]
    names = [str(number) for number in settings]
    best_of_each = mean(max(row[name] for name in names) for row in static.values())
    single = {name: mean(row[name] for row in static.values()) for name in names}
    best = max(single, key=lambda name: single[name])
    own = mean(daemon.values())
    return {
        "against the best static setting of each phase": round(own / best_of_each, 4),
        "best single static setting": int(best),
        "against it": round(own / single[best], 4),
        "against never enabled, by phase": {
            phase: round(rate / max(found["never enabled"][phase], 1e-9), 4) for phase, rate in daemon.items()
        },
        "filling counted, against the same": round(mean(found["autotune, filling"].values()) / own, 4),
    }


@contextlib.contextmanager
def servers(arguments: argparse.Namespace) -> Iterator[tuple[str, str]]:
    if arguments.urls:
        yield tuple(arguments.urls)
        return
    config = {"method": "specctl_suffix", "num_speculative_tokens": max(arguments.settings)}
    with contextlib.ExitStack() as stack:
        server, off = (
            stack.enter_context(
                vllm_server(arguments.model, arguments.folder / f"{name}.log", asked, arguments.serve)
            )
            for name, asked in (("server", config), ("off", None))
        )
        yield server.url, off.url


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--copying", type=Path, required=True, help="JSON list of prompts")
    parser.add_argument("--chat", type=Path, required=True, help="JSON list of texts")
    parser.add_argument("--requests", type=int, nargs="*", default=[1, 16, 64, 256])
    parser.add_argument("--settings", type=int, nargs="*", default=[0, 1, 2, 3, 5, 8])
    parser.add_argument("--phase-s", type=float, default=30.0, help="of each phase under the daemon")
    parser.add_argument("--off-s", type=float, default=10.0, help="of each phase without speculation")
    parser.add_argument("--static-s", type=float, default=3.0)
    parser.add_argument("--fill-s", type=float, default=2.5, help="until a phase's requests are under way")
    parser.add_argument("--apart", action="store_true", help="the two servers have a GPU each")
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--policy", default="balanced")
    parser.add_argument("--autotune", type=json.loads, default=[], help="JSON list: more of its options")
    parser.add_argument("--urls", nargs=2, help="running servers: with specctl_suffix, and without drafts")
    parser.add_argument("--serve", type=json.loads, default=[], help="JSON list: options of vllm serve")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/phases"), help="for logs")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with servers(arguments) as urls:
        found = asyncio.run(measured(*urls, arguments))
    result = figures(found, arguments.settings)
    report = {"provenance": provenance(), "figures": result, "tokens/s": found}
    arguments.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
