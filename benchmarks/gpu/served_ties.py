"""Greedy answers of a server of specctl_suffix against one that never speculates: equal, ties, different.

    python -m benchmarks.gpu.served_ties --urls OURS OTHER --copying FILE --chat FILE --output FILE

Each prompt, copying and chat in turn, is answered by both servers, 16 at a time: by ours with 8 drafts for
every batch, then beside ``specctl autotune`` (twice, so that the corpus knows the answers), and by the other
server twice, which tells how often batches alone part its own answers. Where two part, the other server
scores both tokens (benchmarks.gpu.ties); it needs --max-logprobs 512. In place of SAMPLED_TOKENS the judge
gives the likeliest 512.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from benchmarks.autotune import autotune
from benchmarks.gpu.phases import lease_ended, shares, steps
from benchmarks.gpu.ties import Score, judged, partings
from benchmarks.lossless import put_table
from benchmarks.provenance import provenance

_LIKELIEST = 512
_CHAT_TOKENS = 256
_AT_ONCE = 16


class ServerJudge:
    """Scores with one prefill each."""

    def __init__(self, url: str) -> None:
        self._url = url

    def score(self, contexts: Sequence[list[int]], tokens: Sequence[Sequence[int]]) -> list[Score]:
        with httpx.Client(base_url=self._url, timeout=120) as client:
            return [self._one(client, *pair) for pair in zip(contexts, tokens, strict=True)]

    def _one(self, client: httpx.Client, context: list[int], asked: Sequence[int]) -> Score:
        body = {"model": "model", "prompt": context, "max_tokens": 1, "temperature": 0}
        body |= {"logprobs": _LIKELIEST, "return_tokens_as_token_ids": True}
        answer = client.post("/v1/completions", json=body).raise_for_status().json()
        likeliest = answer["choices"][0]["logprobs"]["top_logprobs"][0]
        found = {int(name.removeprefix("token_id:")): value for name, value in likeliest.items()}
        least = min(found.values())
        return Score(
            tuple(found.get(token, least) for token in asked), max(found.values()), tuple(found.values())
        )


async def answers(
    client: httpx.AsyncClient, prompts: Sequence[list[int]], max_tokens: int
) -> list[list[int]]:
    gate = asyncio.Semaphore(_AT_ONCE)
    common = {"model": "model", "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}

    async def one(prompt: list[int]) -> list[int]:
        async with gate:
            body = {**common, "prompt": prompt, "return_token_ids": True}
            answer = (await client.post("/v1/completions", json=body)).raise_for_status()
            ids: list[int] = answer.json()["choices"][0]["token_ids"]
            return ids

    return list(await asyncio.gather(*map(one, prompts)))


async def measured(arguments: argparse.Namespace) -> dict[str, Any]:
    prompts = prompts_of(arguments)
    own, other = (httpx.AsyncClient(base_url=url, timeout=600) for url in arguments.urls)
    judge = ServerJudge(arguments.urls[1])
    truth = await answers(other, prompts, arguments.max_tokens)
    again = await answers(other, prompts, arguments.max_tokens)
    found = {"never enabled, a second time": compared(judge, prompts, again, truth)}
    await lease_ended(own)
    await put_table(own, arguments.drafts)

    async def run(name: str) -> None:
        before = await steps(own)
        outputs = await answers(own, prompts, arguments.max_tokens)
        drafted = {"share of steps by drafts": shares(before, await steps(own))}
        found[name] = compared(judge, prompts, outputs, truth) | drafted

    await run(f"{arguments.drafts} drafts")
    with autotune(arguments.urls[0], arguments.folder, policy=arguments.policy):
        await run("autotune")
        await run("autotune, a second time")
    await own.aclose()
    await other.aclose()
    return found


def compared(
    judge: ServerJudge, prompts: Sequence[list[int]], outputs: list[list[int]], truth: list[list[int]]
) -> dict[str, Any]:
    parted = partings(prompts, outputs, truth)
    told = judged(judge, parted)
    margins = told.pop("margins", [])
    return {"answers": len(prompts), "equal": len(prompts) - len(parted), **told, "margins": margins}


def prompts_of(arguments: argparse.Namespace) -> list[list[int]]:
    half = arguments.count // 2
    copying = json.loads(arguments.copying.read_text(encoding="utf-8"))[-half:]
    chat = json.loads(arguments.chat.read_text(encoding="utf-8"))
    cut = [text[:_CHAT_TOKENS] for text in chat if len(text) >= _CHAT_TOKENS][:half]
    return [prompt for pair in zip(copying, cut, strict=True) for prompt in pair]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--urls", nargs=2, required=True, help="with specctl_suffix, and without drafts")
    parser.add_argument("--copying", type=Path, required=True, help="JSON list of prompts")
    parser.add_argument("--chat", type=Path, required=True, help="JSON list of texts")
    parser.add_argument("--count", type=int, default=64, help="of prompts")
    parser.add_argument("--max-tokens", type=int, default=192)
    parser.add_argument("--drafts", type=int, default=8)
    parser.add_argument("--policy", default="balanced")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/served-ties"), help="for logs")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    found = asyncio.run(measured(arguments))
    report = {"provenance": provenance(), "figures": found}
    arguments.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    brief = {name: {k: v for k, v in row.items() if k != "margins"} for name, row in found.items()}
    print(json.dumps(brief, indent=1))


if __name__ == "__main__":
    main()
