"""``make bench``: specctl on a real vllm serve without a GPU, in one run, arms interleaved.

    python -m benchmarks.run_cpu [--repeats 3] [--skip-stock-suffix]

Servers of one engine and one model, one of them loaded at a time:
plain (never speculating), specctl (specctl_suffix, 8 tokens) and stock (vLLM's own suffix, 8 tokens).
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from benchmarks.copying import listed, load_prompts
from testing.autotune import CpuShare, autotune
from testing.load import LoadResult, run_load
from testing.lossless import put_table
from testing.provenance import ROOT, provenance, summary
from testing.servers import Server, vllm_server

CACHE = Path(os.environ.get("SPECCTL_CACHE", ROOT / ".cache"))
TOKENS = 8
COPYING_OUTPUT_TOKENS = 64
ENTROPY_OUTPUT_TOKENS = 24
CONFIGS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "specctl": {"method": "specctl_suffix", "num_speculative_tokens": TOKENS},
    "stock": {"method": "suffix", "num_speculative_tokens": TOKENS},
}
ARCTIC = "arctic-inference==0.1.1"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--skip-stock-suffix", action="store_true")
    parser.add_argument("--model", type=Path, default=CACHE / "models" / "gemma3-270m")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "cpu.json")
    arguments = parser.parse_args()
    source = provenance()
    names = [name for name in CONFIGS if name != "stock" or not arguments.skip_stock_suffix]
    if "stock" in names:
        install_arctic()
    with ExitStack() as stack, tempfile.TemporaryDirectory() as logs:
        servers = {}
        for name in names:
            print(f"bench: starting {name} ...", flush=True)
            log = Path(logs) / f"{name}.log"
            servers[name] = stack.enter_context(vllm_server(arguments.model, log, CONFIGS[name]))
        figures = asyncio.run(measure(servers, arguments.repeats, Path(logs)))
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    report = {"provenance": source, "model": arguments.model.name, "figures": figures}
    arguments.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(f"bench: wrote {arguments.output.name}")
    return 0


def install_arctic() -> None:
    """Needed by the stock method alone, so by this benchmark alone. Compiles for about a minute."""
    if importlib.util.find_spec("arctic_inference") is not None:
        return
    print(f"bench: building {ARCTIC} for the stock arm ...", flush=True)
    pip = [sys.executable, "-m", "pip", "-q", "install"]
    subprocess.run([*pip, "nanobind==2.9.2", "cmake", "grpcio-tools", "wheel", "ninja"], check=True)
    # CMake and pip's scripts take the newest Python they find, unless a virtual environment is active.
    scripts = str(Path(sys.executable).parent)
    env = {**os.environ, "CMAKE_BUILD_PARALLEL_LEVEL": "1", "VIRTUAL_ENV": sys.prefix}
    env["PATH"] = os.pathsep.join([scripts, os.environ.get("PATH", "")])
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", ARCTIC], check=True, env=env)
    # A module that was built for another Python is found, and cannot be loaded.
    subprocess.run([sys.executable, "-c", "import arctic_inference.suffix_decoding"], check=True)


async def measure(servers: Mapping[str, Server], repeats: int, folder: Path) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    clients = {name: httpx.AsyncClient(base_url=server.url, timeout=600) for name, server in servers.items()}
    try:
        for client in clients.values():
            await run_load(client, "model", ["Warm the engine up."], concurrency=1, max_tokens=8)
        await put_table(clients["specctl"], 0)
        figures["step at 0 drafts, specctl / plain"] = await overhead(clients, repeats)
        await put_table(clients["specctl"], TOKENS)
        figures["copying"] = await copying(clients, repeats)
        figures["high entropy"] = await high_entropy(clients, servers["specctl"], repeats, folder)
    finally:
        for client in clients.values():
            await client.aclose()
    return figures


async def overhead(clients: Mapping[str, httpx.AsyncClient], repeats: int) -> dict[str, Any]:
    """Seconds for each token after the first, of one request; the arms take turns."""
    ratios = []
    for i in range(2 * repeats + 2):
        prompt = [f"{i}. The harbour at night was quiet, and"]
        order = ("plain", "specctl") if i % 2 else ("specctl", "plain")
        speeds = {}
        for name in order:
            result = await run_load(clients[name], "model", prompt, concurrency=1, max_tokens=48)
            speeds[name] = result.decode_tokens_per_s
        ratios.append(speeds["plain"] / speeds["specctl"])
        print(f"bench: step at 0 drafts: {ratios[-1]:.3f} x", flush=True)
    return {"ratio": summary(ratios), "own share": await own_share(clients["specctl"])}


async def own_share(client: httpx.AsyncClient) -> dict[str, float]:
    """The plugin's own seconds in steps of one request without drafts, as a share of those steps' seconds."""
    before = await _telemetry(client)
    await run_load(client, "model", ["The harbour in the morning was"], concurrency=1, max_tokens=96)
    after = await _telemetry(client)
    cells = [_off_cell(telemetry) for telemetry in (before, after)]
    steps, step_s, draft_s = (cells[1][key] - cells[0][key] for key in ("steps", "step_s", "draft_s"))
    steering_s = after["steering_s"] - before["steering_s"]
    print(f"bench: own share at 0 drafts: {(steering_s + draft_s) / step_s:.2%}", flush=True)
    return {
        "steps": steps,
        "scheduler_us_per_step": round(1e6 * steering_s / steps, 1),
        "index_us_per_step": round(1e6 * draft_s / steps, 1),
        "share_of_step": round((steering_s + draft_s) / step_s, 5),
    }


async def _telemetry(client: httpx.AsyncClient) -> dict[str, Any]:
    answer = await client.get("/specctl/v1/telemetry")
    answer.raise_for_status()
    telemetry: dict[str, Any] = answer.json()
    return telemetry


def _off_cell(telemetry: Mapping[str, Any]) -> dict[str, float]:
    wanted = {"decode_batch_to": 1, "num_speculative_tokens": 0, "has_prefill": False}
    return next(
        cell for cell in telemetry["cells"] if all(cell[key] == value for key, value in wanted.items())
    )


async def copying(clients: Mapping[str, httpx.AsyncClient], repeats: int) -> dict[str, Any]:
    """Each group of prompts runs on every server in turn: first cold (no server has seen them), then warm."""
    prompts = load_prompts(listed())
    groups = [prompts[i::repeats] for i in range(repeats)]
    figures = {}
    for kind in ("cold", "warm"):
        speeds = await _rounds(clients, groups, COPYING_OUTPUT_TOKENS, f"copying, {kind}")
        figures[kind] = _compared(speeds)
    return {"prompts": len(prompts), **figures}


async def high_entropy(
    clients: Mapping[str, httpx.AsyncClient], server: Server, repeats: int, folder: Path
) -> dict[str, Any]:
    """specctl autotune steers the specctl server; no prompt comes twice."""
    prompts = entropy_prompts()
    groups = [prompts[i::repeats] for i in range(repeats)]
    pair = {name: clients[name] for name in ("plain", "specctl")}
    with autotune(server.url, folder) as daemon:
        share = CpuShare(daemon.pid)
        speeds = await _rounds(pair, groups, ENTROPY_OUTPUT_TOKENS, "high entropy")
        figures = {"daemon, share of a core": round(share(), 4)}
    return {"prompts": len(prompts), **figures, **_compared(speeds)}


def entropy_prompts() -> list[str]:
    rows = map(json.loads, (ROOT / "demo" / "prompts.jsonl").read_text(encoding="utf-8").splitlines())
    return [row["prompt"] for row in rows if row["kind"] == "high-entropy"]


async def _rounds(
    clients: Mapping[str, httpx.AsyncClient], groups: Sequence[Sequence[str]], max_tokens: int, title: str
) -> dict[str, list[LoadResult]]:
    """Arms take turns on each group, and the first of them changes from group to group."""
    results: dict[str, list[LoadResult]] = {name: [] for name in clients}
    names = list(clients)
    for i, group in enumerate(groups):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            result = await run_load(clients[name], "model", group, concurrency=1, max_tokens=max_tokens)
            results[name].append(result)
            print(
                f"bench: {title}, group {i + 1}: {name} {result.tokens_per_s:.1f} tok/s, "
                f"{result.decode_tokens_per_s:.1f} after the first token",
                flush=True,
            )
    return results


def _compared(results: Mapping[str, Sequence[LoadResult]]) -> dict[str, Any]:
    """Tokens/s of each arm, and specctl's ratio to the others group by group."""
    figures: dict[str, Any] = {}
    for name, loads in results.items():
        figures[f"{name} tokens/s"] = summary([load.tokens_per_s for load in loads])
        figures[f"{name} tokens/s after the first"] = summary([load.decode_tokens_per_s for load in loads])
    for other in results:
        if other == "specctl":
            continue
        pairs = list(zip(results["specctl"], results[other], strict=True))
        figures[f"specctl / {other}"] = summary([a.tokens_per_s / b.tokens_per_s for a, b in pairs])
        figures[f"specctl / {other} after the first"] = summary(
            [a.decode_tokens_per_s / b.decode_tokens_per_s for a, b in pairs]
        )
    return figures


if __name__ == "__main__":
    raise SystemExit(main())
