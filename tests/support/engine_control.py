"""The control routes and the completions of one real server, for tests."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from testing.servers import Server, vllm_server

__all__ = [
    "CONTROL_TOKEN",
    "LISTING",
    "PROMPTS",
    "READ_TOKEN",
    "Control",
    "assert_refused",
    "controlled_server",
    "suffix_with_corpus",
    "wait_for",
]

CONTROL_TOKEN = "control-token-of-the-tests"
READ_TOKEN = "read-token-of-the-tests"
LISTING = "".join(f"item_{i} = load('{name}', retries=3)\n" for i, name in enumerate(["a", "b", "c", "d"]))
PROMPTS = [
    LISTING + LISTING + "item_0",
    "The capital of France is",
    "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return",
    "1, 2, 3, 4, 5, 6, 7,",
]


@dataclass(frozen=True)
class Control:
    """The routes of one server, and its completions."""

    server: Server
    client: httpx.Client

    def get(self, route: str, **more: Any) -> Any:
        answer = self.client.get(f"/specctl/v1/{route}", **more)
        answer.raise_for_status()
        return answer.json()

    def change(self, tokens: int, **more: Any) -> dict[str, Any]:
        return {
            "base_version": self.get("table")["version"],
            "rows": [{"decode_batch_from": 1, "num_speculative_tokens": tokens}],
            "fallback_num_speculative_tokens": 0,
            "owner": "test",
            **more,
        }

    def put(self, change: dict[str, Any] | bytes, **more: Any) -> httpx.Response:
        body = {"content": change} if isinstance(change, bytes) else {"json": change}
        return self.client.put("/specctl/v1/table", **body, **more)

    def complete(self, prompt: str, max_tokens: int = 32, **more: Any) -> list[int]:
        body = {"model": "model", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        answer = self.client.post("/v1/completions", json={**body, "return_token_ids": True, **more})
        answer.raise_for_status()
        return answer.json()["choices"][0]["token_ids"]


def suffix_with_corpus(corpus: Path) -> dict[str, Any]:
    """specctl_suffix whose corpus is saved every 10 s."""
    return {
        "method": "specctl_suffix",
        "num_speculative_tokens": 8,
        "corpus_file": str(corpus),
        "corpus_save_every_s": 10,
    }


@contextmanager
def controlled_server(
    model: Path,
    log: Path,
    config: Mapping[str, Any],
    headers: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[Control]:
    """A real server with this speculative config, and a client that knows its routes."""
    with (
        vllm_server(model, log, config, arguments, environment) as server,
        httpx.Client(base_url=server.url, timeout=300, headers=headers) as client,
    ):
        yield Control(server, client)


def assert_refused(control: Control, change: bytes | Mapping[str, Any], status: int, error: str) -> None:
    """Bytes are put as they are. The last good table stays, and the server lives."""
    assert control.put(control.change(3)).status_code == 200
    before = control.get("table")
    answer = control.put(change if isinstance(change, bytes) else control.change(1, **change))
    assert (answer.status_code, answer.json()["error"]) == (status, error)
    after = control.get("table")
    assert (after["version"], after["rows"]) == (before["version"], before["rows"])
    assert control.client.get("/health").status_code == 200


def wait_for(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """AssertionError once ``timeout_s`` have passed without it."""
    ends_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < ends_s, "timed out"
        time.sleep(0.02)
