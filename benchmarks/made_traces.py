"""Loads that mostly decode, made from a seed: the public traces are mostly prompts.

Lengths are log-normal, as those of public traces are; arrivals are a Poisson process unless said otherwise.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

from specctl.simulate.trace import Trace

__all__ = ["made_traces"]

_Rng = np.random.Generator
_Floats = npt.NDArray[np.float64]


def made_traces(requests: int, seed: int = 7) -> dict[str, Trace]:
    """By name: chat, bursts (on and off, at three rates), long answers of few requests, and a day's ramp."""
    rng = np.random.default_rng(seed)
    few = requests // 2
    return {
        "made chat": _trace(
            _poisson(rng, requests), _lengths(rng, requests, 120), _lengths(rng, requests, 330)
        ),
        "made bursts": _trace(
            _bursts(rng, requests), _lengths(rng, requests, 245), _lengths(rng, requests, 200)
        ),
        "made long answers": _trace(
            _poisson(rng, few), _lengths(rng, few, 148), _lengths(rng, few, 1480, 0.5)
        ),
        "made ramp": _trace(
            np.sort(rng.beta(2, 2, requests) * requests),
            _lengths(rng, requests, 400),
            _lengths(rng, requests, 245),
        ),
    }


def _trace(
    arrival_s: _Floats, prompt_tokens: npt.NDArray[np.int64], output_tokens: npt.NDArray[np.int64]
) -> Trace:
    return Trace(arrival_s - arrival_s[0], prompt_tokens, output_tokens, Counter())


def _poisson(rng: _Rng, requests: int) -> _Floats:
    return np.cumsum(rng.exponential(1.0, requests))


def _bursts(rng: _Rng, requests: int) -> _Floats:
    """Stretches of 20 s in the mean, each at one of three rates."""
    parts: list[_Floats] = []
    now_s, count = 0.0, 0
    while count < requests:
        span_s = rng.exponential(20.0)
        parts.append(now_s + np.sort(rng.random(rng.poisson(span_s * rng.choice([0.3, 2.0, 8.0])))) * span_s)
        count += parts[-1].size
        now_s += span_s
    return np.concatenate(parts)[:requests]


def _lengths(rng: _Rng, requests: int, median: float, sigma: float = 0.7) -> npt.NDArray[np.int64]:
    drawn = rng.lognormal(np.log(median), sigma, requests)
    return drawn.clip(8, 6000).astype(np.int64)
