"""How well a draft head drafts after a rest at 0 drafts, against one that never rested. Real CPU servers.

    python -m benchmarks.resume --models FOLDER [--only NAME,...] [--prompts N] [--output FILE]

One request at a time, greedy, with the reference models (``make reference-models``). Both arms draft TOKENS
from the same place of the same text on. Before it one has made REST_TOKENS tokens at 0 drafts, the other at
fewer drafts. Counted is what came after, in the cells of TOKENS drafts.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx

from specctl.bench.prompts import load_prompts
from testing.provenance import write_report
from testing.servers import Server, sglang_server, vllm_server

TOKENS = 3
REST_TOKENS, AFTER_TOKENS = 200, 100
POLL_S = 0.01


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--only", help="names of methods, with commas; default: all")
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, start in servers(options.models).items():
            if options.only is None or name in options.only.split(","):
                with start(Path(folder) / "server.log") as server:
                    found[name] = resumed(server, options.prompts)
    write_report({"drafts": TOKENS, "tokens of the rest": REST_TOKENS, "methods": found}, options.output)
    return 0


def servers(models: Path) -> dict[str, Callable[[Path], AbstractContextManager[Server]]]:
    """By engine and method."""
    target, eagle3, peagle = (models / f"reference-{name}" for name in ("target", "eagle3", "peagle"))

    def vllm(method: str, head: Path) -> Callable[[Path], AbstractContextManager[Server]]:
        config = {"method": method, "model": str(head), "num_speculative_tokens": TOKENS, "specctl": {}}
        return lambda log: vllm_server(target, log, config)

    def sglang(algorithm: str, head: Path, *more: str) -> Callable[[Path], AbstractContextManager[Server]]:
        arguments = ["--speculative-draft-model-path", str(head), *more]
        environment = {"SPECCTL_SGLANG_OPTIONS": "{}", "SPECCTL_SGLANG_CPU_OVERLAP": "1"}
        return lambda log: sglang_server(target, log, algorithm, arguments, environment)

    steps = ("--speculative-num-steps", str(TOKENS), "--speculative-eagle-topk", "1")
    width = ("--speculative-num-draft-tokens", str(TOKENS + 1))
    return {
        "vllm eagle3": vllm("eagle3", eagle3),
        "vllm specctl_peagle": vllm("specctl_peagle", peagle),
        "vllm draft_model": vllm("draft_model", target),
        "sglang EAGLE3": sglang("EAGLE3", eagle3, *steps, *width),
        "sglang SPECCTL_PEAGLE": sglang("SPECCTL_PEAGLE", peagle, *width),
    }


def resumed(server: Server, count: int) -> dict[str, Any]:
    """Drafted and accepted tokens of both arms, and the ratio of their shares."""
    with httpx.Client(base_url=server.url, timeout=300) as client:
        capabilities = client.get("/specctl/v1/capabilities").raise_for_status().json()
        fewer = max(number for number in capabilities["num_speculative_tokens_legal"] if number < TOKENS)
        arms = {"after a rest": 0, "never at rest": fewer}
        sums = {name: [0, 0] for name in arms}
        for prompt in load_prompts("chat")[:count]:
            text = prompt.prompt or (prompt.messages or ())[-1].content
            for name, before in arms.items():
                for at, more in enumerate(_ran(client, text, before)):
                    sums[name][at] += more
    shares = {name: accepted / max(drafted, 1) for name, (drafted, accepted) in sums.items()}
    return {
        **{
            name: {"drafted": drafted, "accepted": accepted, "share": round(shares[name], 4)}
            for name, (drafted, accepted) in sums.items()
        },
        "ratio": round(shares["after a rest"] / max(shares["never at rest"], 1e-9), 4),
    }


def _ran(client: httpx.Client, prompt: str, before: int) -> tuple[int, int]:
    """Drafted and accepted tokens once REST_TOKENS tokens were made at ``before`` drafts."""
    _put(client, before)
    at_start = _counted(client)
    tokens = REST_TOKENS + AFTER_TOKENS
    body = {"model": "model", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.post, "/v1/completions", json=body)
        while not answer.done() and _counted(client)[2] - at_start[2] < REST_TOKENS:
            time.sleep(POLL_S)
        _put(client, TOKENS)
        answer.result().raise_for_status()
    after = _counted(client)
    return after[0] - at_start[0], after[1] - at_start[1]


def _put(client: httpx.Client, tokens: int) -> None:
    version = client.get("/specctl/v1/table").raise_for_status().json()["version"]
    rows = [{"decode_batch_from": 1, "num_speculative_tokens": tokens}]
    change = {"base_version": version, "owner": "resume", "reason": "measured", "rows": rows}
    client.put("/specctl/v1/table", json=change).raise_for_status()


def _counted(client: httpx.Client) -> tuple[int, int, int]:
    """Drafted and accepted tokens at TOKENS drafts, and tokens emitted at any number."""
    cells = client.get("/specctl/v1/telemetry").raise_for_status().json()["cells"]
    own = [cell for cell in cells if cell["num_speculative_tokens"] == TOKENS]
    drafted, accepted = (sum(sum(cell[key]) for cell in own) for key in ("drafted_at", "accepted_at"))
    return drafted, accepted, sum(cell["emitted_tokens"] for cell in cells)


if __name__ == "__main__":
    sys.exit(main())
