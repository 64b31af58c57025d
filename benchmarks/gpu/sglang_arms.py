"""SGLang servers that stand on one GPU at the same time; how each is started is data."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx

from benchmarks.gpu.ties import SAMPLED_TOKENS, Score
from testing.servers import Server, end_of, free_port, started

__all__ = ["Arm", "Deadline", "Machine", "Setting", "standing"]

_GRAPH_SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_START_S = 240.0
_CPU_START_S = 480.0
_CALL_S_MIN = 10.0
_SCORED_AT_ONCE = 32
_NO_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=2.0)
"""SGLang's web server closes a connection that has waited for 5 s, which may cross the next request."""
_CONTEXT_TOKENS = 1024
_KV_TOKENS = {True: 131_072, False: 53_248}
"""By whether there are more than 64 places: 256 requests of 448 tokens, or 64 of 730, and the drafts' own."""
_ON_A_GPU = (
    *("--sampling-backend", "pytorch", "--grammar-backend", "none"),
    *("--decode-log-interval", "1000"),
    # A server that waits would poll on a core beside the one that is measured.
    "--sleep-on-idle",
)


class Deadline:
    """Seconds of a whole run, servers' start included."""

    def __init__(self, seconds: float) -> None:
        self._ends_s = time.monotonic() + seconds

    def left_s(self) -> float:
        return self._ends_s - time.monotonic()

    def is_over(self) -> bool:
        return self.left_s() <= 0


@dataclass(frozen=True)
class Setting:
    """One server: what is SGLang's own stands in ``arguments``, {eagle3} and {peagle} in it for folders."""

    arguments: tuple[str, ...] = ()
    options: Mapping[str, Any] | None = None
    """SPECCTL_SGLANG_OPTIONS; None: not set."""
    rows: tuple[tuple[int, int], ...] = ()
    """Of the live table, set once the server is up: from this decode batch on, so many drafts."""
    places: int = 256
    """Requests at the same time."""
    kv_tokens: int | None = None

    @property
    def has_table(self) -> bool:
        """An algorithm of ours has one, another where it was asked for."""
        return self.options is not None or any(word.startswith("SPECCTL_") for word in self.arguments)

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Setting:
        """From JSON. Raises ValueError for a key that there is none of."""
        if unknown := set(told) - set(cls.__dataclass_fields__):
            raise ValueError(
                f"expected keys among {', '.join(cls.__dataclass_fields__)}, got {sorted(unknown)}"
            )
        lists = {"arguments": tuple(map(str, told.get("arguments", ())))}
        lists["rows"] = tuple((first, number) for first, number in told.get("rows", ()))
        return cls(**{**told, **lists})


@dataclass(frozen=True)
class Machine:
    """What all servers of a run share."""

    model: Path
    heads: Mapping[str, str] = field(default_factory=dict)
    dtype: str = "bfloat16"
    attention: str = "triton"
    memory_ratio: float = 0.95
    """--mem-fraction-static: the KV cache is bounded by its tokens, this leaves the rest to everyone."""
    is_cpu: bool = False
    arguments: tuple[str, ...] = ()
    prefill_graphs: tuple[int, ...] = ()
    """Tokens of the graphs that prompts run in; none: they run eagerly, and a server stands sooner."""

    def command(self, setting: Setting, port: int) -> list[str]:
        module = "specctl_sglang.cpu_serve" if self.is_cpu else "sglang.launch_server"
        tokens = setting.kv_tokens or _KV_TOKENS[setting.places > 64]
        parts = [sys.executable, "-m", module, "--model-path", str(self.model), "--host", "127.0.0.1"]
        parts += ["--port", str(port), "--nccl-port", str(free_port()), "--served-model-name", "model"]
        parts += ["--dtype", self.dtype, "--skip-tokenizer-init", "--disable-radix-cache"]
        parts += ["--context-length", str(_CONTEXT_TOKENS), "--max-running-requests", str(setting.places)]
        parts += ["--max-total-tokens", str(tokens), "--mem-fraction-static", str(self.memory_ratio)]
        if not self.is_cpu:
            sizes = [size for size in _GRAPH_SIZES if size <= setting.places]
            parts += [*_ON_A_GPU, "--attention-backend", self.attention]
            parts += [
                "--cuda-graph-max-bs-decode",
                str(sizes[-1]),
                "--cuda-graph-bs-decode",
                *map(str, sizes),
            ]
            prefill = ["--cuda-graph-bs-prefill", *map(str, self.prefill_graphs)]
            parts += prefill if self.prefill_graphs else ["--disable-prefill-cuda-graph"]
        own = [self.heads.get(part.strip("{}"), part) for part in setting.arguments]
        return [*parts, *self.arguments, *own]


GREEDY: Mapping[str, float] = {"temperature": 0}


@dataclass(frozen=True)
class Arm:
    name: str
    setting: Setting
    server: Server
    client: httpx.Client
    deadline: Deadline

    def run(
        self,
        prompts: Sequence[list[int]],
        max_tokens: int,
        at_once: int = 0,
        options: Mapping[str, float] = GREEDY,
    ) -> dict[str, Any] | None:
        """Answers, ``at_once`` requests at a time (0: all): when one has ended the next is sent. None where
        the server has died or hangs. ``options``: of sampling.

        ``steps`` and ``accepted`` are SGLang's own counts over the requests; None without speculation.
        """
        sampling = {**options, "max_new_tokens": max_tokens, "ignore_eos": True}
        bodies = [{"input_ids": prompt, "sampling_params": sampling} for prompt in prompts]
        started_s = time.perf_counter()
        told = self._answers(bodies, at_once or len(prompts))
        if told is None:
            return None
        seconds = time.perf_counter() - started_s
        outputs = [one["output_ids"] for one in told]
        return {
            "seconds": seconds,
            "tokens": sum(map(len, outputs)),
            "outputs": outputs,
            "steps": _sum(told, "spec_verify_ct"),
            "accepted": _sum(told, "spec_num_correct_drafts"),
        }

    def score(self, contexts: Sequence[list[int]], tokens: Sequence[Sequence[int]]) -> list[Score] | None:
        """Of the next token after each context, each in one pass; None where the server has died or hangs."""
        sampling = {**GREEDY, "max_new_tokens": 1, "ignore_eos": True}
        asked = {"sampling_params": sampling, "return_logprob": True, "top_logprobs_num": 1}
        parts = [slice(at, at + _SCORED_AT_ONCE) for at in range(0, len(contexts), _SCORED_AT_ONCE)]
        told = self._answers(
            {
                **asked,
                "input_ids": list(contexts[part]),
                "token_ids_logprob": [[*ids, *SAMPLED_TOKENS] for ids in tokens[part]],
            }
            for part in parts
        )
        if told is None:
            return None
        return [_score(one["meta_info"], ids) for one, ids in zip(told, tokens, strict=True)]

    def _answers(self, bodies: Iterable[dict[str, Any]], at_once: int = 1) -> list[dict[str, Any]] | None:
        """In the order of the bodies; None where the server has died or hangs."""
        told: list[dict[str, Any]] = []
        try:
            with ThreadPoolExecutor(max(at_once, 1)) as pool:
                for answer in pool.map(self._generated, bodies):
                    told += answer if isinstance(answer, list) else [answer]
        except httpx.HTTPError as error:
            print(f"{self.name}: {error!r}\n{end_of(self.server.log)}", flush=True)
            return None
        return told

    def _generated(self, body: dict[str, Any]) -> Any:
        answer = self.client.post("/generate", json=body, timeout=self._timeout_s())
        answer.raise_for_status()
        return answer.json()

    def get(self, route: str) -> Any:
        answer = self.client.get(f"/specctl/v1/{route}", timeout=self._timeout_s())
        answer.raise_for_status()
        return answer.json()

    def set_rows(self, rows: Sequence[tuple[int, int]]) -> None:
        """Raises RuntimeError with the server's reason where it refuses."""
        change = {
            "base_version": self.get("table")["version"],
            "rows": table_rows(rows),
            "fallback_num_speculative_tokens": 0,
            "owner": "benchmark",
        }
        answer = self.client.put("/specctl/v1/table", json=change, timeout=self._timeout_s())
        if answer.status_code != 200:
            raise RuntimeError(f"{self.name}: {answer.text}")

    def described(self) -> dict[str, Any]:
        """How it stands: for a result file."""
        told: dict[str, Any] = {"arguments": list(self.setting.arguments), "places": self.setting.places}
        if self.setting.options is not None:
            told["options"] = self.setting.options
        if self.setting.rows:
            told["rows"] = self.setting.rows
        try:
            told["kv_tokens"] = self.client.get("/server_info", timeout=30).json().get("max_total_num_tokens")
            if self.setting.has_table:
                told["num_speculative_tokens_legal"] = self.get("capabilities")[
                    "num_speculative_tokens_legal"
                ]
                told["proposer"] = self.get("telemetry")["proposer"]
        except (httpx.HTTPError, ValueError) as error:
            told["not told"] = repr(error)
        return told

    def _timeout_s(self) -> float:
        return max(self.deadline.left_s(), _CALL_S_MIN)


def table_rows(rows: Sequence[tuple[int, int]]) -> list[dict[str, int]]:
    found = [{"decode_batch_from": first, "num_speculative_tokens": number} for first, number in rows]
    for row, after in pairwise(found):
        row["decode_batch_to"] = after["decode_batch_from"] - 1
    return found


def _score(told: Mapping[str, Any], tokens: Sequence[int]) -> Score:
    """From what SGLang tells of the one token that it wrote: [log probability, id, text] of each."""
    [asked], [[(best, _, _)]] = told["output_token_ids_logprobs"], told["output_top_logprobs"]
    values = {token: value for value, token, _ in asked}
    return Score(tuple(values[token] for token in tokens), best, tuple(values[t] for t in SAMPLED_TOKENS))


def _sum(told: Sequence[Mapping[str, Any]], key: str) -> int | None:
    values = [one["meta_info"].get(key) for one in told]
    return None if None in values else sum(values)


@contextmanager
def standing(
    settings: Mapping[str, Setting], machine: Machine, logs: Path, deadline: Deadline
) -> Iterator[list[Arm]]:
    """All servers that came up; they start at the same time. The end of the log is printed of the others."""
    logs.mkdir(parents=True, exist_ok=True)
    timeout_s = min(_CPU_START_S if machine.is_cpu else _START_S, deadline.left_s())

    def start(name: str) -> Arm | None:
        setting, port, began_s = settings[name], free_port(), time.monotonic()
        environment = (
            {} if setting.options is None else {"SPECCTL_SGLANG_OPTIONS": json.dumps(setting.options)}
        )
        log = logs / f"{name}.log"
        parts = machine.command(setting, port)
        try:
            server = stack.enter_context(started(parts, port, log, environment, timeout_s))
            client = stack.enter_context(httpx.Client(base_url=server.url, limits=_NO_LIMITS))
            arm = Arm(name, setting, server, client, deadline)
            if setting.rows:
                arm.set_rows(setting.rows)
        except (RuntimeError, httpx.HTTPError) as error:
            print(f"{name}: does not stand: {error}\n  {' '.join(parts)}", flush=True)
            return None
        print(f"{name}: stands after {time.monotonic() - began_s:.0f} s", flush=True)
        return arm

    with ExitStack() as stack:
        with ThreadPoolExecutor(max(len(settings), 1)) as pool:
            arms = [arm for arm in pool.map(start, settings) if arm is not None]
        try:
            yield arms
        finally:
            # SGLang takes seconds to end: all at the same time.
            for arm in arms:
                arm.server.process.terminate()


def on_a_cpu(setting: Setting) -> Setting:
    return replace(setting, places=min(setting.places, 8), kv_tokens=16_384)
