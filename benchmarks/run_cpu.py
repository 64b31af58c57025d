"""``make bench``: specctl on a real vllm serve without a GPU, by calls of ``specctl bench``.

    python -m benchmarks.run_cpu [--repeats 3] [--skip-stock-suffix]

Servers of one engine and one model, one of them loaded at a time:
plain (never speculating), specctl (specctl_suffix, 8 tokens) and stock (vLLM's own suffix, 8 tokens).
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from specctl.bench.prompts import load_prompts
from specctl.bench.results import BenchResult
from testing.bench import specctl_bench
from testing.provenance import ROOT, pairwise_ratios, provenance, summary, write_report
from testing.servers import Server, vllm_server

CACHE = Path(os.environ.get("SPECCTL_CACHE", ROOT / ".cache"))
TOKENS = 8
COPYING_REQUESTS, COPYING_OUTPUT_TOKENS = 4, 64
CHAT_OUTPUT_TOKENS = 24
CONFIGS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "specctl": {"method": "specctl_suffix", "num_speculative_tokens": TOKENS},
    "stock": {"method": "suffix", "num_speculative_tokens": TOKENS},
}
ARCTIC = "arctic-inference==0.1.1"
COMMON = ["--endpoint", "completions", "--ignore-eos", "--outputs", "0", "--baseline", "plain"]


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
        figures = measure(servers, arguments.repeats, Path(logs))
    write_report({"model": arguments.model.name, "figures": figures}, arguments.output, source)
    return 0


def install_arctic() -> None:
    """Needed by the stock method alone, so by this benchmark alone. Compiles for about a minute."""
    if importlib.util.find_spec("arctic_inference") is not None:
        return
    print(f"bench: building {ARCTIC} for the stock arm ...", flush=True)
    pip = [sys.executable, "-m", "pip", "-q", "install"]
    subprocess.run([*pip, "nanobind==2.9.2", "cmake", "grpcio-tools", "wheel", "ninja"], check=True)
    # CMake looks for a Python of its own, which may be another release than this one.
    scripts = str(Path(sys.executable).parent)
    environment = {
        **os.environ,
        "CMAKE_BUILD_PARALLEL_LEVEL": "1",
        "CMAKE_ARGS": f"-DPython_EXECUTABLE={sys.executable} -DPython3_EXECUTABLE={sys.executable}",
        "VIRTUAL_ENV": sys.prefix,
        "PATH": os.pathsep.join([scripts, os.environ.get("PATH", "")]),
    }
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", ARCTIC], check=True, env=environment)
    # A module that was built for another Python is found, and cannot be loaded.
    subprocess.run([sys.executable, "-c", "import arctic_inference.suffix_decoding"], check=True)


def measure(servers: Mapping[str, Server], repeats: int, folder: Path) -> dict[str, Any]:
    pair = {name: servers[name] for name in ("plain", "specctl")}
    # Rounds begin at other prompts, so that in the first call no server has seen one.
    count = min(COPYING_REQUESTS, len(load_prompts("copying")) // repeats)
    each = ["--as-they-are", "--no-warm-up", "--requests", str(count)]
    copying = [f"copying concurrency=1 output={COPYING_OUTPUT_TOKENS}"]
    rounds = ["--rounds", str(repeats)]
    off_rounds = ["--rounds", str(2 * repeats + 2), "--requests", "2"]
    warm_up = ["--rounds", "1", "--requests", "1"]
    _call(servers, str(TOKENS), ["chat concurrency=1 output=8"], warm_up, folder)
    cold = _call(servers, str(TOKENS), copying, [*each, *rounds], folder)
    warm = _call(servers, str(TOKENS), copying, [*each, *rounds], folder)
    off = _call(pair, "off", ["chat concurrency=1 output=48"], off_rounds, folder)
    chat = _call(
        pair,
        "autotune",
        [f"chat concurrency=1 output={CHAT_OUTPUT_TOKENS}"],
        [*rounds, "--seconds", "20"],
        folder,
    )
    return {
        "step at 0 drafts, specctl / plain": _compared(off)["specctl / plain after the first"],
        "copying": {"prompts": count * repeats, "cold": _compared(cold), "warm": _compared(warm)},
        "chat, autotune": _compared(chat),
    }


def _call(
    servers: Mapping[str, Server], arm: str, loads: Sequence[str], more: Sequence[str], folder: Path
) -> BenchResult:
    words = [server.url for server in servers.values()]
    for name in servers:
        words += ["--name", name]
    for load in loads:
        words += ["--load", load]
    _, result = specctl_bench([*words, "--arm", arm, *COMMON, *more], folder)
    return result


def _compared(result: BenchResult) -> dict[str, Any]:
    """Tokens/s of each server, and specctl's ratio to the others round by round."""
    figures: dict[str, Any] = {}
    ours = next(arm.name for arm in result.arms if arm.name not in CONFIGS)
    speeds = {}
    for arm in result.arms:
        name = "specctl" if arm.name == ours else arm.name
        runs = [run for run in result.runs if run.arm == arm.name]
        speeds[name] = [run.tokens_per_s for run in runs], [run.decode_tokens_per_s or 0.0 for run in runs]
    for name, (whole, decode) in speeds.items():
        figures[f"{name} tokens/s"] = summary(whole)
        figures[f"{name} tokens/s after the first"] = summary(decode)
    for name in speeds:
        if name == "specctl":
            continue
        for i, words in enumerate(("", " after the first")):
            ratios = pairwise_ratios(speeds["specctl"][i], speeds[name][i])
            figures[f"specctl / {name}{words}"] = summary(ratios)
    return figures


if __name__ == "__main__":
    raise SystemExit(main())
