"""Servers that stand on one GPU at the same time, compared by one call of ``specctl bench``."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.device import device_provenance
from specctl.bench.results import BenchResult
from testing.bench import specctl_bench
from testing.provenance import ROOT, pairwise_ratios, summary, write_report
from testing.servers import command, free_port, sglang_command

__all__ = [
    "NEVER", "compared_pair", "figures", "loads", "pair_options", "parts_main", "sglang", "vllm", "write",
]  # fmt: skip

NEVER = "never enabled"
_ALL_TOKENS = ("--endpoint", "completions", "--ignore-eos")
_VLLM = ("--dtype", "auto", "--no-enforce-eager", "--max-num-seqs", "256")
_SGLANG = ("--dtype", "bfloat16", "--max-running-requests", "256", "--max-total-tokens", "131072")
Part = Callable[[argparse.Namespace], tuple[dict[str, str], list[str]]]
"""Options -> launch commands by name, the first one the base of all ratios, and words of specctl bench."""


def vllm(model: Path, config: Mapping[str, Any] | None, share: float, arguments: Sequence[str] = ()) -> str:
    """A launch command. ``share``: of the GPU's memory."""
    own = [*_VLLM, "--gpu-memory-utilization", str(share), *arguments]
    return shlex.join(command(model, free_port(), config, own))


def sglang(
    model: Path,
    algorithm: str | None,
    arguments: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
) -> str:
    """A launch command; its KV cache is bounded by its tokens. ``options``: SPECCTL_SGLANG_OPTIONS."""
    parts = sglang_command(model, free_port(), algorithm, [*_SGLANG, *arguments], "sglang.launch_server")
    own = [] if options is None else [f"SPECCTL_SGLANG_OPTIONS={json.dumps(options)}"]
    return shlex.join([*own, *parts])


def compared(servers: Mapping[str, str], arguments: Sequence[str], folder: Path) -> BenchResult:
    """``servers``: URLs or launch commands by name. Logs and the page with charts go to the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [word for name in servers for word in ("--name", name)]
    return specctl_bench([*servers.values(), *names, *_ALL_TOKENS, *arguments], folder)[1]


def pair_options(description: str | None, name: str) -> argparse.ArgumentParser:
    """Of a benchmark of ``compared_pair``."""
    parser = common_options(description, name)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--policy", default="balanced")
    parser.add_argument("--urls", nargs=2, help="running servers: one that speculates, one that never does")
    parser.add_argument("--serve", type=json.loads, default=[], help="JSON list: options of vllm serve")
    return parser


def compared_pair(
    options: argparse.Namespace, config: Mapping[str, Any], arguments: Sequence[str]
) -> BenchResult:
    """A server that speculates and one that never enabled it, each with half of the GPU."""
    configs = {"steered": config, NEVER: None}
    servers = dict(zip(configs, options.urls or (), strict=False)) or {
        name: vllm(options.model, one, 0.45, options.serve) for name, one in configs.items()
    }
    sampling = ("--sampling", json.dumps({"temperature": options.temperature}))
    return compared(servers, [*arguments, *sampling], options.folder)


def figures(result: BenchResult) -> dict[str, Any]:
    """By load and server: tokens/s, and their ratios to the first server's; and whether outputs are its own.

    Of a steered server with more than one arm, each has its name behind the server's.
    """
    servers = [server["name"] for server in result.servers]
    of_server = [arm.server for arm in result.arms]
    names = {
        arm.name: servers[arm.server]
        if of_server.count(arm.server) == 1
        else f"{servers[arm.server]}, {arm.name}"
        for arm in result.arms
    }
    base, loads = result.arms[0].name, {}
    for load in result.loads:
        speeds = {
            arm: [run.tokens_per_s for run in result.runs if (run.arm, run.load) == (arm, load.title)]
            for arm in names
        }
        loads[load.title] = {
            names[arm]: {
                "tokens/s": summary(values),
                f"against {names[base]}": summary(pairwise_ratios(values, speeds[base])),
            }
            for arm, values in speeds.items()
        }
    outputs = {
        names[one.arm]: {
            "compared": one.compared,
            "identical": one.identical,
            "ties": sum(bool(other.is_tie) for other in one.differing),
        }
        for one in result.outputs
    }
    return {"loads": loads, "outputs": outputs}


def write(output: Path, found: Mapping[str, Any]) -> None:
    write_report(found, output, device_provenance())


def common_options(description: str | None, name: str) -> argparse.ArgumentParser:
    """``--model``, ``--rounds``, ``--folder`` and ``--output``."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=ROOT / ".cache" / name, help="for logs and charts")
    parser.add_argument("--output", type=Path, required=True)
    return parser


def loads(
    options: argparse.Namespace, arms: Sequence[str], prompts: str, batches: Sequence[int]
) -> list[str]:
    """Words of specctl bench; what the command line says goes before a part's own."""
    words = [word for arm in options.arm or arms for word in ("--arm", arm)]
    words += ["--prompts", options.prompts or prompts]
    words += ["--concurrency", ",".join(map(str, options.batch or batches))]
    return [*words, "--output-tokens", str(options.max_tokens)]


def parts_main(description: str | None, name: str, parts: Mapping[str, Part]) -> None:
    """A part's servers under its loads, ``--arms`` of them alone."""
    parser = common_options(description, name)
    parser.add_argument("what", choices=parts)
    parser.add_argument("--draft", "--eagle3", default="", help="EAGLE-3 head")
    parser.add_argument("--peagle", default="", help="P-EAGLE head")
    parser.add_argument("--arms", nargs="*", default=[], help="names of servers; default: all")
    parser.add_argument(
        "--urls",
        nargs="*",
        type=_named_url,
        default=[],
        metavar="NAME=URL",
        help="servers that run already, in place of the part's; the first one is the base",
    )
    parser.add_argument(
        "--arm", action="append", help="of the first server that is steered, in place of the part's"
    )
    parser.add_argument("--batch", type=int, nargs="*", help="requests at the same time")
    parser.add_argument("--max-tokens", type=int, default=256, help="of an answer")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each server under each load")
    parser.add_argument("--prompts", help="in place of the part's: what specctl bench --prompts takes")
    options = parser.parse_args()
    servers, words = parts[options.what](options)
    servers = {name: one for name, one in servers.items() if not options.arms or name in options.arms}
    servers = dict(options.urls) or servers
    words += ["--rounds", str(options.rounds), "--seconds", str(options.seconds)]
    write(options.output, figures(compared(servers, words, options.folder / options.what)))


def _named_url(text: str) -> tuple[str, str]:
    name, is_given, url = text.partition("=")
    if not is_given:
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=URL")
    return name, url
