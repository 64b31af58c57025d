"""Where outputs part, whether by a tie of the model's own numbers: scored by a server without speculation.

Two greedy outputs of one model part where rounding decides between two tokens: a verification computes the
same logits by other kernels than a decode step. The judge gets the prompt with the shared beginning, and the
log probabilities of both tokens come from that one pass.

The bound. Logits leave the model as bf16 numbers, a step apart that grows with their size: 0.125 from 16 to
32. Each pass rounds each logit by half a step at most, so rounding alone turns an order where the two are at
most one step apart, and the judge's own rounding adds another: a tie is a margin of at most two steps. What
a kernel rounds before the logits may turn more than that, and counts as a difference all the same.

The log probabilities of a pass are its logits less one number, in float32. That number is found again: it
makes bf16 numbers of those of some hundred tokens. Where none does (float32, scaled logits) nothing is a tie.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

__all__ = [
    "SAMPLED_TOKENS",
    "TIE_STEPS",
    "Judge",
    "Parting",
    "Score",
    "bf16_step",
    "judged",
    "partings",
    "told",
    "top_logit",
]

TIE_STEPS = 2
SAMPLED_TOKENS = range(10, 16_000, 31)
"""Ids whose log probabilities tell the logits: from near 0, where bf16 numbers are close, to far from it."""
_SAMPLED_MIN = 100
_APART, _STEPS = "log probability", "bf16 steps"
_FRACTION_BITS = 7
_LOGIT_MIN_EXPONENT, _LOGIT_MAX_EXPONENT = 0, 7
"""The largest logit is looked for from 1 to 256."""
_FLOAT32_ERROR = 2e-5
"""Of a log probability down to -64, and of the difference of two."""
_SMALL = 2.0**-4
"""Below it bf16 numbers lie too close together for that error."""


@dataclass(frozen=True)
class Parting:
    """``context``: prompt and shared beginning; ``tokens``: how it goes on in the two outputs. None: one of
    them is over."""

    context: list[int]
    tokens: tuple[int | None, int | None]


@dataclass(frozen=True)
class Score:
    """Log probabilities of one pass: of the asked tokens, of the likeliest, and of SAMPLED_TOKENS."""

    asked: tuple[float, ...]
    best: float
    sampled: tuple[float, ...]


class Judge(Protocol):
    def score(self, contexts: Sequence[list[int]], tokens: Sequence[Sequence[int]]) -> list[Score] | None:
        """Of the next token after each context; None where the server has died."""


def partings(
    prompts: Sequence[list[int]], outputs: Sequence[list[int]], truth: Sequence[list[int]]
) -> list[Parting]:
    """One for each output that is not the true one."""
    found = []
    for prompt, mine, other in zip(prompts, outputs, truth, strict=True):
        if mine == other:
            continue
        shorter = min(len(mine), len(other))
        at = next((at for at in range(shorter) if mine[at] != other[at]), shorter)
        tokens = (mine[at] if at < len(mine) else None, other[at] if at < len(other) else None)
        found.append(Parting([*prompt, *other[:at]], tokens))
    return found


def judged(judge: Judge, parted: Sequence[Parting]) -> dict[str, Any]:
    """``ties``, ``differences`` and the margins: how far the two lie apart, or the better one below the best
    token of the judge's pass where that is more, in log probability and in bf16 steps; and which of the two
    the judge prefers: where that is the other output's, it parts from what it wrote itself. An output that
    ends early is a difference.

    Where the judge has died there is neither, and ``not scored`` counts.
    """
    whole = [one for one in parted if None not in one.tokens]
    scores = judge.score([one.context for one in whole], [_both(one) for one in whole]) if whole else []
    if scores is None:
        return {"not scored": len(parted)}
    margins = sorted(map(_margin, scores), key=lambda one: float(one[_APART]))
    ties = sum(one[_STEPS] is not None and one[_STEPS] <= TIE_STEPS for one in margins)
    figures: dict[str, Any] = {"ties": ties, "differences": len(parted) - ties}
    if len(whole) < len(parted):
        figures["outputs of other lengths"] = len(parted) - len(whole)
    if margins:
        figures |= {"largest margin": margins[-1][_APART], "margins": margins}
    return figures


def top_logit(best: float, sampled: Sequence[float]) -> float | None:
    """The logit behind the largest log probability: the smallest bf16 number from 1 to 256 that makes bf16
    numbers of the others. None: there is none, or they are too few to tell."""
    values = np.asarray([best, *sampled], np.float64)
    if len(sampled) < _SAMPLED_MIN or not np.isfinite(values).all():
        return None
    mantissas = np.arange(2**_FRACTION_BITS, 2 ** (_FRACTION_BITS + 1)) / 2**_FRACTION_BITS
    exponents = np.arange(_LOGIT_MIN_EXPONENT, _LOGIT_MAX_EXPONENT + 1)
    guesses = np.outer(2.0**exponents, mantissas).ravel()
    logits = guesses[:, None] + (values - best)
    sizes = np.maximum(np.abs(logits), _SMALL)
    steps = 2.0 ** (np.floor(np.log2(sizes)) - _FRACTION_BITS)
    misses = np.abs(logits - np.rint(logits / steps) * steps)
    fits = ((misses <= _FLOAT32_ERROR) | (sizes <= _SMALL)).all(axis=1)
    return float(guesses[fits].min()) if fits.any() else None


def bf16_step(value: float) -> float:
    """Between a number and the next one."""
    return math.ldexp(1.0, math.frexp(abs(value))[1] - 1 - _FRACTION_BITS)


def _both(parting: Parting) -> list[int]:
    return [token for token in parting.tokens if token is not None]


def _margin(score: Score) -> dict[str, Any]:
    """Steps at the larger of the two logits, where those are known."""
    mine, judges = score.asked
    margin = max(abs(mine - judges), score.best - max(score.asked))
    first = top_logit(score.best, score.sampled)
    steps = None
    if first is not None:
        steps = round(margin / bf16_step(max(abs(first + one - score.best) for one in score.asked)), 3)
    preferred = "neither" if mine == judges else "the other output's" if mine > judges else "its own"
    return {_APART: round(margin, 6), _STEPS: steps, "the judge prefers": preferred}


def told(figures: Mapping[str, Any]) -> str:
    """In words, of what ``judged`` found; empty where nothing parted."""
    if "not scored" in figures:
        return f"{figures['not scored']} that part were not scored"
    if "ties" not in figures or not figures["ties"] + figures["differences"]:
        return ""
    words = f"{figures['ties']} ties and {figures['differences']} differences"
    if "margins" in figures:
        largest = figures["margins"][-1]
        steps = largest[_STEPS]
        words += f", at most {largest[_APART]:.4g} apart in log probability"
        words += " (no bf16 logits)" if steps is None else f" ({steps:g} bf16 steps)"
    return words
