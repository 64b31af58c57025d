"""What requests ask for beside text, on a real server: the answers must not depend on the drafts."""

import base64
import io
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import httpx
import pytest
from support.engine_control import Control, wait_for

__all__ = [
    "VLLM_REQUESTS",
    "assert_aborts_leave_others_alone",
    "assert_calls_are_the_same",
    "assert_chunks_change_nothing",
    "assert_preempted_answers_are_the_same",
    "assert_prefixes_are_found",
    "assert_same_for_every_number",
    "images",
]

VLLM_REQUESTS: dict[str, dict[str, Any]] = {
    "logprobs": {"logprobs": 3},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.5},
    # In answers of the reference target, or of the one that the project trains.
    "bad_words": {"bad_words": ["load", " Paris", "return", "8", " the", "path"]},
    "structured_output": {"structured_outputs": {"regex": "(item_[0-9] = [a-z]{2};){5}"}},
    "allowed_tokens": {"allowed_token_ids": list(range(300, 1500))},
    "min_tokens": {"min_tokens": 12, "stop_token_ids": list(range(7, 4000))},
    "stop": {"stop": ["a", "e", "0", " "], "min_tokens": 5},
    "repetition_detection": {
        "allowed_token_ids": list(range(300, 320)),
        "repetition_detection": {"max_pattern_size": 8, "min_pattern_size": 1, "min_count": 3},
    },
}
LOGPROB_TOLERANCE = 1e-3
"""Sums in float32 depend on how many positions a step computes."""


def _answer(control: Control, prompt: str, more: dict[str, Any]) -> dict[str, Any]:
    body = {"model": "model", "prompt": prompt, "max_tokens": 32, "temperature": 0, "return_token_ids": True}
    answer = control.client.post("/v1/completions", json={**body, **more})
    answer.raise_for_status()
    found: dict[str, Any] = answer.json()["choices"][0]
    return found


def images() -> list[str]:
    """Two, as PNG in base64."""
    from PIL import Image

    found = []
    for color in ("red", "white"):
        file = io.BytesIO()
        Image.new("RGB", (32, 32), color).save(file, "PNG")
        found.append(base64.b64encode(file.getvalue()).decode())
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
    control: Control,
    prompts: Sequence[str],
    plain: Sequence[Sequence[int]],
    numbers: Sequence[int] = (8, 0, 3, 8),
    tokens: int = 1500,
) -> None:
    """Streams that are closed after their first of ``tokens`` tokens, while the table changes under all."""

    def aborted(prompt: str) -> None:
        body = {"model": "model", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True}
        # The server may have closed it first.
        with suppress(httpx.HTTPError), control.client.stream("POST", "/v1/completions", json=body) as stream:
            next(stream.iter_lines())

    with ThreadPoolExecutor(8) as pool:
        for number in numbers:
            assert control.put(control.change(number)).status_code == 200
            closed = [pool.submit(aborted, prompt) for prompt in prompts]
            kept = [pool.submit(control.complete, prompt) for prompt in prompts]
            assert [one.result() for one in kept] == list(plain)
            for one in closed:
                one.result()
    wait_for(lambda: control.get("telemetry")["running"] == 0)


def counted(control: Control, name: str) -> float:
    """Of the engine's own metrics, over all labels."""
    text = control.client.get("/metrics").text
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"{name}{{"))


def assert_prefixes_are_found(
    control: Control, hits: str, prompt: str, numbers: Sequence[int] = (8, 0, 3, 0)
) -> None:
    """As many tokens of a prompt come from the cache when nothing is drafted. ``hits``: of the metrics."""
    control.complete(prompt, 4)
    found = []
    for number in numbers:
        assert control.put(control.change(number)).status_code == 200
        before = counted(control, hits)
        control.complete(prompt, 4)
        # An answer may come before the counter.
        wait_for(lambda before=before: counted(control, hits) > before)  # type: ignore[misc]
        found.append(counted(control, hits) - before)
    assert len(set(found)) == 1


def assert_preempted_answers_are_the_same(
    control: Control, preemptions: str, prompts: Sequence[str], tokens: int, numbers: Sequence[int]
) -> None:
    """Eight requests at once, whose KV does not fit, while the table changes. ``preemptions``: its metric.

    Each answer is that of the request alone without drafts.
    """
    assert control.put(control.change(0)).status_code == 200
    alone = [control.complete(prompt, tokens, ignore_eos=True) for prompt in prompts]
    before, drafted = counted(control, preemptions), drafted_tokens(control)
    with ThreadPoolExecutor(8) as pool:
        for number in numbers:
            assert control.put(control.change(number)).status_code == 200
            running = [pool.submit(control.complete, one, tokens, ignore_eos=True) for one in prompts * 2]
            assert [one.result() for one in running] == alone * 2
    # An answer may come before the counter.
    wait_for(lambda: counted(control, preemptions) > before)
    assert drafted_tokens(control) > drafted


def assert_calls_are_the_same(control: Control, numbers: Sequence[int]) -> None:
    """A tool that must be called: what the engine makes of the answer is the same. It may end in the middle
    of the arguments, where white space is allowed, and is text then."""

    def called() -> str:
        body = {
            "model": "model",
            "messages": [{"role": "user", "content": "Load the file a.txt three times."}],
            "tools": [{"type": "function", "function": _TOOL}],
            "tool_choice": {"type": "function", "function": {"name": _TOOL["name"]}},
            "max_tokens": 120,
            "temperature": 0,
        }
        answer = control.client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        message = answer.json()["choices"][0]["message"]
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        return str(calls or message["content"])

    assert control.put(control.change(0)).status_code == 200
    call = called()
    assert all(word in call for word in (_TOOL["name"], *_TOOL["parameters"]["properties"])), call
    before = drafted_tokens(control)
    for number in numbers:
        assert control.put(control.change(number)).status_code == 200
        assert called() == call, number
    assert drafted_tokens(control) > before


_TOOL: dict[str, Any] = {
    "name": "load",
    "description": "Loads a file.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {
            "kind": {"enum": ["read", "write", "read and write"]},
            "times": {"enum": ["one", "two", "one or two"]},
        },
        "required": ["kind", "times"],
        "additionalProperties": False,
    },
}


def salted(control: Control, prompt: Sequence[int], salt: str) -> list[int]:
    """vLLM's two tokens behind a prompt, none of which comes from the prefix cache."""
    body = {"model": "model", "prompt": prompt, "max_tokens": 2, "temperature": 0, "cache_salt": salt}
    response = control.client.post("/v1/completions", json={**body, "return_token_ids": True})
    response.raise_for_status()
    ids: list[int] = response.json()["choices"][0]["token_ids"]
    return ids


def assert_chunks_change_nothing(
    control: Control,
    most_tokens: int,
    beside: Sequence[str],
    number: int,
    answer: Callable[[Any, Sequence[int], str], list[int]] = salted,
    beside_tokens: int = 250,
) -> None:
    """A prompt of which no step holds all, beside three or more that decode.

    ``most_tokens``: of the prompt and its answer, more than a step may have beside others. ``answer``: to a
    prompt's tokens under a salt, without the prefix cache.
    """
    assert len(beside) >= 3
    prompt = [1000 + (7 * i) % 97 for i in range(most_tokens - 2)]

    def prompt_tokens() -> int:
        return sum(cell["prefill_tokens"] for cell in control.get("telemetry")["cells"])

    assert control.put(control.change(0)).status_code == 200
    alone = answer(control, prompt, "alone")
    assert control.put(control.change(number)).status_code == 200
    with ThreadPoolExecutor(len(beside)) as pool:
        running = [pool.submit(control.complete, one, beside_tokens, ignore_eos=True) for one in beside]
        wait_for(lambda: control.get("telemetry")["decoding"] == len(beside))
        before = prompt_tokens()
        assert answer(control, prompt, f"beside {number}") == alone
        wait_for(lambda: prompt_tokens() - before == len(prompt))
        for one in running:
            one.result()
