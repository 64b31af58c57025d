"""What requests ask for beside text, on a real server: the answers must not depend on the drafts."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import httpx
import pytest
from support.engine_control import Control, wait_for

__all__ = [
    "VLLM_REQUESTS",
    "assert_aborts_leave_others_alone",
    "assert_chunks_change_nothing",
    "assert_prefixes_are_found",
    "assert_same_for_every_number",
]

VLLM_REQUESTS: dict[str, dict[str, Any]] = {
    "logprobs": {"logprobs": 3},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.5},
    "bad_words": {"bad_words": ["load", " Paris", "return", "8"]},
    "structured_output": {"structured_outputs": {"regex": "(item_[0-9] = [a-z]{2};){5}"}},
}
LOGPROB_TOLERANCE = 1e-3
"""Sums in float32 depend on how many positions a step computes."""


def _answer(control: Control, prompt: str, more: dict[str, Any]) -> dict[str, Any]:
    body = {"model": "model", "prompt": prompt, "max_tokens": 32, "temperature": 0, "return_token_ids": True}
    answer = control.client.post("/v1/completions", json={**body, **more})
    answer.raise_for_status()
    found: dict[str, Any] = answer.json()["choices"][0]
    return found


def drafted_tokens(control: Control) -> int:
    return sum(sum(cell["drafted_at"]) for cell in control.get("telemetry")["cells"])


def assert_same_for_every_number(
    control: Control,
    more: dict[str, Any],
    prompts: Sequence[str],
    plain: Sequence[Sequence[int]],
    *numbers: int,
) -> None:
    """Greedy, against 0 drafts; ``plain``: answers without what the requests ask for."""
    assert control.put(control.change(0)).status_code == 200
    truth = [_answer(control, prompt, more) for prompt in prompts]
    if "logprobs" not in more:
        assert [one["token_ids"] for one in truth] != list(plain)
    before = drafted_tokens(control)
    for number in numbers:
        assert control.put(control.change(number)).status_code == 200
        got = [_answer(control, prompt, more) for prompt in prompts]
        assert [one["token_ids"] for one in got] == [one["token_ids"] for one in truth]
        for one, expected in zip(got, truth, strict=True):
            if "logprobs" in more:
                found = one["logprobs"]["token_logprobs"]
                wanted = expected["logprobs"]["token_logprobs"]
                assert found == pytest.approx(wanted, abs=LOGPROB_TOLERANCE)
                tops, same = (each["logprobs"]["top_logprobs"] for each in (one, expected))
                assert [len(top) for top in tops] == [len(top) for top in same]
    assert drafted_tokens(control) > before


def assert_aborts_leave_others_alone(
    control: Control, prompts: Sequence[str], plain: Sequence[Sequence[int]]
) -> None:
    """Streams that are closed after their first token, while the table changes under all."""

    def aborted(prompt: str) -> None:
        body = {"model": "model", "prompt": prompt, "max_tokens": 1500, "temperature": 0, "stream": True}
        # The server may have closed it first.
        with suppress(httpx.HTTPError), control.client.stream("POST", "/v1/completions", json=body) as stream:
            next(stream.iter_lines())

    with ThreadPoolExecutor(8) as pool:
        for number in (8, 0, 3, 8):
            assert control.put(control.change(number)).status_code == 200
            closed = [pool.submit(aborted, prompt) for prompt in prompts]
            kept = [pool.submit(control.complete, prompt) for prompt in prompts]
            assert [one.result() for one in kept] == list(plain)
            for one in closed:
                one.result()
    wait_for(lambda: control.get("telemetry")["running"] == 0)


def assert_prefixes_are_found(control: Control, hits: str, prompt: str) -> None:
    """As many tokens of a prompt come from the cache when nothing is drafted. ``hits``: of the metrics."""

    def counted() -> float:
        text = control.client.get("/metrics").text
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"{hits}{{"))

    control.complete(prompt, 4)
    found = []
    for number in (8, 0, 3, 0):
        assert control.put(control.change(number)).status_code == 200
        before = counted()
        control.complete(prompt, 4)
        # An answer may come before the counter.
        wait_for(lambda before=before: counted() > before)  # type: ignore[misc]
        found.append(counted() - before)
    assert len(set(found)) == 1


def assert_chunks_change_nothing(
    control: Control, most_tokens: int, beside: Sequence[str], number: int
) -> None:
    """A prompt nearly as long as a step may be, beside three or more that decode: no step holds all of it.

    ``most_tokens``: of a step, and of a request.
    """
    assert len(beside) >= 3
    prompt = [1000 + (7 * i) % 97 for i in range(most_tokens - 2)]

    def answer(salt: str) -> list[int]:
        """Under a salt, without tokens from the prefix cache."""
        body = {"model": "model", "prompt": prompt, "max_tokens": 2, "temperature": 0, "cache_salt": salt}
        response = control.client.post("/v1/completions", json={**body, "return_token_ids": True})
        response.raise_for_status()
        ids: list[int] = response.json()["choices"][0]["token_ids"]
        return ids

    def prompt_tokens() -> int:
        return sum(cell["prefill_tokens"] for cell in control.get("telemetry")["cells"])

    assert control.put(control.change(0)).status_code == 200
    alone = answer("alone")
    assert control.put(control.change(number)).status_code == 200
    with ThreadPoolExecutor(len(beside)) as pool:
        running = [pool.submit(control.complete, one, 250, ignore_eos=True) for one in beside]
        wait_for(lambda: control.get("telemetry")["decoding"] == len(beside))
        before = prompt_tokens()
        assert answer(f"beside {number}") == alone
        wait_for(lambda: prompt_tokens() - before == len(prompt))
        for one in running:
            one.result()
