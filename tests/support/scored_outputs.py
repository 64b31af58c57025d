"""Whether ``specctl bench`` scores two greedy outputs that part as the model does, on a real server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from specctl.bench.outputs import check_outputs
from specctl.bench.records import RequestRecord
from specctl.bench.sender import Sender, Session

__all__ = ["assert_differences_are_scored"]

_PROMPT = (1, 17, 29, 5, 311)
_SHARED = (42,)


def assert_differences_are_scored(url: str, target: Path) -> None:
    """Two made outputs part in the model's two likeliest tokens, behind one that they share."""
    likely = _log_probabilities(target).topk(2)
    outputs = [
        {"prompt": RequestRecord("prompt", 0.0, token_ids=(*_SHARED, token), prompt_token_ids=_PROMPT)}
        for token in likely.indices.tolist()
    ]

    async def checked():
        async with Session(None) as session:
            judge = Sender(session, url, "model", "completions", 1)
            return await check_outputs("2", "off", *outputs, judge, "float32")

    (differing,) = asyncio.run(checked()).differing
    assert differing.at_token == len(_SHARED)
    first, second = likely.values.tolist()
    assert differing.margin == pytest.approx(first - second, abs=1e-3)
    assert differing.is_tie is False


def _log_probabilities(target: Path) -> torch.Tensor:
    """Float32[vocabulary], behind the prompt and the token that both outputs have."""
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    with torch.inference_mode():
        logits = model(torch.tensor([[*_PROMPT, *_SHARED]])).logits[0, -1]
    return logits.log_softmax(-1)
