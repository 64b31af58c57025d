"""A load of phases on a GPU: ``specctl autotune`` against every static setting, and against never enabled.

    python -m benchmarks.gpu.phases --model MODEL --output FILE

Starts two servers of MODEL on one GPU, one with specctl_suffix and one that never speculates; each needs half
of its memory. About 12 minutes for two rounds, and as long again as two servers of MODEL take to start.

A phase is a kind of text and a number of requests in a closed loop; the phases go up through the numbers and
down again. A round has two passes through all phases. In the one, each phase has every static setting in turn
and then the server that never speculates. In the other, a fresh daemon stays through all phases, its search
included. The second round has the passes, and the settings within a phase, in the other order; so on. The
seconds in which a phase's requests come in count nowhere; the daemon's figure with them is reported beside.

Tokens are the server's own count. Copying prompts are those of benchmarks.gpu.prompts, decoded greedily; of
the chat texts each request gets a part of its own, sampled at a temperature of 0.8. No prompt comes twice in
a round, as long as there are enough. ``--urls`` measures two servers that run already.
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
from statistics import mean, median
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.gpu.device import device_provenance
from benchmarks.gpu.prompts import copying_prompts, plain_texts
from benchmarks.gpu.sender import load
from testing.autotune import autotune
from testing.lossless import put_table
from testing.servers import vllm_server

AUTOTUNE, NEVER = "autotune", "never enabled"
TO_STATIC, TO_NEVER, TO_BEST_CONSTANT = 0.97, 0.98, 1.10
_TOKENS = "vllm:generation_tokens"
_CHAT_TOKENS = 256
_COPYING_PROMPTS, _CHAT_TEXTS = 6000, 400
_SERVE = (
    *("--dtype", "auto", "--no-enforce-eager", "--max-num-seqs", "256"),
    *("--gpu-memory-utilization", "0.45"),
)
_SETTLE_S = 1.0
"""Of a static setting's hold, not counted: requests of the one before are still in their drafts."""
_LEASE_MAX_S = 120
_RATE_MIN = 1e-9
"""In the place of 0 tokens/s: a report is written also where a server has died."""
_Bodies = Iterator[dict[str, Any]]
_Rates = dict[str, dict[str, float]]
"""Tokens/s by phase and arm."""


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


def bodies_of(
    copying: Sequence[list[int]], chat: Sequence[int], max_tokens: int, seed: int = 0
) -> dict[str, _Bodies]:
    """Endless requests of each kind."""
    generator = random.Random(seed)

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


class Run:
    """One round after the other; what there is so far is in ``rounds``."""

    def __init__(
        self, client: httpx.AsyncClient, other: httpx.AsyncClient, arguments: argparse.Namespace
    ) -> None:
        self.client, self.other, self.arguments = client, other, arguments
        self.own, self.others = (texts_of(arguments, seed) for seed in (0, 1))
        self.phases = phases(arguments.requests)
        self.rounds: list[dict[str, Any]] = []

    async def round(self, number: int) -> None:
        self.rounds.append({"tokens/s": {str(phase): {} for phase in self.phases}})
        passes = [self.statics, self.daemon]
        for one in passes if number % 2 == 0 else reversed(passes):
            await lease_ended(self.client)
            await one(self.rounds[-1], is_turned=number % 2 == 1)

    async def statics(self, found: dict[str, Any], is_turned: bool) -> None:
        """Each setting for a short while of each phase, and the server that never speculates."""
        given = self.arguments
        for phase in self.phases:
            row = found["tokens/s"][str(phase)]
            seconds = given.static_s * (given.few_times if phase.concurrency == 1 else 1.0)
            if is_turned:
                row[NEVER] = await self._never(phase, seconds)
            async with load(str(self.client.base_url), self.own[phase.kind], phase.concurrency):
                await asyncio.sleep(given.fill_s)
                for number in reversed(given.settings) if is_turned else given.settings:
                    await put_table(self.client, number)
                    row[str(number)] = round(await held(self.client, seconds, _SETTLE_S), 1)
            if not is_turned:
                row[NEVER] = await self._never(phase, seconds)
            print(phase, {name: round(value) for name, value in row.items()}, flush=True)

    async def _never(self, phase: Phase, seconds: float) -> float:
        async with load(str(self.other.base_url), self.others[phase.kind], phase.concurrency):
            return round(await held(self.other, seconds, self.arguments.fill_s), 1)

    async def daemon(self, found: dict[str, Any], is_turned: bool) -> None:
        """From its start through all phases; it finds the table that the server would start with."""
        given, url = self.arguments, str(self.client.base_url)
        found["autotune, filling"], found["share of steps by drafts"] = {}, {}
        folder = given.folder / f"round-{len(self.rounds)}"
        folder.mkdir(parents=True, exist_ok=True)
        found["phases began"] = {}
        await put_table(self.client, max(given.settings))
        with autotune(url, folder, policy=given.policy, more=given.autotune):
            for phase in self.phases:
                found["phases began"][str(phase)] = round(time.time(), 2)
                before = await steps(self.client)
                rate, whole = await self._phase(phase)
                found["tokens/s"][str(phase)][AUTOTUNE] = round(rate, 1)
                found["autotune, filling"][str(phase)] = round(whole, 1)
                found["share of steps by drafts"][str(phase)] = shares(before, await steps(self.client))
                print(AUTOTUNE, phase, round(rate), flush=True)

    async def _phase(self, phase: Phase) -> tuple[float, float]:
        """(tokens/s without the seconds of filling, with them)."""
        given = self.arguments
        async with load(str(self.client.base_url), self.own[phase.kind], phase.concurrency):
            began_s, before = await count(self.client)
            await asyncio.sleep(given.fill_s)
            full_s, filled = await count(self.client)
            await asyncio.sleep(given.phase_s - given.fill_s)
            ended_s, after = await count(self.client)
        return (after - filled) / (ended_s - full_s), (after - before) / (ended_s - began_s)


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


def texts_of(arguments: argparse.Namespace, seed: int = 0) -> dict[str, _Bodies]:
    """Endless; a server gets one such stream, as its corpus remembers the texts that it has seen."""
    chat = [token for one in arguments.chat_texts for token in one]
    return bodies_of(arguments.copying_prompts, chat, arguments.max_tokens, seed)


def read_texts(arguments: argparse.Namespace) -> None:
    """Of the files that are given, else made with the model's own tokenizer."""
    tokenizer = arguments.model / "tokenizer.json"
    if arguments.copying is not None:
        arguments.copying_prompts = json.loads(arguments.copying.read_text(encoding="utf-8"))
    else:
        arguments.copying_prompts = copying_prompts(tokenizer, _COPYING_PROMPTS)
    if arguments.chat is not None:
        arguments.chat_texts = json.loads(arguments.chat.read_text(encoding="utf-8"))
    else:
        arguments.chat_texts = plain_texts(tokenizer, _CHAT_TEXTS)


async def measured(
    url: str, off_url: str, arguments: argparse.Namespace, command_line: Mapping[str, str]
) -> dict[str, Any]:
    async with (
        httpx.AsyncClient(base_url=url, timeout=600) as client,
        httpx.AsyncClient(base_url=off_url, timeout=600) as other,
    ):
        run = Run(client, other, arguments)
        report: dict[str, Any] = {}
        for number in range(arguments.rounds):
            await run.round(number)
            report = {
                "provenance": device_provenance(),
                "options": command_line,
                "figures": figures([one["tokens/s"] for one in run.rounds], arguments.settings),
                "rounds": run.rounds,
            }
            arguments.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return report


def figures(rounds: Sequence[_Rates], settings: Sequence[int]) -> dict[str, Any]:
    """Every phase weighs the same time. The best static setting is that of the rounds' means, so that no
    round's luck chooses it; a ratio's range is that over the rounds."""
    names = [str(number) for number in settings]
    held_for = {
        phase: {arm: mean(one[phase][arm] for one in rounds) for arm in row}
        for phase, row in rounds[0].items()
    }
    best = {phase: max(names, key=row.__getitem__) for phase, row in held_for.items()}
    single = max(names, key=lambda name: mean(row[name] for row in held_for.values()))

    def ratio(phase: str, arm: str, mine: str = AUTOTUNE) -> dict[str, float]:
        values = [one[phase][mine] / max(one[phase][arm], _RATE_MIN) for one in rounds]
        return {
            "median": round(median(values), 3),
            "least": round(min(values), 3),
            "most": round(max(values), 3),
        }

    def over_all(other: Mapping[str, str]) -> list[float]:
        """autotune's mean over that of an arm for each phase, by round."""
        return [
            round(
                mean(row[AUTOTUNE] for row in one.values())
                / max(mean(row[other[phase]] for phase, row in one.items()), _RATE_MIN),
                3,
            )
            for one in rounds
        ]

    to_static = {phase: ratio(phase, best[phase]) for phase in held_for}
    to_never = {phase: ratio(phase, NEVER) for phase in held_for}
    worst = min(to_static, key=lambda phase: to_static[phase]["median"])
    worst_of_never = min(to_never, key=lambda phase: to_never[phase]["median"])
    return {
        "asked": {"best static": TO_STATIC, NEVER: TO_NEVER, "best single static": TO_BEST_CONSTANT},
        "best static setting": {phase: int(number) for phase, number in best.items()},
        "autotune / best static of the phase": to_static,
        "autotune / never enabled": to_never,
        "static 0 / never enabled": {phase: ratio(phase, NEVER, "0") for phase in held_for if "0" in names},
        "worst phase against best static": {worst: to_static[worst]},
        "worst phase against never enabled": {worst_of_never: to_never[worst_of_never]},
        "best single static setting": int(single),
        "all phases, autotune / best single static, by round": over_all(dict.fromkeys(held_for, single)),
        "all phases, autotune / best static of each phase, by round": over_all(best),
        "all phases, autotune / never enabled, by round": over_all(dict.fromkeys(held_for, NEVER)),
    }


@contextlib.contextmanager
def servers(arguments: argparse.Namespace) -> Iterator[tuple[str, str]]:
    if arguments.urls:
        yield tuple(arguments.urls)
        return
    serve = [*_SERVE, *arguments.serve]
    config = {"method": "specctl_suffix", "num_speculative_tokens": max(arguments.settings)}
    with contextlib.ExitStack() as stack:
        server, off = (
            stack.enter_context(vllm_server(arguments.model, arguments.folder / f"{name}.log", asked, serve))
            for name, asked in (("server", config), ("off", None))
        )
        yield server.url, off.url


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a folder with weights and tokenizer.json")
    parser.add_argument("--copying", type=Path, help="JSON list of prompts; default: made for MODEL")
    parser.add_argument("--chat", type=Path, help="JSON list of texts; default: made for MODEL")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--requests", type=int, nargs="*", default=[1, 16, 64, 256])
    parser.add_argument("--settings", type=int, nargs="*", default=[0, 1, 3, 5, 8])
    parser.add_argument("--phase-s", type=float, default=15.0, help="of each phase under the daemon")
    parser.add_argument("--static-s", type=float, default=2.0, help="of each static setting of a phase")
    parser.add_argument("--few-times", type=float, default=2.0, help="as long where one request is in flight")
    parser.add_argument("--fill-s", type=float, default=2.5, help="until a phase's requests are under way")
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--policy", default="balanced")
    parser.add_argument("--autotune", type=json.loads, default=[], help="JSON list: more of its options")
    parser.add_argument("--urls", nargs=2, help="running servers: with specctl_suffix, and without drafts")
    parser.add_argument("--serve", type=json.loads, default=[], help="JSON list: options of vllm serve")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/phases"), help="for logs")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    command_line = {name: str(value) for name, value in vars(arguments).items()}
    read_texts(arguments)
    with servers(arguments) as urls:
        report = asyncio.run(measured(*urls, arguments, command_line))
    print(json.dumps(report["figures"], indent=1))


if __name__ == "__main__":
    main()
