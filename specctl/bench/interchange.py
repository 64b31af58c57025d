"""Result files of ``vllm bench serve`` and of SGLang's ``bench_serving``: read as runs, and written.

Times in those files are milliseconds, or seconds in the lists of single requests. vLLM's name for end to end
is e2el, SGLang's is e2e_latency.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from specctl.bench.figures import percentiles, samples_of
from specctl.bench.results import Acceptance, Percentiles, Run
from specctl.bench.run_load import LoadRun
from specctl.errors import BenchInputError
from specctl.json_bounds import read_json
from specctl.plain_text import plain_text

__all__ = ["Tool", "read_runs", "sglang_line", "vllm_result"]

Tool = str
FILE_MAX_BYTES = 1 << 30
_LATENCIES = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2el": "e2el"}
_SGLANG = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2el": "e2e_latency"}


def read_runs(path: Path, arm: str, *, first_round: int = 0) -> list[Run]:
    """The runs in a file: one of vLLM's, or one a line of SGLang's. Raises BenchInputError."""
    name = plain_text(str(path))
    try:
        if path.stat().st_size > FILE_MAX_BYTES:
            raise BenchInputError(f"{name}: larger than {FILE_MAX_BYTES >> 20} MiB")
        text = path.read_text(encoding="utf-8").strip()
        try:
            parts = [read_json(text)]
        except ValueError:
            parts = [read_json(line) for line in text.splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise BenchInputError(f"{name}: cannot be read: {plain_text(str(error))}") from error
    runs = []
    for number, part in enumerate(parts):
        try:
            runs.append(_run(part, arm, first_round + number))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            words = f"{name}: no result of vllm bench serve or SGLang's bench_serving"
            raise BenchInputError(f"{words} ({type(error).__name__}: {plain_text(str(error))})") from error
    if not runs:
        raise BenchInputError(f"{name}: no results")
    return runs


def _run(part: Mapping[str, Any], arm: str, number: int) -> Run:
    """Raises KeyError, TypeError and ValueError for what is no result."""
    seconds, tokens = float(part["duration"]), int(part["total_output_tokens"])
    if not seconds > 0 or not math.isfinite(seconds) or tokens < 0:
        raise ValueError(f"duration {seconds}, total_output_tokens {tokens}")
    completed = int(part["completed"])
    names = _SGLANG if "mean_e2e_latency_ms" in part else _LATENCIES
    found = {key: _latency(part, key, name, completed) for key, name in names.items()}
    return Run(
        arm=arm,
        load="file",
        round=number,
        place=0,
        started_s=0.0,
        seconds=seconds,
        requests=completed,
        cut_off=0,
        failed=int(part.get("failed") or 0),
        prompt_tokens=int(part["total_input_tokens"]),
        output_tokens=tokens,
        tokens_per_s=tokens / seconds,
        steady_tokens_per_s=None,
        decode_tokens_per_s=None,
        requests_per_s=completed / seconds,
        speed=tokens / seconds,
        acceptance=_acceptance(part),
        **found,
    )


def _latency(part: Mapping[str, Any], key: str, name: str, completed: int) -> Percentiles | None:
    """From the lists of single requests where they are there, else from the summary."""
    lists = (
        part.get(f"{key}s") if key in ("ttft", "itl") else part.get("latencies") if key == "e2el" else None
    )
    if isinstance(lists, list) and lists:
        flat = [float(x) for one in lists for x in (one if isinstance(one, list) else [one])]
        return percentiles(flat)
    mean, middle = part.get(f"mean_{name}_ms"), part.get(f"median_{name}_ms")
    if mean is None or middle is None:
        return None
    rest = {at: part.get(f"{at}_{name}_ms") for at in ("p95", "p99")}
    return Percentiles(
        count=completed,
        mean_s=float(mean) / 1000.0,
        p50_s=float(middle) / 1000.0,
        **{f"{at}_s": None if value is None else float(value) / 1000.0 for at, value in rest.items()},
    )


def _acceptance(part: Mapping[str, Any]) -> Acceptance | None:
    if part.get("spec_decode_num_drafts") is None:
        length = part.get("accept_length")
        if not length:
            return None
        return Acceptance(
            source="metrics",
            drafted_tokens=0,
            accepted_tokens=0,
            drafts=0,
            request_steps=None,
            acceptance_rate=None,
            acceptance_length=None,
            drafting_acceptance_length=float(length),
        )
    drafts, drafted = int(part["spec_decode_num_drafts"]), int(part["spec_decode_draft_tokens"])
    accepted = int(part["spec_decode_accepted_tokens"])
    rates = part.get("spec_decode_per_position_acceptance_rates") or ()
    return Acceptance(
        source="metrics",
        drafted_tokens=drafted,
        accepted_tokens=accepted,
        drafts=drafts,
        request_steps=None,
        acceptance_rate=accepted / drafted if drafted else None,
        acceptance_length=None,
        drafting_acceptance_length=1 + accepted / drafts if drafts else None,
        survival_at=tuple(map(float, rates)),
    )


def vllm_result(
    run: LoadRun, acceptance: Acceptance | None, *, model: str, backend: str, concurrency: int | None
) -> dict[str, Any]:
    """As ``vllm bench serve --save-detailed`` writes it. Only whole requests count, as there."""
    whole = [record for record in run.records if record.is_whole]
    failed = [record.error for record in run.records if record.error is not None]
    seconds = max(run.ended_s - run.started_s, 1e-9)
    tokens, prompts = (sum(values) for values in _totals(run))
    result: dict[str, Any] = {
        "date": datetime.now().strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": backend,
        "backend": backend,
        "label": None,
        "model_id": model,
        "tokenizer_id": model,
        "num_prompts": len(run.records),
        "request_rate": "inf",
        "burstiness": 1.0,
        "max_concurrency": concurrency,
        "duration": seconds,
        "completed": len(whole),
        "failed": len(failed),
        "total_input_tokens": prompts,
        "total_output_tokens": tokens,
        "request_throughput": len(whole) / seconds,
        "request_goodput": None,
        "output_throughput": tokens / seconds,
        "total_token_throughput": (tokens + prompts) / seconds,
        "input_lens": [record.prompt_tokens or 0 for record in whole],
        "output_lens": [record.output_tokens for record in whole],
        "ttfts": [record.ttft_s for record in whole],
        "itls": [np.diff(record.arrival_s).tolist() for record in whole],
        "latencies": [record.e2el_s for record in whole],
        "start_times": [record.sent_s for record in whole],
        "errors": failed,
    }
    result |= _summary(run, _LATENCIES)
    if acceptance is not None:
        result |= {
            "spec_decode_acceptance_rate": _percent(acceptance.acceptance_rate),
            "spec_decode_acceptance_length": acceptance.drafting_acceptance_length,
            "spec_decode_num_drafts": acceptance.drafts,
            "spec_decode_draft_tokens": acceptance.drafted_tokens,
            "spec_decode_accepted_tokens": acceptance.accepted_tokens,
            "spec_decode_per_position_acceptance_rates": list(acceptance.survival_at),
        }
    return result


def sglang_line(
    run: LoadRun, acceptance: Acceptance | None, *, backend: str, concurrency: int | None
) -> dict[str, Any]:
    """As SGLang's ``bench_serving --output-file`` appends it, one JSON object a line."""
    whole = [record for record in run.records if record.is_whole]
    seconds = max(run.ended_s - run.started_s, 1e-9)
    tokens, prompts = (sum(values) for values in _totals(run))
    latencies = [record.e2el_s or 0.0 for record in whole]
    length = None if acceptance is None else acceptance.drafting_acceptance_length
    return {
        "backend": backend,
        "dataset_name": "custom",
        "request_rate": "inf",
        "max_concurrency": concurrency,
        "duration": seconds,
        "completed": len(whole),
        "total_input_tokens": prompts,
        "total_output_tokens": tokens,
        "request_throughput": len(whole) / seconds,
        "input_throughput": prompts / seconds,
        "output_throughput": tokens / seconds,
        "total_throughput": (tokens + prompts) / seconds,
        "concurrency": sum(latencies) / seconds,
        "accept_length": length,
        **_summary(run, _SGLANG),
    }


def _totals(run: LoadRun) -> tuple[list[int], list[int]]:
    whole = [record for record in run.records if record.is_whole]
    return [record.output_tokens for record in whole], [record.prompt_tokens or 0 for record in whole]


def _summary(run: LoadRun, names: Mapping[str, str]) -> dict[str, float]:
    """mean, median, std and p95, p99 of each latency, in milliseconds."""
    samples = samples_of(record for record in run.records if record.is_whole)
    found: dict[str, float] = {}
    for key, name in names.items():
        values: Sequence[float] = getattr(samples, key)
        if not values:
            continue
        found[f"mean_{name}_ms"] = 1000.0 * fmean(values)
        found[f"median_{name}_ms"] = 1000.0 * float(np.median(values))
        found[f"std_{name}_ms"] = 1000.0 * float(np.std(values))
        for at in (95, 99):
            found[f"p{at}_{name}_ms"] = 1000.0 * float(np.percentile(values, at))
    return found


def _percent(share: float | None) -> float | None:
    return None if share is None else 100.0 * share
