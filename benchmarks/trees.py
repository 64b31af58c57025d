"""``specctl autotune`` against every prepared setting of a real SGLang server with EAGLE-3, trees included.

    python -m benchmarks.trees --models FOLDER [--requests 1,4,8] [--rounds N] [--seconds S] [--output FILE]

Stock EAGLE3 on this machine's CPU with the reference target and head (``make reference-models``). In each
round every setting holds for S seconds under the same prompts. Then a fresh daemon starts from the server's
own setting: its search has SEARCH_S seconds, and what counts are the S seconds after them. Beside the whole
the daemon's tokens/s stand against the best setting of the medians, by round.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from benchmarks.phases import against, spread
from demo.phases import Phase
from demo.result import OURS
from specctl.contract.setting import Setting
from specctl.core.messages import setting_words
from testing.autotune import autotune
from testing.load import run_load
from testing.lossless import put_table
from testing.provenance import provenance
from testing.servers import Server, sglang_server

SEARCH_S = 10.0
CANDIDATES = [0, 2, 4]
START = (
    "--speculative-num-steps",
    "4",
    "--speculative-eagle-topk",
    "3",
    "--speculative-num-draft-tokens",
    "8",
)
MAX_TOKENS = 96
KINDS = ("copying", "high-entropy")


def main() -> int:
    options = _options()
    head = ("--speculative-draft-model-path", str(options.models / "reference-eagle3"))
    environment = {
        "SPECCTL_SGLANG_OPTIONS": json.dumps({"candidates": CANDIDATES}),
        "SPECCTL_SGLANG_CPU_OVERLAP": "1",
    }
    report: dict[str, Any] = {
        "provenance": provenance(),
        "seconds of a setting": options.seconds,
        "seconds of the search": SEARCH_S,
        "load of the machine at the start": round(os.getloadavg()[0], 2),
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        target, log = options.models / "reference-target", folder / "server.log"
        with sglang_server(target, log, "EAGLE3", [*head, *START], environment) as server:
            report["requests"] = asyncio.run(_measured(server, options, folder))
    report["load of the machine at the end"] = round(os.getloadavg()[0], 2)
    text = json.dumps(report, indent=1)
    print(text)
    if options.output is not None:
        options.output.write_text(text + "\n", encoding="utf-8")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--requests", default="1,4,8", help="at once, with commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--output", type=Path)
    return parser.parse_args()


async def _measured(server: Server, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    found = {}
    async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
        told = (await client.get("/specctl/v1/capabilities")).raise_for_status().json()
        settings = [Setting.model_validate(one) for one in told["settings"]]
        for requests in map(int, options.requests.split(",")):
            await _load(client, server, requests, 3.0)
            rounds = [
                await _round(client, server, settings, requests, options.seconds, folder)
                for _ in range(options.rounds)
            ]
            found[str(requests)] = summary(rounds)
    return found


async def _round(
    client: httpx.AsyncClient,
    server: Server,
    settings: Sequence[Setting],
    requests: int,
    seconds: float,
    folder: Path,
) -> dict[str, Any]:
    """Tokens/s of every setting by its name, and of the daemon with the settings that it came to."""
    speeds = {}
    for setting in settings:
        await _put(client, setting)
        speeds[setting_words(setting)] = await _load(client, server, requests, seconds)
    await _put(client, max(settings, key=lambda one: (one.num_speculative_tokens, one.width_tokens)))
    with autotune(server.url, folder):
        await _load(client, server, requests, SEARCH_S)
        speeds[OURS] = await _load(client, server, requests, seconds)
        rows = (await client.get("/specctl/v1/table")).json()["rows"]
    at = next(row for row in rows if (row["decode_batch_to"] or requests) >= requests)
    names = Setting.model_fields
    chosen = setting_words(Setting.model_validate({name: at.get(name) for name in names}))
    print(f"{requests} requests: {chosen}; {speeds}", file=sys.stderr, flush=True)
    return {"speeds": speeds, "chosen": chosen}


async def _load(client: httpx.AsyncClient, server: Server, requests: int, seconds: float) -> float:
    prompts = Phase("mixed", KINDS, requests, MAX_TOKENS).prompts()
    load = await run_load(
        client, server.model, prompts, concurrency=requests, max_tokens=MAX_TOKENS, seconds=seconds
    )
    return load.tokens_per_s


async def _put(client: httpx.AsyncClient, setting: Setting) -> None:
    """The daemon of the round before has released its lease, or it ends soon."""
    for _ in range(20):
        with contextlib.suppress(httpx.HTTPStatusError):
            await put_table(
                client,
                setting.num_speculative_tokens,
                tree_topk=setting.tree_topk,
                verify_width_tokens=setting.verify_width_tokens,
            )
            return
        await asyncio.sleep(0.5)
    raise RuntimeError(f"the server does not take {setting_words(setting)}")


def summary(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Tokens/s over the rounds, and the daemon's against the best prepared setting's and against off."""
    speeds = [one["speeds"] for one in rounds]
    names = [name for name in speeds[0] if name != OURS]
    found = against(names, speeds)
    found["chosen by specctl"] = [one["chosen"] for one in rounds]
    own = spread([max(one[name] for name in names) / one[found["best_static"]] for one in speeds])
    found["the round's best setting, to the best of the medians"] = own
    return found


if __name__ == "__main__":
    sys.exit(main())
