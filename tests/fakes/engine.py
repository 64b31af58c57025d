"""A fake engine that speaks the real protocol over HTTP, with a simulated course of decoding.

Faults are switched on by attributes.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from typing import Any

from fakes.decoding import COPYING, MAX_TOKENS, RANDOM_TEXT, Cost, Decoding, Traffic
from fakes.http_server import FakeServer
from pydantic import ValidationError

from specctl.contract import CONTRACT_VERSION, ROUTE_PREFIX
from specctl.contract.capabilities import Capabilities
from specctl.contract.classes import ClassLimit
from specctl.contract.table import (
    AppliedTable,
    SpeculationTable,
    TablePut,
    TableState,
    limit_refusals,
    uniform_rows,
)
from specctl.errors import TableError

__all__ = ["COPYING", "MAX_TOKENS", "RANDOM_TEXT", "Cost", "FakeEngine", "Traffic"]


class FakeEngine(Decoding, FakeServer):
    """``with FakeEngine() as engine: engine.url``. ``start_tokens``: the table before the first PUT."""

    def __init__(
        self,
        *,
        traffic: Traffic = COPYING,
        cost: Cost | None = None,
        start_tokens: int = 0,
        has_shadow: bool = True,
        has_plugin: bool = True,
        token: str | None = None,
        legal: tuple[int, ...] = tuple(range(MAX_TOKENS + 1)),
        decode_batch_max: int = 8,
        class_limits_max: int = 0,
        min_token_prob: float | None = None,
        seed: int = 1,
    ) -> None:
        super().__init__(traffic, cost or Cost(), decode_batch_max, seed)
        self.has_plugin, self.has_shadow, self.token = has_plugin, has_shadow, token
        self.legal, self.decode_batch_max = legal, decode_batch_max
        self.class_limits_max, self.min_token_prob = class_limits_max, min_token_prob
        self.start_tokens = start_tokens
        self.requests: list[tuple[str, str]] = []
        self.puts: list[TablePut] = []
        self.boots = 0
        # Faults.
        self.delay_s = 0.0
        self.forced_status: dict[str, int] = {}
        self.forced_body = b'{"error": "forced", "message": "forced"}'
        self.mangle: dict[str, Callable[[bytes], bytes]] = {}
        self.lies = False
        self.ranks_behind: tuple[int, ...] = ()
        self.more_metrics: Callable[[], str] = str
        self.restart()

    def restart(self) -> None:
        self.boots += 1
        self.boot_id = f"boot-{id(self)}-{self.boots}"
        self.begin()
        self.version, self.state = 0, TableState.START
        self.rows = uniform_rows(self.start_tokens)
        self.class_limits: tuple[ClassLimit, ...] = ()
        self.lease_s: float | None = None
        self.lease_ends_s = math.inf
        self.fallback, self.owner, self.reason, self.applied_s = 0, None, "start", 0.0

    def tokens_at(self, decode_batch: int) -> int:
        return SpeculationTable(self.rows, self.capabilities()).lookup(decode_batch)

    def expire(self) -> None:
        if self.state is TableState.LIVE and self.time_s >= self.lease_ends_s:
            self.state, self.rows = TableState.FALLBACK, uniform_rows(self.fallback)
            self.owner, self.lease_s, self.lease_ends_s = None, None, math.inf

    # Messages.

    def capabilities(self) -> Capabilities:
        return Capabilities(
            contract_version=CONTRACT_VERSION,
            engine="vllm",
            engine_version="0.32.0",
            plugin_version="0.1.0",
            boot_id=self.boot_id,
            model="fake",
            method="specctl_suffix",
            controllable=True,
            num_speculative_tokens_legal=self.legal,
            decode_batch_max=self.decode_batch_max,
            context_max_tokens=4096,
            decode_batch_buckets=self.buckets.uppers,
            rows_max=64,
            lease_max_s=3600.0,
            has_shadow_acceptance=self.has_shadow,
            min_token_prob=self.min_token_prob,
            class_limits_max=self.class_limits_max,
        )

    def applied(self) -> AppliedTable:
        has_lease = self.lease_s is not None and self.state is TableState.LIVE
        return AppliedTable(
            contract_version=CONTRACT_VERSION,
            boot_id=self.boot_id,
            version=self.version,
            state=self.state,
            method="specctl_suffix",
            rows=self.rows,
            fallback_num_speculative_tokens=self.fallback,
            lease_s=self.lease_s,
            lease_remaining_s=max(self.lease_ends_s - self.time_s, 0.0) if has_lease else None,
            owner=self.owner,
            reason=self.reason,
            age_s=self.time_s - self.applied_s,
            ranks_behind=self.ranks_behind,
            class_limits=self.class_limits,
        )

    def telemetry(self) -> dict[str, Any]:
        cells = []
        for (bucket, tokens, has_prefill), cell in self.cells.items():
            low, high = self.buckets.bounds(bucket)
            cells.append(
                {
                    "decode_batch_from": low,
                    "decode_batch_to": high,
                    "num_speculative_tokens": tokens,
                    "has_prefill": has_prefill,
                    **vars(cell),
                }
            )
        batch = self.traffic.decode_batch if self.traffic else 0
        return {
            "contract_version": CONTRACT_VERSION,
            "boot_id": self.boot_id,
            "uptime_s": self.time_s,
            "table_version": self.version,
            "table_state": self.state,
            "num_speculative_tokens": self.tokens_at(max(batch, 1)),
            "running": batch,
            "waiting": 0,
            "decoding": batch,
            "kv_cache_used_ratio": 0.1,
            "cells": cells,
            "shadow": {
                "drafts": self.shadow_drafts,
                "drafted_at": self.shadow_drafted,
                "accepted_at": self.shadow_accepted,
            }
            if self.has_shadow
            else None,
        }

    def metrics(self) -> str:
        drafts = sum(cell.drafted_at[0] for cell in self.cells.values())
        accepted_at = [sum(cell.accepted_at[j] for cell in self.cells.values()) for j in range(MAX_TOKENS)]
        drafted = sum(sum(cell.drafted_at) for cell in self.cells.values())
        labels = 'engine="0",model_name="g"'
        lines = [
            "# HELP vllm:num_requests_running Number of requests in model execution batches.",
            "# TYPE vllm:num_requests_running gauge",
            f"vllm:num_requests_running{{{labels}}} {self.traffic.decode_batch if self.traffic else 0}.0",
            f"vllm:num_requests_waiting{{{labels}}} 0.0",
            f'vllm:num_requests_waiting_by_reason{{{labels},reason="capacity"}} 0.0',
            f"vllm:spec_decode_num_drafts_total{{{labels}}} {drafts}.0",
            f"vllm:spec_decode_num_drafts_created{{{labels}}} 1.7e+09",
            f"vllm:spec_decode_num_draft_tokens_total{{{labels}}} {drafted}.0",
            f"vllm:spec_decode_num_accepted_tokens_total{{{labels}}} {sum(accepted_at)}.0",
            f"vllm:generation_tokens_total{{{labels}}} {self.emitted}.0",
            f"vllm:iteration_tokens_total_count{{{labels}}} {sum(c.steps for c in self.cells.values())}",
            f"vllm:kv_cache_usage_perc{{{labels}}} 0.1",
        ]
        lines += [
            f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position="{j}"}} {value}.0'
            for j, value in enumerate(accepted_at)
        ]
        return "\n".join(lines) + "\n" + self.more_metrics()

    def put(self, body: bytes) -> tuple[int, dict[str, Any]]:
        try:
            put = TablePut.model_validate_json(body)
        except ValidationError as error:
            return 400, {"error": "malformed", "message": str(error), "refusals": []}
        self.puts.append(put)
        is_leased = self.state is TableState.LIVE and self.lease_s is not None
        if is_leased and self.owner != put.owner:
            left_s = self.lease_ends_s - self.time_s
            return 409, {"error": "lease_held", "message": "", "owner": self.owner, "remaining_s": left_s}
        if put.base_version != self.version:
            return 409, {"error": "version_conflict", "message": "", "version": self.version}
        try:
            SpeculationTable(put.rows, self.capabilities())
            if refused := limit_refusals(put.class_limits, self.capabilities()):
                raise TableError(refused)
        except TableError as error:
            refusals = [refusal.model_dump() for refusal in error.refusals]
            return 422, {"error": "table_refused", "message": str(error), "refusals": refusals}
        self.version += 1
        self.state, self.owner, self.reason = TableState.LIVE, put.owner, put.reason
        self.rows = uniform_rows(self.start_tokens) if self.lies else put.rows
        self.class_limits = put.class_limits
        self.lease_s, self.fallback = put.lease_s, put.fallback_num_speculative_tokens
        self.lease_ends_s = math.inf if put.lease_s is None else self.time_s + put.lease_s
        self.applied_s = self.time_s
        answer = self.applied()
        if self.lies:
            answer = answer.model_copy(update={"rows": put.rows})
        return 200, answer.model_dump(mode="json")

    def answer(self, method: str, path: str, headers: Any, body: bytes) -> tuple[int, bytes]:
        if self.delay_s:
            time.sleep(self.delay_s)
        if path in self.forced_status:
            return self.forced_status[path], self.forced_body
        if path == "/metrics":
            return 200, self.metrics().encode()
        if path == "/version":
            return 200, b'{"version": "0.32.0"}'
        if not path.startswith(ROUTE_PREFIX) or not self.has_plugin:
            return 404, b'{"detail": "Not Found"}'
        if self.token is not None and headers.get("Authorization") != f"Bearer {self.token}":
            return 401, b'{"error": "unauthorized", "message": "wrong token"}'
        name = path.removeprefix(f"{ROUTE_PREFIX}/")
        if (method, name) == ("PUT", "table"):
            status, told = self.put(body)
            return status, json.dumps(told).encode()
        if name == "capabilities":
            return 200, self.capabilities().model_dump_json().encode()
        if name == "table":
            return 200, self.applied().model_dump_json().encode()
        if name == "telemetry":
            return 200, json.dumps(self.telemetry()).encode()
        return 404, b"{}"

    def respond(self, method: str, path: str, headers: Any, body: bytes) -> tuple[int, bytes]:
        with self.lock:
            self.requests.append((method, path))
            status, answer = self.answer(method, path, headers, body)
        return status, self.mangle.get(path, bytes)(answer)
