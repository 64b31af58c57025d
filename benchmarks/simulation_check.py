"""The simulator against a real server: predicted and measured tokens/s, load by load.

    python -m benchmarks.simulation_check [--url URL] [--rounds N] [--output FILE]

Without ``--url`` a server on this machine's CPU: the reference target with its EAGLE-3 head (``make
reference-models``), whose drafts are all full, as the simulator has them. Its steps are counted as ``specctl
profile`` does, with requests of its own, then each load runs at a fixed number of drafts, then steps are
counted again, and so on for ``--rounds``, so that a machine that is now quick and now slow is so for both
sides. A load is Poisson arrivals at a rate, or everything at once (rate 0), with output lengths drawn between
a quarter of OUTPUT_TOKENS and all of it. ``specctl record`` writes a log of each; the simulator runs it with
that number and the profile of all counted steps. Tokens/s are over the spans from the first request sent to
the last one's end, over all rounds; TPOT is the mean of the server's own histogram. A server of one's own
must not cache prefixes. ``tests/engine/test_stock_server.py`` holds what drafting gains by it to 7 %.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import aiohttp
import httpx
import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from specctl.clock import SystemClock
from specctl.contract.capabilities import Capabilities
from specctl.engine_api.client import EngineClient
from specctl.errors import SimulationInputError
from specctl.http_client import HttpClient
from specctl.simulate.arms import Static
from specctl.simulate.compare import simulate
from specctl.simulate.engine_profile import EngineProfile
from specctl.simulate.files import find_file
from specctl.simulate.profiling.cost_fit import fit_costs
from specctl.simulate.profiling.fitted import engine_profile, experts_of, fingerprint_of, limits_of
from specctl.simulate.profiling.measure import Measured, Plan
from specctl.simulate.profiling.server import measure_server
from specctl.simulate.recorded import load_recorded
from specctl.simulate.scenario import load_scenario
from specctl.simulate.trace import Trace
from testing.lossless import SHARED, put_table
from testing.provenance import summary, write_report
from testing.servers import vllm_server

_SPECCTL = str(Path(sys.executable).parent / "specctl")
_TPOT = "vllm:request_time_per_output_token_seconds"
_RECORD_S = 1.0
_SEED = 0
_TIMEOUT_S = 600.0
_MODELS = SHARED / "models"
OUTPUT_TOKENS = 64
_IDS = (7, 4000)
_PROMPT_TOKENS = (60, 400)
"""As those that the profile was measured with."""


@dataclass(frozen=True)
class Load:
    num_speculative_tokens: int
    requests_per_s: float
    requests: int

    def __str__(self) -> str:
        rate = "at once" if not self.requests_per_s else f"{self.requests_per_s:g}/s"
        return f"{self.num_speculative_tokens} drafts, {self.requests} requests, {rate}"


@dataclass(frozen=True)
class Sent:
    """What one load was: seconds since its first request."""

    arrival_s: list[float]
    input_tokens: list[int]
    output_tokens: list[int]
    span_s: float
    tpot_s: float

    @property
    def tokens_per_s(self) -> float:
        return sum(self.output_tokens) / self.span_s


@dataclass(frozen=True)
class Predicted:
    """``log_tokens_per_s``: from the log alone; the others from the arrivals and lengths that were sent."""

    span_s: float
    tpot_s: float
    log_tokens_per_s: float


async def tpot_sums(client: httpx.AsyncClient) -> tuple[float, float]:
    """Sum and count of the server's mean seconds per output token, by request."""
    text = (await client.get("/metrics")).text
    found = {"_sum": 0.0, "_count": 0.0}
    for family in text_string_to_metric_families(text):
        if family.name != _TPOT:
            continue
        for sample in family.samples:
            for ending in found:
                if sample.name == _TPOT + ending:
                    found[ending] += sample.value
    return found["_sum"], found["_count"]


def bodies() -> Iterator[dict[str, Any]]:
    """Prompts of which none begins as another: nothing comes from a cache."""
    rng = random.Random(_SEED)
    common = {"model": "model", "ignore_eos": True, "temperature": 0.0, "stream": True}
    while True:
        prompt = [rng.randrange(*_IDS) for _ in range(rng.randint(*_PROMPT_TOKENS))]
        yield {**common, "prompt": prompt, "max_tokens": rng.randint(OUTPUT_TOKENS // 4, OUTPUT_TOKENS)}


async def complete(session: aiohttp.ClientSession, body: dict[str, Any]) -> None:
    """Raises aiohttp.ClientResponseError where the server refuses it."""
    async with session.post("/v1/completions", json=body) as answer:
        answer.raise_for_status()
        await answer.read()


async def send(
    client: httpx.AsyncClient, session: aiohttp.ClientSession, load: Load, given: Iterator[dict[str, Any]]
) -> Sent:
    """Open loop: nobody waits for an answer before the next request goes."""
    rng = random.Random(f"{_SEED} {load}")
    arrival_s, inputs, outputs = [], [], []
    sum_before, count_before = await tpot_sums(client)
    tasks = []
    began_s = due_s = time.monotonic()
    for body in itertools.islice(given, load.requests):
        await asyncio.sleep(max(due_s - time.monotonic(), 0.0))
        arrival_s.append(time.monotonic() - began_s)
        inputs.append(len(body["prompt"]))
        outputs.append(body["max_tokens"])
        tasks.append(asyncio.create_task(complete(session, body)))
        due_s += rng.expovariate(load.requests_per_s) if load.requests_per_s else 0.0
    await asyncio.gather(*tasks)
    span_s = time.monotonic() - began_s
    sum_after, count_after = await tpot_sums(client)
    tpot_s = (sum_after - sum_before) / max(count_after - count_before, 1.0)
    return Sent(arrival_s, inputs, outputs, span_s, tpot_s)


@contextlib.contextmanager
def recorded(url: str, log: Path) -> Iterator[None]:
    log.unlink(missing_ok=True)
    command = [_SPECCTL, "record", url, "--output", str(log), "--every", str(_RECORD_S)]
    with subprocess.Popen(command) as process:
        try:
            time.sleep(2.0 * _RECORD_S)
            yield
            time.sleep(2.0 * _RECORD_S)
        finally:
            process.send_signal(signal.SIGTERM)


async def counted(url: str, seconds: float, requests: int) -> tuple[Capabilities, Measured]:
    """Steps as ``specctl profile --requests`` counts them."""
    async with EngineClient(HttpClient(url, timeout_s=5.0)) as client:
        capabilities = await client.capabilities()
        assert capabilities is not None, "a server of ours"
        return capabilities, await measure_server(
            client, capabilities, SystemClock(), asyncio.Event(), Plan(seconds, share_max=0.5),
            owner="benchmark", requests=requests,
        )  # fmt: skip


def profile_of(capabilities: Capabilities, parts: Sequence[Measured]) -> EngineProfile:
    """One profile of all that was counted."""
    measured = Measured(
        rows=tuple(row for part in parts for row in part.rows),
        seconds=sum(part.seconds for part in parts),
        steps=sum(part.steps for part in parts),
        disturbed_steps=sum(part.disturbed_steps for part in parts),
        disturbed_s=sum(part.disturbed_s for part in parts),
        own_requests=sum(part.own_requests for part in parts),
        is_interrupted=False,
    )
    # Not refused where its halves differ: the rounds' scatter tells how far a busy machine can be believed.
    costs = fit_costs(measured.rows, experts_of(capabilities))
    fingerprint = fingerprint_of(capabilities, {} if capabilities.gpu else {"gpu": "not told"})
    limits = limits_of(capabilities, {})
    return engine_profile(measured, costs, capabilities, fingerprint, limits, utc=SystemClock().utc())


def predicted(load: Load, sent: Sent, log: Path, profile: EngineProfile) -> Predicted:
    """Raises SimulationInputError where the log tells no acceptance."""
    found = load_recorded(log, seed=_SEED)
    scenario = found.scenario
    if scenario is None and not load.num_speculative_tokens:
        # Without drafts none is accepted, whatever their chance.
        scenario = load_scenario(find_file("steady", "scenarios"))
    if scenario is None:
        raise SimulationInputError(f"{load}: {found.why_no_scenario}")
    arm = Static(load.num_speculative_tokens)
    lengths = np.array(sent.input_tokens), np.array(sent.output_tokens)
    exact = Trace(np.array(sent.arrival_s), *lengths, found.trace.skipped)
    run = simulate(exact, profile, scenario, arm, seed=_SEED)
    by_log = simulate(found.trace, profile, scenario, arm, seed=_SEED)
    return Predicted(run.span_s, run.tpot_mean_s, by_log.tokens_per_s)


def compared(load: Load, rounds: Sequence[tuple[Sent, Predicted]]) -> dict[str, Any]:
    """Predicted and measured over all rounds of a load. ``error``: twice the miss's standard error, as the
    rounds scatter."""
    tokens = sum(sum(sent.output_tokens) for sent, _ in rounds)
    measured = tokens / sum(sent.span_s for sent, _ in rounds)
    foretold = tokens / sum(prediction.span_s for _, prediction in rounds)
    by_log = fmean(prediction.log_tokens_per_s for _, prediction in rounds)
    ratios = [sent.span_s / prediction.span_s - 1.0 for sent, prediction in rounds]
    tpot_s = fmean(sent.tpot_s for sent, _ in rounds)
    predicted_tpot_s = fmean(prediction.tpot_s for _, prediction in rounds)
    return {
        "load": str(load),
        "rounds": len(rounds),
        "measured": {"tokens/s": round(measured, 1), "TPOT ms": round(1e3 * tpot_s, 2)},
        "from the arrivals": {
            "tokens/s": round(foretold, 1),
            "miss": round(foretold / measured - 1.0, 4),
            "by round": summary(ratios),
            "error": round(2.0 * stdev(ratios) / sqrt(len(ratios)), 4) if len(ratios) > 1 else None,
            "TPOT ms": round(1e3 * predicted_tpot_s, 2),
            "TPOT miss": round(predicted_tpot_s / tpot_s - 1.0, 4),
        },
        "from the log": {"tokens/s": round(by_log, 1), "miss": round(by_log / measured - 1.0, 4)},
    }


class Check:
    """One server under loads and measurements in turn.

    ``seconds``: of each measurement, of which there is one more than rounds; ``requests``: its own, at most.
    """

    def __init__(
        self, url: str, loads: Sequence[Load], folder: Path, *, seconds: float = 15.0, requests: int = 300
    ) -> None:
        self._url, self._bodies, self._folder = url, bodies(), folder
        self._seconds, self._requests = seconds, requests
        self._measured: list[Measured] = []
        self._ran: dict[Load, list[tuple[Sent, Path]]] = {load: [] for load in loads}
        self._count()

    @property
    def profile(self) -> EngineProfile:
        return profile_of(self._capabilities, self._measured)

    def results(self) -> list[dict[str, Any]]:
        profile = self.profile
        return [
            compared(load, [(sent, predicted(load, sent, log, profile)) for sent, log in ran])
            for load, ran in self._ran.items()
        ]

    def run_round(self) -> None:
        """Every load once, and a measurement after them."""
        asyncio.run(self._run_loads())
        self._count()

    def _count(self) -> None:
        self._capabilities, measured = asyncio.run(counted(self._url, self._seconds, self._requests))
        self._measured.append(measured)

    async def _run_loads(self) -> None:
        # httpx's pool looks through all connections for each request: hundreds at a time are sent by aiohttp.
        timeout, connector = aiohttp.ClientTimeout(_TIMEOUT_S), aiohttp.TCPConnector(limit=0)
        async with (
            httpx.AsyncClient(base_url=self._url, timeout=_TIMEOUT_S) as client,
            aiohttp.ClientSession(self._url, connector=connector, timeout=timeout) as session,
        ):
            for number, (load, ran) in enumerate(self._ran.items()):
                await put_table(client, load.num_speculative_tokens)
                log = self._folder / f"load-{number}-{len(ran)}.log"
                with recorded(self._url, log):
                    sent = await send(client, session, load, self._bodies)
                print(load, f"{sent.tokens_per_s:.0f} tokens/s", flush=True)
                ran.append((sent, log))


@contextlib.contextmanager
def server(url: str | None, folder: Path) -> Iterator[str]:
    if url is not None:
        yield url
        return
    config = {"method": "eagle3", "model": str(_MODELS / "reference-eagle3"), "num_speculative_tokens": 4}
    log = folder / "server.log"
    with vllm_server(_MODELS / "reference-target", log, {**config, "specctl": {}}) as started:
        yield started.url


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", help="a running server with specctl's plugin, served as model")
    parser.add_argument("--numbers", type=int, nargs="*", default=[0, 4], help="of drafts")
    parser.add_argument("--rates", type=float, nargs="*", default=[0.0], help="requests/s; 0: at once")
    parser.add_argument("--requests", type=int, default=64, help="of a load")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile-requests", type=int, default=300, help="for each profile")
    parser.add_argument("--profile-s", type=float, default=15.0)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    loads = [Load(number, rate, given.requests) for number in given.numbers for rate in given.rates]
    with tempfile.TemporaryDirectory() as name, server(given.url, Path(name)) as url:
        check = Check(url, loads, Path(name), seconds=given.profile_s, requests=given.profile_requests)
        for _ in range(given.rounds):
            check.run_round()
        results, profile = check.results(), check.profile.model_dump(mode="json")
    write_report({"profile": profile, "loads": results}, given.output)


if __name__ == "__main__":
    main()
