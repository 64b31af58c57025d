"""Time per output token by requests per second: no speculation, a constant number of drafts, ``autotune``.

    python -m benchmarks.gpu.rates --model MODEL --head HEAD --output FILE [--chart FILE.svg]

Starts two servers of MODEL on one GPU, one with HEAD as vLLM's eagle3 under the table, and one that never
speculates; each needs half of its memory. Requests arrive at random (Poisson), at the same times for every
arm, with nearly the same prompts, none of which comes twice. A round has two passes through the rates: in the
one each rate has the constants and the server that never speculates, one after the other; in the other a
fresh daemon stays through all rates, its search included. The second round has the passes in the other order.
Time per output token is vLLM's own, the mean over the requests that ended in the second part of a rate's
seconds. ``--urls`` measures two servers that run already.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import random
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.gpu.device import device_provenance
from benchmarks.gpu.phases import AUTOTUNE, NEVER, lease_ended
from benchmarks.gpu.prompts import plain_texts
from benchmarks.gpu.sender import complete, session
from testing.autotune import autotune
from testing.lossless import put_table
from testing.servers import vllm_server

_TIME = "vllm:request_time_per_output_token_seconds"
_TOKENS = "vllm:generation_tokens"
_PROMPT_TOKENS, _SKIPPED_MAX = 256, 64
_TEXT_TOKENS_MIN = _PROMPT_TOKENS + _SKIPPED_MAX
_TEXTS = 400
_SERVE = (
    "--dtype",
    "auto",
    "--no-enforce-eager",
    "--max-num-seqs",
    "256",
    "--gpu-memory-utilization",
    "0.45",
)
_Row = dict[str, dict[str, float | None]]
"""By arm: ms per output token, and output tokens/s."""


async def counted(client: httpx.AsyncClient) -> dict[str, float]:
    """What the server has counted so far, and when."""
    found = {"at_s": asyncio.get_running_loop().time(), "s": 0.0, "requests": 0.0, "tokens": 0.0}
    ends = {f"{_TIME}_sum": "s", f"{_TIME}_count": "requests", f"{_TOKENS}_total": "tokens"}
    for family in text_string_to_metric_families((await client.get("/metrics")).text):
        for sample in family.samples:
            if sample.name in ends:
                found[ends[sample.name]] += sample.value
    return found


def between(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float | None]:
    made = {name: after[name] - before[name] for name in after}
    per_token = round(1e3 * made["s"] / made["requests"], 3) if made["requests"] else None
    return {"ms per token": per_token, "tokens/s": round(made["tokens"] / made["at_s"], 1)}


@contextlib.asynccontextmanager
async def arriving(url: str, bodies: Iterator[dict[str, Any]], rate: float, seed: int) -> AsyncIterator[None]:
    """Requests arrive while the block runs; what is under way is then dropped."""
    gaps = random.Random(seed)
    async with session(url) as opened:
        sent: set[asyncio.Task[None]] = set()

        async def arrivals() -> None:
            loop = asyncio.get_running_loop()
            at_s = loop.time()
            while True:
                at_s += gaps.expovariate(rate)
                await asyncio.sleep(at_s - loop.time())
                sent.add(asyncio.create_task(complete(opened, next(bodies))))

        sender = asyncio.create_task(arrivals())
        try:
            yield
            for task in (sender, *sent):
                if task.done():
                    task.result()
        finally:
            for task in (sender, *sent):
                task.cancel()
            await asyncio.gather(sender, *sent, return_exceptions=True)


def bodies_of(
    texts: Sequence[list[int]], max_tokens: int, temperature: float, skipped: int = 0
) -> Iterator[dict[str, Any]]:
    """Endless: a part of each text in turn. Another number of ``skipped`` tokens gives nearly the same
    prompts, of which a prefix cache knows nothing. Raises ValueError where no text is long enough."""
    first = skipped % _SKIPPED_MAX
    parts = [text[first : first + _PROMPT_TOKENS] for text in texts if len(text) >= _TEXT_TOKENS_MIN]
    if not parts:
        raise ValueError(f"expected texts of {_TEXT_TOKENS_MIN} tokens or more")
    common = {"model": "model", "max_tokens": max_tokens, "temperature": temperature, "ignore_eos": True}
    return ({**common, "prompt": part} for part in itertools.cycle(parts))


class Run:
    def __init__(
        self, client: httpx.AsyncClient, other: httpx.AsyncClient, given: argparse.Namespace, texts: Any
    ) -> None:
        self.client, self.other, self.given = client, other, given
        self.texts, self.measured = texts, 0
        self.rounds: list[dict[str, _Row]] = []

    async def round(self, number: int) -> None:
        self.rounds.append({f"{rate:g}": {} for rate in self.given.rates})
        passes = [self._constants, self._daemon]
        for one in passes if number % 2 == 0 else reversed(passes):
            await lease_ended(self.client)
            await one(self.rounds[-1])

    async def _rate(self, client: httpx.AsyncClient, rate: float) -> dict[str, float | None]:
        """Of the second part of its seconds; in the first the server fills."""
        given = self.given
        bodies = bodies_of(self.texts, given.max_tokens, given.temperature, self.measured)
        self.measured += 1
        async with arriving(str(client.base_url), bodies, rate, seed=len(self.rounds)):
            await asyncio.sleep(given.fill_s)
            before = await counted(client)
            await asyncio.sleep(given.rate_s - given.fill_s)
            return between(before, await counted(client))

    async def _constants(self, found: dict[str, _Row]) -> None:
        for rate in self.given.rates:
            row = found[f"{rate:g}"]
            for number in self.given.constants:
                await put_table(self.client, number)
                row[f"{number} drafts"] = await self._rate(self.client, rate)
            row[NEVER] = await self._rate(self.other, rate)
            print(rate, row, flush=True)

    async def _daemon(self, found: dict[str, _Row]) -> None:
        given = self.given
        await put_table(self.client, max(given.constants))
        folder = given.folder / f"rates-{len(self.rounds)}"
        folder.mkdir(parents=True, exist_ok=True)
        with autotune(str(self.client.base_url), folder, policy=given.policy):
            for rate in given.rates:
                found[f"{rate:g}"][AUTOTUNE] = await self._rate(self.client, rate)
                print(rate, AUTOTUNE, found[f"{rate:g}"][AUTOTUNE], flush=True)


def figures(rounds: Sequence[Mapping[str, _Row]]) -> dict[str, Any]:
    """By rate: medians of ms per token, and the best of the other arms over autotune (1: on the envelope)."""
    rates: dict[str, Any] = {}
    for rate in rounds[0]:
        arms = {
            arm: [one[rate][arm]["ms per token"] for one in rounds if one[rate][arm]["ms per token"]]
            for arm in rounds[0][rate]
        }
        medians = {arm: median(values) for arm, values in arms.items() if values}  # type: ignore[type-var]
        row: dict[str, Any] = {"ms per token": {arm: round(value, 3) for arm, value in medians.items()}}
        others = {arm: value for arm, value in medians.items() if arm != AUTOTUNE}
        if AUTOTUNE in medians and others:
            best = min(others, key=others.__getitem__)
            row |= {"best": best, "best / autotune": round(others[best] / medians[AUTOTUNE], 3)}
        rates[rate] = row
    ratios = [row["best / autotune"] for row in rates.values() if "best / autotune" in row]
    return {"rates": rates, "best / autotune, mean": round(mean(ratios), 3) if ratios else None}


def write_chart(found: Mapping[str, Any], file: Path) -> None:
    """Time per output token over the rate, a line for each arm."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    rates = found["rates"]
    for arm in next(iter(rates.values()))["ms per token"]:
        points = [(float(rate), row["ms per token"].get(arm)) for rate, row in rates.items()]
        width = 2.5 if arm == AUTOTUNE else 1.2
        axes.plot(*zip(*points, strict=True), marker="o", linewidth=width, label=arm)
    axes.set(xlabel="requests per second", ylabel="ms per output token", xscale="log", ylim=(0, None))
    axes.set_xticks([float(rate) for rate in rates], labels=list(rates))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(file)


async def measured(urls: Sequence[str], given: argparse.Namespace, texts: Any) -> dict[str, Any]:
    options = {name: str(value) for name, value in vars(given).items()}
    report: dict[str, Any] = {}
    async with (
        httpx.AsyncClient(base_url=urls[0], timeout=600) as client,
        httpx.AsyncClient(base_url=urls[1], timeout=600) as other,
    ):
        run = Run(client, other, given, texts)
        for number in range(given.rounds):
            await run.round(number)
            report = {
                "provenance": device_provenance(),
                "options": options,
                "figures": figures(run.rounds),
                "rounds": run.rounds,
            }
            given.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a folder with weights and tokenizer.json")
    parser.add_argument("--head", type=Path, help="an EAGLE-3 head of MODEL; not needed with --urls")
    parser.add_argument("--texts", type=Path, help="JSON list of token ids; default: made for MODEL")
    parser.add_argument("--rates", type=float, nargs="*", default=[1, 2, 4, 8, 16, 32], help="requests/s")
    parser.add_argument("--constants", type=int, nargs="*", default=[3], help="numbers of drafts")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--rate-s", type=float, default=20.0, help="of each rate and arm")
    parser.add_argument("--fill-s", type=float, default=8.0, help="of these, not counted")
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--policy", default="balanced")
    parser.add_argument("--urls", nargs=2, help="running servers: with eagle3, and without drafts")
    parser.add_argument("--serve", type=json.loads, default=[], help="JSON list: options of vllm serve")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/rates"), help="for logs")
    parser.add_argument("--chart", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if given.texts is not None:
        texts = json.loads(given.texts.read_text(encoding="utf-8"))
    else:
        texts = plain_texts(given.model / "tokenizer.json", _TEXTS)
    config = {"method": "eagle3", "model": str(given.head), "num_speculative_tokens": max(given.constants)}
    with contextlib.ExitStack() as stack:
        urls = given.urls or [
            stack.enter_context(
                vllm_server(given.model, given.folder / f"{name}.log", asked, [*_SERVE, *given.serve])
            ).url
            for name, asked in (("server", {**config, "specctl": {}}), ("off", None))
        ]
        report = asyncio.run(measured(urls, given, texts))
    print(json.dumps(report["figures"], indent=1))
    if given.chart is not None:
        write_chart(report["figures"], given.chart)


if __name__ == "__main__":
    main()
