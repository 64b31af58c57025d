"""The control routes and the completions of one real SGLang server, for tests."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from support.engine_control import Control

from benchmarks.server import sglang_server

__all__ = ["SglangControl", "controlled_sglang_server"]


class SglangControl(Control):
    """Completions by SGLang's own route, which tells the ids of the tokens."""

    def generate(self, prompt: str, max_tokens: int = 32, **more: Any) -> dict[str, Any]:
        sampling = {"temperature": 0, "max_new_tokens": max_tokens, "ignore_eos": True}
        sampling |= more.pop("sampling", {})
        answer = self.client.post("/generate", json={"text": prompt, "sampling_params": sampling, **more})
        answer.raise_for_status()
        told: dict[str, Any] = answer.json()
        return told

    def complete(self, prompt: str, max_tokens: int = 32, **more: Any) -> list[int]:
        ids: list[int] = self.generate(prompt, max_tokens, **more)["output_ids"]
        return ids


@contextmanager
def controlled_sglang_server(
    model: Path,
    log: Path,
    algorithm: str,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Iterator[SglangControl]:
    """A real server, and a client that knows its routes."""
    with (
        sglang_server(model, log, algorithm, arguments, environment) as server,
        httpx.Client(base_url=server.url, timeout=300, headers=headers) as client,
    ):
        yield SglangControl(server, client)
