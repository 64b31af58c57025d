"""The load metrics of a fake engine, as vLLM 0.32 writes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fakes.clock import ManualClock
from fakes.engine import FakeEngine

EDGES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
LABELS = 'engine="0",model_name="g"'


@dataclass
class FakeLoad:
    """Requests start and finish when told; ``engine.more_metrics = load.text``."""

    wait_s: float = 0.0
    started: list[int] = field(default_factory=list)
    finished: list[tuple[int, int]] = field(default_factory=list)
    waits_s: float = 0.0

    def start(self, prompt_tokens: int) -> None:
        self.started.append(prompt_tokens)
        self.waits_s += self.wait_s

    def finish(self, prompt_tokens: int, output_tokens: int) -> None:
        self.finished.append((prompt_tokens, output_tokens))

    def text(self) -> str:
        prompts, outputs = [p for p, _ in self.finished], [o for _, o in self.finished]
        lines = [
            f"vllm:time_to_first_token_seconds_count{{{LABELS}}} {len(self.started)}.0",
            f"vllm:time_to_first_token_seconds_sum{{{LABELS}}} {self.waits_s}",
            f"vllm:prompt_tokens_total{{{LABELS}}} {sum(self.started)}.0",
            *_histogram("vllm:request_prompt_tokens", prompts),
            *_histogram("vllm:request_generation_tokens", outputs),
        ]
        return "\n".join(lines) + "\n"


def _histogram(name: str, lengths: list[int]) -> list[str]:
    lines = [
        f'{name}_bucket{{{LABELS},le="{float(edge)}"}} {sum(length <= edge for length in lengths)}.0'
        for edge in EDGES
    ]
    return [
        *lines,
        f'{name}_bucket{{{LABELS},le="+Inf"}} {len(lengths)}.0',
        f"{name}_count{{{LABELS}}} {len(lengths)}.0",
        f"{name}_sum{{{LABELS}}} {sum(lengths)}.0",
    ]


class EngineClock(ManualClock):
    """Sleeping moves the engine too. ``events``: what happens before the look of that number."""

    def __init__(self, engine: FakeEngine, events: Mapping[int, Callable[[], object]] | None = None) -> None:
        super().__init__()
        self._engine = engine
        self._events = dict(events or {})
        self._sleeps = 0

    async def sleep(self, seconds: float, stop: asyncio.Event) -> None:
        await super().sleep(seconds, stop)
        self._engine.advance(seconds)
        self._sleeps += 1
        self._events.get(self._sleeps, int)()
