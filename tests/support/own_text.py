"""A prompt in which a target goes on as it has before, whichever target it is."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

__all__ = ["repeating_prompt"]

_SEED = "The capital of France is"
_TOKENS, _TAIL, _WAY = 40, 6, 4


def repeating_prompt(target: Path, ways: int, temperature: float) -> list[int]:
    """Token ids: the target's own greedy text, which repeats itself, and behind it so many of its sampled
    continuations, each with the end of that text after it."""
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    random = torch.Generator().manual_seed(0)

    def written(text: list[int], tokens: int, *, at_random: bool) -> list[int]:
        for _ in range(tokens):
            logits = model(torch.tensor([text])).logits[0, -1]
            shares = (logits / temperature).softmax(-1)
            chosen = torch.multinomial(shares, 1, generator=random) if at_random else logits.argmax()
            text = [*text, int(chosen)]
        return text

    seed = AutoTokenizer.from_pretrained(target).encode(_SEED, add_special_tokens=False)
    with torch.inference_mode():
        text = written(seed, _TOKENS, at_random=False)
        behind = [written(text, _WAY, at_random=True)[len(text) :] for _ in range(ways)]
    return [*text, *(token for way in behind for token in (*way, *text[-_TAIL:]))]
