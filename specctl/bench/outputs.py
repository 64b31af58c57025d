"""Greedy outputs of two arms, and whether a difference is a tie of the model's own numbers.

Two greedy outputs may part where two tokens are equally likely but for rounding: a verification computes the
same logits in another order than a decode step. The server scores both tokens again after the shared text.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from specctl.bench.prompts import Prompt
from specctl.bench.records import RequestRecord
from specctl.bench.results import Differing, OutputCheck
from specctl.bench.sender import Live, Sender
from specctl.contract.ties import tie_margin
from specctl.errors import BenchFailed

__all__ = ["check_outputs", "greedy_outputs"]

SCORED_MAX = 50
LOGPROBS = 20


async def greedy_outputs(
    sender: Sender, prompts: Sequence[Prompt], concurrency: int
) -> dict[str, RequestRecord]:
    """By the prompt's id. Raises BenchFailed where a request fails."""
    gate, live = asyncio.Semaphore(concurrency), Live()
    greedy = Sender(
        sender.session,
        sender.url,
        sender.model,
        sender.endpoint,
        sender.max_tokens,
        {**sender.sampling, "temperature": 0.0},
        sender.ignore_eos,
    )

    async def one(prompt: Prompt) -> RequestRecord:
        async with gate:
            record = RequestRecord(prompt.id, time.monotonic())
            await greedy.send(prompt, live, record, keep_text=True)
            if record.error is not None:
                raise BenchFailed(f"{sender.url}: a greedy output failed: {record.error}")
            return record

    return {record.prompt_id: record for record in await asyncio.gather(*map(one, prompts))}


async def check_outputs(
    arm: str,
    baseline: str,
    ours: Mapping[str, RequestRecord],
    theirs: Mapping[str, RequestRecord],
    judge: Sender,
    dtype: str | None,
) -> OutputCheck:
    """``judge``: sends to the baseline's server, which scores the differences."""
    shared = [name for name in ours if name in theirs]
    unlike = [name for name in shared if not _same(ours[name], theirs[name])]
    differing = []
    bound = tie_margin(dtype)
    for number, name in enumerate(unlike):
        at, margin = None, None
        if number < SCORED_MAX:
            at, margin = await _margin(ours[name], theirs[name], judge)
        is_tie = None if margin is None else margin <= bound
        differing.append(Differing(prompt_id=name, at_token=at, margin=margin, is_tie=is_tie))
    return OutputCheck(
        arm=arm,
        baseline=baseline,
        compared=len(shared),
        identical=len(shared) - len(unlike),
        differing=tuple(differing),
    )


def _same(a: RequestRecord, b: RequestRecord) -> bool:
    if a.token_ids is not None and b.token_ids is not None:
        return a.token_ids == b.token_ids
    return a.text == b.text


async def _margin(a: RequestRecord, b: RequestRecord, judge: Sender) -> tuple[int | None, float | None]:
    """(index of the first token that differs, |difference of log probability| there). The second is None
    where the server tells no token ids, one output ended, or it gives no log probabilities."""
    if not a.token_ids or not b.token_ids or not a.prompt_token_ids:
        return None, None
    shared = sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a.token_ids, b.token_ids, strict=False))
    )
    if shared == min(len(a.token_ids), len(b.token_ids)):
        return shared, None
    text, pair = [*a.prompt_token_ids, *a.token_ids[:shared]], (a.token_ids[shared], b.token_ids[shared])
    for scored in (_scored_by_vllm, _scored_by_sglang):
        try:
            ours, theirs = await scored(judge, text, pair)
        except (BenchFailed, LookupError, TypeError, ValueError):
            continue
        return shared, abs(ours - theirs)
    return shared, None


async def _scored_by_vllm(judge: Sender, text: Sequence[int], pair: tuple[int, int]) -> list[float]:
    """Log probabilities of two tokens behind a text. Raises for any other engine, which tells no token ids
    here, and for a token that is not among the likeliest: that one is no tie either, but was not scored."""
    body: dict[str, Any] = {
        "model": judge.model,
        "prompt": text,
        "max_tokens": 1,
        "temperature": 0.0,
        "logprobs": LOGPROBS,
        "return_tokens_as_token_ids": True,
    }
    answer = await judge.post("/v1/completions", body)
    top = answer["choices"][0]["logprobs"]["top_logprobs"][0]
    return [float(top[f"token_id:{token}"]) for token in pair]


async def _scored_by_sglang(judge: Sender, text: Sequence[int], pair: tuple[int, int]) -> list[float]:
    """The same by SGLang's own route."""
    body: dict[str, Any] = {
        "input_ids": text,
        "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
        "return_logprob": True,
        "token_ids_logprob": pair,
    }
    answer = await judge.post("/generate", body)
    scores = {token: score for score, token, *_ in answer["meta_info"]["output_token_ids_logprobs"][0]}
    return [float(scores[token]) for token in pair]
