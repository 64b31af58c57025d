"""The control routes and the completions of one real server, for tests."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.server import Server, vllm_server

__all__ = ["Control", "controlled_server", "wait_for"]


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


@contextmanager
def controlled_server(
    model: Path,
    log: Path,
    config: Mapping[str, Any],
    headers: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
) -> Iterator[Control]:
    """A real server with this speculative config, and a client that knows its routes."""
    with (
        vllm_server(model, log, config, arguments) as server,
        httpx.Client(base_url=server.url, timeout=300, headers=headers) as client,
    ):
        yield Control(server, client)


def wait_for(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """AssertionError once ``timeout_s`` have passed without it."""
    ends_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < ends_s, "timed out"
        time.sleep(0.02)
